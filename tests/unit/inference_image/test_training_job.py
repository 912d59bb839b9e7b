"""The start of a training's step: which code runs, what is passed on, and how an end is said."""

import os
import signal
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from inference_image import training_job
from inference_image.training_job import CodeError, find_code, one_sentence

REPOSITORY = Path(__file__).parents[3]
MAIN = "dr_training/job/__main__.py"
SAYS = "import sys; print('ran', *sys.argv[1:])"


def _zip(path: Path, members: Mapping[str, str | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


class Started:
    """A launcher as a process of its own; its `/opt/ml` is `root`."""

    def __init__(self, root: Path, job: str | None, *words: str, **variables: str) -> None:
        self.root = root
        if job is not None:
            step = words[-1] if words else "train"
            channel = training_job.code_folder(root, step)
            packages = dict.fromkeys(("dr_training/__init__.py", "dr_training/job/__init__.py"), "")
            _zip(channel / "code.zip", {**packages, MAIN: job})
        self.process = subprocess.Popen(
            [sys.executable, "-m", *(words or ("inference_image.training_job", "train"))],
            cwd=root,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(REPOSITORY),
                "TMPDIR": str(root),
                "DR_ML_ROOT": str(root),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        out, error = self.process.communicate(timeout=60)
        return self.process.returncode, out, error

    def wait_for(self, name: str) -> str:
        """The text of a file that the job writes below the root."""
        until = time.monotonic() + 60
        while not (self.root / name).exists() or not (self.root / name).read_text():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < until
            time.sleep(0.01)
        return (self.root / name).read_text()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Started]]:
    made: list[Started] = []
    yield made
    for one in made:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.communicate()


def test_the_image_told_to_train_runs_the_code_of_the_channel(tmp_path: Path) -> None:
    code = f"{SAYS}; import dr_training, os; print(dr_training.__file__, os.getcwd())"
    started = Started(tmp_path, code, "inference_image.serve", "train")
    returned, out, error = started.end()
    assert (returned, error) == (0, "")
    ran, whence = out.splitlines()
    assert ran == "ran train"
    package, folder = whence.split()
    # Unpacked below the temporary folder, first on the path, and gone afterwards.
    assert package == f"{folder}/dr_training/__init__.py"
    assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()
    assert not (tmp_path / "output").exists()


def test_the_service_is_the_images_own(tmp_path: Path) -> None:
    code = "import inference_image; print(inference_image.__file__)"
    assert Started(tmp_path, code).end() == (
        0,
        f"{REPOSITORY / 'inference_image' / '__init__.py'}\n",
        "",
    )


def test_a_processing_job_finds_its_code_and_its_message_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "processing" / "input" / "code"
    (folder / "dr_training" / "job").mkdir(parents=True)
    for name in ("dr_training", "dr_training/job"):
        (folder / name / "__init__.py").touch()
    (folder / MAIN).write_text(f"{SAYS}; sys.exit(7)")
    words = ("inference_image.training_job", "gate", "--min-kappa", "0.7")
    returned, out, error = Started(tmp_path, None, *words).end()
    assert (returned, out) == (7, "ran gate --min-kappa 0.7\n")
    said = "gate ended with exit code 7 and gave no reason; its log may say more."
    assert error == f"training job: {said}\n"
    assert (tmp_path / "output" / "message").read_text() == said


def test_the_reason_that_the_step_gives_stays_and_an_old_one_goes(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "failure").write_text("of an earlier start")
    code = """
import os, pathlib, sys
path = pathlib.Path(os.environ["DR_ML_ROOT"], "output", "failure")
assert not path.exists()
path.write_text("mine")
sys.exit(3)
"""
    assert Started(tmp_path, code).end() == (3, "", "")
    assert (tmp_path / "output" / "failure").read_text() == "mine"


def test_sigterm_reaches_the_whole_group_and_its_exit_code_is_the_jobs(
    tmp_path: Path, started: list[Started]
) -> None:
    code = '''
import pathlib, signal, subprocess, sys
def stop(number, frame):
    print("state saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
below = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("below", flush=True))
print("ready", flush=True)
signal.pause()
"""
child = subprocess.Popen([sys.executable, "-c", below], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
try:
    pathlib.Path("../ready").write_text("yes")
    signal.pause()
finally:
    print(child.stdout.readline().strip(), flush=True)
'''
    job = Started(tmp_path, code)
    started.append(job)
    job.wait_for("ready")
    job.process.send_signal(signal.SIGTERM)
    returned, out, _ = job.end()
    assert (returned, out) == (143, "state saved\nbelow\n")


def _runs(process: int) -> bool:
    """Who has ended stays in the table until its parent, the system's first process, has asked."""
    try:
        state = Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_what_the_step_left_running_is_ended(tmp_path: Path) -> None:
    code = """
import pathlib, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("../left").write_text(str(left.pid))
"""
    job = Started(tmp_path, code)
    assert job.end()[0] == 0
    left = int((tmp_path / "left").read_text())
    until = time.monotonic() + 60
    while _runs(left):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("job", "send", "code", "said"),
    [
        (
            "",
            signal.SIGTERM,
            143,
            "train was stopped by SIGTERM; what it had written may not be whole.",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            None,
            137,
            (
                "train was ended by SIGKILL: most likely the memory was not enough; take a larger "
                "instance type, or a smaller batch_size."
            ),
        ),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            None,
            139,
            "train was ended by SIGSEGV; its log may say more.",
        ),
    ],
)
def test_a_step_that_a_signal_ends_is_said_for(
    job: str,
    send: signal.Signals | None,
    code: int,
    said: str,
    tmp_path: Path,
    started: list[Started],
) -> None:
    before = "import os, pathlib, signal; pathlib.Path('../ready').write_text('yes')\n"
    one = Started(tmp_path, f"{before}{job}\nsignal.pause()")
    started.append(one)
    if send is not None:
        one.wait_for("ready")
        one.process.send_signal(send)
    assert one.end() == (code, "", f"training job: {said}\n")
    assert (tmp_path / "output" / "failure").read_text() == said


