"""The eyes behind the drawn photographs: pigment, disc, macula and vessel trees.

Lengths are fractions of the diameter of the field of view, the origin is the centre of the
field, x points to the nose and y points down.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def generator(seed: int, stream: int) -> np.random.Generator:
    """Independent random numbers for one purpose (`stream`) of one drawing (`seed`)."""
    return np.random.Generator(np.random.PCG64([seed, stream]))


@lru_cache(maxsize=4)
def eye_of(seed: int) -> "Eye":
    """The eye that every grade of `seed` is drawn on."""
    return Eye.random(generator(seed, 0))


@dataclass(frozen=True, kw_only=True)
class Vessel:
    """A centre line of shape (n, 2) with a width at each point."""

    points: Floats
    widths: Floats
    trunk: bool


@dataclass(frozen=True, kw_only=True)
class Eye:
    """Anatomy of one eye and the pigment of its fundus."""

    eye: str
    zoom: float
    fovea: tuple[float, float]
    disc: tuple[float, float]
    disc_width: float
    disc_aspect: float
    cup_ratio: float
    colour: tuple[float, float, float]
    tessellation: float
    atrophy: float
    macula_depth: float
    reflex: float
    sheen: float
    drusen: int
    veins: tuple[Vessel, ...]
    arteries: tuple[Vessel, ...]

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Eye":
        zoom = float(rng.uniform(0.84, 1.14))
        shift = float(rng.normal(0, 0.035))
        if rng.random() < 0.15:  # centred on the disc rather than on the macula
            shift -= float(rng.uniform(0.12, 0.28))
        # The disc stays in view: its new vessels must be seen.
        shift = min(shift, 0.42 - 0.375 * zoom)
        fovea = (shift, float(np.clip(rng.normal(0, 0.035), -0.09, 0.09)))
        disc = (
            fovea[0] + float(rng.uniform(0.335, 0.375)) * zoom,
            fovea[1] - float(rng.uniform(-0.005, 0.06)) * zoom,
        )
        red = float(rng.uniform(0.62, 0.92))
        green = red * float(rng.uniform(0.36, 0.56))
        blue = green * float(rng.uniform(0.42, 0.82))
        disc_width = float(rng.uniform(0.130, 0.165)) * zoom
        anatomy: dict[str, Any] = {
            "eye": "right" if rng.random() < 0.5 else "left",
            "zoom": zoom,
            "fovea": fovea,
            "disc": disc,
            "disc_width": disc_width,
            "disc_aspect": float(rng.uniform(1.0, 1.15)),
            "cup_ratio": float(rng.uniform(0.2, 0.62)),
            "colour": (red, green, blue),
            "tessellation": float(rng.beta(1.2, 3.0)),
            "atrophy": float(rng.uniform(0.3, 1.0)) if rng.random() < 0.3 else 0.0,
            "macula_depth": float(rng.uniform(0.14, 0.42)),
            "reflex": float(rng.uniform(0.1, 0.6)) if rng.random() < 0.4 else 0.0,
            "sheen": float(rng.uniform(0.0, 0.10)),
            "drusen": int(rng.integers(2, 9)) if rng.random() < 0.08 else 0,
        }
        veins = tuple(_grow_tree(rng, fovea, disc, disc_width, zoom, width=0.0134))
        arteries = tuple(_grow_tree(rng, fovea, disc, disc_width, zoom, width=0.0098))
        return cls(veins=veins, arteries=arteries, **anatomy)


def _grow_tree(
    rng: np.random.Generator,
    fovea: tuple[float, float],
    disc: tuple[float, float],
    disc_width: float,
    zoom: float,
    *,
    width: float,
) -> Iterator[Vessel]:
    """Two temporal arcades, four nasal trunks, macular twigs, and the branches of each."""
    root = np.asarray(disc, np.float32) + rng.normal(0, 0.08 * disc_width, 2).astype(np.float32)
    width = width * zoom * float(rng.uniform(0.85, 1.15))
    trunks: list[Vessel] = []
    for upward in (-1.0, 1.0):
        trunks.append(
            _vessel(_arcade(rng, fovea, root, zoom, upward), width * rng.uniform(0.9, 1.1), True)
        )
        for _ in range(int(rng.integers(1, 3))):
            angle = math.radians(float(rng.uniform(15, 80)))
            path = walk(
                rng,
                start=root,
                heading=upward * angle,
                length=0.75,
                bend=float(rng.normal(0, 0.8)),
                wander=0.8,
            )
            trunks.append(_vessel(path, width * rng.uniform(0.5, 0.8), True))
        for _ in range(int(rng.integers(1, 4))):
            heading = math.pi + upward * math.radians(float(rng.uniform(-38, -4)))
            path = walk(
                rng,
                start=root,
                heading=heading,
                length=float(rng.uniform(0.2, 0.34)) * zoom,
                bend=float(rng.normal(0, 0.8)),
                wander=1.4,
            )
            trunks.append(_vessel(path, width * rng.uniform(0.22, 0.36), False))
    for trunk in trunks:
        inside = _inside(trunk, fovea, zoom)
        if inside is None:
            continue
        yield inside
        yield from _branches(rng, inside, fovea, root, zoom, depth=2 if inside.trunk else 1)


def _vessel(points: Floats, width: float, trunk: bool) -> Vessel:
    taper = np.linspace(1.0, 0.42, len(points), dtype=np.float32)
    return Vessel(points=points, widths=(taper * width).astype(np.float32), trunk=trunk)


def _arcade(
    rng: np.random.Generator,
    fovea: tuple[float, float],
    root: Floats,
    zoom: float,
    upward: float,
) -> Floats:
    """A temporal arcade: rises steeply from the disc, passes over the macula, runs outwards."""
    centre_x = fovea[0] + float(rng.uniform(-0.05, 0.05)) * zoom
    height = float(rng.uniform(0.23, 0.33)) * zoom
    reach = float(rng.uniform(0.45, 0.8))
    turn = np.linspace(0, math.radians(158), 130, dtype=np.float32)
    cosine, sine = np.cos(turn), np.sin(turn)
    x = centre_x + np.where(cosine > 0, (root[0] - centre_x) * cosine, reach * cosine)
    middle_y = root[1] + (fovea[1] - root[1]) * turn / turn[-1]
    y = middle_y + upward * height * sine ** float(rng.uniform(0.75, 1.0))
    phase = rng.uniform(0, 2 * math.pi, 4)
    sway = sum(
        0.016 / (k + 1) * np.sin((1.4 + 1.9 * k) * turn + phase[k]) for k in range(4)
    ) * np.minimum(1, turn / 0.5)
    return np.stack([x + 0.6 * sway, y + sway], axis=1).astype(np.float32)


def walk(
    rng: np.random.Generator,
    *,
    start: Floats,
    heading: float,
    length: float,
    bend: float,
    wander: float,
) -> Floats:
    """A line that starts at `start` and turns by `bend` radians per unit plus `wander`."""
    step = 0.009
    count = max(4, round(length / step))
    noise = rng.normal(0, wander * math.sqrt(step), count)
    turning = heading + np.cumsum(noise + bend * step) - noise[0]
    steps = np.stack([np.cos(turning), np.sin(turning)], axis=1) * step
    return np.concatenate([start[None], start + np.cumsum(steps, axis=0)]).astype(np.float32)


def _inside(vessel: Vessel, fovea: tuple[float, float], zoom: float) -> Vessel | None:
    """Cut where the vessel leaves the field or enters the avascular zone; None if too short."""
    outside = np.hypot(vessel.points[:, 0], vessel.points[:, 1]) > 0.53
    avascular = (
        np.hypot(vessel.points[:, 0] - fovea[0], vessel.points[:, 1] - fovea[1]) < 0.052 * zoom
    )
    stop = np.flatnonzero(outside | avascular)
    end = int(stop[0]) if len(stop) else len(vessel.points)
    if end < 4:
        return None
    return Vessel(points=vessel.points[:end], widths=vessel.widths[:end], trunk=vessel.trunk)


def _branches(
    rng: np.random.Generator,
    parent: Vessel,
    fovea: tuple[float, float],
    root: Floats,
    zoom: float,
    *,
    depth: int,
) -> Iterator[Vessel]:
    if depth == 0:
        return
    position = int(rng.integers(4, 10))
    side = 1.0 if rng.random() < 0.5 else -1.0
    while position < len(parent.points) - 2:
        start = parent.points[position]
        along = parent.points[position + 1] - parent.points[position - 1]
        heading = math.atan2(float(along[1]), float(along[0]))
        near_disc = math.dist(start.tolist(), root.tolist()) < 0.09 * zoom
        if not near_disc:
            path = walk(
                rng,
                start=start,
                heading=heading + side * math.radians(float(rng.uniform(28, 68))),
                length=float(rng.uniform(0.07, 0.28)) * zoom * (0.6 if depth == 1 else 1.0),
                bend=-side * float(rng.uniform(0.0, 3.0)),
                wander=1.7,
            )
            width = float(parent.widths[position]) * float(rng.uniform(0.36, 0.62))
            branch = _inside(_vessel(path, max(width, 0.0018), False), fovea, zoom)
            if branch is not None:
                yield branch
                yield from _branches(rng, branch, fovea, root, zoom, depth=depth - 1)
        side = -side if rng.random() < 0.7 else side
        position += int(rng.integers(4, 12))
