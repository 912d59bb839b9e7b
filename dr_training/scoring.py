"""Asks a model about labelled photographs and keeps every answer, also "ungradable".

    >>> scored = score_package(Path("model_artifacts/mobilenet-demo"), table.photographs)
    >>> scored.truth.shape, scored.probabilities.shape, scored.gradable.sum()
    ((1000,), (1000, 5), 978)

Photographs go through the service's own predictor, file by file, so that what is measured is
what is served; rows of an array are sent as PNG. `score_answers` takes answers that came from
somewhere else, for example over HTTP.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dr_training.data.faults import DataError
from dr_training.data.preparation import array_pixels
from dr_training.data.readers import LIMITS
from dr_training.data.table import Photograph, is_array
from inference_image.contract import REFERABLE_FROM_GRADE
from inference_image.decoding import PhotographError
from inference_image.predictor import EngineError, Predictor

# Below this a probability says nothing more, and its logarithm would be infinite.
_SMALLEST = 1e-300


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """What a model said of one photograph; `failure` where it said nothing.

    `probabilities` has five entries (grades) or two (not referable, referable), or is None where
    the photograph is ungradable for the `reasons` given.
    """

    probabilities: tuple[float, ...] | None = None
    reasons: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Photographs with a grade and the answers to them, row by row.

    `truth` (n,) grades 0 to 4; `gradable` and `failed` (n,) bool; `probabilities` (n, 5) or
    (n, 2), NaN where there are none.
    """

    photographs: tuple[Photograph, ...]
    truth: NDArray[np.int64]
    gradable: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    probabilities: NDArray[np.float64]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.photographs)

    @property
    def grades(self) -> bool:
        """Whether the model grades from 0 to 4, or only says referable."""
        return bool(self.probabilities.shape[1] > 2)

    @property
    def referable(self) -> NDArray[np.bool_]:
        """(n,) whether the true grade is 2 or more."""
        return self.truth >= REFERABLE_FROM_GRADE

    @property
    def score(self) -> NDArray[np.float64]:
        """(n,) P(grade >= 2), NaN where there is no answer."""
        first = REFERABLE_FROM_GRADE if self.grades else 1
        return np.asarray(self.probabilities[:, first:].sum(axis=1), np.float64)

    def logits(self, temperature: float) -> NDArray[np.float64]:
        """(n, k) logits of answers that were given at this temperature, up to a constant."""
        return temperature * np.log(np.maximum(self.probabilities, _SMALLEST))

    def chosen(self, rows: NDArray[np.bool_]) -> "Scored":
        """The photographs where `rows` is true."""
        index = np.flatnonzero(rows)
        return Scored(
            photographs=tuple(self.photographs[i] for i in index),
            truth=self.truth[rows],
            gradable=self.gradable[rows],
            failed=self.failed[rows],
            probabilities=self.probabilities[rows],
            reasons=tuple(self.reasons[i] for i in index),
        )


def score_package(
    package: Path,
    photographs: Sequence[Photograph],
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scored:
    """Ask the model of a package folder about every photograph that has a grade.

    Raises:
        DataError: no photograph has a grade.
        ModelPackageError: the package cannot be used.
    """
    predictor = Predictor.load(package, threads=threads)

    def ask(data: bytes) -> ModelAnswer:
        try:
            answer = predictor.predict(data)
        except (PhotographError, EngineError) as error:
            return ModelAnswer(failure=str(error))
        return ModelAnswer(
            probabilities=answer.probabilities, reasons=tuple(answer.quality.reasons)
        )

    return score_answers(photographs, ask, progress=progress)


def score_answers(
    photographs: Sequence[Photograph],
    ask: Callable[[bytes], ModelAnswer],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scored:
    """Send every photograph that has a grade to `ask`, and keep the answers.

    A file that cannot be read counts as failed, with its reason; nothing is left out.

    Raises:
        DataError: no photograph has a grade, or answers have different numbers of classes.
    """
    graded = [one for one in photographs if one.grade is not None]
    if not graded:
        raise DataError("no photograph has a grade, so there is nothing to compare with")
    answers = []
    for done, one in enumerate(graded, start=1):
        try:
            answers.append(ask(encoded_photograph(one)))
        except DataError as error:
            answers.append(ModelAnswer(failure=str(error)))
        progress(done, len(graded))
    return _scored(graded, answers)


def encoded_photograph(one: Photograph) -> bytes:
    """The bytes of a photograph's file; a row of an array as PNG.

    Raises:
        DataError: there is no such file or row.
    """
    if is_array(one.path):
        stream = io.BytesIO()
        Image.fromarray(array_pixels(one.path)).convert("RGB").save(stream, "PNG")
        return stream.getvalue()
    path = Path(one.path)
    try:
        if path.stat().st_size > LIMITS.max_bytes:
            raise DataError(f"{path.name} is larger than {LIMITS.max_bytes:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path.name}: {(error.strerror or 'unreadable').lower()}") from None


def _scored(photographs: Sequence[Photograph], answers: Iterable[ModelAnswer]) -> Scored:
    answers = list(answers)
    sizes = {len(one.probabilities) for one in answers if one.probabilities is not None}
    if len(sizes) > 1:
        raise DataError(f"answers have {' and '.join(map(str, sorted(sizes)))} probabilities")
    classes = sizes.pop() if sizes else 5
    if classes not in (2, 5):
        raise DataError(f"answers have {classes} probabilities; 2 or 5 can be evaluated")
    nothing = (float("nan"),) * classes
    return Scored(
        photographs=tuple(photographs),
        truth=np.array([one.grade for one in photographs], np.int64),
        gradable=np.array([one.probabilities is not None for one in answers]),
        failed=np.array([bool(one.failure) for one in answers]),
        probabilities=np.array([one.probabilities or nothing for one in answers], np.float64),
        reasons=tuple(one.failure or " ".join(one.reasons) for one in answers),
    )