def test_a_signal_before_the_step_is_said_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DR_ML_ROOT", str(tmp_path))
    _zip(training_job.code_folder(tmp_path, "prepare") / "code.zip", {MAIN: "raise SystemExit"})
    find = training_job.find_code

    def find_and_stop(channel: Path, unpacked: Path) -> Path:
        signal.raise_signal(signal.SIGTERM)
        return find(channel, unpacked)

    monkeypatch.setattr(training_job, "find_code", find_and_stop)
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert training_job.main(["prepare"]) == 143
    finally:
        for one, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(one, handler)
    said = "stopped by SIGTERM before prepare could begin its work."
    assert (tmp_path / "output" / "message").read_text() == said
    assert capsys.readouterr().err == f"training job: {said}\n"


@pytest.mark.parametrize(
    ("step", "advice"),
    [("prepare", ", or fewer --workers"), ("gate", ""), ("pack", "")],
)
def test_a_step_without_memory_is_told_what_it_can_change(
    step: str, advice: str, tmp_path: Path
) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    returned, _, error = Started(tmp_path, code, "inference_image.training_job", step).end()
    assert returned == 137
    assert error.endswith(f"was not enough; take a larger instance type{advice}.\n")


def test_code_that_cannot_be_removed_does_not_change_the_end(tmp_path: Path) -> None:
    code = """
import os, pathlib
folder = pathlib.Path.cwd()
moved = folder.rename(folder.with_name("moved"))
folder.symlink_to(moved)  # which is no folder that could be removed as one
"""
    assert Started(tmp_path, code).end() == (0, "", "")
    assert (tmp_path / "moved").is_dir()
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("words", [(), ("serve",), ("train ",), ("\udcff",)])
def test_an_unknown_step_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert training_job.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("training job: the step must be one of train, prepare, gate, pack; got")
    assert error.count("\n") == 1


