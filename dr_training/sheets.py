"""Writes the pictures of `docs/drawn-photographs.md`, or one drawn photograph.

python -m dr_training.sheets --out docs/images
python -m dr_training.sheets --seed 7 --grade 2 --photograph fundus.jpg
"""

import argparse
import sys
from pathlib import Path

from PIL import Image

from dr_training.drawing import DEFAULT_SIZE_PX, DrawnFundus, draw_fundus
from dr_training.lesions import (
    GRADES,
    HARD_EXUDATE,
    IRMA,
    MICROANEURYSM,
    NEW_VESSELS_ELSEWHERE,
    PRERETINAL_HAEMORRHAGE,
    VENOUS_BEADING,
)

GRADE_SEEDS = (22, 4, 23)
# One close-up per sign: kind, grade that shows it.
CLOSE_UPS = (
    (MICROANEURYSM, 1),
    (HARD_EXUDATE, 2),
    (VENOUS_BEADING, 3),
    (IRMA, 3),
    (NEW_VESSELS_ELSEWHERE, 4),
    (PRERETINAL_HAEMORRHAGE, 4),
)
_CELL_PX = 240
_GAP_PX = 4
_JPEG_QUALITY = 82


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m dr_training.sheets", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the pictures of the documentation")
    parser.add_argument("--photograph", type=Path, help="write one photograph as JPEG here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grade", type=int, default=0, choices=GRADES)
    parser.add_argument("--size-px", type=int, default=DEFAULT_SIZE_PX)
    options = parser.parse_args(arguments)
    if options.out is None and options.photograph is None:
        parser.error("give --out or --photograph")
    if options.photograph is not None:
        drawn = draw_fundus(options.seed, options.grade, options.size_px)
        options.photograph.write_bytes(drawn.jpeg_bytes())
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, sheet in (("drawn-grades", grade_sheet()), ("drawn-signs", sign_sheet())):
            sheet.save(options.out / f"{name}.jpg", quality=_JPEG_QUALITY)
    return 0


def grade_sheet() -> Image.Image:
    """One row per eye, one column per grade 0 to 4."""
    rows = [
        [_shrunk(Image.fromarray(draw_fundus(seed, grade).image)) for grade in GRADES]
        for seed in GRADE_SEEDS
    ]
    return _tiled(rows)


def sign_sheet() -> Image.Image:
    """Close-ups at the drawn scale, one per entry of `CLOSE_UPS`, in its order."""
    cells = [_close_up(kind, grade) for kind, grade in CLOSE_UPS]
    return _tiled([cells[:3], cells[3:]])


def _close_up(kind: str, grade: int) -> Image.Image:
    for seed in range(40, 200):
        drawn = draw_fundus(seed, grade)
        box = _box(drawn, kind)
        if box is not None:
            return Image.fromarray(drawn.image).crop(box)
    raise LookupError(f"no seed up to 200 shows {kind} away from the edge")


def _box(drawn: DrawnFundus, kind: str) -> tuple[int, int, int, int] | None:
    """The square of one cell around the first such lesion that lies well inside the field."""
    centre_x, centre_y, radius = drawn.field_px
    for lesion in drawn.lesions:
        gap = ((lesion.x_px - centre_x) ** 2 + (lesion.y_px - centre_y) ** 2) ** 0.5
        if lesion.kind == kind and gap + 0.7 * _CELL_PX < radius:
            left, top = round(lesion.x_px) - _CELL_PX // 2, round(lesion.y_px) - _CELL_PX // 2
            return left, top, left + _CELL_PX, top + _CELL_PX
    return None


def _shrunk(photograph: Image.Image) -> Image.Image:
    square = Image.new("RGB", (_CELL_PX, _CELL_PX))
    photograph.thumbnail((_CELL_PX, _CELL_PX), Image.Resampling.BOX)
    square.paste(photograph, (0, (_CELL_PX - photograph.height) // 2))
    return square


def _tiled(rows: list[list[Image.Image]]) -> Image.Image:
    step = _CELL_PX + _GAP_PX
    sheet = Image.new("RGB", (step * len(rows[0]) - _GAP_PX, step * len(rows) - _GAP_PX), "white")
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            sheet.paste(cell, (column * step, row * step))
    return sheet


if __name__ == "__main__":
    sys.exit(main())
