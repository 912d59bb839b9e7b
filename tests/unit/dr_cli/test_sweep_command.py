"""`dr bench sweep` on a cloud of files: what is refused, what is resumed, what is left on disk."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dr_cli import sweep
from dr_cli.errors import CommandError
from dr_cli.sweep import Asked, bench_sweep, watch_sweep
from dr_cli.sweep_places import AwsPlace, delete_stack, variants_of
from dr_experiments.records import read_jsonl
from dr_experiments.sweep.journal import Journal
from dr_experiments.sweep.plan import Entry, Plan, Settings, make_plan
from dr_experiments.sweep.runner import EntryError, SweepError, Task
from tests.unit.dr_experiments.sweep_fakes import FileCloud, HalfPricePurse, measure_with

ROWS = ("dr-serverless-mobilenet-1024", "dr-serverless-mobilenet-2048")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    # Any picture will do: nothing here looks at it.
    Image.new("RGB", (320, 320), (120, 60, 20)).save(tmp_path / "ana-silva.jpg")
    return Asked(
        rows=ROWS,
        place="local",
        out=tmp_path / "sweep",
        requests=2,
        interval_s=0,
        cold_requests=0,
        photograph=tmp_path / "ana-silva.jpg",
        max_side_px=300,
    )


@pytest.fixture
def cloud(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> FileCloud:
    """What the command deploys to in place of a local AWS; no watcher is started."""
    monkeypatch.chdir(repository)
    made = FileCloud(tmp_path / "cloud")
    monkeypatch.setattr(sweep, "_place_and_purse", lambda _out, _plan: (made, HalfPricePurse()))
    monkeypatch.setattr(sweep, "_start_watcher", lambda _out: None)
    return made


def test_a_sweep_leaves_records_provenance_and_a_table(
    asked: Asked, cloud: FileCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_sweep(asked)
    records = read_jsonl(asked.out / "requests.jsonl")
    assert {record.configuration for record in records} == set(ROWS)
    assert {record.runtime for record in records} == {"litert"}
    assert {record.seed for record in records} == {7}
    provenance = json.loads((asked.out / "provenance.jsonl").read_text())
    assert provenance["command"].endswith(
        "--requests 2 --interval-s 0 --cold-requests 0 --cold-gap-s 900 --seed 7 "
        "--ttl-minutes 120 --photograph … --max-side-px 300"
    )
    _, _, table = capsys.readouterr().out.partition("Seconds, mean")
    assert all(name in table for name in ROWS)
    # A name may be a patient's.
    assert all(b"silva" not in path.read_bytes() for path in asked.out.rglob("*.json*"))
    assert cloud.standing == set()


INSTANCE = "dr-realtime-mobilenet-m5-xlarge"


def test_an_instance_is_measured_without_cold_starts_beside_rows_that_keep_theirs(
    asked: Asked,
    cloud: FileCloud,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fresh: dict[str, int] = {}

    def measure_entry(task: Task, *, settings: Settings, **_: object) -> Any:
        fresh[task.entry.name] = settings.cold_requests
        return measure_with(lambda: None)(task)

    monkeypatch.setattr(sweep, "measure_entry", measure_entry)
    wanted = replace(asked, rows=(ROWS[0], INSTANCE), cold_requests=5, cold_gap_s=4.0)
    bench_sweep(wanted)
    assert fresh == {ROWS[0]: 5, INSTANCE: 0}
    said = (
        f"an instance is always on, so that --cold-requests does not apply to {INSTANCE}: warm "
        "requests only\n"
    )
    begun, _, _ = capsys.readouterr().out.partition("sharing")
    assert begun.endswith(said + "  ")
    # The plan holds what was asked for, as plans of before do: the same command goes on.
    plan = Journal(asked.out / "journal.jsonl").state().plan
    assert plan is not None
    assert plan.settings.cold_requests == 5
    bench_sweep(wanted)
    # Instances alone: their gaps are nobody's.
    alone = replace(asked, rows=(INSTANCE,), out=asked.out.parent / "alone")
    bench_sweep(replace(alone, cold_requests=10, cold_gap_s=900.0))
    assert "warm requests only" in capsys.readouterr().out
    bench_sweep(replace(alone, out=asked.out.parent / "none"))
    assert "warm requests only" not in capsys.readouterr().out


def test_a_row_may_stand_as_long_as_it_needs_by_itself(asked: Asked, cloud: FileCloud) -> None:
    # Ten gaps of 15 minutes take longer than the two hours that are enough for others.
    plain = replace(asked, requests=25, interval_s=5.0, cold_requests=10, cold_gap_s=900.0)
    assert plain.stands_minutes == 229
    assert asked.stands_minutes == 120
    assert replace(plain, ttl_minutes=60.0).stands_minutes == 60
    with pytest.raises(CommandError, match="takes at least 152 minutes and may stand 60 "):
        bench_sweep(replace(plain, ttl_minutes=60.0))


def test_other_settings_in_the_same_folder_are_another_sweep(
    asked: Asked, cloud: FileCloud
) -> None:
    bench_sweep(asked)
    # The time to live and the limit may change.
    bench_sweep(replace(asked, ttl_minutes=60.0, spending_limit_usd=9.0))
    with pytest.raises(CommandError, match="requests was 2 and is now 3"):
        bench_sweep(replace(asked, requests=3))
    with pytest.raises(CommandError, match="payload_sha256 was"):
        bench_sweep(replace(asked, max_side_px=None))


def test_what_is_not_measured_ends_the_command_with_an_error(
    asked: Asked, cloud: FileCloud
) -> None:
    cloud.refuse = {ROWS[1]}
    with pytest.raises(SweepError, match=f"1 of 2 measured; {ROWS[1]}: the account may"):
        bench_sweep(asked)
    with pytest.raises(SweepError, match=r"1 of 2 measured; .* and the limit is"):
        bench_sweep(replace(asked, spending_limit_usd=0.5))
    cloud.refuse = set()
    bench_sweep(asked)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": ("dr-serverless-resnet-1",)}, "is in the deployment matrix"),
        ({"rows": ()}, "nothing named is in the deployment matrix"),
        ({"place": "azure"}, "place must be one of local, aws"),
        ({"place": "aws"}, "needs --spending-limit-usd"),
        (
            {"interval_s": 5000.0, "ttl_minutes": 120.0},
            "one row takes at least 167 minutes and may stand 120",
        ),
        ({"rows": ("dr-lambda-mobilenet-amd64-1024",)}, "no functions"),
        ({"cold_requests": 1, "cold_gap_s": 1.0}, "at least 2 s longer"),
        ({"runtimes": ("tensorflow",)}, "no package of mobilenet holds what tensorflow runs"),
        ({"packages": ("mobilenet=x",)}, "takes MODEL:LABEL=FOLDER"),
        ({"packages": ("resnet:a=x",)}, "a model of mobilenet, vgg19"),
        ({"packages": ("mobilenet:a=x", "mobilenet:a=y")}, "names mobilenet:a twice"),
        ({"packages": ("mobilenet:a=nowhere",)}, "nowhere"),
        ({"requests": 0}, "requests must be at least 1"),
        ({"max_side_px": 10}, "at least 300 pixels"),
        ({"context": ("x",)}, "--context takes KEY=VALUE"),
    ],
)
def test_what_could_only_fail_later_is_refused_before_anything_is_deployed(
    changes: dict[str, Any], words: str, asked: Asked, cloud: FileCloud
) -> None:
    with pytest.raises(Exception, match=words) as raised:
        bench_sweep(replace(asked, **changes))
    assert type(raised.value).__name__ in {"CommandError", "ModelPackageError"}
    assert cloud.standing == set()
    assert not (asked.out / "journal.jsonl").exists()


def test_a_watcher_of_a_folder_without_a_sweep_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="holds no sweep"):
        watch_sweep(tmp_path)


def a_plan(*names: str) -> Plan:
    settings = Settings(place="aws", requests=1, cold_requests=0)
    return make_plan([Entry(row=name) for name in names], settings, sweep_id="abc123")


def test_every_sweep_has_stages_of_its_own(tmp_path: Path) -> None:
    entries = [
        Entry(row=ROWS[0]),
        Entry(row="dr-serverless-vgg19-1024"),
        Entry(row=ROWS[0], runtime="tensorflow", package="saved"),
    ]
    plan = make_plan(entries, Settings(place="aws"), sweep_id="abc123")
    found = variants_of(plan, folder=tmp_path)
    assert {key: variant.stage for key, variant in found.items()} == {
        ("litert", None): "sabc1230",
        ("tensorflow", "saved"): "sabc1231",
    }
    saved = found[("tensorflow", "saved")]
    assert saved.shared_stack == "dr-sabc1231-shared"
    assert saved.context()["model-root"] == str(tmp_path / "packages" / "saved")
    assert found[("litert", None)].models == ("mobilenet", "vgg19")


def test_on_aws_each_stack_gets_its_time_to_live_and_is_deployed_alone(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    commands: list[list[str]] = []
    environments: list[dict[str, str]] = []

    def run_logged(arguments: list[str], *, environment: dict[str, str], **_: object) -> None:
        commands.append(arguments)
        environments.append(environment)
        if "shared" not in " ".join(arguments[2:4]):
            raise CommandError("cdk deploy failed: ResourceLimitExceeded")

    monkeypatch.setattr("dr_cli.sweep_places.run_logged", run_logged)
    place = AwsPlace(
        folder=tmp_path, plan=a_plan(ROWS[0]), region="sa-east-1", context={"budget-usd": "9"}
    )
    place.prepare(ttl_s=3601)
    assert commands[0][1:5] == [
        "deploy", "dr-sabc1230-janitor", "dr-sabc1230-shared", "--exclusively",
    ]  # fmt: skip
    assert {"stage=sabc1230", "ttl-hours=2", "budget-usd=9", "models=mobilenet"} <= set(commands[0])
    assert environments[0]["AWS_PROFILE"] == "mine"
    assert environments[0]["AWS_REGION"] == "sa-east-1"
    with pytest.raises(EntryError, match="ResourceLimitExceeded"):
        place.deploy(Entry(row=ROWS[0]), ttl_s=600)
    assert commands[1][2:4] == ["dr-sabc1230-serverless-mobilenet-1024", "--exclusively"]
    assert "ttl-hours=1" in commands[1]


class FakeCloudFormation:
    """Answers `describe_stacks` in turn; a text is the message of an error."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses)
        self.deleted: list[str] = []

    def delete_stack(self, *, StackName: str) -> None:  # noqa: N803
        self.deleted.append(StackName)

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803
        import botocore.exceptions

        status = self.statuses.pop(0)
        if " " in status:
            error = {"Error": {"Code": "ValidationError", "Message": status}}
            raise botocore.exceptions.ClientError(error, "DescribeStacks")  # type: ignore[arg-type]
        return {"Stacks": [{"StackStatus": status}]}