def test_without_code_and_in_the_litert_image_nothing_is_run(tmp_path: Path) -> None:
    returned, _, error = Started(tmp_path, None).end()
    assert returned == 2
    assert "must hold one zip or a folder dr_training; it holds neither a zip nor" in error
    assert (tmp_path / "output" / "failure").read_text() == error.removeprefix("training job: ")[
        :-1
    ]
    returned, out, error = Started(tmp_path, SAYS, DR_RUNTIME="litert").end()
    assert (returned, out) == (2, "")
    assert error == (
        "training job: this image holds no TensorFlow; train needs the tensorflow image.\n"
    )


def test_a_disk_that_takes_no_reason_does_not_change_the_end(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("a file where a folder should be")
    returned, _, error = Started(tmp_path, "import sys; sys.exit(5)").end()
    assert returned == 5
    assert error.count("\n") == 1


# What a zip may not hold, and what is said about it.
def _refused(channel: Path, unpacked: Path) -> str:
    with pytest.raises(CodeError) as found:
        find_code(channel, unpacked)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../outside.py", "lies outside of it"),
        ("dr_training/../../outside.py", "lies outside of it"),
        ("/tmp/outside.py", "lies outside of it"),
        ("dr_training\\outside.py", "lies outside of it"),
        ("dr_training/a\0.py", "lies outside of it"),
    ],
)
def test_a_name_that_leaves_the_folder_is_refused_before_a_file_is_written(
    name: str, said: str, tmp_path: Path
) -> None:
    channel, unpacked = tmp_path / "channel", tmp_path / "a" / "unpacked"
    archive = channel / "code.zip"
    entry = zipfile.ZipInfo("x")
    entry.filename = entry.orig_filename = name
    _zip(archive, {MAIN: SAYS})
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(entry, "x = 1")
    assert said in _refused(channel, unpacked)
    assert not unpacked.exists()
    assert not list(tmp_path.rglob("outside.py"))


