"""Measures the quality gate: true photographs that it refuses, other pictures that it accepts.

    $ python -m benchmarks.quality_gate              # the table, about a minute on one core
    $ python -m benchmarks.quality_gate --list       # and each picture that was judged wrongly

True photographs are drawn ones (seeds of their own) and variants of the photographs in
`$DR_SHARED` (default `../shared/data`). The others are objects and textures drawn here, and
ordinary pictures under a round mask, as they are, warm, and in a fundus's mean colour. Every
picture is judged as the service judges it, with a package's own preprocessing and gate.
"""

import argparse
import io
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from dr_training.drawing import draw_fundus
from inference_image.model_spec import load_model_spec
from inference_image.preprocessing import Preparation

REPOSITORY = Path(__file__).resolve().parent.parent
SIDE_PX = 640
FUNDUS_COLOUR = (190, 95, 45)
FIRST_DRAWN_SEED = 8_400_000

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A picture, the group it is counted in, and whether it is a gradable fundus photograph."""

    group: str
    name: str
    genuine: bool
    picture: Image.Image


def shared_folder() -> Path:
    """Where the photographs lie that stay outside the repository."""
    return Path(os.environ.get("DR_SHARED", REPOSITORY.parent / "shared" / "data"))


# --- true photographs ---------------------------------------------------------------------


def drawn_photographs(count: int, *, first_seed: int = FIRST_DRAWN_SEED) -> Iterator[Sample]:
    """Drawings of all grades in turn."""
    for index in range(count):
        seed, grade = first_seed + index, index % 5
        image = Image.fromarray(draw_fundus(seed, grade, 480).image)
        yield Sample(group="drawn", name=f"{seed} grade {grade}", genuine=True, picture=image)


def variants(photograph: Image.Image) -> Iterator[Sample]:
    """What cameras, screens and archives do to one photograph that stays gradable."""
    for group, name, picture in _variants(photograph):
        yield Sample(group=f"photograph: {group}", name=name, genuine=True, picture=picture)


def _variants(source: Image.Image) -> Iterator[tuple[str, str, Image.Image]]:
    width, height = source.size
    for angle in range(0, 360, 15):
        yield "turned", f"{angle} degrees", source.rotate(angle)
    yield "turned", "mirror", ImageOps.mirror(source)
    yield "turned", "flip", ImageOps.flip(source)
    for factor in (0.5, 0.6, 0.75, 0.9, 1.1, 1.25, 1.5):
        yield "light", f"brightness {factor}", ImageEnhance.Brightness(source).enhance(factor)
    for factor in (0.7, 1.3):
        yield "light", f"contrast {factor}", ImageEnhance.Contrast(source).enhance(factor)
        yield "light", f"colour {factor}", ImageEnhance.Color(source).enhance(factor)
    for side in (300, 500, 800, 1411, 2000, 3000, 4000):
        yield "size", f"{side} px", source.resize((side, side), Image.Resampling.BICUBIC)
    for quality in (30, 50, 70, 95):
        yield "JPEG", f"quality {quality}", _jpeg(source, quality)
    for percent in range(1, 21):
        x, y = width * percent // 100, height * percent // 100
        yield "cropped", f"sides {percent} %", source.crop((x, 0, width - x, height))
        yield "cropped", f"top and bottom {percent} %", source.crop((0, y, width, height - y))
        if percent <= 12:
            box = (x, y, width - x, height - y)
            yield "cropped", f"all round {percent} %", source.crop(box)
    for colour in ("white", "lightgrey", "grey", (30, 30, 30), (20, 40, 140), "black"):
        for pad in (50, 300, 800):
            yield "padded", f"{colour} {pad} px", ImageOps.expand(source, pad, colour)
            box = (pad, 0, pad, 0)
            yield "padded", f"{colour} {pad} px at sides", ImageOps.expand(source, box, colour)
        screen = Image.new("RGB", (1920, 1080), colour)
        screen.paste(source.resize((900, 900)), (500, 100))
        yield "padded", f"{colour} screen", screen
    values = np.asarray(source).astype(np.float32)
    generator = np.random.default_rng(1)
    for sigma in (5, 15):
        noisy = values + sigma * generator.standard_normal(values.shape, dtype=np.float32)
        yield "noise", f"sigma {sigma}", _image(noisy)
    for name, gains in (("warm", (1.2, 1, 0.7)), ("cool", (0.8, 1, 1.3)), ("red", (1.3, 0.8, 0.8))):
        yield "light", name, _image(values * np.asarray(gains))


def _jpeg(picture: Image.Image, quality: int) -> Image.Image:
    memory = io.BytesIO()
    picture.save(memory, "JPEG", quality=quality)
    return Image.open(memory).convert("RGB")


def retina_thumbnails(path: Path, count: int) -> Iterator[Sample]:
    """Real eyes of 28 px, enlarged: they hold colour and light, no vessels; a sanity check."""
    with np.load(path) as arrays:
        name = next(n for n in arrays.files if "train" in n and "im" in n)
        images = arrays[name][:count]
    for index, pixels in enumerate(images):
        large = Image.fromarray(pixels).resize((448, 448), Image.Resampling.BICUBIC)
        yield Sample(group="thumbnail", name=str(index), genuine=True, picture=large)


# --- other pictures -----------------------------------------------------------------------


class Studio:
    """Draws discs that are no eyes; the same seed draws the same discs."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        rows, columns = np.mgrid[0:SIDE_PX, 0:SIDE_PX].astype(np.float32) + 0.5
        self.x, self.y = columns - SIDE_PX / 2, rows - SIDE_PX / 2
        self.distance = np.hypot(self.x, self.y)
        self.radius = 0.44 * SIDE_PX

    def grain(self, period_px: float, strength: float) -> Floats:
        """Smooth noise whose features are about `period_px` wide."""
        cells = max(2, round(SIDE_PX / period_px))
        values = self.generator.standard_normal((cells, cells)).astype(np.float32)
        size = (SIDE_PX, SIDE_PX)
        smooth = Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)
        return np.asarray(smooth, dtype=np.float32) * np.float32(strength)

    def disc(
        self,
        colour: tuple[int, int, int],
        texture: Floats | float = 0.0,
        *,
        round_light: bool = True,
        background: tuple[int, int, int] = (0, 0, 0),
    ) -> Image.Image:
        """A disc of one colour with a texture in its lightness, like a ball or like a plate."""
        light = np.ones_like(self.distance)
        if round_light:
            light = np.sqrt(np.clip(1 - 0.8 * (self.distance / self.radius) ** 2, 0, 1))
        tone = np.asarray(colour, dtype=np.float32)
        value = np.broadcast_to(np.asarray(texture, dtype=np.float32), light.shape)
        picture = tone * light[..., None] + value[..., None] * tone / 255
        inside = (self.distance < self.radius)[..., None]
        return _image(np.where(inside, picture, np.asarray(background, dtype=np.float32)))


