"""What one setting of the service costs beside another: two services at once, asked in turn.

    python -m benchmarks.serving.in_turn     # NumPy and the compiled kernel
    python -m benchmarks.serving.in_turn DR_THREADS_ALONE=1 DR_THREADS_ALONE=2 --clients 1
    python -m benchmarks.serving.in_turn --before CHECKOUT     # another version, and this one

Both are loaded for a moment one after the other, again and again, so that a machine whose speed
changes changes for both. CPU milliseconds are those of all processes of a service; the ratio is the
median of the ratios within each round. MobileNet, two workers.
"""

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compiled import NotCompiledError
from benchmarks.generator import closed_loop, prepare
from benchmarks.serving.contenders import SERVICE, Running, Server
from benchmarks.serving.inputs import PHOTOGRAPHS, REPOSITORY, Model, make_models, make_photographs

_WORKERS = 2
_WARM_UP_S = 0.3
_FEWEST = 10


def with_settings(settings: Mapping[str, str], *, folder: Path = REPOSITORY) -> Server:
    """The service with these environment variables as well, by the code of a checkout."""
    plain = SERVICE.environment

    def environment(model: Model, port: int, workers: int) -> Mapping[str, str]:
        return {**plain(model, port, workers), **settings}

    return dataclasses.replace(SERVICE, environment=environment, folder=folder)


def table(
    names: Sequence[str], cpu_ms: Sequence[Sequence[float]], per_s: Sequence[Sequence[float]]
) -> list[str]:
    """Medians over the rounds, and how the second of two is beside the first."""
    lines = [f"{'':<24}{'CPU ms an answer':>18}{'answers/s':>12}"]
    lines += [
        f"{name:<24}{statistics.median(cpu):>18.2f}{statistics.median(rate):>12.1f}"
        for name, cpu, rate in zip(names, cpu_ms, per_s, strict=True)
    ]
    ratios = [
        statistics.median(other / first for first, other in zip(values[0], values[1], strict=True))
        for values in (cpu_ms, per_s)
    ]
    return [*lines, f"{'second / first':<24}{ratios[0]:>18.2f}{ratios[1]:>12.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("settings", nargs="*", help="NAME=VALUE of the first and of the second")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="the first service is that of this checkout"
    )
    parser.add_argument("--photograph", choices=PHOTOGRAPHS, default=PHOTOGRAPHS[0])
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    options = parser.parse_args(arguments)
    if options.before is not None:
        if options.settings:
            parser.error("give two settings, or --before a checkout, not both")
        if not (options.before / "inference_image" / "serve.py").is_file():
            parser.error(f"{options.before} is no checkout of this project")
        native = options.before / "inference_image" / "native"
        if native.is_dir() and not list(native.glob("*.so")):
            parser.error(f"{options.before} has no compiled kernel; type `make setup` there")
        words = ["before", "this version"]
        servers = [with_settings({}, folder=options.before.resolve()), with_settings({})]
    else:
        words = options.settings or ["DR_KERNEL=numpy", "DR_KERNEL=auto"]
        if len(words) != 2 or not all("=" in word for word in words):
            parser.error("give two settings as NAME=VALUE, or none")
        servers = [with_settings(dict([word.split("=", 1)])) for word in words]
    try:
        prepare()
    except NotCompiledError as error:
        parser.exit(1, f"{error}\n")
    folder = REPOSITORY / "out" / "bench-serving"
    photograph = make_photographs(folder, (options.photograph,))[options.photograph]
    model = make_models(folder, ("mobilenet",), baseline=False)["mobilenet"]
    request = SERVICE.request(photograph)
    cpu_ms: list[list[float]] = [[], []]
    per_s: list[list[float]] = [[], []]
    with contextlib.ExitStack() as running:
        services = [
            running.enter_context(Running(server, model=model, workers=_WORKERS))
            for server in servers
        ]
        for service in services:
            service.wait_workers(request, _WORKERS)
            service.check(request)
        for _ in range(options.rounds):
            for index, service in enumerate(services):
                load = closed_loop(
                    service.port,
                    request,
                    clients=options.clients,
                    warm_up_s=_WARM_UP_S,
                    seconds=options.seconds,
                    fewest=_FEWEST,
                    at_start=service.cpu_s,
                )
                spent_s = service.cpu_s() - load.at_start
                cpu_ms[index].append(spent_s * 1000 / len(load.answered_s))
                per_s[index].append(load.per_s)
    each = f"{options.rounds} rounds of {options.seconds:g} s each in turn, medians"
    print(f"MobileNet, {photograph.name}, {options.clients} clients, {each}:")
    print("\n".join(table(words, cpu_ms, per_s)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