def test_a_stack_is_deleted_when_cloudformation_no_longer_knows_it() -> None:
    pauses: list[float] = []
    gone = FakeCloudFormation("DELETE_IN_PROGRESS", "DELETE_IN_PROGRESS", "x does not exist")
    delete_stack(gone, "x", sleep=pauses.append)
    assert (gone.deleted, pauses, gone.statuses) == (["x"], [5, 5], [])
    delete_stack(FakeCloudFormation("DELETE_COMPLETE"), "x")
    with pytest.raises(EntryError, match="stack x is DELETE_FAILED"):
        delete_stack(FakeCloudFormation("DELETE_FAILED"), "x")
    with pytest.raises(EntryError, match="not authorized"):
        delete_stack(FakeCloudFormation("You are not authorized to do this"), "x")
    slow = FakeCloudFormation(*["DELETE_IN_PROGRESS"] * 400)
    with pytest.raises(EntryError, match="DELETE_IN_PROGRESS after 1800 s"):
        delete_stack(slow, "x", sleep=pauses.append)


def test_the_journal_is_written_before_the_watcher_looks(
    asked: Asked, cloud: FileCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def look(out: Path) -> None:
        seen.append(Journal(out / "journal.jsonl").state().plan is not None)

    monkeypatch.setattr(sweep, "_start_watcher", look)
    bench_sweep(asked)
    assert seen == [True]


@pytest.fixture
def both(tmp_path: Path, repository: Path) -> tuple[str, str]:
    """`--package` values of two packages: one for each flavour of the container."""
    demo = repository / "model_artifacts" / "mobilenet-demo"
    saved = tmp_path / "saved"
    (saved / "1").mkdir(parents=True)
    document = json.loads((demo / "model.json").read_text())
    file = {"sha256": "ab" * 32, "size_bytes": 3}
    document |= {"files": {"1/saved_model.pb": file}, "head_file": None}
    (saved / "model.json").write_text(json.dumps(document))
    (saved / "1" / "saved_model.pb").write_bytes(b"abc")
    return f"mobilenet:int8={demo}", f"mobilenet:saved={saved}"


def test_a_package_is_measured_in_the_flavours_that_can_run_it(
    both: tuple[str, str], asked: Asked, cloud: FileCloud
) -> None:
    bench_sweep(
        replace(
            asked,
            rows=ROWS[:1],
            runtimes=("litert", "tensorflow"),
            packages=both,
            tensorflow_python=Path("/usr/bin/env"),
        )
    )
    records = read_jsonl(asked.out / "requests.jsonl")
    assert {(r.configuration, r.runtime) for r in records} == {
        (f"{ROWS[0]}+int8", "litert"),
        (f"{ROWS[0]}+tensorflow+saved", "tensorflow"),
    }
    # The app finds each under the name that the matrix has for the row's package.
    for label in ("int8", "saved"):
        assert (asked.out / "packages" / label / "mobilenet-demo" / "model.json").is_file()


def test_the_tensorflow_flavour_needs_its_interpreter(
    both: tuple[str, str], asked: Asked, cloud: FileCloud
) -> None:
    wanted = replace(asked, runtimes=("tensorflow",), packages=both)
    with pytest.raises(CommandError, match="needs --tensorflow-python"):
        bench_sweep(wanted)
    with pytest.raises(CommandError, match="nowhere is not a program"):
        bench_sweep(replace(wanted, tensorflow_python=Path("nowhere")))


def test_the_tensorflow_flavour_needs_nginx_before_anything_is_deployed(
    both: tuple[str, str], asked: Asked, cloud: FileCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dr_cli.sweep.nginx_program", lambda: None)
    wanted = replace(
        asked, runtimes=("tensorflow",), packages=both, tensorflow_python=Path(sys.executable)
    )
    with pytest.raises(CommandError, match=r"needs nginx.*make nginx"):
        bench_sweep(wanted)
    assert not asked.out.exists()
