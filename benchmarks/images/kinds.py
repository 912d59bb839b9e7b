"""Four ways to build the same service's image: sizes, and what a start in each takes.

    $ python -m benchmarks.images.kinds --package model_artifacts/mobilenet-saved

First all images are built and weighed, then they are started in turn, so that whatever else the
machine does meets each of them alike; the processor time until a container is ready depends on
that least. The study compared an unoptimised image, one of two stages and one of reduced
dependencies; `lean` is this project's own Dockerfile with TensorFlow. The service and the model are
the same in all four, so that what differs is the image. A start here has no transfer in it (the
image is on the machine): that part is a model, bytes over an assumed rate, and labelled so.
"""

import argparse
import contextlib
import json
import platform
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dr_experiments.cold_start import ReadyLine, read_ready_lines
from dr_experiments.provenance import machine_busy
from tools.docker_engine import Engine, EngineError, debian_base, docker_engine
from tools.image import CACHE, CONTEXT, ROOT, Build, build_image, docker_build, save

OUT: Final = ROOT / "docs" / "benchmarks" / "image-kinds.json"
FOLDER: Final = Path(__file__).resolve().parent
UNOPTIMISED: Final = "unoptimised"
TWO_STAGE: Final = "two-stage"
REDUCED: Final = "reduced"
LEAN: Final = "lean"
KINDS: Final = (UNOPTIMISED, TWO_STAGE, REDUCED, LEAN)
# What a full base has besides Python; the slim one has Python alone.
FULL: Final = ("python3", "python3-venv", "python3-pip", "build-essential", "git", "curl")
SLIM: Final = ("python3",)
BUILDER: Final = ("python3", "python3-venv")
STARTS: Final = 5
# An assumption, not a measurement: AWS publishes no rate at which images reach a host.
RATES_MB_PER_S: Final = (50, 100, 200)
MEGABYTE: Final = 1_000_000
_BUILD_S: Final = 3600
_READY_S: Final = 240.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
_LIMITS: Final = ("--memory", "3g", "--memory-swap", "3g", "--cpus", "1")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start in seconds: from the command that runs the container, and by its own log.

    `cpu_s` is the processor time of the container until it is ready, None where its control group
    cannot be read.
    """

    ready_s: float
    process_start_s: float
    imports_s: float
    model_load_s: float
    first_prediction_s: float
    cpu_s: float | None = None

    @classmethod
    def of(cls, ready_s: float, line: ReadyLine, *, cpu_s: float | None = None) -> "Start":
        """Split by the container's ready line; the rest is the engine's and the process's start."""
        own_ms = line.imports_ms + line.model_load_ms + line.warm_up_ms
        return cls(
            ready_s=ready_s,
            process_start_s=max(0.0, ready_s - own_ms / 1000),
            imports_s=line.imports_ms / 1000,
            model_load_s=line.model_load_ms / 1000,
            first_prediction_s=line.warm_up_ms / 1000,
            cpu_s=cpu_s,
        )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One image: its bytes, and its starts. `measured` is the day, since each takes long."""

    name: str
    measured: str
    compressed_bytes: int
    on_disk_bytes: int
    starts: tuple[Start, ...]


def transfer_s(compressed_bytes: int, *, mb_per_s: float) -> float:
    """Seconds that an image takes to a host at an assumed rate: a model, see `RATES_MB_PER_S`."""
    if mb_per_s <= 0:
        raise ValueError(f"the rate must be above 0 MB/s; got {mb_per_s}")
    return compressed_bytes / MEGABYTE / mb_per_s


def context(folder: Path) -> None:
    """Fill `folder` with what the Dockerfiles copy: the service, and the two locks."""
    # With the kernel that set-up compiled: these Dockerfiles have no compiler.
    unwanted = shutil.ignore_patterns("__pycache__", "*.stamp", ".build-*")
    shutil.copytree(CONTEXT, folder / "inference_image", ignore=unwanted)
    shutil.copy(ROOT / "requirements" / "training.txt", folder / "everything.txt")
    shutil.copy(CONTEXT / "requirements-tensorflow-amd64.txt", folder / "serving.txt")


def build_kind(engine: Engine, name: str, *, tag: str) -> None:
    """Build one kind. Raises `EngineError` with the last lines of the build."""
    if name == LEAN:
        build_image(engine, Build(architecture="amd64", runtime="tensorflow", tag=tag))
        return
    arguments: dict[str, str | None] = {}
    if engine.own:
        # No registry is in reach of an engine that was started here.
        single = name == UNOPTIMISED
        arguments["BASE_IMAGE"] = debian_base(engine, CACHE, include=FULL if single else SLIM)
        if not single:
            arguments["BUILD_IMAGE"] = debian_base(engine, CACHE, include=BUILDER)
    with tempfile.TemporaryDirectory(prefix="dr-kinds-") as work:
        context(Path(work))
        docker_build(
            engine,
            Path(work),
            tag=tag,
            arguments=arguments,
            extra=("--file", str(FOLDER / f"{name}.Dockerfile")),
            timeout_s=_BUILD_S,
        )


def start_once(engine: Engine, tag: str, package: Path) -> Start:
    """Run the image, wait until it is ready, and remove it.

    Raises:
        EngineError: it did not become ready; with the end of its log.
    """
    port = _free_port()
    # An engine of its own has no bridge. Another engine maps the port.
    network = engine.network or ("--publish", f"127.0.0.1:{port}:{port}")
    begin = time.monotonic()
    identity = engine.run(
        *("run", "--detach", *network, *_LIMITS, "--read-only", "--tmpfs", "/tmp"),  # noqa: S108
        *("--env", f"SAGEMAKER_BIND_TO_PORT={port}"),
        *("--volume", f"{package.resolve()}:/opt/ml/model:ro", tag, "serve"),
    ).stdout.strip()
    try:
        while not _answers(port):
            waited = time.monotonic() - begin
            log = engine.run("logs", identity, check=False)
            running = engine.run("inspect", "--format", "{{.State.Running}}", identity).stdout
            if running.strip() != "true" or waited > _READY_S:
                raise EngineError(
                    f"{tag} did not become ready:\n{(log.stdout + log.stderr)[-800:]}"
                )
            time.sleep(0.02)
        ready_s = time.monotonic() - begin
        cpu_s = _cpu_s(engine.run("inspect", "--format", "{{.State.Pid}}", identity).stdout.strip())
        log = engine.run("logs", identity)
        lines = read_ready_lines((log.stdout + log.stderr).splitlines())
        if len(lines) != 1:
            raise EngineError(f"{tag} logged {len(lines)} ready lines")
        return Start.of(ready_s, next(iter(lines.values())), cpu_s=cpu_s)
    finally:
        engine.run("rm", "--force", "--volumes", identity, check=False)


def weighed(engine: Engine, name: str, folder: Path) -> tuple[int, int]:
    """Bytes of a kind, compressed and on disk; it is in the engine afterwards, and in `folder`.

    An image that lies in the folder is loaded instead of built, and not weighed again.
    """
    archive, sizes = folder / f"{name}.tar", folder / f"{name}.json"
    if archive.is_file() and sizes.is_file():
        print(f"loading {name} …", file=sys.stderr, flush=True)
        engine.run("load", "--input", str(archive), timeout_s=_BUILD_S)
    else:
        print(f"building {name} …", file=sys.stderr, flush=True)
        build_kind(engine, name, tag=_tag(name))
        found = save(engine, _tag(name), archive)
        sizes.write_text(json.dumps([found.compressed_bytes, found.unpacked_bytes]))
    compressed, on_disk = json.loads(sizes.read_text())
    return int(compressed), int(on_disk)


def started(
    engine: Engine, names: Sequence[str], package: Path, *, starts: int
) -> dict[str, tuple[Start, ...]]:
    """Start all kinds in turn, `starts` times after one round that is not counted.

    The first start reads the files from the disk; the others from memory.
    """
    found: dict[str, list[Start]] = {name: [] for name in names}
    for turn in range(starts + 1):
        for name in names:
            start = start_once(engine, _tag(name), package)
            if turn:
                found[name].append(start)
    return {name: tuple(starts) for name, starts in found.items()}


def _tag(name: str) -> str:
    return f"dr-kind:{name}"


def _cpu_s(pid: str) -> float | None:
    """Processor seconds of the control group that a process is in; None where nobody says."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if "cpuacct" in controllers.split(","):
                usage = _CGROUPS / "cpuacct" / path.lstrip("/") / "cpuacct.usage"
                return int(usage.read_text()) / 1e9
            if not controllers and (_CGROUPS / "cgroup.controllers").exists():
                text = (_CGROUPS / path.lstrip("/") / "cpu.stat").read_text()
                usage_us = dict(entry.split() for entry in text.splitlines())["usage_usec"]
                return int(usage_us) / 1e6
    except (OSError, ValueError, KeyError):
        pass
    return None


