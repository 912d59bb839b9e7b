"""What `dr bench recommend` prints of the choice: its model's sensitivity, row and command."""

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dr_cli.costs import print_recommendation, read_qualities
from dr_cli.errors import CommandError
from dr_experiments.deployment_cost import FixedPart
from dr_experiments.measured import measured
from dr_experiments.recommend import deployment_of
from dr_experiments.records import RequestRecord, write_jsonl
from dr_experiments.sweep.plan import Entry
from inference_image.model_spec import load_model_spec
from tests.unit.dr_experiments.record_fakes import answered

ROW = "dr-serverless-mobilenet-1024"
REALTIME = "dr-realtime-mobilenet-m5-xlarge"


@pytest.fixture(autouse=True)
def checkout(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(repository)
    return repository


@pytest.fixture
def demo(repository: Path) -> str:
    """Digest of the committed package."""
    return load_model_spec(repository / "model_artifacts/mobilenet-demo").sha256


def variant(name: str, runtime: str = "litert", **changes: Any) -> list[RequestRecord]:
    """Records as a sweep leaves them."""
    entry = Entry.named(name, runtime=runtime)
    assert entry is not None
    row = entry.deployment
    size = {"memory_mib": row.memory_mib, "instance_type": row.instance_type}
    return answered(name, [0.1] * 5, mode=row.mode.value, runtime=runtime, **{**size, **changes})


def written(folder: Path, records: Sequence[RequestRecord]) -> Path:
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "requests.jsonl", records)
    return folder


def recommended(
    run: Path, capsys: pytest.CaptureFixture[str], *, region: str = "us-east-1", **options: Any
) -> str:
    defaults = {"min_sensitivity": None, "data": True}
    print_recommendation(
        [run], p99=None, requests_per_month=20_000, hours="always", region=region,
        fixed=FixedPart(), prices_file=None, **{**defaults, **options},
    )  # fmt: skip
    return capsys.readouterr().out


def command_of(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("deploy ")]
    return shlex.split(line.removeprefix("deploy "))


def test_the_command_deploys_to_the_region_that_was_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demo: str
) -> None:
    run = written(tmp_path / "run", answered(ROW, [0.1] * 5, model_sha256=demo))
    text = recommended(run, capsys, region="sa-east-1", data=False)
    assert " in sa-east-1 " in text
    assert command_of(text) == [
        "AWS_REGION=sa-east-1", "npx", "cdk", "deploy", ROW,
        "-c", "modes=serverless", "-c", "models=mobilenet",
    ]  # fmt: skip
    assert command_of(recommended(run, capsys))[0] == "AWS_REGION=us-east-1"


def test_a_variant_of_a_sweep_is_deployed_with_its_flavour_and_its_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep's own folder has the package; elsewhere a person has to name it."""
    sweep = tmp_path / "my sweep"
    package = sweep / "packages/saved/mobilenet-demo"
    package.mkdir(parents=True)
    (package / "model.json").write_text("{}")
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    records = variant(f"{ROW}+tensorflow+saved", "tensorflow", model_id="mine", model_sha256=digest)
    for run in (written(sweep, records), sweep / "requests.jsonl"):
        text = recommended(run, capsys)
        assert "row     Deployment(mode=Mode.SERVERLESS, model='mobilenet'" in text
        assert command_of(text)[4:] == [
            ROW, "-c", "modes=serverless", "-c", "models=mobilenet", "-c", "runtime=tensorflow",
            "-c", f"model-root={sweep / 'packages/saved'}",
        ]  # fmt: skip
        assert "FOLDER" not in text
    # The same records elsewhere, and a package that is another one by now.
    (package / "model.json").write_text("{ }")
    for run in (written(tmp_path / "copy", records), sweep):
        text = recommended(run, capsys)
        assert command_of(text)[-2:] == ["-c", "model-root=FOLDER"]
        assert (
            "FOLDER has to hold, under the name mobilenet-demo, the package that was measured "
            f"(mine, SHA-256 of its model.json {digest})." in text
        )


def test_what_the_app_deploys_anyway_needs_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demo: str
) -> None:
    records = variant(f"{REALTIME}+int8", model_sha256=demo)
    text = recommended(written(tmp_path / "run", records), capsys)
    assert command_of(text)[4:] == [REALTIME, "-c", "modes=realtime", "-c", "models=mobilenet"]
    assert "FOLDER" not in text
    records = variant(f"{REALTIME}+tensorflow", "tensorflow", model_sha256=demo)
    text = recommended(written(tmp_path / "run", records), capsys)
    assert command_of(text)[-2:] == ["-c", "runtime=tensorflow"]
    # A row that answered with another package than it would be deployed with.
    records = answered(REALTIME, [0.1] * 5, model_id="mine")
    text = recommended(written(tmp_path / "run", records), capsys)
    assert command_of(text)[-2:] == ["-c", "model-root=FOLDER"]
    assert "(mine, SHA-256 of its model.json abab" in text


