"""Builds the image of the inference service: what `make image` runs.

    python -m tools.image --arch arm64 --runtime litert

The image stays in the Docker engine. Its sizes are printed, and its bill of materials is written
to `out/image/`. With `--engine debian` an engine of Debian's packages is started where none
answers, for the time of the build; the image is then written to `out/image/` as well, for
`docker load`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inference_image.contract import RUNTIMES
from tools.docker_engine import (
    DEBIAN_IMAGE,
    Engine,
    EngineError,
    answering,
    debian_base,
    docker_engine,
)
from tools.image_archive import Archive, read_archive

ROOT: Final = Path(__file__).resolve().parent.parent
CONTEXT: Final = ROOT / "inference_image"
CACHE: Final = ROOT / ".docker-engine"
OUT: Final = ROOT / "out" / "image"
ARCHITECTURES: Final = ("amd64", "arm64")
_BUILD_S: Final = 1800
_MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Build:
    """What to build. `base_image` and `build_image` are the Dockerfile's arguments, `network`
    is that of the build, `host` for instance."""

    architecture: str
    runtime: str
    base_image: str | None = None
    build_image: str | None = None
    tag: str | None = None
    network: str | None = None

    @property
    def name(self) -> str:
        """Repository and tag of the image."""
        return self.tag or f"dr-inference:{self.runtime}-{self.architecture}"


def build_image(engine: Engine, build: Build, *, extra: Sequence[str] = ()) -> str:
    """Build the image in `engine`; returns what the build printed.

    Raises:
        EngineError: with the last lines of the build.
    """
    return docker_build(
        engine,
        CONTEXT,
        tag=build.name,
        arguments={
            "RUNTIME": build.runtime,
            "BASE_IMAGE": build.base_image,
            "BUILD_IMAGE": build.build_image,
        },
        network=build.network,
        extra=("--platform", f"linux/{build.architecture}", *extra),
    )


def docker_build(
    engine: Engine,
    context: Path,
    *,
    tag: str,
    arguments: Mapping[str, str | None],
    network: str | None = None,
    extra: Sequence[str] = (),
    timeout_s: int = _BUILD_S,
) -> str:
    """`docker build` of a folder, with pip's certificates as the secret `ca` where it has some.

    Args:
        arguments: the Dockerfile's; those without a value are left to its defaults.
        network: of the build; the engine's own when left out.

    Raises:
        EngineError: with the last lines of the build.
    """
    command = [engine.docker, "build", "--progress=plain", "--tag", tag]
    command += ("--network", network) if network else engine.network
    for name, value in arguments.items():
        if value:
            command += ["--build-arg", f"{name}={value}"]
    certificates = os.environ.get("PIP_CERT", "")
    if certificates and Path(certificates).is_file():
        command += ["--secret", f"id=ca,src={certificates}"]
    try:
        done = subprocess.run(
            [*command, *extra, str(context)],
            # SageMaker takes no index of manifests, which attestations would make.
            env={**os.environ, **engine.environment, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"the build of {tag} did not end in {timeout_s // 60} min") from None
    if done.returncode != 0:
        raise EngineError(f"the build of {tag} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def save(engine: Engine, name: str, path: Path, *, compress: bool = True) -> Archive:
    """Write the image to `path` as `docker save` does, and read it (see `read_archive`)."""
    if engine.run("image", "inspect", name, check=False).returncode != 0:
        raise EngineError(
            f"the build went well, but the engine has no image {name}: its builder keeps images "
            "to itself; use the default one (docker buildx use default)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    engine.run("save", "--output", str(path), name, timeout_s=_BUILD_S)
    return read_archive(path, compress=compress)


def sizes(archive: Archive) -> str:
    """One line for a person: compressed and on disk, in MB (10^6 bytes)."""
    return (
        f"{archive.compressed_bytes / _MEGABYTE:.1f} MB compressed, "
        f"{archive.unpacked_bytes / _MEGABYTE:.1f} MB on disk, {len(archive.layers)} layers"
    )


def make(engine: Engine, build: Build) -> None:
    """Build, say how large the image is, and write what is in it beside it."""
    from tools.image_materials import bill_of_materials

    if engine.own and build.build_image is None:
        print(f"making {DEBIAN_IMAGE} of Debian packages …", flush=True)
        debian_base(engine, CACHE)
    print(f"building {build.name} for linux/{build.architecture} …", flush=True)
    build_image(engine, build)
    stem = build.name.replace("/", "-").replace(":", "-")
    with tempfile.TemporaryDirectory(prefix="dr-image-") as work:
        archive_path = (OUT if engine.own else Path(work)) / f"{stem}.tar"
        archive = save(engine, build.name, archive_path)
    if archive.architecture != build.architecture:
        raise EngineError(f"the image is for {archive.architecture}, not {build.architecture}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    materials = bill_of_materials(
        archive, name=build.name.partition(":")[0], version=project["version"]
    )
    OUT.mkdir(parents=True, exist_ok=True)
    materials_path = OUT / f"{stem}.cdx.json"
    materials_path.write_text(materials, encoding="utf-8")
    parts = len(json.loads(materials)["components"])
    print(f"{build.name}: {sizes(archive)}")
    if engine.own:
        print(f"image (docker load --input …): {archive_path.relative_to(ROOT)}")
    print(f"bill of materials, {parts} packages: {materials_path.relative_to(ROOT)}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make image", description="Build the inference image.")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="amd64")
    parser.add_argument("--runtime", choices=RUNTIMES, default="litert")
    parser.add_argument("--base-image", help="what the service runs on; default: Debian packages")
    parser.add_argument("--build-image", help=f"where it is put together; default: {DEBIAN_IMAGE}")
    parser.add_argument("--tag", help="name of the image; default: dr-inference:RUNTIME-ARCH")
    parser.add_argument("--network", help="network of the build, `host` for instance")
    parser.add_argument(
        "--engine",
        choices=("running", "debian"),
        default="running",
        help="debian: start one of Debian's packages where none answers (root)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 and one sentence on standard error."""
    options = parse(arguments)
    # An engine that was started here must not outlive this command.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    build = Build(
        architecture=options.arch,
        runtime=options.runtime,
        base_image=options.base_image or None,
        build_image=options.build_image or None,
        tag=options.tag or None,
        network=options.network or None,
    )
    try:
        if options.engine == "debian":
            with docker_engine(CACHE) as engine:
                make(engine, build)
            return 0
        running = answering()
        if running is None:
            raise EngineError(
                "no Docker engine answers: start Docker, or on Debian, as root, let this command "
                "start one for the time of the build with `make image ENGINE=debian`"
            )
        make(running, build)
    except EngineError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("image: interrupted", file=sys.stderr)
        return 130
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
