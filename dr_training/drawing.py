"""Draws fundus photographs with known lesions, from a seed, with NumPy and Pillow only.

    >>> from dr_training.drawing import draw_fundus
    >>> drawn = draw_fundus(seed=7, grade=2)
    >>> drawn.image.shape, drawn.image.dtype, drawn.grade
    ((900, 900, 3), dtype('uint8'), 2)

A drawn photograph stands in for patients' photographs wherever the project needs one: in the
demo, in tests, and as the training data of the demo model. The same seed is the same eye
and camera in every grade; only the lesions differ. `docs/drawn-photographs.md` shows each
grade and lists what is exaggerated.

Grades follow the International Clinical Diabetic Retinopathy severity scale (Wilkinson et
al., Ophthalmology 2003;110:1677-82); `lesions.icdr_grade` states it over drawn lesions.

Lengths inside are as in `anatomy`: fractions of the field's diameter, from its centre.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from dr_training.anatomy import Eye, Floats, eye_of, generator, walk
from dr_training.lesions import (
    COTTON_WOOL_SPOT,
    GRADES,
    HAEMORRHAGE,
    HARD_EXUDATE,
    IRMA,
    MAX_MICROANEURYSM_WIDTH,
    MICROANEURYSM,
    NEW_VESSELS_DISC,
    NEW_VESSELS_ELSEWHERE,
    PRERETINAL_HAEMORRHAGE,
    VENOUS_BEADING,
    VITREOUS_HAEMORRHAGE,
    Lesion,
    Plan,
    plan_lesions,
    quadrant_of,
)

Pixels = NDArray[np.uint8]

DEFAULT_SIZE_PX = 900
MIN_SIZE_PX = 128
MAX_SIZE_PX = 4096


@dataclass(frozen=True, kw_only=True)
class DrawnFundus:
    """A drawn photograph and all that is known about it.

    `image` is uint8 RGB of shape (height, width, 3); `field_px` is the true circle of the
    field of view: centre x, centre y and radius in pixels.
    """

    image: Pixels
    grade: int
    seed: int
    eye: str
    field_px: tuple[float, float, float]
    lesions: tuple[Lesion, ...]

    def count(self, kind: str) -> int:
        """How many lesions of `kind` were drawn."""
        return sum(lesion.kind == kind for lesion in self.lesions)

    def quadrants(self, kind: str) -> tuple[int, int, int, int]:
        """How many lesions of `kind` each quadrant holds."""
        found = [lesion.quadrant for lesion in self.lesions if lesion.kind == kind]
        return found.count(0), found.count(1), found.count(2), found.count(3)

    def jpeg_bytes(self, *, quality: int = 92) -> bytes:
        """The photograph as a JPEG file without metadata."""
        buffer = io.BytesIO()
        Image.fromarray(self.image).save(buffer, format="JPEG", quality=quality)
        return buffer.getvalue()


def draw_fundus(seed: int, grade: int, size_px: int = DEFAULT_SIZE_PX) -> DrawnFundus:
    """Draw the fundus photograph of `seed` with lesions of ICDR `grade`.

    Args:
        seed: any non-negative integer; fixes eye, camera and lesions.
        grade: 0 to 4.
        size_px: width of the image, 128 to 4096; the height is the same or somewhat less.

    Raises:
        ValueError: an argument is out of its range.
    """
    if grade not in GRADES:
        raise ValueError(f"grade must be one of 0, 1, 2, 3, 4; got {grade!r}")
    if not MIN_SIZE_PX <= size_px <= MAX_SIZE_PX:
        raise ValueError(f"size_px must be {MIN_SIZE_PX} to {MAX_SIZE_PX}; got {size_px!r}")
    if seed < 0:
        raise ValueError(f"seed must not be negative; got {seed!r}")
    # Separate streams: the eye and the camera of a seed stay the same when lesions change.
    eye = eye_of(seed)
    camera = _Camera.random(generator(seed, 1))
    lesion_rng = generator(seed, 2 + grade)
    field_px = max(32, round(size_px * camera.field_width))
    canvas = _Canvas(eye=eye, size_px=field_px)
    plan = plan_lesions(lesion_rng, grade)
    canvas.draw_vessels(beading=_choose_beading(lesion_rng, eye, plan))
    _draw_lesions(canvas, plan, lesion_rng)
    colour = canvas.composite(generator(seed, 1000))
    return _photograph(canvas, colour, camera, seed=seed, grade=grade, size_px=size_px)


@dataclass(frozen=True, kw_only=True)
class _Bead:
    vessel: int
    first: int
    last: int


def _choose_beading(rng: np.random.Generator, eye: Eye, plan: Plan) -> tuple[_Bead, ...]:
    """Stretches of wide veins, one or two in each of the planned number of quadrants."""
    if plan.beaded_quadrants == 0:
        return ()
    stretches: dict[int, list[_Bead]] = {}
    for index, vein in enumerate(eye.veins):
        if not vein.trunk:
            continue
        for first in range(8, len(vein.points) - 12, 12):
            x, y = vein.points[first + 6].tolist()
            if math.hypot(x, y) < 0.44 and math.dist((x, y), eye.disc) > 0.7 * eye.disc_width:
                bead = _Bead(vessel=index, first=first, last=first + 12)
                stretches.setdefault(quadrant_of(x, y), []).append(bead)
    order = [int(q) for q in rng.permutation(sorted(stretches))]
    chosen: list[_Bead] = []
    for quadrant in order[: plan.beaded_quadrants]:
        options = sorted(
            stretches[quadrant], key=lambda b: -float(eye.veins[b.vessel].widths[b.first])
        )
        chosen += options[:3]
    if len(order) < 2:
        # Both halves of the rule need two quadrants with a wide vein; with fewer in view the
        # photograph shows IRMA instead, so that the grade stays true.
        plan.irma = max(plan.irma, 2)
    return tuple(chosen)


# --- Drawing -------------------------------------------------------------------------------


class _Canvas:
    """Masks of one eye at `size_px` per field diameter, drawn large and reduced."""

    def __init__(self, *, eye: Eye, size_px: int) -> None:
        self.eye = eye
        self.size_px = size_px
        # Fine vessels are about 2 thousandths of the field: draw at 1,400 px or more.
        self.oversample = int(min(4, max(2, math.ceil(1400 / size_px))))
        self.lesions: list[tuple[str, float, float, float]] = []
        self._masks: dict[str, Image.Image] = {}
        self._draws: dict[str, ImageDraw.ImageDraw] = {}
        self._vessel_lookup: Pixels | None = None
        self.clouds: list[tuple[float, float, float, float]] = []

    def pen(self, layer: str) -> ImageDraw.ImageDraw:
        if layer not in self._draws:
            side = self.size_px * self.oversample
            self._masks[layer] = Image.new("L", (side, side))
            self._draws[layer] = ImageDraw.Draw(self._masks[layer])
        return self._draws[layer]

    def mask(self, layer: str, *, blur: float = 0.0) -> Floats | None:
        """The layer reduced to the field's size as 0..1; None if nothing was drawn."""
        if layer not in self._masks:
            return None
        blur_px = blur * self.size_px
        if blur_px < 2:  # the camera's own blur does this
            reduced = self._masks[layer].reduce(self.oversample)
        else:
            shrink = max(1, int(blur_px / 1.5))
            reduced = self._masks[layer].reduce(self.oversample * shrink)
            reduced = reduced.filter(ImageFilter.GaussianBlur(blur_px / shrink))
            reduced = reduced.resize((self.size_px,) * 2, Image.Resampling.BICUBIC)
        return np.asarray(reduced, np.float32) * np.float32(1 / 255)

    def to_px(self, points: NDArray[np.floating] | Sequence[Sequence[float]]) -> Floats:
        side = self.size_px * self.oversample
        return (np.asarray(points, np.float32) + np.float32(0.5)) * np.float32(side)

    def scale(self, length: float) -> float:
        return length * self.size_px * self.oversample

    def line(self, layer: str, points: Floats, width: float, strength: float) -> None:
        pixels = self.to_px(points).ravel().tolist()
        width_px = max(1, round(self.scale(width)))
        joint = "curve" if width_px > 3 else None  # unseen, and slow, on thin lines
        self.pen(layer).line(pixels, fill=round(255 * strength), width=width_px, joint=joint)

    def dot(self, layer: str, x: float, y: float, width: float, strength: float) -> None:
        (cx, cy), radius = self.to_px([[x, y]])[0].tolist(), self.scale(width) / 2
        box = (cx - radius, cy - radius, cx + radius, cy + radius)
        self.pen(layer).ellipse(box, fill=round(255 * strength))

    def draw_vessels(self, *, beading: tuple[_Bead, ...]) -> None:
        for layer, vessels in (("veins", self.eye.veins), ("arteries", self.eye.arteries)):
            # Wide vessels last, so that a thin and fainter one never cuts a trunk.
            for vessel in sorted(vessels, key=lambda v: float(v.widths[0])):
                step = 5 if vessel.trunk else 9
                for first in range(0, len(vessel.points) - 1, step):
                    piece = vessel.points[first : first + step + 1]
                    width = float(vessel.widths[first])
                    self.line(layer, piece, width, min(1.0, 0.30 + 75 * width))
                    if layer == "arteries" and width > 0.005:
                        self.line("reflex", piece, width * 0.34, 1.0)
        for bead in beading:
            self._draw_bead(bead)
        combined = [self._masks[name].reduce(self.oversample) for name in ("veins", "arteries")]
        self._vessel_lookup = np.maximum(*(np.asarray(mask) for mask in combined))

    def _draw_bead(self, bead: _Bead) -> None:
        """Sausages: alternate swollen and narrowed stretches of a vein."""
        vein = self.eye.veins[bead.vessel]
        points, widths = vein.points[bead.first : bead.last + 1], vein.widths[bead.first]
        width = max(float(widths), 0.008)
        for index in range(0, len(points) - 1, 3):
            x, y = points[index].tolist()
            self.line("veins", points[index : index + 2], width * 1.9, 1.0)
            self.dot("veins", x, y, width * 1.9, 1.0)
        x, y = points[len(points) // 2].tolist()
        self.record(VENOUS_BEADING, x, y, width * 1.9)

    def on_vessel(self, x: float, y: float) -> bool:
        lookup = self._vessel_lookup
        if lookup is None:
            return False
        column = min(self.size_px - 1, max(0, int((x + 0.5) * self.size_px)))
        row = min(self.size_px - 1, max(0, int((y + 0.5) * self.size_px)))
        return bool(lookup[row, column] > 60)

    def record(self, kind: str, x: float, y: float, width: float) -> None:
        self.lesions.append((kind, x, y, width))

    def composite(self, rng: np.random.Generator) -> Floats:
        """The lit retina as float32 RGB of shape (size, size, 3), 0..1, before the camera."""
        colour = _background(self.eye, self.size_px, rng)
        _paint_disc(colour, self.eye, rng)
        self._blend(colour, "cotton", (0.97, 0.90, 0.78), 0.72, blur=0.0045)
        self._absorb(colour, "veins", (0.72, 0.36, 0.42), blur=0.0007)
        self._absorb(colour, "arteries", (0.86, 0.50, 0.46), blur=0.0007)
        self._blend(colour, "reflex", (1.0, 0.72, 0.55), 0.30, blur=0.0008)
        self._blend(colour, "drusen", (0.95, 0.80, 0.50), 0.45, blur=0.0015)
        self._blend(colour, "exudates", (1.0, 0.92, 0.55), 0.85, blur=0.0006)
        self._absorb(colour, "haze", (0.80, 0.56, 0.60), blur=0.010)
        self._absorb(colour, "blood", (0.60, 0.24, 0.30), blur=0.0010)
        self._absorb(colour, "fine", (0.74, 0.34, 0.40), blur=0.0004)
        self._absorb(colour, "pool", (0.50, 0.12, 0.16), blur=0.0016)
        for x, y, width, depth in self.clouds:
            _cloud(colour, x, y, width, depth, rng)
        return colour

    def _absorb(
        self, colour: Floats, layer: str, transmission: tuple[float, float, float], *, blur: float
    ) -> None:
        mask = self.mask(layer, blur=blur)
        if mask is not None:
            for channel, through in enumerate(transmission):
                colour[..., channel] *= 1 - mask * np.float32(1 - through)

    def _blend(
        self,
        colour: Floats,
        layer: str,
        target: tuple[float, float, float],
        opacity: float,
        *,
        blur: float,
    ) -> None:
        mask = self.mask(layer, blur=blur)
        if mask is not None:
            mask = mask * np.float32(opacity)
            for channel, value in enumerate(target):
                plane = colour[..., channel]
                plane += (np.float32(value) - plane) * mask


def _grid(size_px: int) -> tuple[Floats, Floats]:
    axis = (np.arange(size_px, dtype=np.float32) + 0.5) / np.float32(size_px) - np.float32(0.5)
    return axis[None, :], axis[:, None]


def _resize(plane: Floats, size_px: int) -> Floats:
    image = Image.fromarray(np.ascontiguousarray(plane, np.float32))
    return np.asarray(image.resize((size_px, size_px), Image.Resampling.BICUBIC))


def _noise(rng: np.random.Generator, cells: int, size_px: int) -> Floats:
    return _resize(rng.standard_normal((cells, cells), dtype=np.float32), size_px)


def _bump(x: Floats, y: Floats, at: tuple[float, float], sigma: float) -> Floats:
    value = np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / np.float32(2 * sigma**2))
    return value.astype(np.float32)


