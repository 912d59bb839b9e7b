"""The figures of RetinaMNIST in docs/networks.md are those of the committed results."""

import json
from pathlib import Path


def test_the_table_quotes_the_results(repository: Path) -> None:
    results = json.loads((repository / "docs" / "benchmarks" / "retinamnist.json").read_text())
    linear = results["pipelines"]["linear"]
    text = (repository / "docs" / "networks.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = {"seed 0": linear["seeds"]["0"], "seed 1": linear["seeds"]["1"]}
    rows |= {"seed 2": linear["seeds"]["2"], "mean": linear["mean"]}
    for title, figures in rows.items():
        (line,) = [
            one for one in lines if one.split(" | ")[0].endswith((f"| {title}", f", {title}"))
        ]
        shown = [float(cell) for cell in line.strip("| ").split(" | ")[1:]]
        names = ("accuracy", "kappa", "auc", "referable_auc")
        assert shown == [round(figures[name], 3) for name in names], title
    assert all(one["photographs"]["validation"] == 120 for one in linear["seeds"].values())
    assert f"{results['published']['accuracy']} | not given | {results['published']['auc']}" in text