def table(kinds: Sequence[Kind]) -> str:
    """Markdown: sizes in MB (10^6 bytes), mean seconds of the phases, the modelled transfer."""
    rates = [f"at {rate} MB/s, s" for rate in RATES_MB_PER_S]
    headings = [
        *("image", "compressed, MB", "on disk, MB", "n", "ready, s", "CPU until ready, s"),
        *("start of process, s", "imports, s", "model load, s", "first prediction, s", *rates),
    ]
    lines = [f"| {' | '.join(headings)} |", f"| --- |{' --- |' * (len(headings) - 1)}"]
    for kind in kinds:
        phases = ("process_start_s", "imports_s", "model_load_s", "first_prediction_s")
        cpu = [start.cpu_s for start in kind.starts if start.cpu_s is not None]
        cells = [
            kind.name,
            f"{kind.compressed_bytes / MEGABYTE:.0f}",
            f"{kind.on_disk_bytes / MEGABYTE:.0f}",
            str(len(kind.starts)),
            f"{_mean([start.ready_s for start in kind.starts]):.2f}",
            f"{_mean(cpu):.2f}" if cpu else "not known",
            *(f"{_mean([getattr(s, phase) for s in kind.starts]):.2f}" for phase in phases),
            *(f"{transfer_s(kind.compressed_bytes, mb_per_s=rate):.1f}" for rate in RATES_MB_PER_S),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path) -> list[Kind]:
    """Kinds of a file that `main` has written; none where it is not there yet."""
    if not path.exists():
        return []
    content = json.loads(path.read_text("utf-8"))
    return [
        Kind(**{**kind, "starts": tuple(Start(**start) for start in kind["starts"])})
        for kind in content["kinds"]
    ]


