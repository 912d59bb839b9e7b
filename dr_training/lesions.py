"""Lesions of diabetic retinopathy: kinds, the ICDR grade they define, and how many to draw."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

GRADES = (0, 1, 2, 3, 4)
# A microaneurysm is at most about 125 µm wide (ETDRS report 10), which is 1 % of a 45° field.
MAX_MICROANEURYSM_WIDTH = 0.01
SEVERE_HAEMORRHAGES_PER_QUADRANT = 20

MICROANEURYSM = "microaneurysm"
HAEMORRHAGE = "haemorrhage"
HARD_EXUDATE = "hard_exudate"
COTTON_WOOL_SPOT = "cotton_wool_spot"
VENOUS_BEADING = "venous_beading"
IRMA = "irma"
NEW_VESSELS_DISC = "new_vessels_disc"
NEW_VESSELS_ELSEWHERE = "new_vessels_elsewhere"
PRERETINAL_HAEMORRHAGE = "preretinal_haemorrhage"
VITREOUS_HAEMORRHAGE = "vitreous_haemorrhage"
LESION_KINDS = (
    MICROANEURYSM,
    HAEMORRHAGE,
    HARD_EXUDATE,
    COTTON_WOOL_SPOT,
    VENOUS_BEADING,
    IRMA,
    NEW_VESSELS_DISC,
    NEW_VESSELS_ELSEWHERE,
    PRERETINAL_HAEMORRHAGE,
    VITREOUS_HAEMORRHAGE,
)


@dataclass(frozen=True, kw_only=True)
class Lesion:
    """One drawn lesion: kind, centre and width in pixels of the image, and quadrant.

    Quadrants are numbered 0 to 3 around the centre of the field: upper left, upper right,
    lower left, lower right as seen in the image.
    """

    kind: str
    x_px: float
    y_px: float
    width_px: float
    quadrant: int


def icdr_grade(lesions: Sequence[Lesion]) -> int:
    """The ICDR grade that these lesions define.

    4: new vessels, pre-retinal or vitreous haemorrhage. 3: any of more than 20 haemorrhages
    in each of four quadrants, venous beading in two or more, IRMA in one or more. 1:
    microaneurysms only. 2: anything between. 0: none of these.
    """
    by_kind = {kind: [les for les in lesions if les.kind == kind] for kind in LESION_KINDS}
    proliferative = (
        NEW_VESSELS_DISC,
        NEW_VESSELS_ELSEWHERE,
        PRERETINAL_HAEMORRHAGE,
        VITREOUS_HAEMORRHAGE,
    )
    if any(by_kind[kind] for kind in proliferative):
        return 4
    bleeding = [les.quadrant for les in by_kind[HAEMORRHAGE]]
    four = all(bleeding.count(q) > SEVERE_HAEMORRHAGES_PER_QUADRANT for q in range(4))
    two = len({les.quadrant for les in by_kind[VENOUS_BEADING]}) >= 2
    if four or two or by_kind[IRMA]:
        return 3
    if not lesions:
        return 0
    return 1 if len(by_kind[MICROANEURYSM]) == len(lesions) else 2


@dataclass(kw_only=True)
class Plan:
    """How many of each kind to draw; haemorrhages and beading per quadrant."""

    microaneurysms: int = 0
    haemorrhages: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    exudate_clusters: int = 0
    cotton_wool_spots: int = 0
    beaded_quadrants: int = 0
    irma: int = 0
    new_vessels_disc: bool = False
    new_vessels_elsewhere: int = 0
    preretinal: int = 0
    vitreous: bool = False


def plan_lesions(rng: np.random.Generator, grade: int) -> Plan:
    """How many lesions of each kind a photograph of `grade` shows; `icdr_grade` agrees."""
    plan = Plan()
    if grade == 0:
        return plan
    if grade == 1:
        # One microaneurysm is grade 1 by definition; fewer than four are not drawn, since a
        # network of this size cannot be expected to find one dot of two pixels.
        plan.microaneurysms = int(rng.integers(4, 15))
        return plan
    plan.microaneurysms = int(rng.integers(5, 26))
    plan.haemorrhages = [int(n) for n in rng.integers(0, 10, 4)]
    while sum(plan.haemorrhages) < 5:
        plan.haemorrhages[int(rng.integers(4))] += 1
    plan.exudate_clusters = int(rng.choice([0, 1, 2, 3, 4], p=[0.2, 0.3, 0.25, 0.15, 0.1]))
    plan.cotton_wool_spots = int(rng.choice([0, 1, 2, 3], p=[0.5, 0.25, 0.15, 0.1]))
    severe = grade == 3 or (grade == 4 and rng.random() < 0.45)
    if severe:
        signs = rng.random(3) < (0.75, 0.5, 0.5)
        if grade == 3 and not signs.any():
            signs[int(rng.integers(3))] = True
        if signs[0]:
            low = SEVERE_HAEMORRHAGES_PER_QUADRANT + 1
            plan.haemorrhages = [int(n) for n in rng.integers(low, low + 16, 4)]
        else:
            plan.haemorrhages = [n + int(rng.integers(3, 10)) for n in plan.haemorrhages]
        plan.beaded_quadrants = int(rng.integers(2, 5)) if signs[1] else 0
        plan.irma = int(rng.integers(2, 6)) if signs[2] else 0
    if grade == 4:
        signs = rng.random(4) < (0.5, 0.6, 0.45, 0.15)
        if not signs.any():
            signs[int(rng.integers(3))] = True
        plan.new_vessels_disc = bool(signs[0])
        plan.new_vessels_elsewhere = int(rng.integers(1, 4)) if signs[1] else 0
        plan.preretinal = int(rng.integers(1, 3)) if signs[2] else 0
        plan.vitreous = bool(signs[3])
    return plan


def quadrant_of(x: float, y: float) -> int:
    """Quadrant 0 to 3 of a point relative to the centre of the field, y pointing down."""
    return (1 if x >= 0 else 0) + (2 if y >= 0 else 0)
