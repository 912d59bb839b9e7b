"""`dr model train` and `dr model compare`: what runs where TensorFlow is (`tensorflow_side`)."""

import signal
import sys
from pathlib import Path
from typing import Any

from dr_cli.console import print_note
from dr_training.backbones import weights_words
from dr_training.data.faults import DataError
from dr_training.fitting.plan import TrainingPlan
from dr_training.remarks import REMARKS

_STOPPED = 128 + signal.SIGTERM


def train(*, records: str, out: str, plan: dict[str, Any], choices: dict[str, Any]) -> int:
    """Train one network; 143 where it was stopped and can go on."""
    checked = TrainingPlan(**plan)
    _threads(choices)
    from dr_training.fitting.loop import TrainingStoppedError
    from dr_training.fitting.run import train_records

    try:
        trained = train_records(Path(records), Path(out), checked, **choices)
    except TrainingStoppedError as stopped:
        print(str(stopped), file=sys.stderr)
        return _STOPPED
    except FloatingPointError as error:
        raise DataError(str(error)) from None
    report = trained.report
    best = report["validation"]
    print(f"backbone's weights at the start: {weights_words(report)}")
    print(
        f"best epoch {report['best_epoch']} of {report['epochs']} "
        f"(n = {report['photographs']['validation']:,} for validation): "
        + ", ".join(
            f"{k} {best[k]:.4f}" for k in ("accuracy", "kappa", "auc") if best[k] is not None
        )
    )
    for remark in report.get(REMARKS, ()):
        print_note(remark)
    if trained.package is not None:
        print(f"package in {trained.package}")
    return 0


def compare(
    *, records: str, out: str, networks: list[str], plan: dict[str, Any], choices: dict[str, Any]
) -> int:
    """Train networks by one plan and print the ranking; 143 where it was stopped."""
    checked = TrainingPlan(network=networks[0], **plan)
    for name in networks:
        TrainingPlan(network=name, **plan)
    _threads(choices)
    from dr_training.fitting.compare import COMPARISON, compare_networks, markdown
    from dr_training.fitting.loop import TrainingStoppedError

    try:
        rows = compare_networks(Path(records), Path(out), checked, networks, **choices)
    except TrainingStoppedError as stopped:
        print(str(stopped), file=sys.stderr)
        return _STOPPED
    except FloatingPointError as error:
        raise DataError(str(error)) from None
    print(markdown(rows))
    print(f"written to {Path(out) / COMPARISON}.json and .md")
    return 0


def fit_linear_head(
    *, records: str, out: str, network: str, network_size_px: int | None, copies: int, seed: int,
    threads: int, command: str, model_id: str | None,
) -> int:  # fmt: skip
    """A regularised linear head on a frozen backbone, and its package."""
    _threads({"compute_threads": threads})
    from dr_training.fitting.linear_head import train_linear_head

    report = train_linear_head(
        Path(records),
        Path(out),
        network=network,
        network_size_px=network_size_px,
        copies=copies,
        seed=seed,
        threads=threads,
        command=command,
        model_id=model_id,
    )
    best = report["validation"]
    print(f"backbone's weights: {weights_words(report)}")
    print(f"penalty {report['penalty']:g}, chosen by cross-validation on the training part")
    print(
        f"validation (n = {report['photographs']['validation']:,}): "
        + ", ".join(
            f"{k} {best[k]:.4f}" for k in ("accuracy", "kappa", "auc") if best[k] is not None
        )
    )
    for remark in report[REMARKS]:
        print_note(remark)
    print(f"package in {Path(out) / 'package'}")
    return 0


def _threads(choices: dict[str, Any]) -> None:
    """Threads of TensorFlow, before it makes any; they decide in which order sums are added."""
    count = choices.pop("compute_threads", None)
    if count is None:
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)