def test_a_link_is_refused(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("dr_training/secret.py")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = _zip(tmp_path / "channel" / "code.zip", {MAIN: SAYS})
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(entry, "/etc/passwd")
    assert "a link or a device" in _refused(tmp_path / "channel", tmp_path / "unpacked")


def test_a_bomb_and_too_many_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_job, "MAX_UNPACKED_BYTES", 1000)
    monkeypatch.setattr(training_job, "MAX_MEMBERS", 3)
    _zip(tmp_path / "bomb" / "code.zip", {MAIN: SAYS, "data": b"\0" * 1001})
    assert "more than 1000 bytes" in _refused(tmp_path / "bomb", tmp_path / "unpacked")
    _zip(tmp_path / "many" / "code.zip", dict.fromkeys("abcd", "x"))
    assert "more than 3 files" in _refused(tmp_path / "many", tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_a_damaged_zip_one_with_a_file_twice_and_one_without_the_job_are_refused(
    tmp_path: Path,
) -> None:
    archive = _zip(tmp_path / "cut" / "code.zip", {MAIN: SAYS * 100})
    archive.write_bytes(archive.read_bytes()[:60])
    assert "cannot be unpacked" in _refused(tmp_path / "cut", tmp_path / "1")
    archive = _zip(tmp_path / "changed" / "code.zip", {MAIN: SAYS * 100})
    content = bytearray(archive.read_bytes())
    content[80] ^= 1
    archive.write_bytes(content)
    assert "cannot be unpacked: Bad CRC-32" in _refused(tmp_path / "changed", tmp_path / "2")
    archive = _zip(tmp_path / "twice" / "code.zip", {MAIN: SAYS})
    with zipfile.ZipFile(archive, "a") as opened, pytest.warns(UserWarning, match="Duplicate"):
        opened.writestr(MAIN, "x = 1")
    assert "twice" in _refused(tmp_path / "twice", tmp_path / "3")
    _zip(tmp_path / "other" / "code.zip", {"setup.py": ""})
    assert f"holds no {MAIN}" in _refused(tmp_path / "other", tmp_path / "4")


@pytest.mark.parametrize(
    "name", ["inference_image/__init__.py", "inference_image/predictor.py", "inference_image.py"]
)
def test_code_that_brings_another_service_is_refused(name: str, tmp_path: Path) -> None:
    """It would come before the image's, and judge what the image serves."""
    members = {MAIN: SAYS, name: ""}
    _zip(tmp_path / "zip" / "code.zip", members)
    said = _refused(tmp_path / "zip", tmp_path / "unpacked")
    assert "code.zip must not bring inference_image, which the image has" in said
    folder = tmp_path / "folder"
    for member in members:
        (folder / member).parent.mkdir(parents=True, exist_ok=True)
        (folder / member).touch()
    assert "must not bring inference_image" in _refused(folder, tmp_path / "unused")
    (folder / name).unlink()
    if (folder / "inference_image").is_dir():
        (folder / "inference_image").rmdir()
    assert find_code(folder, tmp_path / "unused") == folder


def _patched(archive: Path, mark: bytes, offset: int, content: bytes) -> None:
    data = bytearray(archive.read_bytes())
    start = data.index(mark) + offset
    data[start : start + len(content)] = content
    archive.write_bytes(data)


# Where a zip keeps what: PKWARE's APPNOTE.TXT 6.3.10, 4.3.7 and 4.3.12.
_ENTRY, _CENTRAL, _NAME, _CENTRAL_NAME = b"PK\3\4", b"PK\1\2", 30, 46


@pytest.mark.parametrize(
    ("method", "mark", "offset", "content"),
    [
        # A name that says it is UTF-8 and is not.
        (zipfile.ZIP_STORED, _CENTRAL, 8, b"\0\x08"),
        # A place of the entry so near to the end that half of its head is not there.
        (zipfile.ZIP_STORED, _CENTRAL, 42, None),
        # Choices that LZMA does not have, and no bzip2.
        (zipfile.ZIP_LZMA, _ENTRY, _NAME + len(MAIN) + 4, b"\xff"),
        (zipfile.ZIP_BZIP2, _ENTRY, _NAME + len(MAIN), b"XX"),
    ],
)
def test_a_zip_that_is_made_to_be_damaged_is_one_sentence(
    method: int, mark: bytes, offset: int, content: bytes | None, tmp_path: Path
) -> None:
    archive = tmp_path / "channel" / "code.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w", method) as opened:
        opened.writestr(MAIN, SAYS * 100)
    if content is None:
        content = struct.pack("<L", archive.stat().st_size - 10)
    _patched(archive, mark, offset, content)
    if offset == 8:
        _patched(archive, mark, _CENTRAL_NAME, b"\xff")
    said = _refused(tmp_path / "channel", tmp_path / "unpacked")
    assert said.startswith("code.zip cannot be unpacked: ")
    assert len(said) > len("code.zip cannot be unpacked: ")


def test_two_codes_are_refused_by_name(tmp_path: Path) -> None:
    channel = tmp_path / "channel"
    _zip(channel / "new.zip", {MAIN: SAYS})
    _zip(channel / "old.ZIP", {MAIN: SAYS})
    assert "it holds new.zip and old.ZIP" in _refused(channel, tmp_path / "unpacked")
    (channel / "old.ZIP").unlink()
    (channel / "dr_training").mkdir()
    assert "it holds new.zip and dr_training/" in _refused(channel, tmp_path / "unpacked")


def test_a_sentence_fits_and_is_one_line() -> None:
    assert one_sentence(" a\nb\tc\x1b[31m d.. ") == "a b c [31m d."
    for length in (1022, 1023, 1024, 5000):
        shown = one_sentence("é" * length)
        assert len(shown) == min(length + 1, 1024)
        assert shown[-1] == ("." if length < 1024 else "…")
