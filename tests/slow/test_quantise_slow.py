"""What needs TensorFlow of `dr model quantise` and `dr model import`.

Every case runs in the training environment's interpreter, as in `test_training_slow.py`; one
script trains a tiny network once and writes what the cases look at.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inference_image.explain import DenseHead
from inference_image.model_package import pack_model
from inference_image.model_spec import load_model_spec, verify_files
from inference_image.predictor import Predictor

MAKE = Path(__file__).parent / "tiny_network.py"


@pytest.fixture(scope="module")
def training_python(repository: Path) -> Path:
    default = repository / ".venv-training" / "bin" / "python"
    python = Path(os.environ.get("DR_TRAINING_PYTHON", default))
    if not python.exists():
        pytest.fail(f"no training environment at {python}; set DR_TRAINING_PYTHON")
    return python


@pytest.fixture(scope="module")
def made(
    training_python: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The folder that the script filled, and the facts that it printed."""
    folder = tmp_path_factory.mktemp("tiny")
    done = subprocess.run(
        [str(training_python), str(MAKE), str(folder)],
        cwd=repository,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(1800)
def test_a_saved_model_holds_each_weight_once(made: tuple[Path, dict[str, Any]]) -> None:
    facts = made[1]["saved_model"]
    assert 1.0 < facts["bytes"] / facts["raw_bytes"] <= 1.15
    assert facts["outputs"] == ["features", "logits"]
    assert facts["gap"] < 1e-5
    assert facts["same_weights"]
    assert "fingerprint.pb" not in facts["files"]


@pytest.mark.timeout(1800)
def test_each_variant_answers_as_the_network_does(made: tuple[Path, dict[str, Any]]) -> None:
    gaps, sizes = made[1]["variants"]["gaps"], made[1]["variants"]["bytes"]
    assert set(gaps) == {"f32", "float16", "dynamic-range", "int8"}
    assert gaps["f32"] < 1e-4
    assert gaps["float16"] < 0.01
    assert gaps["dynamic-range"] < 0.1
    assert gaps["int8"] < 0.2
    assert sizes["int8"] < sizes["float16"] < sizes["f32"]
    assert made[1]["variants"]["int8_input"] == "uint8"


@pytest.mark.timeout(1800)
def test_the_bytes_of_int8_reach_the_fast_part_of_the_engine_and_nothing_else_changes(
    made: tuple[Path, dict[str, Any]],
) -> None:
    facts = made[1]["variants"]
    assert facts["first_steps"]["plain"][0] == "QUANTIZE"
    assert facts["first_steps"]["written"] == ["DEQUANTIZE", "QUANTIZE"]
    assert facts["same_answers"]
    assert not facts["changed_twice"]
    assert not facts["float_model_changed"]


@pytest.mark.timeout(1800)
def test_rounding_in_the_loop_foresees_int8_and_repairs_it(
    made: tuple[Path, dict[str, Any]],
) -> None:
    facts = made[1]["aware"]
    assert facts["fold_gap"] < 1e-4
    # The simulation is far nearer to the int8 model than the f32 network is.
    assert facts["simulated_gap"] < 0.5 * facts["plain_gap"]
    assert facts["accuracy"]["f32"] > 0.85
    assert facts["accuracy"]["int8"] < facts["accuracy"]["f32"] - 0.1
    assert facts["accuracy"]["int8_aware"] > facts["accuracy"]["int8"] + 0.05


def _side(python: Path, repository: Path, function: str, **arguments: Any) -> tuple[int, str, str]:
    """What `dr` hands over to the training environment: exit code, output and errors."""
    done = subprocess.run(
        [str(python), "-m", "dr_cli.tensorflow_side", function, json.dumps(arguments)],
        cwd=repository,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("dr:")]
    return done.returncode, done.stdout, "\n".join(errors)


def _import(python: Path, repository: Path, source: Path, out: Path, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "source": str(source),
        "out": str(out),
        "model_id": None,
        "labels": "0,1,2,3,4",
        "scaling": "0..255",
        "channel_order": "rgb",
        "preparation": "none",
        "threshold": 0.5,
        "licence": None,
        "images": None,
    }
    return _side(python, repository, "dr_cli.importing:import_package", **{**arguments, **changes})


@pytest.mark.timeout(1800)
def test_a_keras_file_becomes_a_package_with_heat_maps_and_is_quantised_and_gated(
    made: tuple[Path, dict[str, Any]], training_python: Path, repository: Path, tmp_path: Path
) -> None:
    folder = made[0]
    package = tmp_path / "package"
    code, said, errors = _import(training_python, repository, folder / "theirs.keras", package)
    assert (code, errors) == (0, "")
    assert "Sanity check" in said
    assert "no heat map" not in said
    spec = load_model_spec(package)
    assert spec.outputs == {"logits": "logits", "feature_map": "features"}
    head = DenseHead.load(package / "head.npz")
    assert head.kernels[-1].shape == (16, 5)
    archives = [tmp_path / name for name in ("one.tar.gz", "two.tar.gz")]
    for archive in archives:
        pack_model(package, archive)
    assert archives[0].read_bytes() == archives[1].read_bytes()

    from dr_training.data.readers import read
    from dr_training.data.splits import published_split, write_split
    from dr_training.data.table import write_table

    table = read("npz", folder / "pictures.npz").table
    write_table(table, tmp_path / "table.csv")
    write_split(published_split(table, "published_split"), tmp_path / "split.csv")
    code, said, errors = _side(
        training_python,
        repository,
        "dr_cli.quantise:quantise_package",
        package=str(package),
        table=str(tmp_path / "table.csv"),
        split=str(tmp_path / "split.csv"),
        out=str(tmp_path / "variants"),
        kinds=["int8"],
        representatives=100,
        sensitivity=0.9,
        specificity=0.9,
        margin=0.05,
        draws=50,
        network=None,
        epochs=1,
    )
    assert errors == ""
    spec = load_model_spec(tmp_path / "variants" / "int8")
    verify_files(spec, tmp_path / "variants" / "int8")
    verdict = spec.raw["gate"]["verdict"]
    assert verdict in ("passed", "refused")
    assert code == (0 if verdict == "passed" else 1)
    assert spec.raw["variant"]["from"]["id"] == "package"
    # The head of an imported network repeats what the engine says.
    Predictor.load(tmp_path / "variants" / "int8", threads=1, runtime="litert").warm_up()
    summary = json.loads((tmp_path / "variants" / "variants.json").read_text())
    assert [row["kind"] for row in summary] == ["f32", "int8"]
    assert summary[1]["model_bytes"] < summary[0]["model_bytes"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("source", "changes", "sentence"),
    [
        ("lambda.keras", {}, "holds a Lambda layer"),
        ("lambda.h5", {}, "holds a Lambda layer"),
        ("theirs.keras", {"labels": "0,1"}, "the labels, in the order"),
        ("theirs.keras", {"labels": "referable"}, "but 1 labels were given"),
        ("theirs.keras", {"scaling": None}, "give --scaling"),
        ("theirs.keras", {"scaling": "0..2"}, "the scaling is one of"),
        ("pictures.npz", {}, "is none of these"),
    ],
)
def test_what_cannot_be_wrapped_is_said_in_one_sentence_and_leaves_nothing(
    source: str,
    changes: dict[str, Any],
    sentence: str,
    made: tuple[Path, dict[str, Any]],
    training_python: Path,
    repository: Path,
    tmp_path: Path,
) -> None:
    code, _, errors = _import(
        training_python, repository, made[0] / source, tmp_path / "out", **changes
    )
    assert code == 1
    assert errors.startswith("dr: ")
    assert sentence in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("labels", ["0,1,2,3,4", "4,3,2,1,0"])
def test_a_saved_model_is_wrapped_with_its_classes_in_the_order_of_the_grades(
    labels: str,
    made: tuple[Path, dict[str, Any]],
    training_python: Path,
    repository: Path,
    tmp_path: Path,
) -> None:
    package = tmp_path / "package"
    code, said, errors = _import(
        training_python, repository, made[0] / "theirs", package, labels=labels
    )
    assert (code, errors) == (0, "")
    assert "no heat map" in said
    # The same picture, asked with the classes as they are and turned round.
    ask = (
        "import sys, io, numpy as np; from pathlib import Path; from PIL import Image;"
        "from inference_image.predictor import Predictor;"
        "pixels = np.load(sys.argv[2])['test_images'][0]; stream = io.BytesIO();"
        "Image.fromarray(pixels).save(stream, 'PNG');"
        "print(Predictor.load(Path(sys.argv[1]), threads=1).predict(stream.getvalue()).grade)"
    )
    grades = []
    for folder in (package, made[0] / "straight"):
        if not folder.exists():
            _import(training_python, repository, made[0] / "theirs", folder)
        done = subprocess.run(
            [str(training_python), "-c", ask, str(folder), str(made[0] / "pictures.npz")],
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        grades.append(int(done.stdout.split()[-1]))
    assert grades[0] == (grades[1] if labels == "0,1,2,3,4" else 4 - grades[1])


@pytest.mark.timeout(1800)
def test_the_command_as_typed_wraps_a_keras_file(
    made: tuple[Path, dict[str, Any]], training_python: Path, repository: Path, tmp_path: Path
) -> None:
    command = ["model", "import", str(made[0] / "theirs.keras"), "--out", str(tmp_path / "package")]
    words = "--labels 0,1,2,3,4 --scaling 0..255 --channel-order rgb --preparation none"
    done = subprocess.run(
        [str(repository / ".venv" / "bin" / "dr"), *command, *words.split()],
        cwd=repository,
        env={**os.environ, "DR_TRAINING_PYTHON": str(training_python)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    spec = load_model_spec(tmp_path / "package")
    verify_files(spec, tmp_path / "package")
    assert spec.outputs == {"logits": "logits", "feature_map": "features"}
