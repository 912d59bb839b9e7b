"""`dr draw`: writes drawn fundus photographs."""

from pathlib import Path

from dr_cli.folders import result_folder
from dr_cli.photographs import drawn_photograph
from inference_image.contract import GRADE_LABELS


def draw_photographs(
    out: Path, *, grade: int | None, count: int, seed: int, size_px: int | None
) -> None:
    """Write `count` pictures of each grade; a file's name holds grade and seed."""
    result_folder(out)
    for number in range(seed, seed + count):
        for one in [grade] if grade is not None else range(len(GRADE_LABELS)):
            path = out / f"grade{one}-seed{number}.jpg"
            payload = drawn_photograph(seed=number, grade=one, size_px=size_px)
            path.write_bytes(payload.body)
            print(f"{path}  {GRADE_LABELS[one]}", flush=True)
