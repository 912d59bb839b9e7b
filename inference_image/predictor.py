"""From the bytes of a photograph to an answer: decode, prepare, run, decide, explain.

    >>> predictor = Predictor.load(Path("model_artifacts/mobilenet-demo"), threads=1)
    >>> predictor.warm_up()
    >>> answer = predictor.predict(data, declared_type="image/jpeg")
    >>> answer.grade, answer.referable.positive
    (2, True)

The engine gives logits; softmax, temperature and threshold are computed here in float64, so
that the probabilities sum to 1 whatever the quantisation. A photograph that cannot be graded
does not reach the engine, and every number about its grade is None.
"""

import base64
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.contract import (
    EXPLAIN_GRADCAM,
    MEDIA_JPEG,
    PLAIN_INPUT_AUTO,
    REFERABLE_FROM_GRADE,
    RUNTIME_AUTO,
    RUNTIME_LITERT,
    TASK_GRADE5,
    Acquisition,
)
from inference_image.decoding import Decoded, Limits, decode, measure
from inference_image.explain import DenseHead, grad_cam, overlay
from inference_image.fundus import QualityVerdict
from inference_image.model_files import models_of_folder, models_of_package
from inference_image.model_spec import (
    MODEL_JSON,
    OUTPUT_FEATURES,
    ModelPackageError,
    ModelSpec,
    OperatingPoint,
    has_model_json,
    load_model_spec,
    verify_files,
)
from inference_image.preprocessing import Preparation, Prepared
from inference_image.runtimes import Outputs, Runtime, choose, open_model

# Most photographs show a disc of at least this share of their shorter side; where one does
# not, it is decoded once more, larger.
_EXPECTED_DISC_SHARE: Final = 0.87
_DISC_PER_INPUT: Final = 2.0
# What an engine holds beside the weights.
_ACTIVATION_BYTES: Final = 8 * 1024 * 1024


class RequestError(ValueError):
    """The request asks for something that this model does not have; one sentence."""


class EngineError(RuntimeError):
    """The engine's answer cannot be used (NaN); one sentence for the log and the caller."""