def merged(before: Sequence[Kind], now: Sequence[Kind]) -> list[Kind]:
    """What was measured now in the place of the same kind, in the order of `KINDS`."""
    known = {kind.name: kind for kind in (*before, *now)}
    return [known[name] for name in KINDS if name in known]


def document(kinds: Sequence[Kind], *, engine_version: str, busy: str | None) -> dict[str, Any]:
    """As it is written to `OUT`."""
    return {
        "command": "python -m benchmarks.images.kinds --package FOLDER",
        "machine": f"{platform.system()} {platform.machine()}, Docker engine {engine_version}",
        "limits": " ".join(_LIMITS),
        "unit": "bytes (compressed: gzip -6 of each layer) and seconds",
        "transfer": "a model: compressed bytes over an assumed rate",
        "busy": busy,
        "kinds": [asdict(kind) for kind in kinds],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 and one sentence."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images.kinds", description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="package with a SavedModel")
    parser.add_argument(
        "--kind",
        action="append",
        choices=KINDS,
        help="this one only, the others stay as they were measured; repeatable",
    )
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument(
        "--images", type=Path, help="folder that keeps the images, for another time"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    if not (options.package / "model.json").is_file():
        print(f"bench-image-kinds: {options.package} is no model package", file=sys.stderr)
        return 1
    wanted = tuple(dict.fromkeys(options.kind or KINDS))
    try:
        with contextlib.ExitStack() as stack:
            folder = options.images or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="dr-kinds-"))
            )
            folder.mkdir(parents=True, exist_ok=True)
            engine = stack.enter_context(docker_engine(CACHE))
            if engine.own and LEAN in wanted:
                debian_base(engine, CACHE)
            if not engine.own:
                stack.callback(engine.run, "rmi", "--force", *map(_tag, wanted), check=False)
            sizes = {name: weighed(engine, name, folder) for name in wanted}
            busy = machine_busy()
            found = started(engine, wanted, options.package, starts=options.starts)
            now = [
                Kind(
                    name=name,
                    measured=datetime.now(UTC).date().isoformat(),
                    compressed_bytes=sizes[name][0],
                    on_disk_bytes=sizes[name][1],
                    starts=found[name],
                )
                for name in wanted
            ]
            kinds = merged(read(options.out), now)
            _write(options.out, document(kinds, engine_version=engine.version, busy=busy))
    except EngineError as error:
        print(f"bench-image-kinds: {error}", file=sys.stderr)
        return 1
    print(table(kinds))
    return 0


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _answers(port: int) -> bool:
    with (
        contextlib.suppress(urllib.error.URLError, OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2) as answer,
    ):
        return bool(answer.status == 200)
    return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
