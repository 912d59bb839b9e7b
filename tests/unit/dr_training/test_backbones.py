"""The table of backbones, read without TensorFlow. `tests/slow` compares it with Keras."""

import subprocess
import sys
from pathlib import Path

import pytest

from dr_training.backbones import BACKBONE_NAMES, BACKBONES, SCALINGS, Backbone, backbone
from dr_training.data.faults import DataError


def test_names_are_unique_and_every_scaling_is_used() -> None:
    assert len(set(BACKBONE_NAMES)) == len(BACKBONES)
    assert {one.scaling for one in BACKBONES} == set(SCALINGS)
    assert all(one.least_px <= one.size_px for one in BACKBONES)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no network 'ResNet-50'; did you mean resnet50"):
        backbone("ResNet-50")
    with pytest.raises(DataError, match="all 42: convnexttiny"):
        backbone("¿?")


def test_a_scaling_that_is_not_known_cannot_be_written_down() -> None:
    with pytest.raises(ValueError, match="scaling must be one of"):
        Backbone(name="x", keras_class="X", module="x", scaling="none", size_px=224, least_px=32)


def test_reading_the_table_imports_no_framework() -> None:
    code = "import sys, dr_training.backbones as b; print([m for m in ('keras', 'tensorflow') if m in sys.modules])"  # noqa: E501
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_document_lists_every_network_in_the_row_of_its_scaling(repository: Path) -> None:
    text = (repository / "docs" / "networks.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    rows_of = {
        scaling: next(row for row in rows if row.startswith(f"| {title}"))
        for scaling, title in (
            ("minus_one_to_one", "to -1..1"),
            ("imagenet_bgr", "blue first"),
            ("imagenet_rgb", "0..1, then"),
            ("lite", "(x - 127)"),
            ("inside", "its own layers"),
        )
    }
    for one in BACKBONES:
        found = [scaling for scaling, row in rows_of.items() if f"`{one.name}`" in row]
        assert found == [one.scaling], one.name
