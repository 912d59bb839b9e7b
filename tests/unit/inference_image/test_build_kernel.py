"""The build of the kernel: what it skips, what it refuses, and that nobody sees half a file."""

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from inference_image.docker import build_kernel
from inference_image.docker.build_kernel import (
    KernelError,
    NoCompilerError,
    UnavailableError,
    build,
    up_to_date,
    version_of,
)

MACHINE = platform.machine()
SCRIPT = Path(build_kernel.__file__)
PUBLIC = '__attribute__((visibility("default"))) '


def version(number: int) -> str:
    return f"{PUBLIC}int dr_kernel_version(void) {{ return {number}; }}\n"


@pytest.fixture
def zig_folder(repository: Path) -> Path | None:
    """Where set-up has put Zig, on a machine without a compiler."""
    folder = repository / ".compiler"
    return folder if folder.is_dir() else None


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "native" / "fundus.c"
    path.parent.mkdir()
    path.write_text(version(7))
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def names(source: Path) -> set[str]:
    return {path.name for path in source.parent.iterdir()}


def test_it_lies_beside_its_source_with_a_stamp_and_nothing_else(
    source: Path, zig_folder: Path | None
) -> None:
    assert not up_to_date(MACHINE, source=source)
    built = build(MACHINE, source=source, zig_folder=zig_folder)
    assert ctypes.CDLL(str(built)).dr_kernel_version() == 7
    assert names(source) == {"fundus.c", f"fundus-{MACHINE}.so", f"fundus-{MACHINE}.stamp"}
    assert up_to_date(MACHINE, source=source)


def test_another_folder_gets_the_file_alone(
    source: Path, tmp_path: Path, zig_folder: Path | None
) -> None:
    build(MACHINE, source=source, out=tmp_path / "made" / "here", zig_folder=zig_folder)
    assert [path.name for path in (tmp_path / "made" / "here").iterdir()] == [
        f"fundus-{MACHINE}.so"
    ]
    assert names(source) == {"fundus.c"}


def test_the_same_source_gives_the_same_bytes_wherever_it_lies(
    source: Path, tmp_path: Path, zig_folder: Path | None
) -> None:
    elsewhere = tmp_path / "a" / "longer" / "path" / "fundus.c"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(source.read_text())
    first = build(MACHINE, source=source, zig_folder=zig_folder)
    again = build(MACHINE, source=elsewhere, zig_folder=zig_folder)
    assert first.read_bytes() == again.read_bytes()


def test_what_is_up_to_date_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    """The command does nothing, even where nothing could be compiled."""
    monkeypatch.setattr(build_kernel, "build", lambda *_, **__: pytest.fail("compiled again"))
    before = (build_kernel.SOURCE.parent / f"fundus-{MACHINE}.so").stat()
    assert build_kernel.main([]) == 0
    after = (build_kernel.SOURCE.parent / f"fundus-{MACHINE}.so").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("change", ["source", "file", "flags"])
def test_a_change_of_source_file_or_flags_is_seen(
    source: Path, zig_folder: Path | None, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    built = build(MACHINE, source=source, zig_folder=zig_folder)
    if change == "source":
        source.write_text(version(8))
    elif change == "file":
        built.write_bytes(built.read_bytes()[:-1])
    else:
        monkeypatch.setattr(build_kernel, "FLAGS", (*build_kernel.FLAGS, "-O2"))
    assert not up_to_date(MACHINE, source=source)
    build(MACHINE, source=source, zig_folder=zig_folder)
    assert up_to_date(MACHINE, source=source)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("int broken(void) { return }\n", "error"),
        # A function that nobody defines: found when it is linked, not when a patient waits.
        (f"double sin(double);{PUBLIC}double f(double x) {{ return sin(x); }}\n", "undefined"),
        (f"{PUBLIC}int another(void) {{ return 1; }}\n", "dr_kernel_version"),
    ],
)
def test_a_broken_source_is_one_sentence_and_the_old_file_stays(
    source: Path, zig_folder: Path | None, code: str, fault: str
) -> None:
    built = build(MACHINE, source=source, zig_folder=zig_folder)
    before = built.read_bytes()
    source.write_text(code)
    with pytest.raises(KernelError, match=fault) as refusal:
        build(MACHINE, source=source, zig_folder=zig_folder)
    assert not isinstance(refusal.value, NoCompilerError)
    assert "\n" not in str(refusal.value)
    assert built.read_bytes() == before
    assert names(source) == {"fundus.c", built.name, f"fundus-{MACHINE}.stamp"}
    assert not up_to_date(MACHINE, source=source)


def test_no_compiler_is_one_sentence(source: Path, no_compiler: None) -> None:
    with pytest.raises(NoCompilerError, match=r"no compiler for .* works here; tried: cc, zig"):
        build(MACHINE, source=source)
    assert names(source) == {"fundus.c"}


@pytest.mark.parametrize("script", ["exit 1", "echo cannot find crt1.o; exit 1"])
def test_a_compiler_that_does_not_work_is_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """The source is not at fault where nothing at all can be compiled."""
    (tmp_path / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NoCompilerError):
        build(MACHINE, source=source, compiler="cc")


def test_cc_is_not_asked_for_another_processor(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    other = next(machine for machine in build_kernel.TARGETS if machine != MACHINE)
    with pytest.raises(NoCompilerError):
        build(other, source=source)
    with pytest.raises(NoCompilerError, match="not for riscv64"):
        build("riscv64", source=source)


def test_the_command_says_in_its_exit_code_that_there_is_no_compiler(tmp_path: Path) -> None:
    """By itself, as the build of the image runs it: with the standard library alone."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "--compiler", "cc", "--out", str(tmp_path)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("kernel: no compiler for ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_would_make_processors_differ_is_among_the_flags() -> None:
    flags = " ".join(build_kernel.FLAGS)
    assert "-ffp-contract=off" in flags
    assert not any(word in flags for word in ("fast", "-march", "-mtune", "-mcpu"))


def test_a_damaged_stamp_is_an_old_one(source: Path, zig_folder: Path | None) -> None:
    built = build(MACHINE, source=source, zig_folder=zig_folder)
    built.with_suffix(".stamp").write_bytes(b"\xff\xfe")
    assert not up_to_date(MACHINE, source=source)
    build(MACHINE, source=source, zig_folder=zig_folder)
    assert up_to_date(MACHINE, source=source)


def test_a_folder_that_cannot_be_written_is_told_of(source: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(UnavailableError, match=r"file/fundus-.* cannot be written: "):
        build(MACHINE, source=source, out=blocked)


def test_where_nothing_may_be_run_the_source_is_not_at_fault(
    source: Path, zig_folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(_: str) -> None:
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", forbidden)
    with pytest.raises(UnavailableError, match="cannot be loaded here: failed to map"):
        build(MACHINE, source=source, zig_folder=zig_folder)


def test_the_source_tells_its_number(source: Path, zig_folder: Path | None) -> None:
    source.write_text(f"{PUBLIC}int dr_kernel_version(void) {{ return DR_KERNEL_VERSION; }}\n")
    built = build(MACHINE, source=source, zig_folder=zig_folder)
    assert ctypes.CDLL(str(built)).dr_kernel_version() == version_of(source)
    before = version_of(source)
    source.write_text(source.read_text() + "/* changed */\n")
    assert version_of(source) != before