def test_what_is_no_row_says_that_there_is_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = answered("my-endpoint", [0.1] * 5, mode="serverless", memory_mib=2048)
    text = recommended(written(tmp_path / "run", records), capsys)
    assert "my-endpoint is no row of the deployment matrix (stacks/matrix.py): there is" in text
    assert "deploy  " not in text


@pytest.mark.parametrize(
    ("runtime", "package"),
    [("litert", None), ("litert", "int8"), ("tensorflow", None), ("tensorflow", "saved")],
)
def test_an_entry_is_read_back_from_its_name(runtime: str, package: str | None) -> None:
    entry = Entry(row=ROW, runtime=runtime, package=package)
    assert Entry.named(entry.name, runtime=runtime) == entry
    assert Entry.named(entry.name) == entry


def test_a_label_may_be_a_flavours_word_and_other_names_are_no_entries() -> None:
    entry = Entry(row=ROW, package="tensorflow")
    assert Entry.named(entry.name, runtime="litert") == entry
    assert Entry.named(entry.name) == Entry(row=ROW, runtime="tensorflow")
    for name in ("", "+", f"{ROW}+", f"{ROW}+A", f"{ROW}+a+b", f"{ROW}+tensorflow+a+b", "x+int8"):
        assert Entry.named(name) is None, name
    assert Entry.named(f"{ROW}+tensorflow", runtime="onnx") is None
    (one,) = measured(answered("dr-ana-serverless-mobilenet-1024", [0.1], runtime="onnx"))
    assert deployment_of(one) == Entry(row=ROW)


def test_prices_of_a_variant_are_those_of_its_records(tmp_path: Path) -> None:
    (one,) = measured(variant(f"{ROW}+int8"))
    assert one.row is None
    assert one.setup is not None
    assert (one.setup.mode, one.setup.memory_mib) == ("serverless", 1024)


def test_the_sensitivity_is_that_of_the_very_package_that_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demo: str
) -> None:
    records = answered(ROW, [0.1] * 5, model_sha256=demo)
    run = written(tmp_path / "run", records)
    text = recommended(run, capsys, min_sensitivity=0.9)
    assert "(lower bound 0.986;" in text
    assert "digest" not in text
    other = [replace(record, model_sha256="deadbeef" * 8) for record in records]
    written(run, other)
    said = "its model is another mobilenet-demo than the one whose sensitivity is known"
    with pytest.raises(CommandError, match=rf"suitable\. {ROW}: {said}\."):
        recommended(run, capsys, min_sensitivity=0.9)
    capsys.readouterr()
    text = recommended(run, capsys)
    assert f"I{said[1:]}." in text
    assert "0.986" not in text


def test_records_without_a_digest_are_taken_for_the_only_package_of_that_id(
    tmp_path: Path,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = written(tmp_path / "run", answered(ROW, [0.1] * 5, model_sha256=None))
    text = recommended(run, capsys, min_sensitivity=0.9)
    assert "(lower bound 0.986;" in text
    assert (
        "Its records do not have the model's digest: it is taken for the mobilenet-demo whose "
        "sensitivity is known." in text
    )
    # Two packages of one id: nobody can tell which of them answered.
    monkeypatch.chdir(tmp_path)
    own = repository / "model_artifacts/mobilenet-demo/model.json"
    for name in ("first", "second"):
        (tmp_path / "model_artifacts" / name).mkdir(parents=True)
        shutil.copy(own, tmp_path / "model_artifacts" / name)
    document = json.loads(own.read_text()) | {"notice": "trained again"}
    (tmp_path / "model_artifacts/second/model.json").write_text(json.dumps(document))
    assert len({one.model_sha256 for one in read_qualities(Path("model_artifacts"))}) == 2
    with pytest.raises(CommandError, match="there are 2 packages of the id mobilenet-demo"):
        recommended(run, capsys, min_sensitivity=0.9)


def test_without_the_folder_of_packages_the_reason_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = written(tmp_path / "run", answered(ROW, [0.1] * 5))
    said = r"is not known \(\./model_artifacts was looked for, and is not there\)"
    with pytest.raises(CommandError, match=said):
        recommended(run, capsys, min_sensitivity=0.9)


@pytest.mark.parametrize("name", ["local-modes", "local-study"])
def test_the_committed_records_are_of_the_models_that_the_text_says(
    name: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = recommended(repository / "docs/reports" / name, capsys)
    assert "is the cheapest of" in text
    assert "its model is another" not in text.lower()
    assert ("lower bound 0.986" in text) == (name == "local-modes")
    assert ("The sensitivity of its model is not known." in text) == (name == "local-study")
    assert ("model-root=FOLDER" in text) == (name == "local-study")
