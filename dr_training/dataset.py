"""The drawn data set: prepared inputs, grades and lesion maps, cached in shards.

    >>> shards = ensure_split(recipe, recipe.validation, Path("out/drawn"), workers=2)
    >>> data = load_shards(shards)
    >>> data.pixels.shape, data.grades.shape, data.maps.shape
    ((800, 224, 224, 3), (800,), (800, 14, 14, 10))

Photographs are drawn at camera-like sizes and pass through the service's own
`inference_image.preprocessing`. A shard is written whole and renamed, so a cut run leaves
none half written, and a second run draws only what is missing.
"""

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dr_training.drawing import DrawnFundus, draw_fundus
from dr_training.lesions import GRADES, LESION_KINDS
from dr_training.recipe import Recipe, Split

LESION_MAP_CELLS = 14
EYES_PER_SHARD = 100
# Large enough that every input pixel averages at least 2 x 2 drawn ones.
DRAWN_SIZES_PX = (480, 720)

Pixels = NDArray[np.uint8]
Grades = NDArray[np.int64]


def ensure_split(
    recipe: Recipe,
    split: Split,
    cache_dir: Path,
    *,
    workers: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Draw what is missing of a split and return its shards in order.

    The cache's folder is named by a digest of the split and of a few prepared photographs, so
    that a drawing or a preprocessing that has changed never meets old pictures.
    """
    folder = cache_dir / f"{split.name}-{_digest(recipe, split)}"
    folder.mkdir(parents=True, exist_ok=True)
    firsts = range(0, split.eyes, EYES_PER_SHARD)
    shards = [folder / f"{first:06d}.npz" for first in firsts]
    jobs = [
        (recipe, split, first, shard)
        for first, shard in zip(firsts, shards, strict=True)
        if not shard.exists()
    ]
    if jobs:
        # Spawned, not forked: TensorFlow may already run threads in this process.
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            for done, _ in enumerate(pool.imap(_draw_shard, jobs), start=1):
                progress(f"{split.name}: {done} of {len(jobs)} shards drawn")
    return shards


@dataclass(frozen=True, kw_only=True)
class DrawnData:
    """Photographs in memory: pixels (n, S, S, 3), grades (n,), maps (n, 14, 14, kinds) 0/1."""

    pixels: Pixels
    grades: Grades
    maps: NDArray[np.uint8]


def load_shards(shards: Sequence[Path]) -> DrawnData:
    """The photographs of these shards, in their order."""
    parts = []
    for shard in shards:
        with np.load(shard) as data:
            parts.append((data["pixels"], data["grades"], data["maps"]))
    pixels, grades, maps = (np.concatenate(column) for column in zip(*parts, strict=True))
    return DrawnData(pixels=pixels, grades=grades, maps=maps)


def grades_of(split: Split, seed: int) -> tuple[int, ...]:
    """Which grades an eye is drawn in: every grade equally often over a split."""
    order = np.random.Generator(np.random.PCG64([seed, 77])).permutation(5)
    if split.grades_per_eye == 1:
        return ((seed - split.first_seed) % 5,)
    return tuple(int(grade) for grade in order[: split.grades_per_eye])


def drawn_size_px(seed: int) -> int:
    """The width at which the photograph of an eye is drawn."""
    rng = np.random.Generator(np.random.PCG64([seed, 78]))
    return int(rng.integers(*DRAWN_SIZES_PX))


def lesion_map(drawn: DrawnFundus) -> NDArray[np.uint8]:
    """Which lesion kinds each cell of the prepared picture holds: (14, 14, kinds), 0 or 1.

    A wide lesion marks every cell whose centre it covers, and that of its own centre.
    """
    cells = np.zeros((LESION_MAP_CELLS, LESION_MAP_CELLS, len(LESION_KINDS)), np.uint8)
    centre_x, centre_y, radius = drawn.field_px
    middles = (np.arange(LESION_MAP_CELLS) + 0.5) / LESION_MAP_CELLS
    for lesion in drawn.lesions:
        x = (lesion.x_px - centre_x + radius) / (2 * radius)
        y = (lesion.y_px - centre_y + radius) / (2 * radius)
        reach = lesion.width_px / (4 * radius)
        kind = LESION_KINDS.index(lesion.kind)
        column, row = (min(LESION_MAP_CELLS - 1, int(v * LESION_MAP_CELLS)) for v in (x, y))
        cells[row, column, kind] = 1
        covered = np.hypot(middles[None, :] - x, middles[:, None] - y) < reach
        cells[covered, kind] = 1
    return cells


def _draw_shard(job: tuple[Recipe, Split, int, Path]) -> Path:
    recipe, split, first, shard = job
    preparation = recipe.preparation()
    pixels, grades, maps = [], [], []
    for seed in split.seeds[first : first + EYES_PER_SHARD]:
        for grade in grades_of(split, seed):
            drawn = draw_fundus(seed, grade, drawn_size_px(seed))
            prepared = preparation(drawn.image)
            pixels.append(prepared.pixels)
            grades.append(grade)
            maps.append(lesion_map(drawn))
    partial = shard.with_suffix(".part.npz")
    np.savez(
        partial,
        pixels=np.stack(pixels).astype(np.uint8),
        grades=np.asarray(grades, np.int64),
        maps=np.stack(maps),
    )
    partial.rename(shard)
    return shard


def _digest(recipe: Recipe, split: Split) -> str:
    digest = hashlib.sha256()
    preparation = recipe.preparation()
    for grade in GRADES:
        drawn = draw_fundus(split.first_seed + grade, grade, DRAWN_SIZES_PX[0])
        digest.update(preparation(drawn.image).pixels.tobytes())
        digest.update(lesion_map(drawn).tobytes())
    facts = {"split": asdict(split), "sizes": DRAWN_SIZES_PX}
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()[:12]
