"""Compiles the service's kernel, `native/fundus.c`, into one shared object for each architecture.

    python inference_image/docker/build_kernel.py                      # for this machine
    python inference_image/docker/build_kernel.py --compiler zig --machine aarch64 --out FOLDER

The file lies beside its source afterwards, where `inference_image/kernel.py` looks for it. `cc` is
the system's compiler; `zig` is the package ziglang where Python can import it, and the only one
that compiles for another architecture. Set-up and the build of the image both run this, so that
there is one list of flags. Standard library only.

Exit code 0, 1 with one sentence where the source does not compile, 3 where there can
be no kernel here: no compiler, or a folder that cannot be written.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parent.parent / "native" / "fundus.c"
# As `platform.machine()` names them on Linux, and as Zig does.
TARGETS: Final = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
CC: Final = "cc"
ZIG: Final = "zig"
COMPILERS: Final = (CC, ZIG)
FLAGS: Final = (
    # Fused or reordered floating point would differ between architectures, and without -march
    # every processor of an architecture runs the file.
    *("-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-fomit-frame-pointer", "-s"),
    # Frames are large: who has too little stack ends at once, and never writes beyond it.
    # No library at run time: nothing is called that the source does not define, and what the
    # compiler may add by itself is off. Whatever is undefined all the same ends the build.
    *(
        "-nostdlib",
        "-ffreestanding",
        "-fno-builtin",
        "-fno-stack-protector",
        "-fstack-clash-protection",
    ),
    *("-fno-sanitize=undefined", "-Wl,-z,defs"),
)
_OF_COMPILER: Final = {
    # GCC makes calls of memset and memcpy out of loops without it; clang knows no such option.
    CC: ("-fno-tree-loop-distribute-patterns", "-Wno-ignored-optimization-argument"),
    ZIG: (),
}
# What any compiler that works can compile; else it is the compiler that is at fault.
_PROBE: Final = "int probe(int value);\nint probe(int value) { return value + 1; }\n"
_COMPILE_S: Final = 300
_UNAVAILABLE: Final = 3


class KernelError(Exception):
    """The source does not compile. Its text is one sentence for a person."""


class UnavailableError(KernelError):
    """There can be no kernel here, whatever the source; NumPy does its work."""


class NoCompilerError(UnavailableError):
    """There is no compiler that works."""


def file_name(machine: str) -> str:
    """Name of the shared object for `machine`."""
    return f"fundus-{machine}.so"


def version_of(source: Path = SOURCE) -> int:
    """A number of this very source, which its file answers and `kernel.py` asks for: an older file
    has other arguments, and would read wrong memory without a word."""
    return int.from_bytes(hashlib.sha256(source.read_bytes()).digest()[:4], "big") >> 2


def up_to_date(machine: str, *, source: Path = SOURCE) -> bool:
    """Whether the file beside `source` was made of it as it is now, with these flags."""
    built = source.parent / file_name(machine)
    try:
        wanted = _stamp(_source_digest(source), built)
        return _stamp_file(built).read_text(encoding="ascii") == wanted
    except (OSError, ValueError):
        return False


def build(
    machine: str,
    *,
    compiler: str | None = None,
    source: Path = SOURCE,
    out: Path | None = None,
    zig_folder: Path | None = None,
) -> Path:
    """Compile `source`; other processes see the old file or the new one, never a part.

    Args:
        machine: a key of `TARGETS`.
        compiler: one of `COMPILERS`; by default cc where it works and can, else zig.
        out: another folder for the file, without a stamp.
        zig_folder: where the package ziglang is, beside where Python looks.

    Raises:
        NoCompilerError: no compiler works.
        UnavailableError: the folder cannot be written, or nothing that lies there can be run.
        KernelError: the source does not compile; the file that was there stays.
    """
    if machine not in TARGETS:
        raise NoCompilerError(
            f"the kernel is for {' and '.join(TARGETS)} on Linux, and not for {machine}"
        )
    folder = out or source.parent
    built = folder / file_name(machine)
    compilers = (compiler,) if compiler else COMPILERS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In the same folder, since a file is replaced at once only within one file system.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
            # As it is now: who changes it meanwhile has it compiled again next time.
            digest = _source_digest(source)
            made = Path(work, built.name)
            _compile_with_any(compilers, source, made, machine, zig_folder)
            if machine == platform.machine():
                _check(made)
            made.replace(built)
            if out is None:
                stamp = Path(work, "stamp")
                stamp.write_text(_stamp(digest, built), encoding="ascii")
                stamp.replace(_stamp_file(built))
    except OSError as error:
        raise UnavailableError(f"{built} cannot be written: {error.strerror}") from None
    return built


def _compile_with_any(
    compilers: Sequence[str], source: Path, target: Path, machine: str, zig_folder: Path | None
) -> None:
    environment = {
        **os.environ,
        # Zig keeps what it has compiled; here it goes with the temporary folder.
        **dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(target.parent)),
        "LC_ALL": "C",
    }
    if zig_folder is not None:
        environment["PYTHONPATH"] = str(zig_folder)
    for compiler in compilers:
        command = _command(compiler, machine, zig_folder)
        if command is None:
            continue
        command.append(f"-DDR_KERNEL_VERSION={version_of(source)}")
        said = _compile([*command, source.name, "-o", str(target)], source.parent, environment)
        if said is None:
            return
        probe = target.with_name("probe.c")
        probe.write_text(_PROBE, encoding="ascii")
        probing = [*command, probe.name, "-o", "probe.so"]
        if _compile(probing, target.parent, environment) is None:
            raise KernelError(f"{compiler} does not compile {source.name}: {_first_error(said)}")
    raise NoCompilerError(
        f"no compiler for {machine} works here; tried: {', '.join(compilers)} "
        "(zig is the package ziglang)"
    )


def _command(compiler: str, machine: str, zig_folder: Path | None) -> list[str] | None:
    """How `compiler` is called for `machine`; None where it is not there or cannot do that."""
    if compiler == CC:
        here = platform.system() == "Linux" and machine == platform.machine()
        return [CC, *FLAGS, *_OF_COMPILER[CC]] if here else None
    if zig_folder is None and importlib.util.find_spec("ziglang") is None:
        return None
    # Named even where it is this machine: without, Zig takes all that this very processor can do.
    target = ("-target", TARGETS[machine])
    return [sys.executable, "-m", "ziglang", "cc", *target, *FLAGS, *_OF_COMPILER[ZIG]]


def _compile(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str | None:
    """None, or what a compiler that failed has said."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_COMPILE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stdout


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line or "undefined" in line]
    return (telling or lines or ["it says nothing"])[0]


