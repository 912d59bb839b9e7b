"""`dr bench sweep`: deploys, measures and removes a set of deployments, resumable.

The folder of a sweep holds all that a later run or a watcher must know: `journal.jsonl` with the
plan and what was done, and `place.json` with where it deploys to.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from dr_cli.bench import DRAWN_GRADE
from dr_cli.cdk import require_checkout
from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.folders import result_folder
from dr_cli.invocation import dr
from dr_cli.packages import spec_of
from dr_cli.photographs import drawn_photograph, read_photograph
from dr_cli.sweep_places import MODEL_ROOT, AwsPlace, LocalPlace, place_packages
from dr_experiments.payloads import prepare
from dr_experiments.provenance import code_commit, machine, machine_busy
from dr_experiments.records import RequestRecord
from dr_experiments.statistics import summarise_durations
from dr_experiments.sweep.journal import PLANNED, Journal, State
from dr_experiments.sweep.measuring import measure_entry
from dr_experiments.sweep.plan import (
    PLACE_AWS,
    PLACE_LOCAL,
    PLACES,
    Entry,
    Plan,
    Settings,
    differences,
    make_plan,
)
from dr_experiments.sweep.runner import (
    JOURNAL_FILE,
    RECORDS_FILE,
    SWEEP,
    Deployer,
    Limits,
    Run,
    SweepError,
    collect,
    holding,
    watch,
)
from dr_experiments.sweep.spending import FreePurse, ListPricePurse, Purse
from dr_experiments.targets import Payload
from inference_image.contract import RUNTIME_LITERT, RUNTIME_TENSORFLOW, RUNTIMES
from inference_image.full_layout import nginx_program
from stacks.matrix import MATRIX, MODEL_PACKAGES, Mode

PLACE_FILE: Final = "place.json"
# How the name of a model's file ends, by the flavour that runs it.
_ENGINE_FILES: Final = {RUNTIME_LITERT: ".tflite", RUNTIME_TENSORFLOW: "saved_model.pb"}
# A watcher that cleans up removes one stack after the other, each in minutes on AWS.
_WAIT_FOR_WATCHER_S: Final = 3600.0
# Where no time to live is asked for: the answers take time as well, and some gaps are vain.
_LEAST_TTL_MINUTES: Final = 120.0
_ROOM: Final = 1.5
# The container must outlast the gap between warm requests, and not that before cold ones.
_IDLE_MARGIN_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person asked for on the command line."""

    rows: tuple[str, ...]
    place: str
    out: Path
    runtimes: tuple[str, ...] = (RUNTIME_LITERT,)
    packages: tuple[str, ...] = ()
    tensorflow_python: Path | None = None
    requests: int = 25
    interval_s: float = 5.0
    cold_requests: int = 10
    cold_gap_s: float = 900.0
    cold_attempts: int = 3
    seed: int = 7
    photograph: Path | None = None
    max_side_px: int | None = None
    crop: bool = False
    region: str = "us-east-1"
    ttl_minutes: float | None = None
    spending_limit_usd: float | None = None
    context: tuple[str, ...] = field(default=())

    @property
    def stands_minutes(self) -> float:
        """How long a row may stand: as asked for, or as long as its requests need, and two hours
        at least."""
        if self.ttl_minutes is not None:
            return self.ttl_minutes
        paced_s = self.requests * self.interval_s + self.cold_requests * self.cold_gap_s
        return max(_LEAST_TTL_MINUTES, float(math.ceil(_ROOM * paced_s / 60)))


