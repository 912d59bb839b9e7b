"""Reads what `docker save` writes: layers, files, sizes, and the processor of every program.

    archive = read_archive(Path("image.tar"))
    archive.architecture, archive.unpacked_bytes, archive.compressed_bytes

Standard library only.
"""

import gzip
import hashlib
import json
import stat
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

_BLOCK: Final = 1 << 20
# What registries are sent: gzip at its usual level.
_LEVEL: Final = 6
_MACHINES: Final = {0x3E: "amd64", 0xB7: "arm64", 0x03: "i386", 0x28: "arm"}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 1, 5, 10, 14
_WHITEOUT: Final = ".wh."
# Kept while the layers are read, so that a program can be looked into and a list can be read.
_KEPT_NAMES: Final = ("METADATA", "os-release")
_KEPT_FOLDERS: Final = ("/var/lib/dpkg/", "/sboms/", "/share/doc/")


@dataclass(frozen=True, kw_only=True)
class Program:
    """An ELF file: the processor it is for, and the libraries it asks for by name."""

    machine: str
    needed: tuple[str, ...] = ()
    soname: str | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of the image. `kind` is `file`, `folder`, `link` or `other`."""

    path: str
    kind: str
    mode: int
    size_bytes: int
    owner: int
    target: str | None = None
    program: Program | None = None
    # First bytes of the file: enough for the head of a byte-code file.
    head: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: SHA-256 of its tar, bytes of its files, and bytes of its tar after gzip -6."""

    digest: str
    unpacked_bytes: int
    compressed_bytes: int


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A saved image. `files` is what a container sees; `texts` are the lists that it holds."""

    id: str
    architecture: str
    created: str
    config: Mapping[str, Any]
    layers: tuple[Layer, ...]
    files: Mapping[str, Entry]
    texts: Mapping[str, str] = field(repr=False)

    @property
    def unpacked_bytes(self) -> int:
        """Bytes of all files of all layers."""
        return sum(layer.unpacked_bytes for layer in self.layers)

    @property
    def compressed_bytes(self) -> int:
        """Bytes that a registry stores and a host pulls."""
        return sum(layer.compressed_bytes for layer in self.layers)


def read_archive(path: Path, *, compress: bool = True) -> Archive:
    """Read an archive of one image, as `docker save NAME` writes it.

    Args:
        path: the archive.
        compress: measure the compressed size as well, a minute for each two gigabytes; without
            it that size is 0.
    """
    with tarfile.open(path) as outer:
        (image,) = json.load(_member(outer, "manifest.json"))
        config_bytes = _member(outer, image["Config"]).read()
        document = json.loads(config_bytes)
        layers: list[Layer] = []
        files: dict[str, Entry] = {}
        texts: dict[str, str] = {}
        for name in image["Layers"]:
            layers.append(_read_layer(_member(outer, name), files, texts, compress=compress))
    return Archive(
        id=f"sha256:{hashlib.sha256(config_bytes).hexdigest()}",
        architecture=document["architecture"],
        created=document.get("created", ""),
        config=document.get("config") or {},
        layers=tuple(layers),
        files=files,
        texts={path: text for path, text in texts.items() if path in files},
    )


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.getmember(name)
    # Older engines write a layer that is there already as a link to it.
    stream = archive.extractfile(member)
    if stream is None:
        raise ValueError(f"{name} in the archive is not a file")
    return stream


class _Counting:
    """Passes a layer on, counting its bytes as they are and as gzip would make them."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, *, compress: bool) -> None:
        self._stream = stream
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if compress else None
        self.digest = hashlib.sha256()
        self.compressed = 0

    def read(self, count: int = -1) -> bytes:
        block = self._stream.read(count)
        self.digest.update(block)
        if self._gzip is not None:
            self.compressed += len(self._gzip.compress(block))
        return block

    def finish(self) -> None:
        while self.read(_BLOCK):
            pass
        if self._gzip is not None:
            self.compressed += len(self._gzip.flush())