def _image(values: npt.NDArray[np.floating]) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def objects(seed: int) -> Iterator[Sample]:
    """Round things of a fundus's colour."""
    for name, picture in _objects(Studio(seed)):
        yield Sample(group="object", name=name, genuine=False, picture=picture)


def _objects(s: Studio) -> Iterator[tuple[str, Image.Image]]:
    peel = s.grain(6, 18) + s.grain(3, 12)
    skin = s.grain(20, 12) + s.grain(3, 8)
    yield "flat disc", s.disc((230, 130, 30), round_light=False)
    yield "orange on black", s.disc((235, 130, 30), peel)
    yield "orange on white", s.disc((235, 130, 30), peel, background=(250, 250, 250))
    yield "orange on a table", s.disc((235, 130, 30), peel, background=(110, 100, 95))
    yield "tomato", s.disc((200, 40, 30), skin)
    yield "apple", s.disc((120, 180, 50), skin)
    yield "basketball", s.disc((200, 100, 40), s.grain(4, 22))
    yield "basketball with seams", _seams(s.disc((200, 100, 40), s.grain(4, 22)))
    craters = s.grain(60, 35) + s.grain(12, 20) + s.grain(3, 8)
    yield "blood moon", s.disc((190, 90, 50), craters)
    yield "harvest moon", s.disc((235, 190, 120), craters)
    yield "grey moon", s.disc((200, 200, 195), craters)
    yield "sun", s.disc((250, 150, 20), s.grain(8, 10) + s.grain(3, 8))
    yield "Mars", s.disc((190, 110, 70), s.grain(80, 40) + s.grain(14, 20) + s.grain(4, 9))
    yield "Jupiter", s.disc((210, 170, 130), np.sin(s.y / 18) * 35 + s.grain(3, 8))
    coin = s.disc((184, 115, 70), s.grain(4, 22) + s.grain(15, 20), round_light=False)
    yield "coin", coin
    yield "coin with text", _written(coin)
    pizza = s.disc((220, 170, 80), s.grain(6, 16), round_light=False)
    yield "pizza", _blobs(pizza, s, count=14, size_px=30, colour=(170, 40, 30))
    yield "pepper", _blobs(pizza, s, count=200, size_px=4, colour=(60, 30, 20))
    yield "traffic light", s.disc((240, 50, 30), s.grain(3, 10))
    yield "Petri dish", s.disc((190, 120, 90), s.grain(4, 14), round_light=False)
    colonies = s.disc((190, 120, 60), s.grain(3, 6), round_light=False)
    yield "colonies", _blobs(colonies, s, count=60, size_px=8, colour=(240, 220, 150))
    mucosa = s.grain(60, 35) + s.grain(10, 18) + s.grain(3, 6)
    yield "mucosa", s.disc((200, 100, 85), mucosa, round_light=False)
    yield "mucosa, warm", s.disc((200, 90, 50), mucosa, round_light=False)
    eardrum = s.grain(100, 30) + s.grain(8, 12) + s.grain(3, 6)
    yield "eardrum", s.disc((210, 150, 120), eardrum, round_light=False)
    histology = s.grain(6, 35) + s.grain(3, 20)
    yield "histology", s.disc((200, 120, 170), histology, round_light=False)
    yield "histology, warm", s.disc((200, 110, 60), histology, round_light=False)
    yield "clock face", s.disc((240, 225, 190), s.grain(3, 6), round_light=False)
    rays = np.sin(np.arctan2(s.y, s.x) * 90) * 25 + s.grain(4, 15)
    iris = np.asarray(s.disc((130, 80, 40), rays, round_light=False)).copy()
    iris[s.distance < 88] = (8, 6, 5)
    yield "iris", Image.fromarray(iris)
    cup = np.asarray(s.disc((235, 230, 225), round_light=False)).copy()
    coffee = np.asarray(s.disc((70, 40, 22), s.grain(10, 10) + s.grain(3, 8)))
    inner = s.distance < 0.82 * s.radius
    cup[inner] = coffee[inner]
    yield "coffee cup", Image.fromarray(cup)
    lesion = np.asarray(s.disc((215, 165, 140), s.grain(4, 10), round_light=False)).copy()
    mole = np.asarray(s.disc((110, 60, 40), s.grain(5, 14), round_light=False))
    inner = s.distance < 96 + s.grain(80, 20)
    lesion[inner] = mole[inner]
    yield "mole", Image.fromarray(lesion)
    pixel_y, pixel_x = s.y + 1000, s.x + 1000
    joints = ((pixel_y % 48 < 5) | (pixel_x % 112 < 5)).astype(np.float32)
    yield "brick, pale joints", s.disc((160, 80, 60), 70 * joints + s.grain(4, 14))
    yield "brick, dark joints", s.disc((190, 95, 50), -60 * joints + s.grain(4, 10))
    sunset = s.y / 4 + s.grain(30, 20) + s.grain(3, 6)
    yield "sunset", s.disc((250, 140, 60), sunset, round_light=False)
    yield "fire", s.disc((250, 130, 30), s.grain(60, 60) + s.grain(10, 30), round_light=False)
    rings = np.sin(s.distance / 5 + s.grain(80, 2)) * 25 + s.grain(3, 8)
    yield "wood", s.disc((170, 120, 70), rings, round_light=False)
    planks = np.sin(s.y / 4 + s.grain(150, 3)) * 18 + s.grain(3, 6)
    yield "planks", s.disc((180, 100, 50), planks, round_light=False)
    yield "ball of skin colour", s.disc((224, 172, 140), s.grain(40, 18) + s.grain(3, 7))
    white = s.generator.standard_normal(s.distance.shape).astype(np.float32)
    yield "noise", s.disc((180, 90, 50), 40 * white, round_light=False)
    plain = s.disc(FUNDUS_COLOUR, s.grain(40, 10) + s.grain(3, 5))
    yield "scratches, pale", _lines(plain, s, count=30, colour=(230, 170, 120))
    yield "scratches, dark", _lines(plain, s, count=30, colour=(130, 50, 25))
    yield "text", _written(plain)
    yield "smiley", _seams(plain)


