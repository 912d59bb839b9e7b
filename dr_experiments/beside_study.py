"""The study's experiments, run again elsewhere, beside its own measurements: relative effects.

    >>> beside_markdown(read_study(folder), runs_of(read_jsonl(path)))

Absolute times of another machine say nothing about AWS. What can be compared is by which factor a
larger size, a larger model or another container changes a time, on each side by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dr_experiments.cold_start import COLD_PHASES, CONNECTION
from dr_experiments.records import RequestRecord
from dr_experiments.statistics import ratio_of_means, summarise
from dr_experiments.study import (
    COLD,
    COLUMN_WORDS,
    CONTAINER,
    PREDICTION,
    ROUND_TRIP,
    WARM,
    Series,
    Study,
    StudyError,
)
from dr_experiments.study_tables import markdown_table
from stacks.matrix import MATRIX

BEGIN: Final = "<!-- begin: dr bench analyse --beside -->"
END: Final = "<!-- end: dr bench analyse --beside -->"
# As the study's files name them.
_MODELS: Final = {"mobilenet": "MobileNet", "vgg19": "VGG19"}
_SCENARIOS: Final = {"cold": COLD, "warm": WARM}
_WORDS: Final = {COLD: "cold", WARM: "warm"}
# In the study the first request of a container loads the model; here it is loaded before, so that
# only the round trip of a cold request is the same thing on both sides.
_COLUMNS: Final = ((WARM, CONTAINER), (WARM, ROUND_TRIP), (COLD, ROUND_TRIP))
_NO_DATA: Final = "\N{EN DASH}"
_ROWS: Final = {row.stack_id: row for row in MATRIX}


def runs_of(records: Iterable[RequestRecord]) -> dict[str, Study]:
    """Records of a sweep over serverless rows as one study for each container flavour.

    Only answered, counted requests; a fresh container in a warm run and a warm one in a cold run
    are left out.

    Raises:
        StudyError: no such record, or one of a configuration that is no row of the matrix.
    """
    found: dict[tuple[str, str, str, int], list[RequestRecord]] = {}
    for record in records:
        scenario = _SCENARIOS.get(record.scenario)
        if scenario is None or not record.counted or record.outcome != "ok":
            continue
        if bool(record.cold) != (scenario == COLD) or record.memory_mib is None:
            continue
        row = _ROWS.get(record.configuration.partition("+")[0])
        if row is None:
            raise StudyError(f"{record.configuration} is no row of the deployment matrix")
        key = (record.runtime or "litert", scenario, _MODELS[row.model], record.memory_mib)
        found.setdefault(key, []).append(record)
    if not found:
        raise StudyError("the records hold no answered cold or warm request of a serverless row")
    runs: dict[str, list[Series]] = {}
    for (runtime, scenario, model, memory_mib), own in sorted(found.items()):
        runs.setdefault(runtime, []).append(
            Series(
                scenario=scenario,
                model=model,
                memory_mib=memory_mib,
                instance_type=None,
                seconds={
                    column: tuple(float(getattr(record, column)) for record in own)
                    for column in (CONTAINER, PREDICTION, ROUND_TRIP)
                },
            )
        )
    return {runtime: Study(series=tuple(series)) for runtime, series in runs.items()}


def beside_markdown(study: Study, runs: Mapping[str, Study]) -> str:
    """Tables of relative effects: sizes, models, container flavours; each with its interval."""
    sizes = (
        "### Larger sizes\n\nMean on the first size over mean on the second, with its 95 % "
        "interval (percentile bootstrap).\n"
    )
    models = "\n### A larger model\n\nMean of VGG19 over mean of MobileNet on the same size.\n"
    parts = [sizes, _sizes(study, runs), models, _models(study, runs)]
    if len(runs) > 1:
        flavours = (
            "\n### Another container\n\nMean in the TensorFlow container over mean in the litert "
            "one, on the same size. The study's files have one container only.\n"
        )
        parts += [flavours, _flavours(runs)]
    return "\n".join(parts)


def phases_markdown(records: Iterable[RequestRecord]) -> str:
    """Mean seconds of the phases of a cold start by configuration, with n."""
    own: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.phases is not None and record.counted:
            own.setdefault(record.configuration, []).append(record)
    phases = [phase for phase in COLD_PHASES if phase != CONNECTION]
    head = ["configuration", "n", *(phase.replace("_", " ") for phase in phases), "round trip"]
    rows = []
    for name in sorted(own):
        split = [dict(record.phases or {}) for record in own[name]]
        means = [summarise([one.get(phase, 0.0) for one in split]).mean for phase in phases]
        whole = summarise([float(record.fullLatency or 0) for record in own[name]]).mean
        rows.append([name, str(len(split)), *(f"{mean:.2f}" for mean in (*means, whole))])
    return markdown_table(head, rows)


def _sizes(study: Study, runs: Mapping[str, Study]) -> str:
    rows = []
    for scenario, column in _COLUMNS:
        for model in _MODELS.values():
            for first, second in _size_pairs((study, *runs.values()), scenario, model):
                cells = [
                    _ratio(_series(one, scenario, model, first),
                           _series(one, scenario, model, second), column)
                    for one in (study, *runs.values())
                ]  # fmt: skip
                sizes = f"{first // 1024} GB → {second // 1024} GB"
                rows.append([_WORDS[scenario], COLUMN_WORDS[column], model, sizes, *cells])
    return markdown_table(["scenario", "time", "model", "sizes", "study", *runs], rows)


def _models(study: Study, runs: Mapping[str, Study]) -> str:
    rows = []
    small, large = _MODELS.values()
    for scenario, column in _COLUMNS:
        for memory_mib in _sizes_of((study, *runs.values()), scenario):
            cells = [
                _ratio(_series(one, scenario, large, memory_mib),
                       _series(one, scenario, small, memory_mib), column)
                for one in (study, *runs.values())
            ]  # fmt: skip
            size = f"{memory_mib // 1024} GB"
            rows.append([_WORDS[scenario], COLUMN_WORDS[column], size, *cells])
    return markdown_table(["scenario", "time", "size", "study", *runs], rows)


def _flavours(runs: Mapping[str, Study]) -> str:
    rows = []
    lean, full = runs["litert"], runs["tensorflow"]
    for scenario, column in _COLUMNS:
        for model in _MODELS.values():
            for memory_mib in _sizes_of(runs.values(), scenario):
                cell = _ratio(
                    _series(full, scenario, model, memory_mib),
                    _series(lean, scenario, model, memory_mib),
                    column,
                )
                size = f"{memory_mib // 1024} GB"
                rows.append([_WORDS[scenario], COLUMN_WORDS[column], model, size, cell])
    return markdown_table(["scenario", "time", "model", "size", "tensorflow / litert"], rows)


def _size_pairs(studies: Sequence[Study], scenario: str, model: str) -> Iterator[tuple[int, int]]:
    sizes = sorted(
        {s.memory_mib for study in studies for s in study.of(scenario, model) if s.memory_mib}
    )
    for index, first in enumerate(sizes):
        for second in sizes[index + 1 :]:
            yield first, second


def _sizes_of(studies: Iterable[Study], scenario: str) -> list[int]:
    return sorted({s.memory_mib for study in studies for s in study.of(scenario) if s.memory_mib})


def _series(study: Study, scenario: str, model: str, memory_mib: int) -> Series | None:
    found = [s for s in study.of(scenario, model) if s.memory_mib == memory_mib]
    return found[0] if found else None


def _ratio(first: Series | None, second: Series | None, column: str) -> str:
    if first is None or second is None:
        return _NO_DATA
    ratio = ratio_of_means(first.seconds[column], second.seconds[column])
    if ratio.low is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