def _background(eye: Eye, size_px: int, rng: np.random.Generator) -> Floats:
    """Pigment, choroid and macula: smooth, so drawn at a third of the size and enlarged."""
    small = max(48, size_px // 3)
    x, y = _grid(small)
    shade = 1 + 0.045 * _noise(rng, 5, small) + 0.022 * _noise(rng, 22, small)
    shade += np.float32(0.012) * _noise(rng, max(24, small // 3), small)
    # Choroidal vessels show through a thin pigment layer as broad, pale, wavy bands.
    bands = _noise(rng, 16, small) + 0.8 * _noise(rng, 34, small)
    ridge = np.exp(-((bands / np.float32(0.42)) ** 2))
    away = 1 - 0.8 * _bump(x, y, eye.fovea, 0.16)
    choroid = np.float32(0.16 * eye.tessellation) * (ridge - np.float32(0.4)) * away
    macula = (
        0.65 * _bump(x, y, eye.fovea, 0.055 * eye.zoom)
        + 0.35 * _bump(x, y, eye.fovea, 0.12 * eye.zoom)
    ) * np.float32(eye.macula_depth)
    reflex = np.float32(0.5 * eye.reflex) * _bump(x, y, eye.fovea, 0.006 * eye.zoom)
    over, under = (
        (eye.disc[0] - 0.06, eye.disc[1] + side * 0.16 * eye.zoom) for side in (-1.0, 1.0)
    )
    sheen = np.float32(eye.sheen) * (_bump(x, y, over, 0.09) + _bump(x, y, under, 0.09))
    rim = np.float32(0.10 + 0.2 * eye.sheen) * _bump(x, y, eye.disc, 0.75 * eye.disc_width)
    planes = []
    for base, through, choroid_gain, pale in zip(
        eye.colour, (0.55, 1.0, 0.9), (0.7, 1.0, 0.5), (0.3, 1.0, 1.2), strict=True
    ):
        plane = np.float32(base) * (shade + choroid * np.float32(choroid_gain))
        plane = plane * (1 - macula * np.float32(through)) + reflex * np.float32(base)
        plane = plane + (sheen + rim) * np.float32(0.35 * pale)
        planes.append(_resize(plane, size_px))
    return np.asarray(np.stack(planes, axis=-1), np.float32)


def _soft_disc(
    x: Floats, y: Floats, at: tuple[float, float], width: float, aspect: float, softness: float
) -> Floats:
    radius = np.hypot((x - at[0]) * np.float32(aspect), y - at[1]) / np.float32(width / 2)
    edge = np.clip((1 + softness - radius) / np.float32(2 * softness), 0, 1)
    return np.asarray(edge, np.float32)


def _paint_disc(colour: Floats, eye: Eye, rng: np.random.Generator) -> None:
    """Optic disc with cup, and a temporal crescent of atrophy in some eyes."""
    size_px = colour.shape[0]
    reach = 0.8 * eye.disc_width
    x0, x1 = (int(np.clip((eye.disc[0] + s * reach + 0.5) * size_px, 0, size_px)) for s in (-1, 1))
    y0, y1 = (int(np.clip((eye.disc[1] + s * reach + 0.5) * size_px, 0, size_px)) for s in (-1, 1))
    softness = float(rng.uniform(0.08, 0.2))
    warmth, pallor = float(rng.uniform(0.55, 0.74)), float(rng.uniform(0.35, 0.55))
    offset = rng.normal(0, 0.05, 2) * eye.disc_width
    if x1 <= x0 or y1 <= y0:
        return
    x, y = (axis for axis in _grid(size_px))
    x, y = x[:, x0:x1], y[y0:y1]
    window = colour[y0:y1, x0:x1]
    if eye.atrophy:
        crescent = (eye.disc[0] - 0.10 * eye.disc_width, eye.disc[1])
        ring = _soft_disc(x, y, crescent, 1.16 * eye.disc_width, eye.disc_aspect, 0.08)
        ring *= np.float32(0.35 * eye.atrophy)
        window += (np.array([0.95, 0.72, 0.5], np.float32) - window) * ring[..., None]
    disc = _soft_disc(x, y, eye.disc, eye.disc_width, eye.disc_aspect, softness)
    cup_at = (eye.disc[0] + float(offset[0]), eye.disc[1] + float(offset[1]))
    cup = _soft_disc(x, y, cup_at, eye.disc_width * eye.cup_ratio, 1.0, 0.35)
    rim_colour = np.array([0.98, warmth, pallor], np.float32)
    cup_colour = np.array([1.0, 0.90, 0.70], np.float32)
    window += (rim_colour - window) * (np.float32(0.82) * disc)[..., None]
    window += (cup_colour - window) * (np.float32(0.75) * cup)[..., None]


def _cloud(
    colour: Floats, x: float, y: float, width: float, depth: float, rng: np.random.Generator
) -> None:
    """Blood in the vitreous: a dark red veil with a ragged edge over everything."""
    size_px = colour.shape[0]
    small = max(32, size_px // 6)
    gx, gy = _grid(small)
    ragged = _bump(gx, gy, (x, y), width / 2) * (1 + 0.5 * _noise(rng, 9, small))
    veil = _resize(np.clip(ragged, 0, 1), size_px) * np.float32(depth)
    for channel, through in enumerate((0.42, 0.22, 0.26)):
        colour[..., channel] *= 1 - np.clip(veil, 0, 1) * np.float32(1 - through)


# --- Lesions -------------------------------------------------------------------------------


def _draw_lesions(canvas: _Canvas, plan: Plan, rng: np.random.Generator) -> None:
    for _ in range(canvas.eye.drusen):
        x, y = _place(canvas, rng, near=canvas.eye.fovea, spread=0.1)
        canvas.dot("drusen", x, y, float(rng.uniform(0.003, 0.008)), 1.0)
    for _ in range(plan.exudate_clusters):
        _exudates(canvas, rng)
    for _ in range(plan.cotton_wool_spots):
        x, y = _place(canvas, rng, margin=0.08)
        width = float(rng.uniform(0.028, 0.055))
        _blot(canvas, rng, "cotton", x, y, width, strength=1.0, rough=0.3)
        canvas.record(COTTON_WOOL_SPOT, x, y, width)
    for quadrant, count in enumerate(plan.haemorrhages):
        for _ in range(count):
            _haemorrhage(canvas, rng, quadrant)
    for _ in range(plan.microaneurysms):
        x, y = _place(canvas, rng, clear=True)
        width = float(rng.uniform(0.0072, MAX_MICROANEURYSM_WIDTH))
        canvas.dot("blood", x, y, width, float(rng.uniform(0.8, 1.0)))
        canvas.record(MICROANEURYSM, x, y, width)
    for _ in range(plan.irma):
        _irma(canvas, rng)
    if plan.new_vessels_disc:
        _new_vessels(canvas, rng, canvas.eye.disc, 0.75 * canvas.eye.disc_width, NEW_VESSELS_DISC)
    for _ in range(plan.new_vessels_elsewhere):
        at = _place(canvas, rng, margin=0.1)
        _new_vessels(canvas, rng, at, float(rng.uniform(0.04, 0.075)), NEW_VESSELS_ELSEWHERE)
    for _ in range(plan.preretinal):
        _preretinal(canvas, rng)
    if plan.vitreous:
        x, y = _place(canvas, rng, margin=0.15)
        width = float(rng.uniform(0.14, 0.26))
        canvas.clouds.append((x, y, width, float(rng.uniform(0.7, 1.0))))
        canvas.record(VITREOUS_HAEMORRHAGE, x, y, width)


def _place(
    canvas: _Canvas,
    rng: np.random.Generator,
    *,
    quadrant: int | None = None,
    near: tuple[float, float] | None = None,
    spread: float = 0.1,
    margin: float = 0.04,
    clear: bool = False,
) -> tuple[float, float]:
    """A point in the field, off the disc; off the vessels too where `clear`.

    Rejection with a bound: the last candidate inside the field is taken after 200 tries.
    """
    eye, limit = canvas.eye, 0.5 - margin
    point = (0.0, 0.0)
    for attempt in range(200):
        if near is None:
            radius, angle = limit * math.sqrt(rng.random()), 2 * math.pi * rng.random()
            x, y = radius * math.cos(angle), radius * math.sin(angle)
        else:
            x, y = (float(v) for v in rng.normal(near, spread))
        if math.hypot(x, y) > limit:
            continue
        if quadrant is not None and quadrant_of(x, y) != quadrant:
            continue
        point = (x, y)
        crowded = attempt < 150 and (
            math.dist(point, eye.disc) < 0.62 * eye.disc_width
            or (clear and canvas.on_vessel(x, y))
            or (clear and math.dist(point, eye.fovea) < 0.02)
        )
        if not crowded:
            break
    return point


def _blot(
    canvas: _Canvas,
    rng: np.random.Generator,
    layer: str,
    x: float,
    y: float,
    width: float,
    *,
    strength: float,
    rough: float = 0.25,
    stretch: float = 1.0,
    turn: float = 0.0,
) -> None:
    """An irregular spot: a circle whose radius varies with two or three lobes."""
    angles = np.linspace(0, 2 * math.pi, 20, endpoint=False)
    phase = rng.uniform(0, 2 * math.pi, 3)
    radius = 1 + rough * sum(np.sin((k + 2) * angles + phase[k]) / (k + 1.5) for k in range(3))
    radius = radius / radius.max() * width / 2
    along, across = radius * np.cos(angles), radius * np.sin(angles) / stretch
    px = x + along * math.cos(turn) - across * math.sin(turn)
    py = y + along * math.sin(turn) + across * math.cos(turn)
    outline = canvas.to_px(np.stack([px, py], axis=1)).ravel().tolist()
    canvas.pen(layer).polygon(outline, fill=round(255 * strength))


def _haemorrhage(canvas: _Canvas, rng: np.random.Generator, quadrant: int) -> None:
    x, y = _place(canvas, rng, quadrant=quadrant)
    strength = float(rng.uniform(0.8, 1.0))
    if rng.random() < 0.3:  # a flame lies along the nerve fibres, which leave the disc
        turn = math.atan2(y - canvas.eye.disc[1], x - canvas.eye.disc[0])
        width = float(rng.uniform(0.022, 0.042))
        _blot(
            canvas, rng, "blood", x, y, width, strength=strength, stretch=2.6, turn=turn, rough=0.2
        )
    else:
        width = float(rng.uniform(0.013, 0.030))
        _blot(canvas, rng, "blood", x, y, width, strength=strength)
    canvas.record(HAEMORRHAGE, x, y, width)


def _exudates(canvas: _Canvas, rng: np.random.Generator) -> None:
    """A cluster, or part of a ring, of small sharp yellow deposits near the macula."""
    near = canvas.eye.fovea if rng.random() < 0.65 else None
    x0, y0 = _place(canvas, rng, near=near, spread=0.13, margin=0.08)
    ring = rng.random() < 0.35
    spread = float(rng.uniform(0.012, 0.035))
    start, sweep = float(rng.uniform(0, 2 * math.pi)), float(rng.uniform(2.0, 6.0))
    for _ in range(int(rng.integers(6, 24))):
        if ring:
            angle = start + sweep * float(rng.random())
            radius = spread * 1.5 * float(rng.normal(1, 0.12))
            x, y = x0 + radius * math.cos(angle), y0 + radius * math.sin(angle)
        else:
            x, y = x0 + float(rng.normal(0, spread)), y0 + float(rng.normal(0, spread))
        if math.hypot(x, y) > 0.47:
            continue
        width = float(rng.uniform(0.004, 0.014))
        _blot(canvas, rng, "exudates", x, y, width, strength=float(rng.uniform(0.7, 1.0)))
        canvas.record(HARD_EXUDATE, x, y, width)


def _irma(canvas: _Canvas, rng: np.random.Generator) -> None:
    """Intraretinal microvascular abnormality: short, crooked, dilated vessels."""
    x, y = _place(canvas, rng, margin=0.1)
    for _ in range(int(rng.integers(4, 8))):
        start = np.array([x, y], np.float32) + rng.normal(0, 0.014, 2).astype(np.float32)
        path = walk(
            rng,
            start=start,
            heading=float(rng.uniform(0, 2 * math.pi)),
            length=float(rng.uniform(0.04, 0.075)),
            bend=0.0,
            wander=9.0,
        )
        canvas.line("fine", path, float(rng.uniform(0.0034, 0.0048)), 0.95)
    canvas.record(IRMA, x, y, 0.07)


def _new_vessels(
    canvas: _Canvas,
    rng: np.random.Generator,
    at: tuple[float, float],
    radius: float,
    kind: str,
) -> None:
    """A net of fine loops over a reddish haze, on the disc or elsewhere."""
    origin = np.asarray(at, np.float32)
    canvas.dot("haze", at[0], at[1], 1.7 * radius, 0.8)
    for index in range(int(rng.integers(16, 27))):
        heading = 2 * math.pi * index / 20 + float(rng.normal(0, 0.3))
        turn = float(rng.choice([-1.0, 1.0])) * float(rng.uniform(1.2, 3.0)) / radius
        path = walk(
            rng,
            start=origin + rng.normal(0, 0.15 * radius, 2).astype(np.float32),
            heading=heading,
            length=float(rng.uniform(1.2, 2.2)) * radius,
            bend=turn,
            wander=3.0,
        )
        canvas.line("fine", path, float(rng.uniform(0.0022, 0.0036)), 1.0)
    canvas.record(kind, at[0], at[1], 2 * radius)


def _preretinal(canvas: _Canvas, rng: np.random.Generator) -> None:
    """Blood in front of the retina: sinks to a boat with a level top, hides what is below."""
    x, y = _place(canvas, rng, margin=0.14)
    width = float(rng.uniform(0.09, 0.20))
    depth = width * float(rng.uniform(0.45, 0.8))
    turn = np.linspace(0, math.pi, 24)
    wobble = 1 + 0.06 * np.sin(3 * turn + float(rng.uniform(0, 6)))
    lower = np.stack(
        [x + width / 2 * np.cos(turn) * wobble, y + depth * np.sin(turn) * wobble], axis=1
    )
    canvas.pen("pool").polygon(canvas.to_px(lower).ravel().tolist(), fill=250)
    canvas.record(PRERETINAL_HAEMORRHAGE, x, y + depth / 2, width)


# --- The camera ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Camera:
    """Framing, light and sensor of one exposure."""

    field_width: float
    aspect: float
    offset: tuple[float, float]
    light: tuple[float, float]
    light_width: float
    vignette: float
    gains: tuple[float, float, float]
    gamma: float
    blur: float
    noise: float
    black: float
    notch: float | None
    jpeg_quality: int

    @classmethod
    def random(cls, rng: np.random.Generator) -> "_Camera":
        exposure = float(rng.uniform(0.84, 1.12))
        gains = tuple(float(g) for g in exposure * rng.normal(1, (0.03, 0.045, 0.06)))
        return cls(
            field_width=float(rng.uniform(0.88, 0.995)),
            aspect=1.0 if rng.random() < 0.6 else float(rng.uniform(0.90, 1.0)),
            offset=(float(rng.uniform(-0.5, 0.5)), float(rng.uniform(-0.5, 0.5))),
            light=(float(rng.normal(0, 0.10)), float(rng.normal(0, 0.10))),
            light_width=float(rng.uniform(0.42, 0.9)),
            vignette=float(rng.uniform(0.04, 0.30)),
            gains=(gains[0], gains[1], gains[2]),
            gamma=float(rng.uniform(0.85, 1.18)),
            blur=float(rng.uniform(0.0, 0.0011)),
            noise=float(rng.uniform(0.003, 0.018)),
            black=float(rng.uniform(0.0, 0.02)),
            notch=float(rng.uniform(0.0, 2 * math.pi)) if rng.random() < 0.3 else None,
            jpeg_quality=int(rng.integers(78, 97)),
        )


def _photograph(
    canvas: _Canvas, colour: Floats, camera: _Camera, *, seed: int, grade: int, size_px: int
) -> DrawnFundus:
    """Light, lens, sensor, mask and JPEG; then lesion positions in pixels of the result."""
    field_px = canvas.size_px
    x, y = _grid(field_px)
    small = max(48, field_px // 4)
    sx, sy = _grid(small)
    lit = (
        1
        - 0.5 * camera.vignette
        + camera.vignette * _bump(sx, sy, camera.light, camera.light_width / 2)
    )
    lit = lit * (1 - np.float32(2.2 * camera.vignette) * (sx**2 + sy**2))
    light = _resize(lit.astype(np.float32), field_px)
    rng = generator(seed, 1001)
    grain = rng.standard_normal((field_px, field_px), dtype=np.float32) * np.float32(camera.noise)
    # A byte of red sensor noise is not a byte of blue: shift one field instead of drawing three.
    picture = np.empty_like(colour)
    for channel, gain in enumerate(camera.gains):
        plane = colour[..., channel] * light
        plane *= np.float32(gain)
        plane += np.roll(grain, (7 * channel, 13 * channel), (0, 1))
        picture[..., channel] = plane
    mask = np.clip((0.5 - np.hypot(x, y)) * np.float32(field_px) / 1.5, 0, 1)
    picture *= mask[..., None]
    if canvas.eye.eye == "left":
        picture = picture[:, ::-1]
    height_px = round(size_px * camera.aspect)
    left = (size_px - field_px) / 2 * (1 + camera.offset[0])
    top = (height_px - field_px) / 2 * (1 + (camera.offset[1] if height_px > field_px else 0.0))
    left_px, top_px = round(left), round(top)
    frame = np.zeros((height_px, size_px, 3), np.float32)
    rows = slice(max(0, top_px), min(height_px, top_px + field_px))
    source = slice(rows.start - top_px, rows.stop - top_px)
    frame[rows, left_px : left_px + field_px] = picture[source]
    centre_x, centre_y, radius = left_px + field_px / 2, top_px + field_px / 2, field_px / 2
    frame = np.maximum(frame, np.float32(camera.black * 0.5))
    # 0..1.5 on 255 steps, so that the tone curve can bend highlights before they clip.
    pixels = (np.clip(frame, 0, 1.5) * np.float32(170) + np.float32(0.5)).astype(np.uint8)
    image = Image.fromarray(pixels).point(_tone_curve(camera.gamma) * 3)
    if camera.notch is not None:
        _draw_notch(image, camera.notch, (centre_x, centre_y), radius)
    blur_px = camera.blur * field_px
    if blur_px > 0.2:
        image = image.filter(ImageFilter.GaussianBlur(blur_px))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=camera.jpeg_quality, subsampling=0)
    final = np.asarray(Image.open(buffer).convert("RGB"))
    mirror = -1.0 if canvas.eye.eye == "left" else 1.0
    lesions = tuple(
        Lesion(
            kind=kind,
            x_px=centre_x + mirror * px * field_px,
            y_px=centre_y + py * field_px,
            width_px=width * field_px,
            quadrant=quadrant_of(mirror * px, py),
        )
        for kind, px, py, width in canvas.lesions
    )
    return DrawnFundus(
        image=final,
        grade=grade,
        seed=seed,
        eye=canvas.eye.eye,
        field_px=(centre_x, centre_y, radius),
        lesions=lesions,
    )


def _tone_curve(gamma: float) -> list[int]:
    """Gamma with a shoulder above 0.8, as a table over 0..1.5 in 256 steps."""
    level = (np.arange(256) / 170) ** gamma
    level = np.where(level > 0.8, 0.8 + 0.2 * np.tanh((level - 0.8) / 0.35), level)
    return [int(v) for v in np.rint(level * 255)]


def _draw_notch(
    image: Image.Image, angle: float, centre: tuple[float, float], radius: float
) -> None:
    """The small tab at the edge by which many cameras mark the orientation."""
    outward = (math.cos(angle), math.sin(angle))
    inner = (
        int(centre[0] + 0.93 * radius * outward[0]),
        int(centre[1] + 0.93 * radius * outward[1]),
    )
    if not (0 <= inner[0] < image.width and 0 <= inner[1] < image.height):
        return
    colour = image.getpixel(inner)
    corners = []
    for along, across in ((0.985, -0.03), (1.035, -0.03), (1.035, 0.03), (0.985, 0.03)):
        corners.append(
            (
                centre[0] + radius * (along * outward[0] - across * outward[1]),
                centre[1] + radius * (along * outward[1] + across * outward[0]),
            )
        )
    ImageDraw.Draw(image).polygon(corners, fill=colour)
