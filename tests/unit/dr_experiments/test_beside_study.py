"""A sweep beside the study: which requests count, and that only ratios are compared."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from statistics import fmean

import pytest

from dr_cli.analyse import analyse_study
from dr_experiments.beside_study import BEGIN, END, beside_markdown, phases_markdown, runs_of
from dr_experiments.client import Client
from dr_experiments.records import (
    RequestRecord,
    RunContext,
    read_jsonl,
    records_of,
    write_jsonl,
)
from dr_experiments.scenarios import ScenarioResult
from dr_experiments.study import (
    COLD,
    CONTAINER,
    ROUND_TRIP,
    WARM,
    Series,
    Study,
    StudyError,
    read_study,
)
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget

DASH = "\N{EN DASH}"
HEAD = ",requestLatency,predictionLatency,fullLatency\n"


@pytest.fixture
def blank() -> RequestRecord:
    """A record to be changed; made by the module itself, so that it has every field."""
    clock = FakeClock()
    client = Client(FakeTarget(clock, repeat(0.1)), clock=clock, sleep=clock.sleep)
    result = ScenarioResult(
        scenario="warm",
        target=client.describe(),
        interval_s=0,
        warm_up=None,
        measurements=(client.measure(PAYLOAD),),
    )
    return records_of(result, context=RunContext(run_id="r", git_commit=None))[0]


def of(
    blank: RequestRecord, name: str, seconds: float, *, scenario: str = "warm", **changes: object
) -> RequestRecord:
    made = replace(
        blank,
        configuration=name,
        memory_mib=int(name.partition("+")[0].rpartition("-")[2]),
        runtime=name.partition("+")[2].partition("+")[0] or "litert",
        scenario=scenario,
        cold=scenario == "cold",
        requestLatency=seconds / 2,
        predictionLatency=seconds / 4,
        fullLatency=seconds,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


SMALL, LARGE = "dr-serverless-mobilenet-1024", "dr-serverless-mobilenet-2048"
VGG = "dr-serverless-vgg19-1024"


def test_only_what_was_asked_for_counts(blank: RequestRecord) -> None:
    runs = runs_of(
        [
            of(blank, SMALL, 0.4),
            of(blank, SMALL, 9.0, counted=False),
            of(blank, SMALL, 9.0, cold=True),
            of(blank, SMALL, 9.0, outcome="timeout"),
            of(blank, SMALL, 9.0, scenario="load-open"),
            of(blank, SMALL, 9.0, scenario="cold"),
            of(blank, SMALL, 9.5, scenario="cold", cold=False),
            of(blank, f"{VGG}+tensorflow+saved", 2.0),
        ]
    )
    assert set(runs) == {"litert", "tensorflow"}
    (warm,) = runs["litert"].of(WARM)
    assert warm.seconds[ROUND_TRIP] == (0.4,)
    (cold,) = runs["litert"].of(COLD)
    assert cold.seconds[ROUND_TRIP] == (9.0,)
    assert runs["tensorflow"].models() == ("VGG19",)
    with pytest.raises(StudyError, match="is no row of the deployment matrix"):
        runs_of([replace(of(blank, SMALL, 1.0), configuration="mine")])
    with pytest.raises(StudyError, match="no answered cold or warm request"):
        runs_of([of(blank, SMALL, 1.0, outcome="timeout")])


def test_factors_are_computed_on_each_side_by_itself(blank: RequestRecord) -> None:
    """The study halves a time where the machine here, ten times as fast, thirds it."""
    seconds = {1024: (2.0, 2.0), 2048: (1.0, 1.0)}
    study = Study(
        series=tuple(
            Series(
                scenario=WARM,
                model="MobileNet",
                memory_mib=memory,
                instance_type=None,
                seconds=dict.fromkeys(
                    ("requestLatency", "predictionLatency", "fullLatency"), values
                ),
            )
            for memory, values in seconds.items()
        )
    )
    runs = runs_of(
        [of(blank, SMALL, 0.3)] * 2
        + [of(blank, LARGE, 0.1)] * 2
        + [of(blank, VGG, 0.9)] * 2
        + [of(blank, f"{SMALL}+tensorflow", 0.6)] * 2
    )
    text = beside_markdown(study, runs)
    lines = text.splitlines()
    assert (
        "| warm | round trip | MobileNet | 1 GB → 2 GB | 2.00 (2.00 to 2.00) | "
        f"3.00 (3.00 to 3.00) | {DASH} |"
    ) in lines
    # VGG19 over MobileNet: the study has none here.
    assert f"| warm | round trip | 1 GB | {DASH} | 3.00 (3.00 to 3.00) | {DASH} |" in lines
    assert "| warm | round trip | MobileNet | 1 GB | 2.00 (2.00 to 2.00) |" in lines
    # No absolute time of either side is compared.
    assert "0.30" not in text


def test_phases_are_means_by_configuration(blank: RequestRecord) -> None:
    phases = {"connection": 0.0, "platform": 1.0, "process_start": 0.5, "imports": 2.0}
    records = [
        of(blank, SMALL, total, scenario="cold", phases={**phases, "model_load": load})
        for total, load in ((4.0, 0.5), (5.0, 1.5))
    ]
    row = phases_markdown([*records, of(blank, SMALL, 1.0)]).splitlines()[-1]
    assert row == f"| {SMALL} | 2 | 1.00 | 0.50 | 2.00 | 1.00 | 0.00 | 0.00 | 4.50 |"


def test_the_command_writes_between_its_own_markers(blank: RequestRecord, tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    for memory_gb, seconds in ((1, 2.0), (2, 1.0)):
        rows = "".join(f"{n},{seconds},{seconds},{seconds}\n" for n in range(3))
        (study / f"warm-up-MobileNet-{memory_gb}gb.csv").write_text(HEAD + rows)
    assert len(read_study(study).series) == 2
    records = tmp_path / "requests.jsonl"
    write_jsonl(records, [of(blank, SMALL, 0.3), of(blank, LARGE, 0.1)])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    analyse_study(study, write=page, check=False, beside=records)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "| warm | round trip | MobileNet | 1 GB → 2 GB | 2.00 (2.00 to 2.00) | 3.00 |" in text
    analyse_study(study, write=page, check=True, beside=records)


def test_the_page_says_what_the_records_say(repository: Path) -> None:
    """The part that needs no file from outside: the phases of the local cold starts."""
    records = read_jsonl(repository / "docs/reports/local-study/requests.jsonl")
    page = (repository / "docs/reproduction.md").read_text("utf-8")
    assert phases_markdown(records) in page
    runs = runs_of(records)
    assert set(runs) == {"litert", "tensorflow"}
    assert all(len(study.series) == 12 for study in runs.values())


def test_the_page_stands_beside_the_study(shared_data: Path, repository: Path) -> None:
    analyse_study(
        shared_data / "thesis-measurements",
        write=repository / "docs/reproduction.md",
        check=True,
        beside=repository / "docs/reports/local-study/requests.jsonl",
    )


def test_the_text_beside_the_tables_rounds_once(shared_data: Path, repository: Path) -> None:
    """It is written by hand: each figure is rounded from the mean, not from the table's figure."""
    records = read_jsonl(repository / "docs/reports/local-study/requests.jsonl")
    sides = {"study": read_study(shared_data / "thesis-measurements"), **runs_of(records)}

    def mean(side: str, scenario: str, column: str, model: str, gb: int) -> float:
        (series,) = [s for s in sides[side].of(scenario, model) if s.memory_mib == 1024 * gb]
        return fmean(series.seconds[column])

    def gain(side: str, model: str, second: int, scenario: str = WARM) -> float:
        column = ROUND_TRIP if scenario == COLD else CONTAINER
        first, later = (mean(side, scenario, column, model, gb) for gb in (1, second))
        return first / later

    def between(values: Iterable[float], digits: int) -> str:
        found = sorted(values)
        return " to ".join(f"{value:.{digits}f}" for value in (found[0], found[-1]))

    def larger(side: str, scenario: str, column: str) -> list[float]:
        return [
            mean(side, scenario, column, "VGG19", gb)
            / mean(side, scenario, column, "MobileNet", gb)
            for gb in (1, 2, 3)
        ]

    def flavours(model: str) -> list[float]:
        return [
            mean("tensorflow", WARM, CONTAINER, model, gb)
            / mean("litert", WARM, CONTAINER, model, gb)
            for gb in (1, 2, 3)
        ]

    loads: dict[str, list[float]] = {}
    for record in records:
        if record.phases is not None and record.runtime == "tensorflow":
            loads.setdefault(record.configuration, []).append(record.phases["model_load"])
    text = " ".join((repository / "docs/reproduction.md").read_text("utf-8").split())
    for said in (
        (
            f"VGG19 gains {gain('tensorflow', 'VGG19', 2):.2f} (TensorFlow) and "
            f"{gain('litert', 'VGG19', 2):.2f} (litert) from 1 to 2 GB and "
            f"{gain('tensorflow', 'VGG19', 3):.1f} and {gain('litert', 'VGG19', 3):.1f} from 1 to "
            "3 GB"
        ),
        f"the study {gain('study', 'VGG19', 2):.1f} and {gain('study', 'VGG19', 3):.1f}. Cold",
        (
            "On AWS they gained "
            f"{gain('study', 'MobileNet', 2):.1f} and {gain('study', 'MobileNet', 3):.1f}."
        ),
        f"factor {between(flavours('MobileNet'), 1)}, time in the container",
        f"a third to a quarter ({between(flavours('VGG19'), 1)})",
        (
            f"loading the model took {min(map(fmean, loads.values())):.1f} to "
            f"{max(map(fmean, loads.values())):.0f} s with TensorFlow"
        ),
        f"VGG19 takes {between(larger('litert', WARM, CONTAINER), 1)} times as long",
        f"in the study {between(larger('study', WARM, CONTAINER), 1)} times",
        (
            f"and {min(larger('tensorflow', WARM, CONTAINER)):.1f} to "
            f"{max(larger('tensorflow', WARM, CONTAINER)):.0f} times with TensorFlow"
        ),
        f"TensorFlow ({between(larger('tensorflow', COLD, ROUND_TRIP), 2)};",
        f"the study {between(larger('study', COLD, ROUND_TRIP), 2)})",
        f"with litert ({between(larger('litert', COLD, ROUND_TRIP), 2)})",
    ):
        assert said in text, said
