"""The table of variants: which packages belong together, and that the page quotes the results."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import variants
from inference_image.model_spec import load_model_spec


def spec(kind: str, *, network: str = "mobilenet", task: str = "grade5", **raw: Any) -> Any:
    facts = {"network": {"name": network, "parameters": 7}, "metrics": {"model": kind}, **raw}
    return SimpleNamespace(id=f"{network}-{kind}", task=task, raw=facts)


def test_packages_of_one_network_and_task_belong_together_with_f32_first() -> None:
    specs = [
        spec("int8"),
        spec("int8", task="referable"),
        spec("f32"),
        spec("f32", task="referable"),
        spec("float16"),
    ]
    assert variants.groups(specs) == [[2, 4, 0], [3, 1]]


def test_what_dr_model_quantise_wrote_says_its_kind_itself() -> None:
    assert variants.kind_of(spec("f32", variant={"kind": "int8"})) == "int8"
    with pytest.raises(ValueError, match="mobilenet-None does not say which of f32"):
        variants.kind_of(spec(None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ([spec("int8")], r"the f32 package of mobilenet \(grade5\) is missing"),
        ([spec("f32"), spec("f32")], "is named twice"),
        ([spec("f32"), spec("int8", network="vgg19-small")], "f32 package of vgg19-small"),
    ],
)
def test_variants_that_cannot_be_compared_are_refused(specs: list[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        variants.groups(specs)


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        variants.page("# A page\n", {})


def test_the_page_quotes_the_committed_results(repository: Path) -> None:
    results = json.loads((repository / "docs" / "benchmarks" / "variants.json").read_text())
    text = (repository / "docs" / "models" / "README.md").read_text("utf-8")
    assert variants.page(text, results) == text
    assert results["photographs"] == 1000
    kinds = [[row["kind"] for row in model["variants"]] for model in results["models"]]
    assert all(set(row) >= {"f32", "int8"} for row in kinds)
    assert {"grade5", "referable"} == {model["task"] for model in results["models"]}


def test_the_results_are_of_the_committed_packages(repository: Path) -> None:
    results = json.loads((repository / "docs" / "benchmarks" / "variants.json").read_text())
    rows = {row["id"]: row for model in results["models"] for row in model["variants"]}
    for name in ("mobilenet-demo", "vgg19-small-demo", "referral-demo"):
        document = json.loads((repository / "model_artifacts" / name / "model.json").read_text())
        row = rows[name]
        assert row["kind"] == "int8"
        model = document["files"]["model.tflite"]
        assert row["model_bytes"] == model["size_bytes"]
        # Where the file has been rewritten since, the row names what was measured.
        assert row["sha256"] == load_model_spec(repository / "model_artifacts" / name).sha256
        assert row.get("measured_with", row).keys() >= {"sha256", "model_bytes"}
        for figure in ("referable_auc", variants.AT_SPECIFICITY):
            assert row["metrics"][figure] == document["metrics"][figure], name


def test_the_work_of_others_is_what_the_machine_did_and_this_process_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Times(SimpleNamespace):
        def _asdict(self) -> dict[str, float]:
            return vars(self)

    machine = iter(
        [
            Times(user=100.0, system=20.0, idle=900.0, iowait=3.0, steal=1.0, guest=50.0),
            Times(user=107.0, system=21.0, idle=990.0, iowait=9.0, steal=8.0, guest=57.0),
        ]
    )
    own, clock = iter([4.0, 9.0]), iter([30.0, 40.0])
    monkeypatch.setattr(variants.psutil, "cpu_times", lambda: next(machine))
    monkeypatch.setattr(variants.time, "process_time", lambda: next(own))
    monkeypatch.setattr(variants.time, "perf_counter", lambda: next(clock))
    with variants.others_work() as others:
        pass
    # 8 seconds of work in 10, 5 of them this process's.
    assert others.cpus == pytest.approx(0.3)
