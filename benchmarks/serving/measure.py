"""Runs the rounds and returns one document of raw samples; `report` derives every figure.

>>> document = measure(plan, models, photographs)
>>> document["samples"][0]
{"round": 0, "network": "mobilenet", "photograph": "224px", "clients": 40, ...}
"""

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.generator import LoadError, closed_loop
from benchmarks.serving.contenders import (
    CEILING,
    SERVERS,
    Ceiling,
    Running,
    ServerError,
    environment,
)
from benchmarks.serving.inputs import NETWORKS, PHOTOGRAPHS, REPOSITORY, Model, Photograph
from benchmarks.serving.peak import measure_peak

CONTENDERS = (*SERVERS, CEILING)
# What is started several times, from nothing to its first answer.
STARTED = ("service", "baseline")
_VERSIONS = (
    "ai-edge-litert",
    "bentoml",
    "fastapi",
    "httptools",
    "keras",
    "litserve",
    "numpy",
    "pillow",
    "starlette",
    "tensorflow",
    "uvicorn",
)
# A slow server gets more time, until there are so many answers.
FEWEST = 20
MOST_FACTOR = 3.0
_SEED = 20_261_128


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, and for how long."""

    contenders: tuple[str, ...] = CONTENDERS
    networks: tuple[str, ...] = NETWORKS
    photographs: tuple[str, ...] = PHOTOGRAPHS
    clients: tuple[int, ...] = (1, 40)
    rounds: int = 3
    starts: int = 5
    seconds: float = 4.0
    warm_up_s: float = 1.0
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    breakdown_repeats: int = 100


def measure(
    plan: Plan,
    models: Mapping[str, Model],
    photographs: Mapping[str, Photograph],
    *,
    say: Callable[[str], None] = print,
    after_round: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """The whole plan; what fails is in `failures`, and the rest goes on.

    Args:
        plan: contenders, networks, photographs, clients and times.
        models: by network.
        photographs: by name.
        say: told of each step.
        after_round: is given the document so far.
    """
    document: dict[str, Any] = {
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "plan": {
            "rounds": plan.rounds,
            "starts": plan.starts,
            "seconds": plan.seconds,
            "warm_up_s": plan.warm_up_s,
            "workers": plan.workers,
            "clients": list(plan.clients),
        },
        "photographs": {
            name: {
                "bytes": len(photographs[name].data),
                "width_px": photographs[name].width_px,
                "height_px": photographs[name].height_px,
            }
            for name in plan.photographs
        },
        "load_average": [],
        "peak": [],
        "samples": [],
        "starts": [],
        "breakdown": {},
        "images": [],
        "failures": [],
    }
    order = random.Random(_SEED)  # noqa: S311 - an order, not a secret
    for number in range(plan.rounds):
        document["load_average"].append(round(os.getloadavg()[0], 2))
        say(f"round {number + 1} of {plan.rounds}: what the processor can do")
        peak = measure_peak(plan.workers)
        if peak is not None:
            document["peak"].append(peak)
        for network in plan.networks:
            contenders = list(plan.contenders)
            order.shuffle(contenders)
            for name in contenders:
                say(f"round {number + 1} of {plan.rounds}: {network}, {name}")
                try:
                    samples = _samples(plan, name, models[network], photographs)
                except (ServerError, LoadError, OSError) as error:
                    say(f"  failed: {error}")
                    document["failures"].append(
                        {
                            "round": number,
                            "network": network,
                            "contender": name,
                            "error": str(error)[-500:],
                        }
                    )
                    continue
                for sample in samples:
                    document["samples"].append({"round": number, "network": network, **sample})
        after_round(document)
    for network in plan.networks:
        for name in (name for name in STARTED if name in plan.contenders):
            say(f"{plan.starts} starts: {network}, {name}")
            try:
                document["starts"] += _starts(
                    plan, name, models[network], photographs[plan.photographs[0]]
                )
            except (ServerError, LoadError, OSError) as error:
                document["failures"].append(
                    {"network": network, "contender": name, "error": str(error)[-500:]}
                )
        for photograph in plan.photographs:
            say(f"stages: {network}, {photograph}")
            stages = _stages(plan, models[network], photographs[photograph])
            document["breakdown"].setdefault(network, {})[photograph] = stages
    document["load_average"].append(round(os.getloadavg()[0], 2))
    after_round(document)
    return document


def machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel and versions."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _samples(
    plan: Plan, name: str, model: Model, photographs: Mapping[str, Photograph]
) -> list[dict[str, Any]]:
    if name == CEILING:
        return _ceiling_samples(plan, model, photographs)
    server = SERVERS[name]
    samples = []
    with Running(server, model=model, workers=plan.workers) as running:
        running.wait_workers(server.request(photographs[plan.photographs[0]]), plan.workers)
        for photograph in plan.photographs:
            request = server.request(photographs[photograph])
            running.check(request)
            for clients in plan.clients:
                cpu_s = running.cpu_s()
                load = closed_loop(
                    running.port,
                    request,
                    clients=clients,
                    warm_up_s=plan.warm_up_s,
                    seconds=plan.seconds,
                    fewest=FEWEST,
                    most_s=MOST_FACTOR * plan.seconds,
                    at_start=running.cpu_s,
                )
                spent_s = running.cpu_s() - (load.at_start or cpu_s)
                samples.append(
                    {
                        "contender": name,
                        "photograph": photograph,
                        "clients": clients,
                        "answers": len(load.latencies_ms),
                        "seconds": round(load.seconds, 3),
                        "per_s": round(load.per_s, 3),
                        "median_ms": round(load.median_ms, 3),
                        "p95_ms": round(_quantile(load.latencies_ms, 0.95), 3),
                        "cpu_ms": round(spent_s * 1000 / len(load.latencies_ms), 3),
                        "generator_cpu_share": round(load.own_cpu_share, 4),
                    }
                )
    return samples


def _ceiling_samples(
    plan: Plan, model: Model, photographs: Mapping[str, Photograph]
) -> list[dict[str, Any]]:
    samples = []
    for photograph in plan.photographs:
        for clients in plan.clients:
            processes = min(clients, plan.workers)
            with Ceiling(
                model=model, photograph=photographs[photograph], processes=processes
            ) as ceiling:
                ceiling.run(plan.warm_up_s)
                records = ceiling.run(plan.seconds)
            took_ms = [took for record in records for took in record["took_ms"]]
            cpu_s = sum(record["cpu_s"] for record in records)
            samples.append(
                {
                    "contender": CEILING,
                    "photograph": photograph,
                    "clients": clients,
                    "answers": len(took_ms),
                    "seconds": round(max(record["seconds"] for record in records), 3),
                    "per_s": round(sum(r["photographs"] / r["seconds"] for r in records), 3),
                    "median_ms": round(statistics.median(took_ms), 3),
                    "p95_ms": round(_quantile(took_ms, 0.95), 3),
                    "cpu_ms": round(cpu_s * 1000 / len(took_ms), 3),
                    "generator_cpu_share": 0.0,
                }
            )
    return samples


def _starts(plan: Plan, name: str, model: Model, photograph: Photograph) -> list[dict[str, Any]]:
    server = SERVERS[name]
    request = server.request(photograph)
    found = []
    for _ in range(plan.starts):
        with Running(server, model=model, workers=1) as running:
            seconds, _answer = running.first_answer(request)
            found.append(
                {
                    "contender": name,
                    "network": model.name,
                    "first_answer_s": round(seconds, 4),
                    "cpu_s": round(running.cpu_s(), 3),
                    "resident_mb": round(running.resident_mb(), 1),
                }
            )
    return found


def _stages(plan: Plan, model: Model, photograph: Photograph) -> dict[str, float]:
    """CPU milliseconds of each stage, while every CPU does the same, as under load."""
    words = [sys.executable, "-m", "benchmarks.serving.breakdown", str(model.package)]
    words += [str(photograph.path), str(plan.breakdown_repeats)]
    running = [
        subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(plan.workers)
    ]
    try:
        records = [json.loads(process.communicate()[0]) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return {
        stage: round(statistics.fmean(record[stage] for record in records), 4)
        for stage in records[0]
    }


def _quantile(values: tuple[float, ...] | list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
