"""`dr evaluate --npz FILE --url URL` against a real `serve` process."""

import json
from pathlib import Path

import numpy as np
import pytest

from dr_cli.evaluate import evaluate_model
from dr_cli.serving import running_service
from tests.unit.dr_cli.test_evaluate import small_package


def test_a_file_scored_over_http_gives_what_the_package_gives(
    repository: Path, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = small_package(repository, tmp_path / "small")
    npz = shared_data / "retinamnist" / "retinamnist-train-val.npz"
    choices = {
        "split": None,
        "part": "validation",
        "endpoint": None,
        "region": None,
        "prevalence": None,
        "by": [],
        "draws": 50,
    }
    with running_service(package) as (url, spec):
        evaluate_model(None, npz=npz, url=url, model=None, out=tmp_path / "http", **choices)
    evaluate_model(None, npz=npz, url=None, model=package, out=tmp_path / "here", **choices)
    http, here = (
        json.loads((tmp_path / name / "report.json").read_text()) for name in ("http", "here")
    )
    assert http["model"] == here["model"] == {"id": "small", "sha256": spec.sha256}
    assert http["photographs"] == http["gradable"] == 120
    # Over HTTP only the default operating point is known.
    assert list(http["operating_points"]) == ["high_sensitivity"]
    for name in ("accuracy", "quadratic_weighted_kappa", "referable_auc", "confusion"):
        assert http[name] == here[name]
    with np.load(npz) as arrays:
        labels = arrays["val_labels"].ravel()
    assert [sum(row) for row in here["confusion"]["counts"]] == np.bincount(labels).tolist()
    assert "report in" in capsys.readouterr().out