def _draw_on(picture: Image.Image) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    copy = picture.copy()
    return copy, ImageDraw.Draw(copy)


def _seams(picture: Image.Image) -> Image.Image:
    copy, draw = _draw_on(picture)
    middle, end, ink = SIDE_PX // 2, SIDE_PX - 50, (20, 20, 20)
    draw.line((middle, 50, middle, end), fill=ink, width=6)
    draw.line((50, middle, end, middle), fill=ink, width=6)
    draw.arc((-160, 50, 240, end), -60, 60, fill=ink, width=6)
    draw.arc((400, 50, 800, end), 120, 240, fill=ink, width=6)
    return copy


def _written(picture: Image.Image) -> Image.Image:
    copy, draw = _draw_on(picture)
    for row in range(120, 520, 26):
        draw.text(
            (130, row), "The quick brown fox jumps over the lazy dog. " * 2, fill=(90, 50, 20)
        )
    return copy


def _blobs(
    picture: Image.Image, s: Studio, *, count: int, size_px: int, colour: tuple[int, int, int]
) -> Image.Image:
    copy, draw = _draw_on(picture)
    for _ in range(count):
        angle, away = s.generator.uniform(0, 2 * math.pi), s.generator.uniform(0, 0.38 * SIDE_PX)
        x = SIDE_PX / 2 + away * math.cos(angle)
        y = SIDE_PX / 2 + away * math.sin(angle)
        draw.ellipse((x - size_px, y - size_px, x + size_px, y + size_px), fill=colour)
    return copy