def _read_layer(
    stream: IO[bytes], files: dict[str, Entry], texts: dict[str, str], *, compress: bool
) -> Layer:
    # An engine with the containerd store saves layers as they were compressed.
    magic = stream.read(2)
    stream.seek(0)
    plain = gzip.GzipFile(fileobj=stream) if magic == b"\x1f\x8b" else stream
    counting = _Counting(plain, compress=compress)
    unpacked = 0
    with tarfile.open(fileobj=counting, mode="r|") as layer:  # type: ignore[call-overload]
        for member in layer:
            entry, text = _read_member(layer, member)
            name = PurePosixPath(entry.path).name
            if name.startswith(_WHITEOUT):
                _white_out(entry.path, files)
                continue
            unpacked += entry.size_bytes
            files[entry.path] = entry
            if text is not None:
                texts[entry.path] = text
    counting.finish()
    return Layer(
        digest=f"sha256:{counting.digest.hexdigest()}",
        unpacked_bytes=unpacked,
        compressed_bytes=counting.compressed,
    )


def _white_out(path: str, files: dict[str, Entry]) -> None:
    folder, name = str(PurePosixPath(path).parent), PurePosixPath(path).name
    gone = folder if name == ".wh..wh..opq" else f"{folder}/{name.removeprefix(_WHITEOUT)}"
    for known in [known for known in files if known == gone or known.startswith(f"{gone}/")]:
        del files[known]


def _read_member(layer: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[Entry, str | None]:
    path = "/" + member.name.removeprefix("./").strip("/")
    kind = "other"
    program, head, text = None, b"", None
    if member.isdir():
        kind = "folder"
    elif member.issym() or member.islnk():
        kind = "link"
    elif member.isfile():
        kind = "file"
        stream = layer.extractfile(member)
        assert stream is not None  # noqa: S101 - it is a file
        head = stream.read(16)
        if head.startswith(b"\x7fELF"):
            program = read_program(head + stream.read())
        elif PurePosixPath(path).name in _KEPT_NAMES or any(f in path for f in _KEPT_FOLDERS):
            text = (head + stream.read()).decode("utf-8", "replace")
    return (
        Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(member.mode),
            size_bytes=member.size if kind == "file" else 0,
            owner=member.uid,
            target=member.linkname or None,
            program=program,
            head=head,
        ),
        text,
    )


def read_program(data: bytes) -> Program:
    """Machine, needed libraries and own name of an ELF file (System V ABI, 64 bit and 32 bit)."""
    order = "<" if data[5] == 1 else ">"
    (machine,) = struct.unpack_from(f"{order}H", data, 18)
    name = _MACHINES.get(machine, f"0x{machine:x}")
    if data[4] != 2:
        return Program(machine=name)
    # By program headers, which a loader needs; section headers may be stripped.
    (offset,) = struct.unpack_from(f"{order}Q", data, 32)
    size, count = struct.unpack_from(f"{order}HH", data, 54)
    headers = [
        struct.unpack_from(f"{order}IIQQQQ", data, offset + index * size) for index in range(count)
    ]
    dynamic = [header for header in headers if header[0] == _PT_DYNAMIC]
    if not dynamic:
        return Program(machine=name)
    _, _, start, _, _, length = dynamic[0]
    rows = list(struct.iter_unpack(f"{order}qQ", data[start : start + length]))
    tags = dict(rows)
    for kind, _, start, address, _, length in headers:
        if kind == _PT_LOAD and address <= tags[_DT_STRTAB] < address + length:
            first = tags[_DT_STRTAB] - address + start
            table = data[first : first + tags[_DT_STRSZ]]
            needed = tuple(_string(table, value) for tag, value in rows if tag == _DT_NEEDED)
            own = _string(table, tags[_DT_SONAME]) if _DT_SONAME in tags else None
            return Program(machine=name, needed=needed, soname=own)
    return Program(machine=name)


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def programs(archive: Archive) -> Iterator[Entry]:
    """Every ELF file that a container sees."""
    for entry in archive.files.values():
        if entry.program is not None:
            yield entry
