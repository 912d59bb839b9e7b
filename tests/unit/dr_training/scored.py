"""Answers of a model that never was, for tests of what is made of answers."""

from collections.abc import Sequence

import numpy as np

from dr_training.data.table import Photograph
from dr_training.evaluate import softmax
from dr_training.scoring import Scored


def scored(
    truth: Sequence[int],
    probabilities: np.ndarray,
    *,
    patients: Sequence[str] | None = None,
    gradable: np.ndarray | None = None,
    extra: Sequence[dict[str, str]] | None = None,
) -> Scored:
    """Answers with these probabilities (n, k); NaN where a photograph is ungradable."""
    count = len(truth)
    graded = np.ones(count, bool) if gradable is None else gradable
    return Scored(
        photographs=tuple(
            Photograph(
                id=f"i{n}",
                patient=patients[n] if patients else "",
                grade=int(truth[n]),
                sha256=f"{n:064x}",
                path=f"/i{n}.jpg",
                row=f"t.csv row {n + 2}",
                extra=extra[n] if extra else {},
            )
            for n in range(count)
        ),
        truth=np.array(truth, np.int64),
        gradable=graded,
        failed=np.zeros(count, bool),
        probabilities=np.where(graded[:, None], probabilities, np.nan),
        reasons=tuple("" if one else "too_dark" for one in graded),
    )


def logits_of(count: int, *, seed: int, spread: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Grades (n,) and logits (n, 5) that lean towards them."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, count)
    distance = np.abs(np.arange(5)[None] - truth[:, None] - rng.normal(0, 0.8, (count, 1)))
    return truth, -spread * distance


def answers(count: int = 400, *, seed: int = 0, temperature: float = 1.0) -> Scored:
    """A useful model's answers."""
    truth, logits = logits_of(count, seed=seed)
    return scored(truth, softmax(logits, temperature))
