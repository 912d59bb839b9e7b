"""The arguments of `dr model train` and its kin, checked before TensorFlow is started."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dr_cli.errors import CommandError
from dr_cli.invocation import dr
from dr_training.backbones import backbone
from dr_training.data.preparation import MANIFEST
from dr_training.fitting.plan import TrainingPlan

_PLAN = tuple(TrainingPlan.__dataclass_fields__)


def arguments(records: Path, out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of `dr model train`, as JSON values."""
    plan = {name: options[name] for name in _PLAN if name in options}
    TrainingPlan(**plan)
    _check(records, out)
    return {
        "records": str(records),
        "out": str(out),
        "plan": plan,
        "choices": {
            **{name: options[name] for name in ("strategy", "cpu_devices", "restart")},
            "saved_model": options["saved_model"],
            # Quantisation-aware training goes on from the network itself.
            "keras_file": options["saved_model"],
            "threads": options["threads"],
            "compute_threads": options["threads"],
            "package_id": options["model_id"],
            "command": _command("train", records, out, plan, TrainingPlan(network="mobilenet"))
            + (" --saved-model" if options["saved_model"] else ""),
        },
    }


def comparison_arguments(records: Path, out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of `dr model compare`, as JSON values."""
    networks = [name.strip() for name in options["networks"].split(",") if name.strip()]
    plan = {name: options[name] for name in _PLAN if name in options}
    for name in networks:
        TrainingPlan(network=name, **plan)
    if len(networks) < 2 or len(set(networks)) != len(networks):
        raise CommandError(
            f"--networks {options['networks']!r}: name two or more, each once, with commas between"
        )
    _check(records, out)
    return {
        "records": str(records),
        "out": str(out),
        "networks": networks,
        "plan": plan,
        "choices": {
            "strategy": options["strategy"],
            "restart": options["restart"],
            "threads": options["threads"],
            "compute_threads": options["threads"],
        },
    }


def linear_head_arguments(records: Path, out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of `dr model linear-head`, as JSON values."""
    backbone(options["network"])
    _check(records, out)
    names = ("network", "network_size_px", "copies", "seed", "threads", "model_id")
    chosen = {name: options[name] for name in names}
    size = options["network_size_px"]
    line = f"model linear-head {records} --out {out} --network {options['network']}"
    line += f" --network-size-px {size}" if size else ""
    line += f" --copies {options['copies']} --seed {options['seed']}"
    return {"records": str(records), "out": str(out), **chosen, "command": f"dr {line}"}


def _check(records: Path, out: Path) -> None:
    if not (records / MANIFEST).is_file():
        raise CommandError(
            f"{records} holds no {MANIFEST}; make records with `{dr('data prepare')}`"
        )
    if out.exists() and not out.is_dir():
        raise CommandError(f"{out} is a file; name a folder with --out")


def _command(
    verb: str, records: Path, out: Path, plan: Mapping[str, Any], defaults: TrainingPlan
) -> str:
    """The command that does the same again: options that are not the default."""
    usual = defaults.as_document()
    words = ["dr model", verb, str(records), "--out", str(out)]
    for name, value in plan.items():
        option = f"--{name.replace('_', '-')}"
        if name == "augment":
            words += [] if value else ["--no-augment"]
        elif name == "network" or value != usual[name]:
            words += [option, str(value)]
    return " ".join(words)
