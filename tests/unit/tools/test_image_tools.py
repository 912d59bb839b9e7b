"""What `make image` says without an engine, and how a saved image is read."""

import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.images import DEFAULT_BASE, OWN_LAYERS, Measured, table
from tools import docker_engine
from tools.docker_engine import Engine, EngineError
from tools.image import Build, parse
from tools.image_archive import Layer, read_archive, read_program


def layer(*members: tuple[str, bytes | None, int]) -> bytes:
    """A layer's tar; a member without bytes is a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data, mode in members:
            member = tarfile.TarInfo(name)
            member.mode = mode
            if data is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def saved(path: Path, *layers: bytes, architecture: str = "arm64") -> Path:
    """What `docker save` writes."""
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    config = json.dumps({"architecture": architecture, "config": {"Cmd": ["serve"]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    files = {
        "manifest.json": manifest,
        "config.json": config,
        **dict(zip(names, layers, strict=True)),
    }
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_a_container_sees_what_no_later_layer_took_away(tmp_path: Path) -> None:
    lower = layer(("opt", None, 0o755), ("opt/a", b"12345", 0o644), ("opt/b", b"1", 0o600))
    upper = layer(("opt/.wh.b", b"", 0o644), ("./opt/c/METADATA", b"Name: c\n", 0o644))
    archive = read_archive(saved(tmp_path / "image.tar", lower, upper))
    assert archive.architecture == "arm64"
    assert archive.config["Cmd"] == ["serve"]
    assert sorted(archive.files) == ["/opt", "/opt/a", "/opt/c/METADATA"]
    assert archive.files["/opt/a"].mode == 0o644
    assert archive.texts == {"/opt/c/METADATA": "Name: c\n"}
    # Bytes are counted in every layer: what is hidden is pulled all the same.
    assert [one.unpacked_bytes for one in archive.layers] == [6, 8]
    assert archive.layers[0].digest == f"sha256:{hashlib.sha256(lower).hexdigest()}"


def test_a_layer_is_the_same_however_it_was_saved(tmp_path: Path) -> None:
    plain = layer(("data", bytes(100_000), 0o644))
    first = read_archive(saved(tmp_path / "plain.tar", plain)).layers
    second = read_archive(saved(tmp_path / "zipped.tar", gzip.compress(plain))).layers
    assert first == second
    assert 0 < first[0].compressed_bytes < 2_000
    (quick,) = read_archive(saved(tmp_path / "quick.tar", plain), compress=False).layers
    assert (quick.digest, quick.compressed_bytes) == (first[0].digest, 0)


def test_a_program_tells_its_processor_and_its_libraries() -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    program = read_program(Path(sys.executable).resolve().read_bytes())
    assert program.machine == machine
    assert any(name.startswith("libc.so") for name in program.needed)
    # The same file, said to be for another processor: bytes 18 and 19 of its header.
    other = bytearray(Path(sys.executable).resolve().read_bytes())
    other[18:20] = (0xB7 if machine == "amd64" else 0x3E).to_bytes(2, "little")
    assert read_program(bytes(other)).machine == ("arm64" if machine == "amd64" else "amd64")


def test_without_an_engine_there_is_one_sentence(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.image"],
        cwd=repository,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("image: no Docker engine answers: start Docker, or")
    assert "ENGINE=debian" in line


def test_who_may_not_start_an_engine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "answering", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(EngineError, match="only root can start one"),
        docker_engine.docker_engine(tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_base_of_debian_packages_needs_an_engine_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="started here only"):
        docker_engine.debian_base(Engine(version="1"), tmp_path)


@pytest.mark.parametrize("arguments", [["--arch", "riscv64"], ["--runtime", "torch"]])
def test_an_image_that_nobody_can_build_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert f"invalid choice: '{arguments[1]}'" in capsys.readouterr().err


def test_an_image_is_named_for_what_it_is() -> None:
    assert Build(architecture="arm64", runtime="litert").name == "dr-inference:litert-arm64"
    assert Build(architecture="arm64", runtime="litert", tag="mine:1").name == "mine:1"


def test_the_table_tells_our_layers_from_the_base() -> None:
    layers = tuple(
        Layer(digest=f"sha256:{size}", unpacked_bytes=size * 3, compressed_bytes=size)
        for size in (10_000_000, 20_000_000, 30_000_000, 1_000_000)
    )
    measured = Measured(runtime="litert", architecture="amd64", base=DEFAULT_BASE, layers=layers)
    row = measured.row()
    assert (row["compressed_bytes"], row["on_disk_bytes"]) == (61_000_000, 183_000_000)
    assert [part["what"] for part in row["layers"]] == ["base", "base", *OWN_LAYERS]
    cells = table([measured]).splitlines()[-1].strip("| ").split(" | ")
    assert cells[:3] == ["litert", "amd64", DEFAULT_BASE]
    assert cells[3:] == ["30.0 / 90.0", "30.0 / 90.0", "1.0 / 3.0", "61.0 / 183.0"]
