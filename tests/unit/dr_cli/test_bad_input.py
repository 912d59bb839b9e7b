"""Every mistake a person can make: one sentence that says what to do, exit code not 0."""

import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from dr_cli import __main__ as program
from dr_cli import local, packages, predict
from dr_cli.errors import CommandError, explain, unexpected
from dr_cli.photographs import read_photograph

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `dr ARGUMENTS` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "DR_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)

    def run_dr(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dr", *arguments])
        with pytest.raises(SystemExit) as caught:
            program.main()
        out, err = capsys.readouterr()
        code = caught.value.code
        return code if isinstance(code, int) else int(code is not None), out, err

    return run_dr


@pytest.fixture
def files(tmp_path: Path, repository: Path) -> Path:
    """A folder of things that are wrong in one way each."""
    tiny = repository / "tests" / "data" / "tiny-model"
    (tmp_path / "good.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "notes.txt").write_text("{ not JSON either")
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.tflite").write_bytes(b"TFL3")
    with (tmp_path / "huge.jpg").open("wb") as stream:
        stream.truncate(26 * 1024**2)
    (tmp_path / "text.tar.gz").write_text("not an archive")
    shutil.copytree(tiny, tmp_path / "whole")
    shutil.copytree(tiny, tmp_path / "incomplete")
    (tmp_path / "incomplete" / "model.tflite").unlink()
    shutil.copytree(tiny, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.tflite"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return tmp_path


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


CASES = [
    (["predict", "missing.jpg"], "there is no file missing.jpg"),
    (["predict", "folder"], "folder is a folder; name the image files"),
    (["predict", "empty.jpg"], "empty.jpg is empty"),
    (["predict", "huge.jpg"], "at most 26,214,400"),
    (["predict", "notes.txt"], "notes.txt is not an image that can be graded: JPEG, PNG"),
    (["predict", "good.jpg", "--model", "nowhere"], "no model package nowhere"),
    (["predict", "good.jpg", "--model", "folder"], "no model.json in folder; `dr model import"),
    (["serve", "--model", "plain.tflite"], "plain.tflite is no model package; `dr model import"),
    (["predict", "good.jpg", "--model", "text.tar.gz"], "text.tar.gz is damaged"),
    (["predict", "good.jpg", "--model", "incomplete"], "lacks model.tflite"),
    (["predict", "good.jpg", "--model", "damaged"], "the package is damaged"),
    (["predict", "good.jpg", "--url", "ftp://127.0.0.1"], "use http://HOST:PORT"),
    (["predict", "good.jpg", "--url", "http://h", "--endpoint", "e"], "choose one of"),
    (["predict", "good.jpg", "--endpoint", "e"], "dr local up"),
    (["serve", "--model", "nowhere"], "no model package nowhere"),
    (["serve", "--model", "damaged"], "the package is damaged"),
    (["serve", "--model", "whole", "--port", "BUSY"], "choose another with --port"),
    (["serve", "--model", "whole", "--host", "not an address"], "is not an address"),
    (["serve", "--model", "whole", "--host", "192.0.2.1", "--port", "8080"], "cannot be used"),
    (["local", "env"], "start it with: dr local up"),
    (["local", "deploy", "dr-serverless-mobilenet-2048"], "model_artifacts/mobilenet-demo"),
    (["local", "deploy", "dr-serverless-mobilenet-1500"], "not in the deployment matrix"),
    (["local", "deploy", "dr-lambda-mobilenet-arm64-1769"], "and no Lambda functions"),
    (["local", "up", "--control-port", "BUSY"], "is already in use"),
    (["bench", "warm"], "name the endpoints to measure"),
    (["bench", "warm", "e", "--url", "http://h"], "name the endpoints to measure"),
    (["bench", "warm", "e", "--photograph", "good.jpg"], "dr local up"),
    (["bench", "warm", "e", "--photograph", "missing.jpg"], "there is no file missing.jpg"),
    (["model", "inspect", "nowhere"], "no model package nowhere"),
    (["model", "inspect", "text.tar.gz"], "damaged"),
    (["model", "push", "text.tar.gz"], "is no folder"),
    (["model", "push", "incomplete", "--bucket", "b"], "lacks model.tflite"),
    (["draw", "--out", "good.jpg"], "good.jpg is a file; name a folder with --out"),
    (["draw", "--out", "good.jpg/below"], "good.jpg is a file; name a folder with --out"),
    (["bench", "warm", "e", "--out", "good.jpg"], "good.jpg is a file; name a folder with --out"),
    (["demo"], "run this in a checkout"),
]


@pytest.mark.parametrize(("arguments", "said"), CASES, ids=[" ".join(c[0]) for c in CASES])
def test_a_mistake_is_one_sentence(
    run: Run, files: Path, busy_port: int, arguments: list[str], said: str
) -> None:
    code, _, err = run(*(a.replace("BUSY", str(busy_port)) for a in arguments))
    assert code == 1
    assert said in err
    assert err.startswith("dr: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["predict"],
        ["predict", "good.jpg", "--nonsense"],
        ["draw", "--grade", "9"],
        ["serve", "--model", "whole", "--port", "70000"],
        ["serve", "--model", "whole", "--workers", "many"],
        ["bench", "warm", "e", "--requests", "0"],
        ["bench", "warm", "e", "--interval-s", "-1"],
        ["demo", "--requests", "1"],
    ],
)
def test_a_wrong_option_is_named_with_the_usage(
    run: Run, files: Path, arguments: list[str]
) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert "Usage:" in err
    assert "Error" in err
    assert "Traceback" not in err


def test_nothing_running_is_said_and_is_no_success(run: Run) -> None:
    code, out, err = run("local", "status")
    assert (code, err) == (1, "")
    assert out == "No local AWS runs from this folder; start it with: dr local up\n"


def test_nothing_to_stop_is_fine(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("local", "down")
    assert code == 0
    assert "No local AWS ran" in out
    assert list(tmp_path.iterdir()) == []


def test_a_url_where_nothing_answers(run: Run, files: Path, busy_port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code, out, _ = run("predict", "good.jpg", "--url", f"127.0.0.1:{port}")
    assert code == 1
    assert "nothing answers at" in out
    code, _, err = run(
        "bench", "warm", "--url", f"127.0.0.1:{port}", "--photograph", "good.jpg",
        "--requests", "2", "--interval-s", "0",
    )  # fmt: skip
    assert code == 1
    assert "no request was answered" in err


def test_every_format_of_the_service_is_sent_as_what_it_is(tmp_path: Path) -> None:
    for name, media_type in (
        ("p.tif", "image/tiff"),
        ("p.webp", "image/webp"),
        ("p.bmp", "image/bmp"),
    ):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
        assert read_photograph(tmp_path / name).content_type == media_type


def test_bad_files_do_not_stop_the_others(run: Run, files: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{probe.getsockname()[1]}"
    names = ("missing.jpg", "empty.jpg", "notes.txt", "good.jpg")
    code, out, err = run("predict", *names, "--url", url)
    assert code == 1
    said = " ".join(out.split())
    for reason in ("there is no file missing", "is empty", "not an image", "nothing answers at"):
        assert reason in said, reason
    assert err == "dr: 4 of 4 photographs brought no answer\n"
    code, out, _ = run("predict", *names[:3], "--json")
    assert code == 1
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["image"], line["outcome"]) for line in lines] == [
        (name, "not-sent") for name in names[:3]
    ]


def test_an_endpoint_that_is_not_deployed_is_answered_with_those_that_are(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local:
        def endpoints(self) -> list[str]:
            return ["dr-a", "dr-b"]

    monkeypatch.setattr(local, "running_local_aws", Local)
    for command in (["predict", "good.jpg", "--endpoint"], ["bench", "warm"]):
        code, _, err = run(*command, "dr-serverless-mobilenet-2048")
        assert code == 1
        assert err == (
            "dr: endpoint dr-serverless-mobilenet-2048 is not deployed on the local AWS; deployed "
            "are: dr-a, dr-b; deploy it with: dr local deploy dr-serverless-mobilenet-2048\n"
        )
        assert "dr local deploy NAME" in run(*command, "nonsense")[2]


def test_the_default_model_is_that_of_the_checkout_and_missing_elsewhere(
    run: Run, files: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The current folder is another one than the checkout.
    assert packages.package_or_default(None) == repository / "model_artifacts" / "mobilenet-demo"
    monkeypatch.setattr(packages, "DEFAULT_PACKAGE", tmp_path / "nowhere")
    for command in (["predict", "good.jpg"], ["serve"]):
        code, _, err = run(*command)
        assert (code, "name a package with --model" in err) == (1, True)


@pytest.mark.parametrize("command", [["local", "up"], ["predict", "good.jpg"]])
def test_an_interrupted_command_says_so_in_one_word(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "up", interrupted)
    monkeypatch.setattr(predict, "predict_images", interrupted)
    assert run(*command) == (130, "", "\nInterrupted.\n")


def test_an_error_nobody_foresaw_is_short_and_debug_shows_where(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(program, "app", broken)
    code, _, err = run("local", "status")
    assert code == 1
    assert err == (
        "dr: unexpected error (RuntimeError: first line second line); run the same command as "
        "`dr --debug …` to see where, and report it\n"
    )
    monkeypatch.setattr(sys, "argv", ["dr", "--debug", "local", "status"])
    with pytest.raises(RuntimeError):
        program.main()


def test_what_is_known_is_explained() -> None:
    from botocore.exceptions import ClientError, NoCredentialsError

    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no\nentry"}}, "Invoke")
    assert "aws configure" in str(explain(NoCredentialsError()))
    assert "no entry" in str(explain(denied))
    assert explain(CommandError("do this")) == "do this"
    assert explain(PermissionError(13, "Permission denied", "f")) == "f: permission denied"
    missing = ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
    assert "dr-endpoints[serving]" in str(explain(missing))
    assert explain(KeyError("k")) is None
    assert explain(ModuleNotFoundError("x", name="unknown_module")) is None
    assert "KeyError" in unexpected(KeyError("k"))
