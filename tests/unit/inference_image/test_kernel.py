"""The compiled kernel is found and checked before it is used; without it the service works."""

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_image import contract, kernel
from inference_image.docker import build_kernel
from inference_image.settings import Settings, SettingsError
from tests.service_harness import TINY_MODEL, drawn_jpeg

MACHINE = platform.machine()
FILE = build_kernel.file_name(MACHINE)
BUILT = kernel.FOLDER / FILE


@pytest.fixture(autouse=True)
def looked_for_again() -> Iterator[None]:
    """What one test finds is not kept for the next."""
    kernel.load.cache_clear()
    yield
    kernel.load.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the one beside the source."""
    monkeypatch.setattr(kernel, "FOLDER", tmp_path)
    return tmp_path


# Which one is used is decided once in a process, before anything else of the service is imported.
_GRADE = """
import sys
from pathlib import Path
from inference_image import kernel
kernel.FOLDER = Path(sys.argv[1])
assert kernel.load() is None
from inference_image.fundus import find_disc
from inference_image.predictor import Predictor
answer = Predictor.load(Path(sys.argv[2]), threads=1).predict(sys.stdin.buffer.read())
print(kernel.name(), find_disc.__module__, answer.grade is not None)
"""


def grades_without_it() -> bool:
    """Whether a service that looks for the kernel where this test does grades a photograph."""
    assert kernel.load() is None
    assert kernel.name() == "numpy"
    command = [sys.executable, "-c", _GRADE, str(kernel.FOLDER), str(TINY_MODEL)]
    done = subprocess.run(command, input=drawn_jpeg(), capture_output=True, check=False)
    said = done.stdout.decode().split()
    assert said == ["numpy", "inference_image.fundus_search", "True"], done.stderr.decode()
    return done.returncode == 0


def test_this_checkout_has_a_kernel_that_is_up_to_date() -> None:
    """Set-up compiles it, and every run of the tests begins with set-up."""
    assert kernel.name() == "compiled", "run `make setup`"
    assert build_kernel.up_to_date(MACHINE), "native/fundus.c has changed: run `make setup`"


def test_the_number_is_that_of_the_source() -> None:
    """A file of another source has other arguments, whatever else it has."""
    wanted = build_kernel.version_of()
    assert wanted == kernel.KERNEL_VERSION, f"write KERNEL_VERSION = {wanted:_} in kernel.py"
    assert 0 < wanted < 2**30


def test_it_is_loaded_once_and_has_this_sources_version() -> None:
    library = kernel.load()
    assert isinstance(library, ctypes.CDLL)
    assert kernel.load() is library
    assert library.dr_kernel_version() == kernel.KERNEL_VERSION


def test_both_places_that_name_the_file_agree(folder: Path) -> None:
    (folder / FILE).write_bytes(BUILT.read_bytes())
    assert kernel.name() == "compiled"


def test_a_missing_file_leaves_the_work_to_numpy(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    assert grades_without_it()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_cut_file_leaves_the_work_to_numpy(folder: Path, share: float) -> None:
    """To load one would end the process: the memory that it names lies behind its end."""
    whole = BUILT.read_bytes()
    (folder / FILE).write_bytes(whole[: int(len(whole) * share)])
    assert grades_without_it()


def test_a_file_that_is_no_library_leaves_the_work_to_numpy(folder: Path) -> None:
    (folder / FILE).write_bytes(b"\x7fELF\x02\x01" + bytes(400))
    assert grades_without_it()


def test_one_of_another_processor_leaves_the_work_to_numpy(folder: Path) -> None:
    of_another = bytearray(BUILT.read_bytes())
    # The machine in the header of an ELF file: here RISC-V.
    of_another[18:20] = (0xF3).to_bytes(2, "little")
    (folder / FILE).write_bytes(of_another)
    assert grades_without_it()


@pytest.mark.parametrize(
    "code",
    [
        # Another version, and a library of somebody else's.
        "int dr_kernel_version(void) { return 0; }",
        f"int dr_kernel_version(void) {{ return {kernel.KERNEL_VERSION + 1}; }}",
        "int something_else(void) { return 1; }",
    ],
)
def test_one_of_another_version_leaves_the_work_to_numpy(
    folder: Path, repository: Path, code: str
) -> None:
    source = folder / "source" / "fundus.c"
    source.parent.mkdir()
    # A library without the version cannot come out of the build of the kernel.
    also = "" if "dr_kernel" in code else " int dr_kernel_version(void) { return 1; }"
    public = '__attribute__((visibility("default"))) '
    source.write_text(public + code + also.replace(" int", f" {public}int"))
    built = build_kernel.build(MACHINE, source=source, zig_folder=zig_folder(repository))
    text = built.read_bytes()
    if also:
        text = text.replace(b"dr_kernel_version", b"dr_kernel_missing")
    (folder / FILE).write_bytes(text)
    assert grades_without_it()


def zig_folder(repository: Path) -> Path | None:
    """Where set-up has put Zig, on a machine without a compiler."""
    folder = repository / ".compiler"
    return folder if folder.is_dir() else None


def test_a_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_KERNEL, "numpy")
    assert grades_without_it()


def test_a_value_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_KERNEL, "fast")
    with pytest.raises(SettingsError, match="DR_KERNEL must be one of numpy, auto; it is 'fast'"):
        kernel.load()
    with pytest.raises(SettingsError, match="DR_KERNEL"):
        Settings.from_environment({contract.ENV_KERNEL: "fast"})
    assert Settings.from_environment({contract.ENV_KERNEL: "NumPy"}).kernel == "numpy"
    assert Settings.from_environment({}).kernel == "auto"
