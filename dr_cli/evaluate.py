"""`dr evaluate`: scores a model on labelled photographs, here or over HTTP."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.progress import Progress
from rich.table import Table as Grid

from dr_cli.console import make_console, print_note
from dr_cli.errors import CommandError
from dr_cli.folders import result_folder
from dr_cli.packages import opened_package, package_or_default
from dr_cli.predict import endpoint_target, url_target
from dr_experiments.client import Client
from dr_experiments.targets import Payload, Target
from dr_training.data.faults import DataError
from dr_training.data.readers import PUBLISHED_SPLIT, read
from dr_training.data.splits import TEST, published_split, read_split
from dr_training.data.table import Table, read_table
from dr_training.evaluation import check_choices, evaluate
from dr_training.evaluation_page import (
    PREDICTIONS,
    estimate,
    write_answers,
    write_evaluation,
)
from dr_training.origin import Judged, refuse_seen
from dr_training.scoring import ModelAnswer, Scored, score_answers, score_package
from inference_image.headers import sniff

_MOST_NAMED = 5


def evaluate_model(
    table_path: Path | None,
    *,
    npz: Path | None,
    split: Path | None,
    part: str | None,
    url: str | None,
    endpoint: str | None,
    model: Path | None,
    region: str | None,
    prevalence: float | None,
    by: Sequence[str],
    draws: int,
    out: Path,
) -> int:
    """Ask about every photograph, write the report, and print its figures.

    Returns:
        How many photographs failed, which are in no figure. Ungradable ones have not failed.
    """
    if sum(choice is not None for choice in (endpoint, url, model)) > 1:
        raise CommandError("choose one of --endpoint, --url and --model")
    judged, data = _judged(table_path, npz=npz, split=split, part=part)
    photographs = judged.photographs
    if not photographs:
        raise CommandError(f"there is no photograph in {data}")
    # Before thousands of photographs are asked about.
    check_choices(photographs, prevalence=prevalence, by=by)
    if url is not None or endpoint is not None:
        result_folder(out)
        seen = "a service does not say what its model was trained on, so whether these photographs "
        seen += "are new to it is not known"
        with _target(url, endpoint, region) as target, _Bar() as bar:
            answers = _Service(target)
            scored = score_answers(photographs, answers, progress=bar)
        facts, thresholds = answers.facts(), answers.thresholds
    else:
        with opened_package(package_or_default(model)) as (folder, spec):
            seen = refuse_seen(spec, judged)
            result_folder(out)
            with _Bar() as bar:
                scored = score_package(folder, photographs, progress=bar)
        facts = {"id": spec.id, "sha256": spec.sha256}
        thresholds = {point.name: point.threshold for point in spec.operating_points}
    print_note(seen)
    name_failures(scored)
    if not scored.gradable.any():
        answers_file = write_answers(scored, out)
        first = int(np.argmax(scored.failed))
        why = f": {scored.reasons[first]}" if scored.failed.any() else ", all are ungradable"
        raise CommandError(f"no photograph was graded{why}; {answers_file} has a row for each")
    report = {
        "model": facts,
        "data": data,
        # What a reader of the figures must know, and nothing where all is well.
        **({"note": seen} if seen else {}),
        **evaluate(scored, thresholds=thresholds, prevalence=prevalence, by=by, draws=draws),
    }
    title = f"Evaluation of {facts['id']} on {data}"
    files = write_evaluation(report, scored, out, title=title)
    print_report(report)
    print(f"report in {files[1]}")
    failed = int(scored.failed.sum())
    if failed:
        # A script that goes by the exit code reads why on stderr.
        print(
            f"dr: {failed:,} of {len(scored):,} photographs failed, and the figures are of the "
            f"others; {out / PREDICTIONS} says why",
            file=sys.stderr,
        )
    return failed


def print_report(report: Mapping[str, Any]) -> None:
    """The figures of a report as a table on the terminal."""
    refused = report["ungradable"]
    print(
        f"{report['photographs']:,} photographs: {report['gradable']:,} graded, "
        f"{refused['photographs']:,} ungradable, {refused['failed']:,} failed"
    )
    grid = Grid(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, key in (
        ("accuracy", "accuracy"),
        ("quadratic weighted kappa", "quadratic_weighted_kappa"),
        ("referable AUC", "referable_auc"),
    ):
        if key in report:
            grid.add_row(name, estimate(report[key]))
    for name, point in report["operating_points"].items():
        grid.add_row(f"sensitivity, {name}", estimate(point["sensitivity"]))
        grid.add_row(f"specificity, {name}", estimate(point["specificity"]))
        if "ppv" in point:
            at = f"at a prevalence of {100 * point['prevalence']:g} %"
            grid.add_row(f"PPV {at}", estimate(point["ppv"]))
            grid.add_row(f"NPV {at}", estimate(point["npv"]))
    make_console().print(grid)


def _judged(
    table_path: Path | None, *, npz: Path | None, split: Path | None, part: str | None
) -> tuple[Judged, str]:
    if (table_path is None) == (npz is None):
        raise CommandError("name a table of `dr data table`, or a MedMNIST file with --npz")
    if npz is not None:
        if split is not None:
            raise CommandError("--split belongs to a table; --npz has parts of its own: --part")
        table = read("npz", npz).table
        wanted = part or TEST
        return _published(table, wanted, npz), f"{npz.name}, part {wanted}"
    assert table_path is not None  # noqa: S101 - one of the two is given
    table = read_table(table_path)
    if split is None:
        if part is not None:
            raise CommandError("--part needs a --split")
        return Judged(table=table, split=None, part=None), table_path.name
    wanted = part or TEST
    return members(table, split, wanted), f"{table_path.name}, part {wanted} of {split.name}"


def members(table: Table, split_path: Path, part: str) -> Judged:
    """One part of a split, which must not be empty."""
    judged = Judged(table=table, split=read_split(split_path, table), part=part)
    if not judged.photographs:
        raise DataError(f"{split_path} puts no photograph in the part {part!r}")
    return judged


def _published(table: Table, part: str, npz: Path) -> Judged:
    judged = Judged(table=table, split=published_split(table, PUBLISHED_SPLIT), part=part)
    if not judged.photographs:
        parts = sorted({one.extra[PUBLISHED_SPLIT] for one in table})
        raise CommandError(f"{npz} has no part {part!r}; it has {', '.join(parts)}")
    return judged


@contextmanager
def _target(url: str | None, endpoint: str | None, region: str | None) -> Iterator[Target]:
    if url is None:
        yield endpoint_target(str(endpoint), region=region)[0]
        return
    service = url_target(url)
    try:
        yield service
    finally:
        service.close()


class _Service:
    """Asks a service about one photograph after the other, and notes what it says of itself."""

    def __init__(self, target: Target) -> None:
        self._client = Client(target)
        self._model: dict[str, Any] = {}
        self.thresholds: dict[str, float] = {}

    def __call__(self, data: bytes) -> ModelAnswer:
        measurement = self._client.measure(Payload(body=data, content_type=sniff(data) or ""))
        answer = measurement.answer
        if answer is None:
            return ModelAnswer(failure=measurement.error or measurement.outcome)
        self._model = dict(answer["model"])
        referable = answer["referable"]
        self.thresholds[str(referable["operating_point"])] = float(referable["threshold"])
        predictions = answer["predictions"]
        return ModelAnswer(
            probabilities=None if predictions is None else tuple(predictions),
            reasons=tuple(answer["quality"]["reasons"]),
        )

    def facts(self) -> dict[str, Any]:
        return {"id": self._model.get("id", "no answer"), "sha256": self._model.get("sha256")}


class _Bar:
    """A progress bar on a terminal; nothing elsewhere."""

    def __enter__(self) -> Self:
        console = make_console()
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._progress.start()
        self._task = self._progress.add_task("grading", total=None)
        return self

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def name_failures(scored: Scored) -> None:
    """A line for each of the first photographs that brought no answer, and how many there are."""
    failed = [i for i in range(len(scored)) if scored.failed[i]]
    for index in failed[:_MOST_NAMED]:
        print(f"failed: {scored.photographs[index].where}: {scored.reasons[index]}")
    if len(failed) > _MOST_NAMED:
        print(f"failed: {len(failed) - _MOST_NAMED} more")