def _lines(
    picture: Image.Image, s: Studio, *, count: int, colour: tuple[int, int, int]
) -> Image.Image:
    copy, draw = _draw_on(picture)
    for _ in range(count):
        x, y = s.generator.uniform(0.2, 0.8, 2) * SIDE_PX
        angle, length = s.generator.uniform(0, 2 * math.pi), s.generator.uniform(60, 250)
        end = (x + length * math.cos(angle), y + length * math.sin(angle))
        draw.line((x, y, *end), fill=colour, width=int(s.generator.integers(2, 6)))
    return copy


def textures(seed: int, count: int) -> Iterator[Sample]:
    """Discs of random colour near a fundus's with noise of random scales."""
    studio = Studio(seed)
    for index in range(count):
        generator = studio.generator
        red = int(generator.integers(120, 250))
        green = int(red * generator.uniform(0.3, 0.75))
        blue = int(green * generator.uniform(0.2, 0.9))
        texture = sum(
            studio.grain(float(period), float(generator.uniform(5, 35)))
            for period in generator.choice((2, 3, 4, 6, 8, 12, 16, 24, 40, 80), 3, replace=False)
        )
        flat = bool(generator.integers(2))
        picture = studio.disc((red, green, blue), texture, round_light=not flat)
        yield Sample(group="texture", name=str(index), genuine=False, picture=picture)


