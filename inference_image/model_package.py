"""Packs a model folder into `model.tar.gz` and unpacks one safely.

    >>> spec = pack_model(Path("model_artifacts/mobilenet-demo"), Path("model.tar.gz"))
    >>> spec.object_key
    'models/mobilenet-demo/….tar.gz'

Packing is deterministic: the same files give the same archive with the same zlib, and the
package's name is the digest of `model.json` (see `model_spec`), which needs no zlib at all.
Unpacking trusts nothing: SageMaker unpacks archives itself, but the local AWS and the
command line meet archives that people send each other.
"""

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from inference_image.model_spec import (
    MAX_MODEL_JSON_BYTES,
    MODEL_JSON,
    ModelPackageError,
    ModelSpec,
    load_model_spec,
    parse_model_spec,
    verify_files,
)

# The largest model of the deployment matrix (VGG19, f32, twice) stays far below; an archive
# that unpacks to more than this is a bomb or a mistake.
MAX_UNPACKED_BYTES = 4 * 1024**3
MAX_MEMBERS = 10_000
_COPY_BLOCK_BYTES = 1024 * 1024
_COMPRESS_LEVEL = 6
_FILE_MODE = 0o644
# Of a header that says what cannot be, `tarfile` lets these through.
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError)


def pack_model(package_dir: Path, target: Path) -> ModelSpec:
    """Write `target` from `model.json` and the files it lists; returns the checked spec.

    Files of the folder that `model.json` does not list (a model card, pictures) stay out.
    The archive is written beside `target` and renamed, so a half-written one never exists.

    Raises:
        ModelPackageError: a listed file is missing or does not have its recorded digest.
    """
    spec = load_model_spec(package_dir)
    verify_files(spec, package_dir)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with (
            partial.open("wb") as raw,
            # An empty name and mtime 0 keep the gzip header free of this machine's traces.
            gzip.GzipFile("", "wb", _COMPRESS_LEVEL, raw, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for path in sorted([MODEL_JSON, *(entry.path for entry in spec.files)]):
                info = tarfile.TarInfo(path)
                info.size = (package_dir / path).stat().st_size
                info.mode = _FILE_MODE
                with (package_dir / path).open("rb") as stream:
                    tar.addfile(info, stream)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return spec


def unpack_model(archive: Path, target_dir: Path) -> None:
    """Unpack regular files and folders of `archive` into `target_dir`, which may not exist yet.

    Raises:
        ModelPackageError: the archive is damaged, escapes its folder, holds links or devices,
            or is larger than `MAX_UNPACKED_BYTES`. What had been unpacked stays; the caller
            owns `target_dir` and removes it.
    """
    target_dir.mkdir(parents=True, exist_ok=True)
    written = 0
    try:
        with tarfile.open(archive, mode="r:gz") as tar:
            seen: set[PurePosixPath] = set()
            for member in tar:
                if len(seen) >= MAX_MEMBERS:
                    raise ModelPackageError(f"{archive.name} holds more than {MAX_MEMBERS} files")
                path = _inside(member, archive)
                if path in seen:
                    raise ModelPackageError(f"{archive.name} holds {member.name!r} twice")
                seen.add(path)
                if member.size < 0:
                    raise ModelPackageError(f"{archive.name} is damaged: a size below zero")
                if member.isdir():
                    (target_dir / path).mkdir(parents=True, exist_ok=True)
                    continue
                if not member.isfile():
                    raise ModelPackageError(
                        f"{archive.name} holds {member.name!r}, which is a link or a device; "
                        "a model package holds plain files only"
                    )
                written += member.size
                if written > MAX_UNPACKED_BYTES:
                    raise ModelPackageError(
                        f"{archive.name} unpacks to more than {MAX_UNPACKED_BYTES} bytes"
                    )
                _write_member(tar, member, target_dir / path)
    except ModelPackageError:
        raise
    except _DAMAGE as error:
        raise ModelPackageError(f"{archive.name} is damaged: {error}") from None
    except FileNotFoundError:
        raise ModelPackageError(f"there is no file {archive}") from None
    except OSError as error:
        raise ModelPackageError(f"{archive.name} cannot be unpacked: {error}") from None


def read_spec_from_archive(archive: Path) -> ModelSpec:
    """The checked `model.json` of a packed model, without unpacking the rest."""
    try:
        with tarfile.open(archive, mode="r:gz") as tar:
            for member in tar:
                if PurePosixPath(member.name) == PurePosixPath(MODEL_JSON) and member.isfile():
                    stream = tar.extractfile(member)
                    data = stream.read(MAX_MODEL_JSON_BYTES + 1) if stream else b""
                    if len(data) > MAX_MODEL_JSON_BYTES:
                        raise ModelPackageError(
                            f"{MODEL_JSON} of {archive.name} is larger than "
                            f"{MAX_MODEL_JSON_BYTES} bytes"
                        )
                    return parse_model_spec(data, origin=f"{MODEL_JSON} of {archive.name}")
    except ModelPackageError:
        raise
    except _DAMAGE as error:
        raise ModelPackageError(f"{archive.name} is damaged: {error}") from None
    except FileNotFoundError:
        raise ModelPackageError(f"there is no file {archive}") from None
    except OSError as error:
        raise ModelPackageError(f"{archive.name} cannot be read: {error}") from None
    raise ModelPackageError(f"{archive.name} holds no {MODEL_JSON} at its root")


def _inside(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        raise ModelPackageError(
            f"{archive.name} holds {member.name!r}, which lies outside the package"
        )
    return path


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    stream = tar.extractfile(member)
    if stream is None:  # pragma: no cover - isfile() was checked
        raise ModelPackageError(f"{member.name!r} cannot be read from the archive")
    with target.open("wb") as out:
        while block := stream.read(_COPY_BLOCK_BYTES):
            out.write(block)