def _check(path: Path) -> None:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        # A file system may forbid it (noexec).
        raise UnavailableError(f"what was compiled cannot be loaded here: {error}") from None
    try:
        library.dr_kernel_version()
    except AttributeError as error:
        raise KernelError(f"what was compiled is no kernel: {error}") from None


def _stamp_file(built: Path) -> Path:
    return built.with_suffix(".stamp")


def _source_digest(source: Path) -> str:
    flags = repr((FLAGS, _OF_COMPILER))
    return hashlib.sha256(flags.encode() + source.read_bytes()).hexdigest()


def _stamp(source_digest: str, built: Path) -> str:
    """Digests of what the file is made from, and of the file."""
    return f"{source_digest} {hashlib.sha256(built.read_bytes()).hexdigest()}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit codes as above."""
    parser = argparse.ArgumentParser(description="Compile the service's kernel.")
    parser.add_argument("--compiler", choices=COMPILERS, help="default: cc where it works, or zig")
    parser.add_argument("--machine", choices=tuple(TARGETS), default=platform.machine())
    parser.add_argument(
        "--version", action="store_true", help="print the source's number, KERNEL_VERSION"
    )
    parser.add_argument("--out", type=Path, help="another folder; always compiles")
    options = parser.parse_args(arguments)
    if options.version:
        print(version_of())
        return 0
    if not options.out and not options.compiler and up_to_date(options.machine):
        return 0
    try:
        build(options.machine, compiler=options.compiler, out=options.out)
    except KernelError as error:
        print(f"kernel: {error}", file=sys.stderr)
        return _UNAVAILABLE if isinstance(error, UnavailableError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
