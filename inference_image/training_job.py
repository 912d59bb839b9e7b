"""Starts a step of a training on SageMaker: what the tensorflow image does when told to `train`.

    python3 -m inference_image.serve train                   # what SageMaker starts for a training
    python3 -m inference_image.training_job prepare --seed 0 # entry point of a processing job

The image holds the service only. The code of a step comes in a channel `code`: one zip or a folder
that holds `dr_training/`. It runs as a process group of its own, `python3 -m dr_training.job STEP`;
SIGTERM is passed on to it, its exit code is the job's, and the reason of a failure goes to the file
that SageMaker shows (`output/failure` of a training, `output/message` of a processing job).
Standard library only: this must be able to speak where nothing else can be imported.

Exit codes: those of the step; 2 where there is no code to run; 128 + n where signal n ended it.
"""

import contextlib
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Final

DEFAULT_ROOT: Final = "/opt/ml"
# For tests: another place for what a container sees below /opt/ml.
ENV_ROOT: Final = "DR_ML_ROOT"
ENV_DEBUG: Final = "DR_DEBUG"
_ENV_RUNTIME: Final = "DR_RUNTIME"
TRAIN: Final = "train"
STEPS: Final = (TRAIN, "prepare", "gate", "pack")
EXIT_ASKED_WRONGLY: Final = 2
# DescribeTrainingJob's FailureReason and DescribeProcessingJob's ExitMessage hold so many.
MOST_CHARACTERS: Final = 1024
_PACKAGE: Final = "dr_training"
_SERVICE: Final = "inference_image"
_MAIN: Final = f"{_PACKAGE}/job/__main__.py"
# The project's Python source is a hundredth of this; more is a bomb or another file.
MAX_UNPACKED_BYTES: Final = 256 * 1024**2
MAX_MEMBERS: Final = 10_000
# What `zipfile` raises for archives that are damaged, or made to be.
_DAMAGED: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
with contextlib.suppress(ImportError):  # a Python may have been built without it
    from lzma import LZMAError

    _DAMAGED += (LZMAError,)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# What else makes a step take less memory; `gate` and `pack` have no such choice.
_LESS_MEMORY: Final = {TRAIN: ", or a smaller batch_size", "prepare": ", or fewer --workers"}


