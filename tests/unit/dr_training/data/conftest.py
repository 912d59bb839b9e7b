"""Small data sets in the published layouts, made of drawn photographs."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image

from dr_training.data.readers import read
from dr_training.data.table import Table
from dr_training.drawing import draw_fundus

SIZE_PX = 256
Draw = Callable[..., bytes]


@pytest.fixture(scope="session")
def drawn() -> Draw:
    """`drawn(seed, grade, "PNG")`: bytes of a drawn photograph, each drawn once a session."""
    kept: dict[tuple[int, int, str], bytes] = {}

    def draw(seed: int, grade: int, form: str = "JPEG") -> bytes:
        key = (seed, grade, form)
        if key not in kept:
            stream = io.BytesIO()
            Image.fromarray(draw_fundus(seed, grade, SIZE_PX).image).save(stream, form)
            kept[key] = stream.getvalue()
        return kept[key]

    return draw


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A CSV file with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def write_bytes(path: Path, data: bytes) -> Path:
    """A file, with the folders that lead to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def drawn_table(tmp_path: Path, drawn: Draw) -> Table:
    """Six eyes, each in five grades: thirty photographs."""
    for seed in range(6):
        for grade in range(5):
            write_bytes(tmp_path / "drawn" / f"grade{grade}-seed{seed}.jpg", drawn(seed, grade))
    return read("drawn", tmp_path / "drawn").table