def bench_sweep(asked: Asked) -> None:
    """See `dr bench sweep --help`."""
    require_checkout()
    busy = machine_busy()
    payload = _payload(asked)
    packages = _packages(asked.packages)
    try:
        new = make_plan(
            _entries(asked, packages),
            Settings(
                place=asked.place,
                region=asked.region,
                requests=asked.requests,
                interval_s=asked.interval_s,
                cold_requests=asked.cold_requests,
                cold_gap_s=asked.cold_gap_s,
                cold_attempts=asked.cold_attempts,
                seed=asked.seed,
                payload_sha256=hashlib.sha256(payload.body).hexdigest(),
            ),
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    _check(asked, new)
    out = result_folder(asked.out)
    console = make_console()
    with holding(out, SWEEP, wait_s=_WAIT_FOR_WATCHER_S):
        old = Journal(out / JOURNAL_FILE).state().plan
        if old is not None and (changes := differences(old, new)):
            raise CommandError(
                f"{out} holds another sweep: {'; '.join(changes)}; use its options, or another "
                "--out"
            )
        plan = old or new
        place_packages(plan, folder=out, packages=packages)
        _remember(out, asked, payload)
        deployer, purse = _place_and_purse(out, plan)
        commit = code_commit()
        run = Run(
            folder=out,
            plan=plan,
            deployer=deployer,
            measure=lambda task: measure_entry(
                task, settings=plan.settings.of(task.entry), payload=payload, git_commit=commit
            ),
            purse=purse,
            limits=_limits(asked),
            on_step=lambda step, name: console.print(f"  {step} {name}", soft_wrap=True),
        )
        _write_provenance(out, asked, commit=commit, busy=busy)
        if old is None:
            # Before the watcher looks for it.
            Journal(out / JOURNAL_FILE).append(PLANNED, plan=plan.document())
        _start_watcher(out)
        if notice := _without_cold_starts(plan):
            console.print(notice, soft_wrap=True)
        state = run.carry_out()
        records = collect(out, plan)
    if busy:
        console.print(busy, soft_wrap=True)
    console.print(_table(plan, records))
    console.print(f"\nrecords {out / RECORDS_FILE}", soft_wrap=True)
    _say_what_is_left(plan, state, out)


def watch_sweep(out: Path) -> None:
    """See `dr bench sweep-watch --help`."""
    plan = Journal(out / JOURNAL_FILE).state().plan
    if plan is None or not (out / PLACE_FILE).is_file():
        raise CommandError(f"{out} holds no sweep")
    deployer, purse = _place_and_purse(out, plan)
    watch(out, deployer, purse)


def _entries(asked: Asked, packages: Mapping[tuple[str, str], Path]) -> list[Entry]:
    known = {row.stack_id: row for row in MATRIX}
    unknown = [name for name in asked.rows if name not in known]
    if unknown or not asked.rows:
        what = f"{', '.join(unknown)} is" if unknown else "nothing named is"
        raise CommandError(f"{what} in the deployment matrix; list the rows with: npx cdk list")
    entries = []
    for name in asked.rows:
        model = known[name].model
        own = [(label, path) for (of, label), path in packages.items() if of == model]
        choices: dict[str | None, Path] = dict(own)
        choices = choices or {None: MODEL_ROOT / known[name].package}
        for runtime in asked.runtimes:
            fitting = [label for label, folder in choices.items() if runs_in(folder, runtime)]
            if not fitting:
                raise CommandError(
                    f"no package of {model} holds what {runtime} runs ({_ENGINE_FILES[runtime]}); "
                    "name one with --package"
                )
            entries += [Entry(row=name, runtime=runtime, package=label) for label in fitting]
    return entries


def runs_in(folder: Path, runtime: str) -> bool:
    """Whether the package in `folder` lists a model that this flavour of the container runs."""
    suffix = _ENGINE_FILES[runtime]
    return any(file.path.endswith(suffix) for file in spec_of(folder).files)


def _packages(arguments: Sequence[str]) -> dict[tuple[str, str], Path]:
    """`MODEL:LABEL=FOLDER` arguments: folders by model and label."""
    found: dict[tuple[str, str], Path] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        model, colon, label = name.partition(":")
        if not (equals and colon and label and folder) or model not in MODEL_PACKAGES:
            raise CommandError(
                f"--package takes MODEL:LABEL=FOLDER with a model of {', '.join(MODEL_PACKAGES)}; "
                f"got {argument!r}"
            )
        if (model, label) in found:
            raise CommandError(f"--package names {model}:{label} twice")
        found[(model, label)] = Path(folder)
    return found


def _check(asked: Asked, plan: Plan) -> None:
    """Refuse before anything is deployed what could only fail later."""
    if asked.place not in PLACES:
        raise CommandError(f"--on must be one of {', '.join(PLACES)}; got {asked.place!r}")
    if asked.place == PLACE_AWS and asked.spending_limit_usd is None:
        raise CommandError("a sweep on AWS needs --spending-limit-usd")
    least_s = max(plan.settings.of(entry).least_s for entry in plan.entries)
    if least_s >= 60 * asked.stands_minutes:
        raise CommandError(
            f"one row takes at least {least_s / 60:.0f} minutes and may stand "
            f"{asked.stands_minutes:g} (--ttl-minutes); use a longer time or fewer requests"
        )
    if asked.place == PLACE_LOCAL:
        _check_local(asked, plan)


def _check_local(asked: Asked, plan: Plan) -> None:
    settings = plan.settings
    functions = [e.name for e in plan.entries if e.deployment.mode == Mode.LAMBDA]
    if functions:
        raise CommandError(
            f"{', '.join(functions)}: the local AWS runs SageMaker endpoints and no functions"
        )
    gap_s = settings.cold_gap_s - settings.interval_s
    if _meets_fresh_containers(plan) and gap_s < 2 * _IDLE_MARGIN_S:
        raise CommandError(
            f"here --cold-gap-s must be at least {2 * _IDLE_MARGIN_S:g} s longer than "
            "--interval-s: in between, a container that is not used is stopped"
        )
    if RUNTIME_TENSORFLOW in asked.runtimes and asked.tensorflow_python is None:
        raise CommandError(
            "--runtime tensorflow needs --tensorflow-python: an interpreter that has TensorFlow, "
            "such as .venv-training/bin/python (make setup-training)"
        )
    if asked.tensorflow_python is not None and not os.access(asked.tensorflow_python, os.X_OK):
        raise CommandError(f"{asked.tensorflow_python} is not a program")
    if RUNTIME_TENSORFLOW in asked.runtimes and nginx_program() is None:
        raise CommandError(
            "--runtime tensorflow needs nginx, which its containers start and which is not "
            "installed here; install it, or run make nginx and put .nginx/bin on the PATH"
        )


def _meets_fresh_containers(plan: Plan) -> bool:
    return any(plan.settings.of(entry).cold_requests for entry in plan.entries)


def _without_cold_starts(plan: Plan) -> str | None:
    """Which entries are measured otherwise than was asked for, and why; None where none is."""
    names = [e.name for e in plan.entries if plan.settings.of(e) != plan.settings]
    if not names:
        return None
    return (
        f"an instance is always on, so that --cold-requests does not apply to "
        f"{', '.join(sorted(names))}: warm requests only"
    )


def _payload(asked: Asked) -> Payload:
    if asked.photograph is not None:
        payload = read_photograph(asked.photograph)
    else:
        payload = drawn_photograph(seed=asked.seed, grade=DRAWN_GRADE)
    try:
        return prepare(payload, cropped=asked.crop, max_side_px=asked.max_side_px)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _limits(asked: Asked) -> Limits:
    limit = asked.spending_limit_usd
    return Limits(
        ttl_s=60 * asked.stands_minutes,
        spending_limit_usd=None if limit is None else Decimal(str(limit)),
    )


def _remember(out: Path, asked: Asked, payload: Payload) -> None:
    """What a watcher must know that is not in the plan."""
    python = {RUNTIME_LITERT: sys.executable}
    if asked.tensorflow_python is not None:
        # Not resolved: the link decides to which environment an interpreter belongs.
        python[RUNTIME_TENSORFLOW] = os.path.abspath(asked.tensorflow_python)  # noqa: PTH100
    context = dict(_key_and_value(argument) for argument in asked.context)
    facts = {"python": python, "context": context, "bytes_in": len(payload.body)}
    partial = out / f".{PLACE_FILE}.partial"
    partial.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    partial.replace(out / PLACE_FILE)


def _place_and_purse(out: Path, plan: Plan) -> tuple[Deployer, Purse]:
    facts: dict[str, Any] = json.loads((out / PLACE_FILE).read_text("utf-8"))
    settings = plan.settings
    if settings.place == PLACE_LOCAL:
        wanted = {entry.runtime for entry in plan.entries}
        local = LocalPlace(
            folder=out,
            plan=plan,
            python={r: Path(p) for r, p in facts["python"].items() if r in wanted},
            # Half-way between the gap of warm requests and that of cold ones.
            idle_timeout_s=(settings.interval_s + settings.cold_gap_s) / 2
            if _meets_fresh_containers(plan)
            else settings.interval_s + 60,
        )
        return local, FreePurse()
    place = AwsPlace(folder=out, plan=plan, region=settings.region, context=facts["context"])
    return place, ListPricePurse(region=settings.region, bytes_in=facts["bytes_in"])


def _key_and_value(argument: str) -> tuple[str, str]:
    key, equals, value = argument.partition("=")
    if not equals or not key:
        raise CommandError(f"--context takes KEY=VALUE; got {argument!r}")
    return key, value


def _start_watcher(out: Path) -> None:
    """A process of its own session, which neither Ctrl-C nor the end of this one reaches."""
    log = out / "logs" / "watcher.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as stream:
        subprocess.Popen(
            [sys.executable, "-m", "dr_cli", "bench", "sweep-watch", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


def _write_provenance(out: Path, asked: Asked, *, commit: str | None, busy: str | None) -> None:
    """One line for each run of the sweep: where its numbers come from."""
    line = {
        "command": command_of(asked),
        "git_commit": commit,
        "machine": machine(),
        "busy": busy,
    }
    with (out / "provenance.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def command_of(asked: Asked) -> str:
    """The command again; the name of a photograph may be a patient's and stays out."""
    parts = [dr(f"bench sweep {' '.join(asked.rows)} --on {asked.place}")]
    parts += [f"--runtime {runtime}" for runtime in asked.runtimes]
    parts += [f"--package {package}" for package in asked.packages]
    if asked.tensorflow_python is not None:
        parts.append(f"--tensorflow-python {asked.tensorflow_python}")
    parts += [
        f"--requests {asked.requests} --interval-s {asked.interval_s:g}",
        f"--cold-requests {asked.cold_requests} --cold-gap-s {asked.cold_gap_s:g}",
        f"--seed {asked.seed} --ttl-minutes {asked.stands_minutes:g}",
    ]
    if asked.photograph is not None:
        parts.append("--photograph …")
    if asked.crop:
        parts.append("--crop")
    if asked.max_side_px is not None:
        parts.append(f"--max-side-px {asked.max_side_px}")
    if asked.place == PLACE_AWS:
        parts.append(f"--region {asked.region} --spending-limit-usd {asked.spending_limit_usd:g}")
    return " ".join(parts)


def _table(plan: Plan, records: Sequence[RequestRecord]) -> Table:
    table = Table(title="Seconds, mean (95 % interval)")
    for heading in ("deployment", "n warm", "round trip, warm", "n cold", "round trip, cold"):
        table.add_column(heading, justify="left" if heading == "deployment" else "right")
    for entry in sorted(plan.entries, key=lambda one: one.name):
        own = [
            record
            for record in records
            if record.configuration == entry.name and record.counted and record.fullLatency
        ]
        warm = [r.fullLatency for r in own if not r.cold and r.scenario == "warm"]
        cold = [r.fullLatency for r in own if r.cold and r.scenario == "cold"]
        cells = [*_mean_of(warm), *_mean_of(cold)]
        table.add_row(entry.name, *cells)
    return table


def _mean_of(values: Sequence[float | None]) -> tuple[str, str]:
    known = [value for value in values if value is not None]
    if not known:
        return "0", ""
    summary = summarise_durations(known)
    low, high = summary.mean_low, summary.mean_high
    interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    return str(summary.n), f"{summary.mean:.3f}{interval}"


def _say_what_is_left(plan: Plan, state: State, out: Path) -> None:
    if not state.open_names:
        return
    reasons = [f"{name}: {reason}" for name, reason in sorted(state.failed.items())]
    untried = [name for name in state.open_names if name not in state.failed]
    reasons += [f"not begun: {', '.join(untried)}"] if untried else []
    if state.stopped:
        reasons.append(f"{state.stopped} (--spending-limit-usd)")
    raise SweepError(
        f"{len(state.measured)} of {len(plan.entries)} measured; {'; '.join(reasons)}; the same "
        f"command goes on in {out}"
    )


def known_runtime(name: str) -> str:
    """A container flavour; raises `CommandError` for another word."""
    if name not in RUNTIMES:
        raise CommandError(f"--runtime must be one of {', '.join(RUNTIMES)}; got {name!r}")
    return name