class CodeError(Exception):
    """The channel `code` holds nothing that could run; the text is one sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a step as a child process; returns the job's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    step = words[0] if words else ""
    if step not in STEPS:
        return _say(f"the step must be one of {', '.join(STEPS)}; got {step!a}", EXIT_ASKED_WRONGLY)
    root = Path(os.environ.get(ENV_ROOT) or DEFAULT_ROOT)
    reason = reason_file(root, step)
    with contextlib.suppress(OSError):
        reason.unlink(missing_ok=True)
    # From here on: before there is a child, PID 1 would ignore the signal and train on.
    child = _Child()
    if os.environ.get(_ENV_RUNTIME) == "litert":
        return _failed(
            reason, f"this image holds no TensorFlow; {step} needs the tensorflow image", 2
        )
    try:
        # That the code could not be removed says nothing about the work that is done.
        with tempfile.TemporaryDirectory(prefix="dr-code-", ignore_cleanup_errors=True) as unpacked:
            code = find_code(code_folder(root, step), Path(unpacked))
            return _ended(child.run([_PACKAGE + ".job", *words], code), child, reason, step)
    except CodeError as error:
        return _failed(reason, str(error), EXIT_ASKED_WRONGLY)
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        why = (error.strerror or type(error).__name__).lower()
        return _failed(reason, f"the code cannot be started ({where}: {why})", EXIT_ASKED_WRONGLY)


def code_folder(root: Path, step: str) -> Path:
    """Where SageMaker puts the channel `code`: trainings and processing jobs differ."""
    if step == TRAIN:
        return root / "input" / "data" / "code"
    return root / "processing" / "input" / "code"


def reason_file(root: Path, step: str) -> Path:
    """The file whose text SageMaker shows as why a job ended."""
    return root / "output" / ("failure" if step == TRAIN else "message")


def one_sentence(text: str) -> str:
    """`text` on one line, printable, with a full stop, at most `MOST_CHARACTERS` long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split()).rstrip(".")
    return f"{line}." if len(line) < MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def write_reason(path: Path, text: str) -> None:
    """Write why a job ended; a disk that cannot take it does not change how the job ends."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one_sentence(text), encoding="utf-8")


def find_code(channel: Path, unpacked: Path) -> Path:
    """The folder to import from: the channel itself, or `unpacked` with what its one zip holds.

    Raises:
        CodeError: there is no code or more than one, or the zip is damaged, holds anything but
            files and folders of its own, lacks `dr_training/job`, or brings another service.
    """
    try:
        names = sorted(one.name for one in channel.iterdir())
    except OSError:
        names = []
    zips = [name for name in names if name.lower().endswith(".zip")]
    found = [*zips, *([_PACKAGE + "/"] if _PACKAGE in names else [])]
    if len(found) != 1:
        held = " and ".join(found) or "neither a zip nor a folder dr_training"
        raise CodeError(
            f"the channel code ({channel}) must hold one zip or a folder {_PACKAGE}; "
            f"it holds {held}"
        )
    code = channel
    if zips:
        code = unpacked
        _unpack(channel / zips[0], unpacked)
    if not (code / _MAIN).is_file():
        raise CodeError(f"{channel / found[0]} holds no {_MAIN}; give the project's own code")
    # It would be imported in place of the image's, and judge a model that the image serves.
    if any(one.name.partition(".")[0] == _SERVICE for one in code.iterdir()):
        raise CodeError(
            f"{channel / found[0] if zips else channel} must not bring {_SERVICE}, which the image "
            "has and serves with; leave it out"
        )
    return code


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if len(members) > MAX_MEMBERS:
                raise CodeError(f"{archive.name} holds more than {MAX_MEMBERS} files")
            if sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
                raise CodeError(f"{archive.name} unpacks to more than {MAX_UNPACKED_BYTES} bytes")
            # All names are looked at before the first file is written.
            paths = [_inside(member, archive) for member in members]
            for member, path in zip(members, paths, strict=True):
                target = folder / path
                if member.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # A read ends at the size that the directory states, which was summed above.
                with opened.open(member) as stream, target.open("xb") as out:
                    while block := stream.read(1024 * 1024):
                        out.write(block)
    except FileExistsError as error:
        raise CodeError(f"{archive.name} holds {Path(error.filename).name!r} twice") from None
    except OSError as error:
        if error.errno is not None:
            raise
        # Not the system's: bz2 says so of what it cannot read.
        raise CodeError(f"{archive.name} cannot be unpacked: {error}") from None
    except _DAMAGED as error:
        why = str(error) or type(error).__name__
        raise CodeError(f"{archive.name} cannot be unpacked: {why}") from None


def _inside(member: zipfile.ZipInfo, archive: Path) -> PurePosixPath:
    path = PurePosixPath(member.filename)
    # `orig_filename` still has what `filename` was cut at.
    odd = "\\" in member.orig_filename or "\0" in member.orig_filename
    if path.is_absolute() or ".." in path.parts or odd:
        raise CodeError(f"{archive.name} holds {member.orig_filename!a}, which lies outside of it")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise CodeError(f"{archive.name} holds {member.filename!a}, which is a link or a device")
    return path


class _Child:
    """The step's process group; signals that come to this process are passed on, each once."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self._passed_on = 0
        self._process: subprocess.Popen[bytes] | None = None
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    @property
    def began(self) -> bool:
        """Whether there was a process to pass a signal on to."""
        return self._process is not None

    def run(self, words: Sequence[str], code: Path) -> int:
        """Exit code as `subprocess` gives it: negative where a signal ended the process."""
        if self.told:
            return -self.told[0]
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=code,
            env=_environment(code),
            start_new_session=True,
        )
        # A signal that comes while this is noted would be passed on twice, or not at all.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._process = process
        self._pass_on()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ended = process.wait()
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # what it may have left running
        return ended

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.told.append(number)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._process is None:
            return
        for number in self.told[self._passed_on :]:
            self._passed_on += 1
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)


def _environment(code: Path) -> Mapping[str, str]:
    path = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
    # As `-m` would put the working directory first anyway, it is the code's own.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _ended(returned: int, child: _Child, reason: Path, step: str) -> int:
    """The job's exit code; says why where the step could not say it itself."""
    code = returned if returned >= 0 else 128 - returned
    if code == 0 or reason.exists():
        return code
    if returned >= 0:
        text = f"{step} ended with exit code {code} and gave no reason; its log may say more"
    elif -returned in child.told and not child.began:
        text = f"stopped by {signal.Signals(-returned).name} before {step} could begin its work"
    elif -returned in child.told:
        text = (
            f"{step} was stopped by {signal.Signals(-returned).name}; what it had written may not "
            "be whole"
        )
    elif -returned == signal.SIGKILL:
        text = (
            f"{step} was ended by SIGKILL: most likely the memory was not enough; take a larger "
            f"instance type{_LESS_MEMORY.get(step, '')}"
        )
    else:
        text = f"{step} was ended by {_signal_name(-returned)}; its log may say more"
    return _failed(reason, text, code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(reason: Path, sentence: str, code: int) -> int:
    write_reason(reason, sentence)
    return _say(sentence, code)


def _say(sentence: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"training job: {one_sentence(sentence)}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
