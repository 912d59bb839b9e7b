"""What needs TensorFlow: parameter counts, conversion, and the whole training path.

The training environment is separate from the one that runs the tests, so each case runs in its
interpreter: `$DR_TRAINING_PYTHON`, or `.venv-training/bin/python` in the repository.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from inference_image.explain import DenseHead
from inference_image.model_spec import load_model_spec, verify_files

# The f32 and the int8 package of one training, side by side on drawn photographs.
COMPARE = """
import json
from pathlib import Path
from dr_training.data.readers import read
from dr_training.drawing import draw_fundus
from dr_training.gate import gate, record_verdict
from dr_training.scoring import score_package
from inference_image.model_spec import load_model_spec
folder = Path({folder!r})
(folder / "drawn").mkdir()
for seed in range(4):
    for grade in range(5):
        data = draw_fundus(seed, grade, 300).jpeg_bytes()
        (folder / "drawn" / f"grade{{grade}}-seed{{seed}}.jpg").write_bytes(data)
photographs = read("drawn", folder / "drawn").table.photographs
specs = [load_model_spec(folder / name) for name in ("f32", "two")]
point = "high_sensitivity"
verdict = gate(
    *(score_package(folder / name, photographs) for name in ("f32", "two")),
    thresholds=tuple(spec.operating_point(point).threshold for spec in specs),
    operating_point=point,
    draws=50,
)
record_verdict(folder / "two", verdict, reference=specs[0], data="drawn photographs")
print(json.dumps(verdict.document))
"""


@pytest.fixture(scope="module")
def training_python(repository: Path) -> Path:
    default = repository / ".venv-training" / "bin" / "python"
    python = Path(os.environ.get("DR_TRAINING_PYTHON", default))
    if not python.exists():
        pytest.fail(f"no training environment at {python}; set DR_TRAINING_PYTHON")
    return python


def _run(python: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [str(python), *arguments],
        cwd=cwd,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("network", "parameters"), [("mobilenet", 3_377_221), ("vgg19", 20_107_205)]
)
def test_networks_have_the_parameters_of_the_studies(
    network: str, parameters: int, training_python: Path, repository: Path
) -> None:
    code = (
        "from dr_training.networks import build_network;"
        f"print(build_network({network!r}, input_size_px=224).count_params())"
    )
    assert int(_run(training_python, "-c", code, cwd=repository).split()[-1]) == parameters


@pytest.mark.timeout(1800)
def test_the_conversion_keeps_the_answers(training_python: Path, repository: Path) -> None:
    code = """
import numpy as np, keras, json
from dr_training.networks import build_network
from dr_training.quantise import Runner, convert
keras.utils.set_random_seed(1)
network = build_network("mobilenet", input_size_px=64, alpha=0.25)
pixels = np.random.default_rng(0).integers(0, 256, (8, 64, 64, 3)).astype(np.uint8)
for _ in range(4):
    network(pixels.astype(np.float32), training=True)
model, scale = convert(network, size_px=64, calibration=pixels)
floating, _ = convert(network, size_px=64, calibration=None)
expected = network(pixels.astype(np.float32), training=False)["logits"].numpy()
gap = float(np.abs(Runner(floating)(pixels)[0] - expected).max())
size = float(np.abs(expected).max())
print(json.dumps([gap / size, scale.scale, scale.zero_point, len(model) < len(floating) / 2]))
"""
    gap, scale, zero_point, smaller = json.loads(
        _run(training_python, "-c", code, cwd=repository).splitlines()[-1]
    )
    assert gap < 1e-3
    assert (scale, zero_point, smaller) == (1.0, 0, True)


@pytest.mark.timeout(1800)
def test_the_documented_command_writes_a_package_that_serves(
    training_python: Path, repository: Path, tmp_path: Path
) -> None:
    arguments = ["-m", "dr_training.train_demo", "--quick", "--cache", str(tmp_path / "cache")]
    for out in ("one", "two"):
        # The second run finds the backbone in the cache and must give the same package.
        output = _run(
            training_python,
            *arguments,
            "--out",
            str(tmp_path / out),
            "--id",
            "quick",
            *(["--float-out", str(tmp_path / "f32")] if out == "two" else []),
            cwd=repository,
        )
    assert "patches: weights from" in output
    specs = [load_model_spec(tmp_path / out) for out in ("one", "two")]
    assert specs[0].sha256 == specs[1].sha256
    verify_files(specs[0], tmp_path / "one")
    assert specs[0].raw["network"] == {"name": "mobilenet", "alpha": 0.25, "parameters": 268_597}
    assert DenseHead.load(tmp_path / "one" / "head.npz").kernels[0].shape == (256, 128)
    compared = _run(training_python, "-c", COMPARE.format(folder=str(tmp_path)), cwd=repository)
    document = json.loads(compared.splitlines()[-1])
    # Ten referable photographs cannot show that none is lost, and the gate says so.
    assert document["verdict"] in ("insufficient data", "refused")
    assert document["sensitivity"]["least_images"] == 133
    assert document["grade_agreement"] > 0.5
    assert load_model_spec(tmp_path / "two").raw["gate"]["reference"]["id"] == "quick-f32"


@pytest.mark.timeout(1800)
def test_a_random_package_is_the_same_each_time(
    training_python: Path, repository: Path, tmp_path: Path
) -> None:
    digests = []
    for out in ("one", "two"):
        _run(
            training_python,
            *("-m", "dr_training.random_package", "--network", "mobilenet", "--alpha", "0.25"),
            *("--input-size-px", "96", "--id", "random", "--out", str(tmp_path / out)),
            cwd=repository,
        )
        digests.append(load_model_spec(tmp_path / out).sha256)
    assert digests[0] == digests[1]
