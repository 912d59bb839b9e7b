"""The commands of docs/models.md, one after the other, as a reader would type them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def commands(page: str) -> list[list[str]]:
    """Words of each command in the page's blocks; a backslash joins lines, # begins a comment."""
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "models.md").read_text("utf-8")


def test_each_command_of_the_document_works(page: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "model_artifacts").symlink_to(repository / "model_artifacts")
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    tried = []
    for words in commands(page):
        assert words[0] == "dr", words
        if elsewhere(words):
            continue
        arguments = smaller(words[1:])
        done = subprocess.run(
            [sys.executable, "-m", "dr_cli", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr[-500:]}"
        tried.append(" ".join(arguments[:2]))
    assert tried == [
        "draw --out",
        "data table",
        "data split",
        "data prepare",
        "data check",
        "evaluate table.csv",
        "model recalibrate",
        "model inspect",
    ]
    assert len((tmp_path / "records" / "qc.csv").read_text().splitlines()) == 101
    assert (tmp_path / "out" / "evaluation" / "report.md").exists()
    assert (tmp_path / "mobilenet-site" / "model.json").exists()


def elsewhere(words: list[str]) -> bool:
    """A command that another test types.

    A service is asked in test_evaluate_service, the gate follows below, and what needs
    TensorFlow is in tests/slow/test_quantise_slow.py.
    """
    return bool({"--url", "int8-package"} & set(words)) or words[2] in ("quantise", "import")


def smaller(arguments: list[str]) -> list[str]:
    """The command on half as many, smaller photographs, so that the test takes seconds."""
    kept = [{"40": "20", "400": "200"}.get(word, word) for word in arguments]
    if "recalibrate" in kept:
        # A part of so few cannot choose, so the whole table does.
        for option in ("--split", "--prevalence"):
            place = kept.index(option)
            del kept[place : place + 2]
    if "evaluate" in kept:
        kept += ["--draws", "50"]
    return kept


def test_the_document_names_every_layout_and_status(page: str) -> None:
    from dr_training.data.preparation import STATUSES
    from dr_training.data.readers import KINDS
    from dr_training.gate import INSUFFICIENT, PASSED, REFUSED, Margins, least_images

    for kind in KINDS:
        assert f"dr data table {kind} " in page
    for word in (*STATUSES, PASSED, REFUSED, INSUFFICIENT):
        assert f"`{word}`" in page
    margins = Margins()
    assert f"sensitivity fell by at most {margins.sensitivity:g}" in page
    assert f"specificity by at most {margins.specificity:g}, AUC by {margins.auc:g}" in page
    assert f"kappa by {margins.kappa:g}" in page
    assert f"{least_images(0.02)} referable images" in page
    assert f"{least_images(0.05)} for 0.05" in page