class OperatingPointError(ModelPackageError):
    """The package lacks the operating point that is to be its default; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Refer or not, at a named threshold on P(grade >= 2)."""

    probability: float | None
    operating_point: OperatingPoint
    positive: bool | None


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A Grad-CAM overlay: encoded picture, its size in pixels and the class explained.

    `grade` is None for a model that only refers, whose classes are no grades.
    """

    grade: int | None
    label: str
    media_type: str
    width_px: int
    height_px: int
    image_base64: str


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Milliseconds that one prediction spent in each stage."""

    decode_ms: float
    prepare_ms: float
    engine_ms: float
    explain_ms: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the service knows about one photograph.

    `probabilities`, `grade`, `label`, `referable.probability`, `referable.positive` and
    `consistent` are None when `quality.gradable` is false; `grade` also for a model that
    only refers. `consistent` is false where the most probable grade contradicts the decision.
    `acquisition` is what a DICOM file says about the photograph; None for other types.
    """

    probabilities: tuple[float, ...] | None
    grade: int | None
    label: str | None
    referable: Decision
    consistent: bool | None
    quality: QualityVerdict
    heat_map: HeatMap | None
    timings: Timings
    media_type: str
    source_width_px: int
    source_height_px: int
    acquisition: Acquisition | None


@dataclass(frozen=True, kw_only=True)
class ReadPhotograph:
    """A photograph that was decoded and prepared: all that the engine and the answer need."""

    prepared: Prepared
    media_type: str
    source_width_px: int
    source_height_px: int
    acquisition: Acquisition | None
    decode_ms: float
    prepare_ms: float


def read_photograph(
    data: bytes,
    preparation: Preparation,
    *,
    declared_type: str | None = None,
    limits: Limits | None = None,
) -> tuple[Decoded, Prepared, float, float]:
    """Decode a file as small as its disc allows, and prepare it: what every answer begins with.

    Training reads its files with this function too, so that a model sees what it will be served.

    Returns:
        The decoded picture, the model's input, and the milliseconds of decoding and preparing.

    Raises:
        PhotographError: as `decoding.decode`.
    """
    disc_px = _DISC_PER_INPUT * preparation.size_px
    min_side_px = math.ceil(disc_px / _EXPECTED_DISC_SHARE)
    decode_ms = prepare_ms = 0.0
    while True:
        start = time.perf_counter()
        decoded = decode(data, declared_type=declared_type, limits=limits, min_side_px=min_side_px)
        decode_ms += _since(start)
        start = time.perf_counter()
        prepared = preparation(decoded.image, scale=decoded.scale)
        prepare_ms += _since(start)
        circle = prepared.circle
        if not circle.found or decoded.scale >= 1 or 2 * circle.radius_px >= disc_px:
            return decoded, prepared, decode_ms, prepare_ms
        # A small disc in a large frame: the next pass keeps it at twice the input.
        shorter = min(decoded.image.size)
        min_side_px = max(math.ceil(shorter * disc_px / (2 * circle.radius_px)), 2 * shorter)


@dataclass(frozen=True, kw_only=True)
class SecondEngine:
    """How the model of a `Predictor` is opened once more, and what that costs.

    Attributes:
        open: makes an engine with so many threads.
        model_bytes: size of the model's file.
    """

    open: Callable[[int], Runtime]
    model_bytes: int

    @property
    def resident_bytes(self) -> int:
        """Memory that it will hold, at most: weights as they are and packed, and activations.

        Measured 12 MB for the int8 MobileNet of 3.5 MB and 54 MB for the VGG19 of 20.
        """
        return 3 * self.model_bytes + _ACTIVATION_BYTES


class Predictor:
    """A loaded model package and everything needed to answer; one caller at a time."""

    def __init__(
        self,
        *,
        spec: ModelSpec,
        runtime: Runtime,
        head: DenseHead | None,
        limits: Limits,
        operating_point: str | None = None,
        described: bool = True,
        second: "SecondEngine | None" = None,
        engine: Mapping[str, str] | None = None,
    ) -> None:
        self.spec = spec
        # Name and version of what computes, for the log.
        self.engine = engine or {}
        # Whether the package says what it is, or the defaults of `plain_model` do.
        self.described = described
        self._runtime = runtime
        self.second = second
        self._wide: Runtime | None = None
        # Whether the next photograph has all CPUs; set by whoever knows, before `predict`.
        self.alone = False
        self._head = head
        self._limits = limits
        try:
            self._default_point = spec.operating_point(operating_point)
        except ModelPackageError as error:
            raise OperatingPointError(str(error)) from None
        self._preparation = Preparation.from_spec(spec)
        # Called before each run of the engine, which leaves the interpreter to other threads.
        self.before_engine: Callable[[], None] = lambda: None

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        threads: int,
        limits: Limits | None = None,
        operating_point: str | None = None,
        runtime: str = RUNTIME_AUTO,
        plain_input: str = PLAIN_INPUT_AUTO,
    ) -> "Predictor":
        """Load an unpacked package after checking the digest of each of its files.

        A folder with a `.tflite` file or a SavedModel and no `model.json` is served with the
        defaults of `plain_model`.

        Args:
            model_dir: the unpacked package.
            threads: engine threads.
            limits: bounds on images; the defaults when omitted.
            operating_point: name of the default threshold; the package's own when None.
            runtime: one of `contract.RUNTIMES`, or "auto".
            plain_input: range of a floating-point input without `model.json`, or "auto".

        Raises:
            ModelPackageError: the package is missing, damaged or asks for what is not known.
        """
        described = has_model_json(model_dir)
        if described:
            spec = load_model_spec(model_dir)
            verify_files(spec, model_dir)
            model = choose(models_of_package(spec, model_dir), runtime)
            opened = open_model(model, threads=threads)
        else:
            from inference_image.plain_model import describe

            model = choose(models_of_folder(model_dir), runtime)
            spec, opened = describe(model, model_dir, threads=threads, input_range=plain_input)
        size_px = opened.facts.input_size_px
        if size_px is not None and size_px != spec.input_size_px:
            raise ModelPackageError(
                f"model {spec.id}: {MODEL_JSON} says input_size_px {spec.input_size_px}, "
                f"but the network takes {size_px}"
            )
        opened.bind(spec.outputs, encoding=spec.input_encoding)

        def reopen(threads: int) -> Runtime:
            again = open_model(model, threads=threads)
            again.bind(spec.outputs, encoding=spec.input_encoding)
            return again

        can_explain = spec.head_file is not None and OUTPUT_FEATURES in spec.outputs
        head = DenseHead.load(model_dir / str(spec.head_file)) if can_explain else None
        return cls(
            spec=spec,
            runtime=opened,
            head=head,
            limits=limits or Limits(),
            operating_point=operating_point,
            described=described,
            # TensorFlow's threads belong to the process, not to a model.
            second=SecondEngine(open=reopen, model_bytes=model.path.stat().st_size)
            if model.runtime == RUNTIME_LITERT
            else None,
            engine=opened.engine,
        )

    def widen(self, threads: int) -> None:
        """Open the model a second time with more threads, for photographs that come `alone`.

        An engine's number of threads is fixed when it is opened. The answers are the same.

        Raises:
            ModelPackageError: the model cannot be opened a second time.
        """
        if self.second is None:
            raise ModelPackageError(f"model {self.spec.id}: its engine cannot be opened twice")
        wide = self.second.open(threads)
        size_px = self.spec.input_size_px
        wide.predict(np.zeros((size_px, size_px, 3), np.uint8))
        self._wide = wide

    def warm_up(self) -> None:
        """Run each stage once; raises `ModelPackageError` where the outputs do not fit."""
        # Decoders and linear algebra are set up on first use, and no patient should wait for it.
        for encoded in _warm_up_pictures():
            prepared = self.read(encoded).prepared
        outputs = self._runtime.predict(prepared.pixels, with_features=True)
        expected = {len(self.spec.labels)} | ({1} if self.spec.task != TASK_GRADE5 else set())
        if outputs.logits.size not in expected:
            raise ModelPackageError(
                f"model {self.spec.id} answers with {outputs.logits.size} values, "
                f"but has {len(self.spec.labels)} labels"
            )
        try:
            self._probabilities(outputs.logits)
        except EngineError as error:
            raise ModelPackageError(str(error)) from None
        if self._head is not None and outputs.features is not None:
            answers = self._head.kernels[-1].shape[1]
            if answers != outputs.logits.size:
                raise ModelPackageError(
                    f"model {self.spec.id}: {self.spec.head_file} ends with {answers} values, "
                    f"but the network with {outputs.logits.size}"
                )
            shape = list(outputs.features.shape)
            if len(shape) != 3:
                raise ModelPackageError(
                    f"model {self.spec.id}: the feature map of one image has the shape {shape}; "
                    "height, width and channels are expected"
                )
            channels = shape[-1]
            if channels != self._head.kernels[0].shape[0]:
                raise ModelPackageError(
                    f"model {self.spec.id}: the feature map has {channels} channels, "
                    f"but {self.spec.head_file} starts with {self._head.kernels[0].shape[0]}"
                )

    def check_request(self, *, operating_point: str | None, explain: str | None) -> None:
        """Raise `RequestError` for an operating point or explanation this model lacks."""
        try:
            self._point(operating_point)
        except ModelPackageError as error:
            raise RequestError(str(error)) from None
        if explain is not None and explain != EXPLAIN_GRADCAM:
            raise RequestError(f"explain must be {EXPLAIN_GRADCAM}; it is {explain!r}")
        if explain is not None and self._head is None:
            raise RequestError(
                f"model {self.spec.id} has no feature map and head, so it cannot be explained"
            )

    def pixels(self, data: bytes, *, declared_type: str | None = None) -> int:
        """Pixels of one photograph by its header, 0 where that is incomplete; nothing is decoded.

        Raises:
            PhotographError: as `predict` does for what the header alone shows.
        """
        size = measure(data, declared_type=declared_type, limits=self._limits)
        return 0 if size is None else size[0] * size[1]

    def predict(
        self,
        data: bytes,
        *,
        declared_type: str | None = None,
        operating_point: str | None = None,
        explain: str | None = None,
        explain_px: int = 224,
        explain_media: str = MEDIA_JPEG,
    ) -> Answer:
        """Answer for one photograph.

        Args:
            data: a file of an accepted type (`contract.ACCEPTED_IMAGE_TYPES`).
            declared_type: media type that the sender claims, or None.
            operating_point: name of the threshold; the package's default when None.
            explain: "gradcam" adds a heat map for the predicted grade, `explain_px` on each side
                and encoded as `explain_media`, JPEG or PNG.

        Raises:
            PhotographError: the bytes are refused, with the HTTP status that says why.
            RequestError: the model lacks the operating point or the explanation.
            EngineError: the engine's answer is not finite.
        """
        self.check_request(operating_point=operating_point, explain=explain)
        return self.answer(
            self.read(data, declared_type=declared_type),
            operating_point=operating_point,
            explain=explain,
            explain_px=explain_px,
            explain_media=explain_media,
        )

    def read(self, data: bytes, *, declared_type: str | None = None) -> ReadPhotograph:
        """The first half of `predict`: decode and prepare; the engine does not run.

        Raises:
            PhotographError: as `predict` does.
        """
        decoded, prepared, decode_ms, prepare_ms = read_photograph(
            data, self._preparation, declared_type=declared_type, limits=self._limits
        )
        return ReadPhotograph(
            prepared=prepared,
            media_type=decoded.media_type,
            source_width_px=decoded.source_width_px,
            source_height_px=decoded.source_height_px,
            acquisition=decoded.acquisition,
            decode_ms=decode_ms,
            prepare_ms=prepare_ms,
        )

    def answer(
        self,
        read: ReadPhotograph,
        *,
        operating_point: str | None = None,
        explain: str | None = None,
        explain_px: int = 224,
        explain_media: str = MEDIA_JPEG,
    ) -> Answer:
        """The second half of `predict`: run the engine, decide and explain.

        Raises:
            RequestError, EngineError: as `predict` does.
        """
        self.check_request(operating_point=operating_point, explain=explain)
        point = self._point(operating_point)
        prepared = read.prepared
        probabilities = None
        heat_map = None
        engine_ms = explain_ms = 0.0
        if prepared.quality.gradable:
            start = time.perf_counter()
            outputs = self._outputs(prepared.pixels, with_features=explain is not None)
            engine_ms = _since(start)
            probabilities = self._probabilities(outputs.logits)
            if outputs.features is not None and self._head is not None:
                start = time.perf_counter()
                heat_map = self._explain(
                    prepared,
                    outputs.features,
                    probabilities,
                    self._head,
                    side_px=explain_px,
                    media_type=explain_media,
                )
                explain_ms = _since(start)
        timings = Timings(
            decode_ms=read.decode_ms,
            prepare_ms=read.prepare_ms,
            engine_ms=engine_ms,
            explain_ms=explain_ms,
        )
        return self._answer(read, probabilities, point, heat_map, timings)

    def probabilities_of(self, pixels: npt.NDArray[np.uint8]) -> tuple[float, ...]:
        """Probabilities of a picture (S, S, 3) RGB that was prepared before, as records hold it.

        Raises:
            EngineError: the engine's answer is not finite.
        """
        return self._probabilities(self._outputs(pixels, with_features=False).logits)

    def _point(self, name: str | None) -> OperatingPoint:
        return self.spec.operating_point(name) if name else self._default_point

    def _outputs(self, pixels: npt.NDArray[np.uint8], *, with_features: bool) -> Outputs:
        self.before_engine()
        runtime = self._runtime
        if self.alone and self._wide is not None:
            runtime = self._wide
        try:
            return runtime.predict(pixels, with_features=with_features)
        except ModelPackageError as error:
            # Of the warm-up picture the model gave what it promised, of this one it does not.
            raise EngineError(str(error)) from None

    def _probabilities(self, logits: npt.NDArray[np.float64]) -> tuple[float, ...]:
        # So few numbers are faster as Python's own, which are float64 as well.
        scaled = [value / self.spec.temperature for value in logits.tolist()]
        # Infinite after a division is as unusable as before it: the softmax would not be finite.
        if not all(map(math.isfinite, scaled)):
            raise EngineError(f"model {self.spec.id} produced a value that is not a number")
        if len(scaled) == 1:
            # A single logit is the log-odds of the positive class.
            scaled = [0.0, scaled[0]]
        highest = max(scaled)
        powers = [math.exp(value - highest) for value in scaled]
        total = math.fsum(powers)
        return tuple(power / total for power in powers)

    def _explain(
        self,
        prepared: Prepared,
        features: npt.NDArray[np.float32],
        probabilities: tuple[float, ...],
        head: DenseHead,
        *,
        side_px: int,
        media_type: str,
    ) -> HeatMap:
        # Log-odds have one slope, and it is that towards "referable", whatever was predicted.
        single = head.kernels[-1].shape[1] == 1
        explained = 1 if single else int(np.argmax(probabilities))
        heat = grad_cam(features, head, 0 if single else explained)
        encoded = overlay(prepared.pixels, heat, side_px=side_px, media_type=media_type)
        return HeatMap(
            grade=explained if self.spec.task == TASK_GRADE5 else None,
            label=self.spec.labels[explained],
            media_type=media_type,
            width_px=side_px,
            height_px=side_px,
            image_base64=base64.b64encode(encoded).decode("ascii"),
        )

    def _answer(
        self,
        read: ReadPhotograph,
        probabilities: tuple[float, ...] | None,
        point: OperatingPoint,
        heat_map: HeatMap | None,
        timings: Timings,
    ) -> Answer:
        grade = label = referable = positive = consistent = None
        if probabilities is not None:
            best = probabilities.index(max(probabilities))
            label = self.spec.labels[best]
            graded = self.spec.task == TASK_GRADE5
            referable = min(1.0, math.fsum(probabilities[REFERABLE_FROM_GRADE if graded else 1 :]))
            positive = referable >= point.threshold
            if graded:
                grade = best
                consistent = (grade >= REFERABLE_FROM_GRADE) == positive
        return Answer(
            probabilities=probabilities,
            grade=grade,
            label=label,
            referable=Decision(probability=referable, operating_point=point, positive=positive),
            consistent=consistent,
            quality=read.prepared.quality,
            heat_map=heat_map,
            timings=timings,
            media_type=read.media_type,
            source_width_px=read.source_width_px,
            source_height_px=read.source_height_px,
            acquisition=read.acquisition,
        )


def _warm_up_pictures() -> list[bytes]:
    """A disc on black, as a JPEG that says how it is rotated, and as a PNG."""
    rows, columns = np.mgrid[0:400, 0:400]
    disc = np.hypot(rows - 200, columns - 200) < 180
    colour = np.array([180, 90, 50], dtype=np.uint8)
    picture = Image.fromarray(disc[:, :, np.newaxis].astype(np.uint8) * colour)
    exif = Image.Exif()
    exif[0x0112] = 3
    encoded = []
    for kind, options in (("JPEG", {"exif": exif}), ("PNG", {})):
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        encoded.append(buffer.getvalue())
    return encoded


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1000
