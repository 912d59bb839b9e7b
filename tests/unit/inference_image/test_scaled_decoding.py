"""What decoding a camera's JPEG at a reduced scale does to the answer, over a set of photographs.

The bound is documented in docs/formats.md.
"""

import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dr_training.drawing import draw_fundus
from inference_image.contract import REFERABLE_FROM_GRADE
from inference_image.decoding import Limits, decode
from inference_image.predictor import Predictor, read_photograph
from inference_image.preprocessing import Preparation
from tests.service_harness import REPOSITORY, encoded

INPUT_PX = 224
# docs/formats.md states these bounds and what was measured.
MOST_LEVELS = 1.2
MOST = 0.4
MOST_OF_ALL_BUT_ONE = 0.2
MOST_ON_AVERAGE = 0.06
WIDTH, HEIGHT = 3216, 2136


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    package = REPOSITORY / "model_artifacts" / "mobilenet-demo"
    return Predictor.load(package, threads=1, limits=Limits(max_bytes=10**8))


@cache
def camera_photograph(seed: int, grade: int, side_px: int = 1000) -> Image.Image:
    """A drawing, enlarged to a camera's height and framed as cameras do, with sensor noise."""
    drawn = Image.fromarray(draw_fundus(seed, grade, side_px).image)
    width = round(drawn.width * HEIGHT / drawn.height)
    frame = Image.new("RGB", (WIDTH, HEIGHT), "#030303")
    place = ((WIDTH - width) // 2, 0)
    frame.paste(drawn.resize((width, HEIGHT), Image.Resampling.BICUBIC), place)
    noise = np.random.default_rng(seed).normal(0, 3, (HEIGHT, WIDTH)).astype(np.float32)
    values = np.asarray(frame, dtype=np.float32) + noise[..., np.newaxis]
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def in_a_part_of_the_frame(width: int, x: int, y: int) -> Image.Image:
    frame = Image.new("RGB", (WIDTH, HEIGHT), "#030303")
    drawn = Image.fromarray(draw_fundus(8_700_003, 3, 900).image)
    size = (width, round(drawn.height * width / drawn.width))
    frame.paste(drawn.resize(size, Image.Resampling.BICUBIC), (x, y))
    return frame


def jpeg(picture: Image.Image, quality: int = 88) -> bytes:
    return encoded(picture, "JPEG", quality=quality)


PARTS = {"a third": (1000, 300, 700), "a quarter": (700, 2200, 200), "a sixth": (500, 1500, 1500)}


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Of the reduced scale on one photograph: mean change of the input in levels, largest change
    of a grade's probability, change of P(referable), and whether the decision is another."""

    name: str
    levels: float
    of_a_grade: float
    of_referable: float
    decided_otherwise: bool


def effect(predictor: Predictor, name: str, data: bytes) -> Effect:
    full = encoded(decode(data).image, "BMP")
    small, whole = predictor.read(data).prepared, predictor.read(full).prepared
    fast, slow = predictor.predict(data), predictor.predict(full)
    assert fast.probabilities is not None, (name, fast.quality)
    assert slow.probabilities is not None, (name, slow.quality)
    changes = np.subtract(fast.probabilities, slow.probabilities)
    return Effect(
        name=name,
        levels=float(np.abs(small.pixels.astype(int) - whole.pixels.astype(int)).mean()),
        of_a_grade=float(np.abs(changes).max()),
        of_referable=float(abs(changes[REFERABLE_FROM_GRADE:].sum())),
        decided_otherwise=fast.referable.positive != slow.referable.positive,
    )


def check(effects: list[Effect]) -> None:
    assert max(e.levels for e in effects) <= MOST_LEVELS, effects
    assert max(e.of_a_grade for e in effects) <= MOST, effects
    assert max(e.of_referable for e in effects) <= MOST, effects
    *others, _ = sorted(max(e.of_a_grade, e.of_referable) for e in effects)
    assert max(others, default=0.0) <= MOST_OF_ALL_BUT_ONE, effects
    assert statistics.fmean(e.of_a_grade for e in effects) <= MOST_ON_AVERAGE, effects
    assert not any(e.decided_otherwise for e in effects), effects


def test_the_answer_hardly_changes(predictor: Predictor) -> None:
    check(
        [
            effect(predictor, f"seed {seed}", jpeg(camera_photograph(seed, seed % 5)))
            for seed in range(8_700_001, 8_700_016)
        ]
    )


def test_the_answer_for_a_real_photograph_hardly_changes(
    predictor: Predictor, real_photograph: Path
) -> None:
    with Image.open(real_photograph) as opened:
        source = opened.convert("RGB")
    effects = [effect(predictor, "the file", real_photograph.read_bytes())]
    for side in (2136, 3000):
        larger = source.resize((side, side), Image.Resampling.BICUBIC)
        effects.append(effect(predictor, f"{side} px", jpeg(larger)))
    check(effects)


@pytest.mark.parametrize("part", ["all", *PARTS])
def test_the_disc_not_the_frame_stays_at_twice_the_input(predictor: Predictor, part: str) -> None:
    whole = part == "all"
    picture = camera_photograph(8_700_000, 0) if whole else in_a_part_of_the_frame(*PARTS[part])
    preparation = Preparation.from_spec(predictor.spec)
    decoded, prepared, *_ = read_photograph(jpeg(picture), preparation)
    assert prepared.circle.found
    diameter_px = 2 * prepared.circle.radius_px
    assert diameter_px >= 2 * INPUT_PX or decoded.scale == 1.0
    # And no larger than that asks for: half of it would be too little.
    assert decoded.scale == 0.125 or diameter_px / 2 < 2.2 * INPUT_PX


def test_a_disc_in_a_part_of_the_frame_is_graded_as_if_decoded_whole(
    predictor: Predictor,
) -> None:
    check(
        [
            effect(predictor, part, jpeg(in_a_part_of_the_frame(*place)))
            for part, place in PARTS.items()
        ]
    )
