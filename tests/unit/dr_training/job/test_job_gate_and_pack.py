"""The steps `gate` and `pack`: what they write, and which models and records they refuse."""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dr_training.data.records import RecordFile, RecordWriter, decode_example, encode_example
from dr_training.job import decision, gate, prepare
from dr_training.job.__main__ import main
from inference_image import model_package
from inference_image.model_package import pack_model
from inference_image.model_spec import load_model_spec
from inference_image.predictor import Predictor
from tests.unit.dr_training.job.conftest import PACKAGE, PATIENT, SIZE_PX, Job

NO_DEMANDS = ["--min-sensitivity", "0", "--min-specificity", "0", "--min-kappa", "-1"]
FEW = ["--min-photographs", "30"]


@pytest.fixture
def step(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a step; gives its exit code, and its log or the reason that SageMaker shows."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setenv("DR_ML_ROOT", str(job.root))
        code = main(words)
        log = "".join(capsys.readouterr())
        assert PATIENT not in log
        if not code:
            return 0, log
        reason = (job.root / "output" / "message").read_text()
        assert PATIENT not in reason
        assert "Traceback" not in log
        return code, reason

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Records of 150 patients, 38 of them to judge on, a training's archive and its verdict."""
    job = Job(tmp_path_factory.mktemp("made") / "ml")
    job.put_photographs(150)
    arguments = ["--prepared-already", "--size-px", str(SIZE_PX), "--workers", "1"]
    prepare.run(job.root, [*arguments, "--shares", "0.5,0.25,0.25"])
    job.hand_on()
    job.archive(job.trained_files())
    gate.run(job.root, [*NO_DEMANDS, *FEW])
    job.hand_on()
    shutil.rmtree(job.places.output)
    return job


@pytest.fixture
def ready(job: Job, made: Job) -> Job:
    shutil.copytree(made.root, job.root)
    return job


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thousand draws of a bootstrap give is looked at elsewhere."""

    def decide(*given: Any, **choices: Any) -> dict[str, Any]:
        return decision.decide(*given, **choices, draws=50)

    monkeypatch.setattr(gate, "decide", decide)


def _judged(ready: Job, step: Any, *arguments: str) -> dict[str, Any]:
    code, log = step("gate", *(arguments or (*NO_DEMANDS, *FEW)))
    assert code == 0, log
    document = ready.gate_json()
    ready.hand_on()
    return document


def test_the_verdict_names_model_and_records_and_holds_the_figures(ready: Job, step: Any) -> None:
    document = _judged(ready, step)
    spec = load_model_spec(PACKAGE)
    assert document["passed"] is True
    assert document["model"] == {"id": "tiny-prepared", "sha256": spec.sha256}
    manifest = (ready.places.records / "manifest.json").read_bytes()
    assert document["records"]["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert len(document["records"]["test_sha256"]) == 64
    assert document["operating_point"] == {"name": "high_sensitivity", "threshold": 0.1}
    assert document["n"] == document["patients"] == 38
    for name in ("sensitivity", "specificity", "quadratic_weighted_kappa", "referable_auc"):
        assert document[name]["low"] <= document[name]["value"] <= document[name]["high"]
    assert sum(map(sum, document["confusion"]["counts"])) == 38
    assert document["not_judged"] == {"ungradable": 0, "unreadable": 0}
    assert PATIENT not in json.dumps(document)


def test_the_model_answers_as_the_service_does(ready: Job, step: Any) -> None:
    document = _judged(ready, step)
    predictor = Predictor.load(PACKAGE, threads=1)
    truth, positive = [], []
    for path in ready.places.records.glob("test-*.tfrecord"):
        for record in RecordFile(path):
            features = decode_example(record)
            encoded = features["image/encoded"][0]
            assert isinstance(encoded, bytes)
            # A file that the service prepares by doing nothing to it.
            answer = predictor.predict(encoded)
            truth.append(features["image/class/label"][0])
            positive.append(answer.referable.positive)
    right = [called for grade, called in zip(truth, positive, strict=True) if int(grade) >= 2]
    assert document["sensitivity"]["n"] == len(right)
    assert document["sensitivity"]["right"] == sum(map(bool, right))


def test_a_model_that_only_refers_is_judged_and_packed_without_a_kappa(
    job: Job, step: Any, repository: Path, tmp_path: Path
) -> None:
    package = tmp_path / "refers"
    committed = repository / "model_artifacts" / "referral-demo"
    document = json.loads((committed / "model.json").read_text("utf-8"))
    package.mkdir()
    for name in document["files"]:
        shutil.copy(committed / name, package)
    # Of pictures that are prepared already.
    document |= {"preprocessing": [], "quality_gate": None}
    (package / "model.json").write_text(json.dumps(document), encoding="utf-8")
    job.put_photographs(150, size_px=224)
    arguments = ["--prepared-already", "--size-px", "224", "--workers", "1"]
    prepare.run(job.root, [*arguments, "--shares", "0.5,0.25,0.25"])
    job.hand_on()
    job.archive(job.trained_files(package))
    code, said = step("gate", *NO_DEMANDS, *FEW)
    assert code != 0
    assert "the model only refers and has no kappa: leave --min-kappa out" in said
    verdict = _judged(job, step, *FEW, "--min-sensitivity", "0", "--min-specificity", "0")
    assert verdict["passed"] is True
    assert verdict["minimums"]["kappa"] is None
    assert verdict["sensitivity"]["low"] <= verdict["sensitivity"]["value"]
    assert "quadratic_weighted_kappa" not in verdict
    code, log = step("pack")
    assert code == 0, log


def test_a_model_that_is_not_good_enough_is_no_fault(ready: Job, step: Any) -> None:
    document = _judged(
        ready, step, *FEW, "--min-sensitivity", "0", "--min-specificity", "0", "--min-kappa", "0.9"
    )
    assert document["passed"] is False
    assert document["verdict"] == "refused"
    assert document["minimums"]["kappa"] == 0.9
    (reason,) = document["reasons"]
    assert "the lower bound is below 0.9" in reason
    code, said = step("pack")
    assert code == 1
    assert f"does not say that model tiny-prepared passed: {reason}" in said
    assert not ready.places.models.exists()


def test_too_few_photographs_are_not_passed(ready: Job, step: Any) -> None:
    document = _judged(ready, step, *NO_DEMANDS)
    assert document["passed"] is False
    assert document["verdict"] == "insufficient data"
    (reason,) = document["reasons"]
    assert reason.startswith("insufficient data: 38 photographs in the test part, at least 100")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: --min-sensitivity, --min-specificity"),
        (["--min-sensitivity", "85", "--min-specificity", "0.8"], "a share from 0 to below 1"),
        (["--min-sensitivity", "nan", "--min-specificity", "0.8"], "got nan"),
        (["--min-sensitivity", "0.8", "--min-specificity", "high"], "invalid float value: 'high'"),
        ([*NO_DEMANDS, "--min-photographs", "5"], "at least 30, fewer show nothing; got 5"),
        ([*NO_DEMANDS, "--min-auc", "0.8"], "unrecognized arguments: --min-auc 0.8"),
    ],
)
def test_wrong_minimums_are_refused_before_anything_is_read(
    step: Any, arguments: list[str], said: str
) -> None:
    code, reason = step("gate", *arguments)
    assert code == 2
    assert said in reason


def test_a_model_that_grades_is_asked_for_its_kappa(ready: Job, step: Any) -> None:
    code, reason = step("gate", "--min-sensitivity", "0.8", "--min-specificity", "0.8")
    assert code == 2
    assert "give --min-kappa" in reason


def test_records_that_the_model_was_not_trained_on_are_refused(ready: Job, step: Any) -> None:
    ready.archive(ready.trained_files(records_sha256="0" * 64))
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert "was trained on other records (manifest 000000000000…)" in reason
    assert not ready.places.judged.exists()


def test_a_training_that_does_not_say_what_it_read_is_refused(ready: Job, step: Any) -> None:
    ready.archive({**ready.trained_files(), "training.json": b"{}"})
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert "does not say which records it was trained on" in reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size_px", 32),
        ("preprocessing", [{"step": "resize_area"}]),
        ("quality_gate", {"min_sharpness": 0.5}),
    ],
)
def test_a_model_that_prepares_in_another_way_is_refused(
    ready: Job, step: Any, key: str, value: Any
) -> None:
    path = ready.places.records / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), key: value}))
    ready.archive(ready.trained_files())
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert "prepares photographs in another way than these records were" in reason


def test_a_shard_that_was_exchanged_is_refused(ready: Job, step: Any) -> None:
    shard = next(ready.places.records.glob("test-*.tfrecord"))
    records = list(RecordFile(shard))
    with RecordWriter(shard) as writer:
        for record in (records[1], records[0], *records[2:]):
            writer.write(record)
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert f"{shard.name} is not the file that manifest.json names" in reason


def test_a_damaged_record_is_named_by_file_and_index(ready: Job, step: Any) -> None:
    shard = next(ready.places.records.glob("test-*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert f"{shard.name} record 0 is damaged" in reason


def test_a_patient_in_two_parts_of_the_records_is_refused_and_not_named(
    ready: Job, step: Any
) -> None:
    shard = next(ready.places.records.glob("test-*.tfrecord"))
    other = decode_example(RecordFile(next(ready.places.records.glob("train-*.tfrecord")))[0])
    records = [decode_example(one) for one in RecordFile(shard)]
    records[5]["image/patient"] = other["image/patient"]
    with RecordWriter(shard) as writer:
        for features in records:
            writer.write(encode_example(features))
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert "the parts leak into each other" in reason
    assert "a patient is in test and train" in reason


def test_records_without_a_test_part_are_not_passed(ready: Job, step: Any) -> None:
    path = ready.places.records / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["parts"]["test"]
    path.write_text(json.dumps(manifest))
    ready.archive(ready.trained_files())
    document = _judged(ready, step)
    assert document["n"] == 0
    assert document["verdict"] == "insufficient data"


def test_records_of_an_earlier_version_have_no_digests(ready: Job, step: Any) -> None:
    path = ready.places.records / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for shard in manifest["parts"]["test"]["shards"]:
        del shard["sha256"]
    path.write_text(json.dumps(manifest))
    ready.archive(ready.trained_files())
    code, reason = step("gate", *NO_DEMANDS)
    assert code == 1
    assert "has no digests of its files; prepare the records again" in reason


def test_an_answer_that_is_not_a_number_is_refused(
    ready: Job, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = Predictor.probabilities_of
    calls = []

    def sometimes(self: Predictor, pixels: Any) -> tuple[float, ...]:
        from inference_image.predictor import EngineError

        calls.append(1)
        if len(calls) == 3:
            raise EngineError("model tiny-prepared produced a value that is not a number")
        return predict(self, pixels)

    monkeypatch.setattr(Predictor, "probabilities_of", sometimes)
    document = _judged(ready, step)
    assert document["verdict"] == "refused"
    assert document["reasons"] == ["the model gave no number for 1 of 38 photographs"]


# Archives that nobody should unpack, and what is said of them: (name, content, link) per member.
HOSTILE = {
    "a path that leaves": (("../outside", b"x", ""), "lies outside the package"),
    "an absolute path": (("/tmp/outside", b"x", ""), "lies outside the package"),
    "a link": (("package/model.json", b"", "/etc/passwd"), "is a link or a device"),
    "twice the same": (("training.json", b"{}", ""), "twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("words", [["gate", *NO_DEMANDS], ["pack"]])
def test_hostile_archives_are_refused(ready: Job, step: Any, words: list[str], name: str) -> None:
    (member, content, link), said = HOSTILE[name]
    files = ready.trained_files()
    if link:
        files.pop(member)
    ready.archive(files)
    plain = gzip.decompress(ready.places.model_archive.read_bytes())
    stream = io.BytesIO(plain)
    with tarfile.open(fileobj=stream, mode="a") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        if link:
            info.type, info.linkname = tarfile.SYMTYPE, link
        tar.addfile(info, io.BytesIO(content))
    ready.places.model_archive.write_bytes(gzip.compress(stream.getvalue()))
    code, reason = step(*words)
    assert code == 1
    assert said in reason
    assert not ready.places.models.exists()


@pytest.mark.parametrize("words", [["gate", *NO_DEMANDS], ["pack"]])
def test_a_huge_archive_is_refused(
    ready: Job, step: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_package, "MAX_UNPACKED_BYTES", 1000)
    code, reason = step(*words)
    assert code == 1
    assert "unpacks to more than 1000 bytes" in reason


@pytest.mark.parametrize("words", [["gate", *NO_DEMANDS], ["pack"]])
@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (None, "there is no"),
        (b"", "is damaged"),
        (b"no archive at all", "is damaged"),
    ],
)
def test_an_archive_that_is_none_is_refused(
    ready: Job, step: Any, words: list[str], archive: bytes | None, said: str
) -> None:
    ready.places.model_archive.unlink()
    if archive is not None:
        ready.places.model_archive.write_bytes(archive)
    code, reason = step(*words)
    assert code == 1
    assert said in reason


@pytest.mark.parametrize("words", [["gate", *NO_DEMANDS], ["pack"]])
def test_a_package_that_is_not_what_it_says_is_refused(
    ready: Job, step: Any, words: list[str]
) -> None:
    files = ready.trained_files()
    model = (PACKAGE / "model.tflite").read_bytes()
    for changed, said in (
        ({"package/model.tflite": model[:-1] + b"?"}, "model.tflite"),
        ({"package/model.json": b"{"}, "is not JSON"),
    ):
        ready.archive({**files, **changed})
        code, reason = step(*words)
        assert code == 1
        assert said in reason
    ready.archive({"training.json": files["training.json"]})
    code, reason = step(*words)
    assert code == 1
    assert "holds no package/model.json" in reason


def test_what_is_packed_is_what_a_push_would_publish(ready: Job, step: Any, tmp_path: Path) -> None:
    code, log = step("pack")
    assert code == 0
    spec = pack_model(PACKAGE, tmp_path / "pushed.tar.gz")
    packed = json.loads(ready.places.packed.read_bytes())
    assert packed == {"id": spec.id, "sha256": spec.sha256, "key": spec.object_key}
    assert spec.object_key in log
    target = ready.places.output / packed["key"]
    assert target.read_bytes() == (tmp_path / "pushed.tar.gz").read_bytes()
    assert [path for path in ready.places.models.rglob("*") if path.is_file()] == [target]


def test_the_same_model_has_the_same_bytes_however_it_was_packed_before(
    ready: Job, step: Any
) -> None:
    digests = set()
    files = ready.trained_files()
    with_others = {**files, "package/MODEL_CARD.md": b"# Card", "history.csv": b"epoch\n"}
    for content in (files, dict(reversed(files.items())), with_others):
        shutil.rmtree(ready.places.models, ignore_errors=True)
        ready.archive(content)
        assert step("pack")[0] == 0
        (target,) = (path for path in ready.places.models.rglob("*") if path.is_file())
        digests.add(hashlib.sha256(target.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_verdict_of_another_model_is_refused(ready: Job, step: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(PACKAGE, other)
    document = json.loads((other / "model.json").read_text())
    (other / "model.json").write_text(json.dumps({**document, "temperature": 2.0}))
    files = ready.trained_files()
    ready.archive({**files, "package/model.json": other / "model.json"})
    code, reason = step("pack")
    assert code == 1
    assert "gate.json is of another model" in reason
    assert not ready.places.packed.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"passed": False}, "does not say that model tiny-prepared passed"),
        ({"passed": "true"}, "does not say that model tiny-prepared passed"),
        ({"passed": 1}, "does not say that model tiny-prepared passed"),
        ({"verdict": "refused"}, "does not say that model tiny-prepared passed"),
        ({"model": "tiny-prepared"}, "is of another model"),
        ({"model": None}, "is of another model"),
        ({"schema_version": 2}, "must be of schema_version 1; it says 2"),
    ],
)
def test_a_verdict_that_does_not_say_passed_is_none(
    ready: Job, step: Any, change: dict[str, Any], said: str
) -> None:
    document = json.loads(ready.places.verdict.read_bytes())
    ready.places.verdict.write_text(json.dumps({**document, **change}))
    code, reason = step("pack")
    assert code == 1
    assert said in reason


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: no such file"),
        (b"", "gate.json is not JSON"),
        (b"[true]", "gate.json must hold a JSON object"),
        (b"[" * 100_000, "gate.json is not JSON"),
        (b"\xff\xfe", "gate.json is not JSON"),
    ],
)
def test_a_verdict_that_cannot_be_read_is_none(
    ready: Job, step: Any, content: bytes | None, said: str
) -> None:
    ready.places.verdict.unlink()
    if content is not None:
        ready.places.verdict.write_bytes(content)
    code, reason = step("pack")
    assert code == 1
    assert said in reason


def test_pack_takes_no_options(step: Any) -> None:
    code, reason = step("pack", "--force")
    assert code == 2
    assert "unrecognized arguments: --force" in reason


def test_the_steps_run_as_processes_with_what_the_image_holds(
    job: Job, photographs: Callable[..., Any], repository: Path, tmp_path: Path
) -> None:
    """Everything but the image's own distributions is hidden; LiteRT stands for TensorFlow here."""
    photographs(150)
    blocker = repository / "tests/unit/dr_training/job/image_only.py"

    def step(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, str(blocker), "ai_edge_litert", "--", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=repository,
            env={"DR_ML_ROOT": str(job.root), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        assert PATIENT not in done.stdout + done.stderr
        job.hand_on()
        return done.stdout

    arguments = ["--prepared-already", "--size-px", str(SIZE_PX), "--workers", "1"]
    assert "150 ok" in step("prepare", *arguments, "--shares", "0.5,0.25,0.25")
    job.archive(job.trained_files())
    assert "38 photographs: passed" in step("gate", *NO_DEMANDS, *FEW)
    assert "packed models/tiny-prepared/" in step("pack")


def test_what_the_image_lacks_is_hidden(repository: Path) -> None:
    blocker = repository / "tests/unit/dr_training/job/image_only.py"
    done = subprocess.run(
        [sys.executable, str(blocker), "--import", "scipy"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=repository,
    )
    assert done.returncode == 1
    assert "scipy is not in the tensorflow image" in done.stderr