def masked_pictures(folder: Path, seed: int, *, cuts: int) -> Iterator[Sample]:
    """Ordinary pictures under a round mask: whole and cut, plain, warm and in fundus colour."""
    studio = Studio(seed)
    inside = (studio.distance < studio.radius)[..., None]
    for path in sorted([*(folder / "skimage").iterdir(), *(folder / "pillow").iterdir()]):
        if "microaneurysms" in path.name or "hopper_" in path.name:
            continue  # a piece of a fundus; copies of one portrait
        try:
            with Image.open(path) as opened:
                source = opened.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue  # damaged on purpose, for other tests
        if min(source.size) < 100 or max(source.size) > 4000:
            continue
        for index in range(cuts):
            share = 1.0 if index == 0 else float(studio.generator.uniform(0.4, 0.9))
            side = int(min(source.size) * share)
            x = int(studio.generator.integers(0, source.width - side + 1))
            y = int(studio.generator.integers(0, source.height - side + 1))
            part = source.crop((x, y, x + side, y + side)).resize((SIDE_PX, SIDE_PX))
            values = np.asarray(part).astype(np.float32)
            grey = values.mean(axis=2, keepdims=True)
            toned = grey / max(1.0, float(grey.mean())) * np.asarray(FUNDUS_COLOUR)
            for manner, shown in (
                ("plain", values),
                ("warm", values * np.asarray((1.2, 0.85, 0.6))),
                ("fundus colour", toned),
            ):
                yield Sample(
                    group=f"masked, {manner}",
                    name=f"{path.name} cut {index}",
                    genuine=False,
                    picture=_image(np.where(inside, shown, 0)),
                )


def corpus(*, drawn: int, seed: int, shared: Path) -> Iterator[Sample]:
    """All samples of the table."""
    yield from drawn_photographs(drawn)
    photograph = shared / "fundus" / "retina_normal_cc0.jpg"
    hard = shared / "hard-inputs"
    if photograph.is_file():
        with Image.open(photograph) as opened:
            yield from variants(opened.convert("RGB"))
    for name in ("retina_ref.png", "retina_portrait_cut.jpg", "retina_small_offcentre.jpg"):
        if (hard / "derived" / name).is_file():
            with Image.open(hard / "derived" / name) as opened:
                picture = opened.convert("RGB")
            yield Sample(group="photograph: file", name=name, genuine=True, picture=picture)
    yield from objects(seed)
    yield from textures(seed, 150)
    if hard.is_dir():
        yield from masked_pictures(hard, seed, cuts=3)


# --- the table ----------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the exit status is 1 if a true photograph was refused."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--package", type=Path, default=REPOSITORY / "model_artifacts/mobilenet-demo"
    )
    parser.add_argument("--drawn", type=int, default=150, help="number of drawn photographs")
    parser.add_argument("--seed", type=int, default=2, help="of the objects and textures")
    parser.add_argument("--list", action="store_true", help="name what was judged wrongly")
    options = parser.parse_args(arguments)
    shared = shared_folder()
    preparation = Preparation.from_spec(load_model_spec(options.package))
    counts: Counter[tuple[str, bool, bool]] = Counter()
    times_ms: list[float] = []
    wrong: list[str] = []
    for sample in corpus(drawn=options.drawn, seed=options.seed, shared=shared):
        before = time.thread_time()
        verdict = preparation(sample.picture).quality
        times_ms.append(1000 * (time.thread_time() - before))
        counts[sample.group, sample.genuine, verdict.gradable] += 1
        if verdict.gradable != sample.genuine:
            wrong.append(
                f"{sample.group}: {sample.name}  {', '.join(verdict.reasons) or 'accepted'}"
            )
    print(f"{'group':<28}{'pictures':>9}{'gradable':>9}{'wrong':>7}")
    for genuine, title in ((True, "fundus photographs"), (False, "other pictures")):
        print(title)
        for group in sorted({g for g, true, _ in counts if true == genuine}):
            gradable, refused = counts[group, genuine, True], counts[group, genuine, False]
            bad = refused if genuine else gradable
            print(f"  {group:<26}{gradable + refused:>9}{gradable:>9}{bad:>7}")
        total = sum(n for (_, true, _), n in counts.items() if true == genuine)
        bad = sum(n for (_, true, ok), n in counts.items() if true == genuine and ok != genuine)
        print(f"  {'all':<26}{total:>9}{'':>9}{bad:>7}")
    print(f"median preparation {statistics.median(times_ms):.2f} ms of one core")
    if not shared.is_dir():
        print(f"no shared photographs at {shared}: set DR_SHARED")
    if options.list:
        print("\n".join(wrong))
    return 1 if any(true and not ok for (_, true, ok) in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
