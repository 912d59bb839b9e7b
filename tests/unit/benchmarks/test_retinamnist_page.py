"""The figures of RetinaMNIST in docs/networks.md are those of the committed results."""

import json
from pathlib import Path

FIGURES = ("accuracy", "kappa", "auc", "referable_auc")


def test_the_table_quotes_the_results(repository: Path) -> None:
    results = json.loads((repository / "docs" / "benchmarks" / "retinamnist.json").read_text())
    text = (repository / "docs" / "networks.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    for name, word in (("linear", "linear head"), ("trained", "small-resnet")):
        pipeline = results["pipelines"][name]
        rows = {f"seed {seed}": figures for seed, figures in pipeline["seeds"].items()}
        assert len(rows) == 3
        for title, figures in (rows | {"mean": pipeline["mean"]}).items():
            (line,) = [
                one
                for one in lines
                if word in one.split(" | ")[0] and one.split(" | ")[0].endswith(f", {title}")
            ]
            shown = [float(cell) for cell in line.strip("| ").split(" | ")[1:]]
            assert shown == [round(figures[one], 3) for one in FIGURES], (name, title)
        assert all(one["photographs"]["validation"] == 120 for one in pipeline["seeds"].values())
        assert "backbone_weights" in rows["seed 0"]
    assert f"{results['published']['accuracy']} | not given | {results['published']['auc']}" in text


def test_the_package_to_serve_is_of_the_best_pipeline(repository: Path) -> None:
    results = json.loads((repository / "docs" / "benchmarks" / "retinamnist.json").read_text())
    pipelines = results["pipelines"]
    assert pipelines["trained"]["mean"]["auc"] > pipelines["linear"]["mean"]["auc"]
    seeds = pipelines["trained"]["seeds"]
    best = max(seeds, key=lambda seed: seeds[seed]["auc"])
    text = " ".join((repository / "docs" / "networks.md").read_text("utf-8").split())
    choices = pipelines["trained"]["command"].split("--seed SEED ")[1]
    assert f"dr model train records --out out/retina {choices}" in text.replace("\\ ", "")
    assert f"--weight-decay 0.001 --seed {best}" in text
