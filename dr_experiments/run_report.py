"""One self-contained page about recorded runs, for somebody who was not there.

    >>> write_run_report(Path("report.html"), RunReport(sources=…, month=…, …), Words("en"))

The page loads nothing from outside and holds no photograph. Its figures are written beside it as
SVG and PNG. Everything is derived from records; nothing is measured here.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

from dr_experiments.figures import svg_text
from dr_experiments.languages import Words
from dr_experiments.months import Month
from dr_experiments.records import RequestRecord, read_jsonl
from dr_experiments.report import page_style, template_text
from dr_experiments.run_figures import png_bytes
from dr_experiments.run_groups import Group, group_records
from dr_experiments.run_sections import (
    FIGURES,
    Cell,
    Picture,
    Section,
    Table,
    item_name,
    label,
    platform_name,
    prices_used,
    sections,
)
from dr_experiments.targets import PLATFORM_LOCAL_AWS

# How `provenance.git_commit` marks files that differ from the commit.
_CHANGED: Final = "+changes"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file of records with the name that the page gives it, and its SHA-256."""

    name: str
    sha256: str
    records: tuple[RequestRecord, ...]


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Contents of a page.

    Args:
        month: prices, region and hours of the costs; `requests` a month.
        command: what makes this page again; `git_commit` is of the code that makes it.
    """

    sources: Sequence[Source]
    month: Month
    requests: int
    command: str
    git_commit: str | None
    created_at: datetime


def read_source(path: Path, *, name: str) -> Source:
    """Read a file of records; raises `ValueError` naming the line that is not one."""
    content = path.read_bytes()
    return Source(
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        records=tuple(read_jsonl(path)),
    )


def write_run_report(path: Path, report: RunReport, words: Words) -> list[Path]:
    """Write the page, and its figures into the folder `<stem>-figures` beside it.

    Of an earlier page's figures those that this one lacks are removed, and nothing else. Each file
    is written whole under another name first. Returns all paths, the page first.

    Raises:
        ValueError: nothing was counted, or one name stands for two models; nothing is written.
    """
    groups = group_records(record for source in report.sources for record in source.records)
    found = sections(groups, month=report.month, requests=report.requests, words=words)
    drawn = {picture.name: picture.draw() for section in found for picture in section.pictures}
    svgs = {name: svg_text(figure) for name, figure in drawn.items()}
    page = _render(groups, found, svgs, report, words)
    folder = path.with_name(f"{path.stem}-figures")
    folder.mkdir(parents=True, exist_ok=True)
    kept = set()
    for name, figure in drawn.items():
        for suffix, content in ((".svg", _standalone(svgs[name])), (".png", png_bytes(figure))):
            kept.add(folder / f"{name}{suffix}")
            _write_whole(folder / f"{name}{suffix}", content)
    # Figures of an earlier page with more of them would seem to belong to this one; what else lies
    # there is somebody's own.
    for name, suffix in product(FIGURES, (".svg", ".png")):
        stale = folder / f"{name}{suffix}"
        if stale not in kept:
            stale.unlink(missing_ok=True)
    _write_whole(path, page.encode())
    return [path, *sorted(kept)]


def _render(
    groups: Sequence[Group],
    found: Sequence[Section],
    svgs: Mapping[str, str],
    report: RunReport,
    words: Words,
) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    records = [record for group in groups for record in group.records]
    moments = sorted(datetime.fromisoformat(record.started_at) for record in records)
    numbers = {"table": 0, "figure": 0}

    def count(kind: str) -> str:
        numbers[kind] += 1
        return str(numbers[kind])

    def svg(picture: Picture) -> Any:
        # matplotlib escapes what it draws; the only outside text is a configuration's name.
        return Markup(svgs[picture.name])  # noqa: S704

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    priced = _prices(groups, report, words)
    return environment.from_string(template_text("runs.html.j2")).render(
        w=words,
        style=Markup(page_style()),  # noqa: S704 - our own file
        count=count,
        svg=svg,
        title=words("title"),
        when=words(
            "measured_between", first=words.moment(moments[0]), last=words.moment(moments[-1])
        ),
        lead=_lead(groups, words),
        notices=_notices(groups, report, words, costs=priced is not None),
        sections=[*found, *([priced] if priced else [])],
        provenance=_provenance(groups, report, words),
    )


def _lead(groups: Sequence[Group], words: Words) -> str:
    configurations = len({group.configuration for group in groups})
    cold = sum(len(group.cold) for group in groups)
    return words(
        "lead",
        requests=words.integer(sum(len(group.records) for group in groups)),
        configurations=(
            words("one_configuration")
            if configurations == 1
            else words("configurations", count=words.integer(configurations))
        ),
        answered=words.integer(sum(len(group.warm) for group in groups) + cold),
        cold=words.integer(cold),
        failed=words.integer(sum(len(group.failed) for group in groups)),
    )


def _notices(groups: Sequence[Group], report: RunReport, words: Words, *, costs: bool) -> list[str]:
    lines = []
    lines += _platform_notices(groups, words)
    if costs:
        lines.append(words("costs_estimated", region=report.month.region))
    return [*lines, f"{words('not_a_device')} {words('not_assessed')}"]


def _platform_notices(groups: Sequence[Group], words: Words) -> list[str]:
    """Where the times come from: a reader must not take a machine's for AWS's."""
    lines = []
    local = {g.configuration: None for g in groups if g.platform == PLATFORM_LOCAL_AWS}
    unsaid = {g.configuration: g for g in groups if g.platform is None}
    placeless = [name for name, g in unsaid.items() if not any(r.region for r in g.records)]
    undecided = [name for name in unsaid if name not in placeless]
    platforms = dict.fromkeys(group.platform for group in groups)
    every = {group.configuration for group in groups}

    def named(some: Iterable[str]) -> str:
        """Their names, or that it is all of them: a dozen names would hide what is said."""
        some = list(some)
        return words("everything") if set(some) == every else ", ".join(some)

    if len(platforms) > 1:
        listed = ", ".join(platform_name(platform, words) for platform in platforms)
        lines.append(words("mixed_platforms", platforms=listed))
    if local:
        lines.append(words("local_aws", names=named(local)))
    if placeless:
        lines.append(words("no_region", names=named(placeless)))
    if undecided:
        lines.append(words("region_or_local", names=named(undecided)))
    return lines


def _prices(groups: Sequence[Group], report: RunReport, words: Words) -> Section | None:
    rows = prices_used(groups, month=report.month, requests=report.requests)
    if not rows:
        return None
    table = Table(
        caption=words("caption.prices"),
        head=tuple(
            words(f"column.{key}")
            for key in ("item", "region", "unit", "checked", "source", "amount")
        ),
        rows=tuple(
            (
                Cell(text=item_name(row.item, row.sku, words)),
                Cell(text=row.region),
                Cell(text=words.named("unit", row.unit)),
                Cell(text=row.checked.isoformat()),
                Cell(text=row.source),
                # Every digit of a price counts, so none is rounded away.
                Cell(text=words.number(row.usd, max(0, -int(row.usd.as_tuple().exponent)))),
            )
            for row in rows
        ),
        text_columns=5,
    )
    return Section(title=words("head.prices"), tables=(table,))


def _provenance(groups: Sequence[Group], report: RunReport, words: Words) -> list[tuple[str, str]]:
    rows = [
        (words("provenance.command"), report.command),
        (
            words("provenance.made"),
            ", ".join(
                (
                    words.moment(report.created_at),
                    _commit(report.git_commit, words) or words("provenance.not_git"),
                )
            ),
        ),
    ]
    for group in groups:
        facts: dict[str, set[str | None]] = {
            "runs": {r.run_id for r in group.records},
            "commit": {_commit(r.git_commit, words) for r in group.records},
            "platform": {platform_name(group.platform, words)},
            "machine": {r.machine for r in group.records},
            "region": {r.region for r in group.records},
            "size": {_size(r, words) for r in group.records},
            "image": {r.image for r in group.records},
            "model": {f"{r.model_id} {r.model_sha256}" for r in group.records if r.model_sha256},
            "seed": {None if r.seed is None else str(r.seed) for r in group.records},
            "sent": {
                words("provenance.bytes", count=words.integer(r.bytes_in)) for r in group.records
            },
        }
        told = "; ".join(
            f"{words(f'provenance.{name}')}: {_listed(name, values, words)}"
            for name, values in facts.items()
        )
        rows.append((label(group, words), told))
    rows += [
        (words("provenance.raw"), f"{source.name}: {source.sha256}") for source in report.sources
    ]
    return rows


def _listed(name: str, values: set[str | None], words: Words) -> str:
    known = sorted(value for value in values if value is not None)
    return ", ".join(known) or words(f"unknown.{name}")


def _commit(commit: str | None, words: Words) -> str | None:
    """The commit, and in the page's language that files differed from it."""
    if commit is None or not commit.endswith(_CHANGED):
        return commit
    return words("provenance.changed", commit=commit.removesuffix(_CHANGED))


def _size(record: RequestRecord, words: Words) -> str:
    mode = words.named("mode", record.mode)
    size = f"{record.memory_mib} MiB" if record.memory_mib else record.instance_type
    return f"{mode} {size}" if size else mode


def _standalone(svg: str) -> bytes:
    return ('<?xml version="1.0" encoding="utf-8"?>\n' + svg).encode()


def _write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)


def now() -> datetime:
    """The moment of a page, in UTC."""
    return datetime.now(UTC)
