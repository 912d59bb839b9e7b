"""Builds the images and measures them: what `make bench-image` runs.

    $ python -m benchmarks.images                        # litert, both architectures
    $ python -m benchmarks.images --tensorflow           # and tensorflow, on both

Prints the table of docs/image.md and writes `docs/benchmarks/image.json`. Sizes are bytes: of all
files of a layer (on disk), and of its tar after gzip -6 (compressed: what a registry stores).
The minimal Debian system as a base is measured where Debian's own engine is started for it.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tools.docker_engine import Engine, EngineError, debian_base, docker_engine
from tools.image import ARCHITECTURES, CACHE, ROOT, Build, build_image, save
from tools.image_archive import Archive, Layer

OUT: Final = ROOT / "docs" / "benchmarks" / "image.json"
MEGABYTE: Final = 1_000_000
OWN_LAYERS: Final = ("wheels", "service")
DEFAULT_BASE: Final = "Debian packages (default)"
MINIMAL_BASE: Final = "Debian minimal system and python3"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One image: what it is, and its layers from the bottom up."""

    runtime: str
    architecture: str
    base: str
    layers: tuple[Layer, ...]

    @property
    def base_layers(self) -> tuple[Layer, ...]:
        """What is below the layers that the Dockerfile adds to any base."""
        return self.layers[: -len(OWN_LAYERS)]

    def row(self) -> dict[str, Any]:
        """As it is written to the file."""
        names = [*("base" for _ in self.base_layers), *OWN_LAYERS]
        return {
            "runtime": self.runtime,
            "architecture": self.architecture,
            "base": self.base,
            "compressed_bytes": sum(layer.compressed_bytes for layer in self.layers),
            "on_disk_bytes": sum(layer.unpacked_bytes for layer in self.layers),
            "layers": [
                {
                    "what": name,
                    "compressed_bytes": layer.compressed_bytes,
                    "on_disk_bytes": layer.unpacked_bytes,
                    "sha256": layer.digest.removeprefix("sha256:"),
                }
                for name, layer in zip(names, self.layers, strict=True)
            ],
        }


def measure(archive: Archive, build: Build, *, base: str) -> Measured:
    """The sizes of a saved image."""
    return Measured(
        runtime=build.runtime,
        architecture=build.architecture,
        base=base,
        layers=archive.layers,
    )


def builds(engine: Engine, *, tensorflow: bool) -> Iterator[tuple[Build, str]]:
    """What is built, and what each is called that it stands on."""
    if engine.own:
        debian_base(engine, CACHE)
    for architecture in ARCHITECTURES:
        yield Build(runtime="litert", architecture=architecture), DEFAULT_BASE
    if engine.own:
        minimal = debian_base(engine, CACHE, include=("python3",))
        yield Build(runtime="litert", architecture="amd64", base_image=minimal), MINIMAL_BASE
    if tensorflow:
        for architecture in ARCHITECTURES:
            yield Build(runtime="tensorflow", architecture=architecture), DEFAULT_BASE


def run(engine: Engine, *, tensorflow: bool) -> list[Measured]:
    """Build, measure and remove each image."""
    found = []
    for build, base in builds(engine, tensorflow=tensorflow):
        named = Build(
            runtime=build.runtime,
            architecture=build.architecture,
            base_image=build.base_image,
            tag="dr-bench-image:now",
        )
        print(f"building {build.runtime} for {build.architecture} on {base} …", file=sys.stderr)
        try:
            build_image(engine, named)
            with tempfile.TemporaryDirectory(prefix="dr-bench-") as work:
                archive = save(engine, named.name, Path(work) / "image.tar")
        finally:
            engine.run("rmi", "--force", named.name, check=False)
        found.append(measure(archive, named, base=base))
    return found


def table(rows: Sequence[Measured]) -> str:
    """Markdown, in MB (10^6 bytes), compressed / on disk."""

    def cell(layers: Sequence[Layer]) -> str:
        compressed = sum(layer.compressed_bytes for layer in layers) / MEGABYTE
        on_disk = sum(layer.unpacked_bytes for layer in layers) / MEGABYTE
        return f"{compressed:.1f} / {on_disk:.1f}"

    lines = [
        "| runtime | architecture | base | base, MB | wheels, MB | service, MB | whole image, MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        wheels, service = row.layers[-2:]
        cells = [row.runtime, row.architecture, row.base, cell(row.base_layers)]
        cells += [cell([wheels]), cell([service]), cell(row.layers)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Exit code 0, or 1 and one sentence."""
    parser = argparse.ArgumentParser(description="Measure the images.")
    parser.add_argument("--tensorflow", action="store_true", help="build that one, too")
    options = parser.parse_args()
    try:
        with docker_engine(CACHE) as engine:
            rows = run(engine, tensorflow=options.tensorflow)
            version = engine.version
    except EngineError as error:
        print(f"bench-image: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    document = {
        "command": "make bench-image" + (" TENSORFLOW=1" if options.tensorflow else ""),
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, Docker engine {version}",
        "unit": "bytes; compressed is gzip -6 of each layer",
        "n": 1,
        "images": [row.row() for row in rows],
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0
