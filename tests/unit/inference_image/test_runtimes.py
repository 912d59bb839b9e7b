"""What is the same for every engine: the input's scaling and what an output means."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

from inference_image import plain_model
from inference_image.contract import GRADE_LABELS
from inference_image.model_spec import InputEncoding, ModelPackageError
from inference_image.runtimes import (
    Binding,
    Facts,
    Outputs,
    check_input_range,
    choose_signature,
    encode,
    litert,
    pixel_range,
    without_batch,
)
from inference_image.runtimes.litert import LiteRTRuntime
from tests.service_harness import TINY_MODEL

FACTS = Facts(
    input_size_px=8,
    input_dtype="float32",
    output_shapes={"scores": (5,), "one": (1,), "map": (7, 7, 8)},
)


def test_pixels_stay_as_they_are_without_an_encoding() -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    for encoding in (None, InputEncoding()):
        batch = encode(pixels, encoding)
        assert batch.dtype == np.uint8
        assert np.array_equal(batch, pixels[np.newaxis])


def test_pixels_are_scaled_in_the_networks_channel_order() -> None:
    pixels = np.array([[[10, 20, 30]]], dtype=np.uint8)
    halves = encode(pixels, InputEncoding(scale=(0.5,), offset=(-1.0,)))
    assert halves.tolist() == [[[[4.0, 9.0, 14.0]]]]
    # As networks that were trained on blue, green, red with the means of ImageNet.
    means = InputEncoding(channel_order="bgr", offset=(-103.939, -116.779, -123.68))
    assert encode(pixels, means)[0, 0, 0] == pytest.approx(
        [30 - 103.939, 20 - 116.779, 10 - 123.68]
    )


def test_logits_pass_through() -> None:
    binding = Binding("m", FACTS, {"logits": "scores", "feature_map": "map"})
    assert binding.features == "map"
    assert binding.logits(np.array([[1.0, -2.0, 3.0, 0.0, 9.0]])).tolist() == [1, -2, 3, 0, 9]


def test_probabilities_come_back_from_the_softmax() -> None:
    binding = Binding("m", FACTS, {"probabilities": "scores"})
    given = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    powers = np.exp(binding.logits(given))
    assert powers / powers.sum() == pytest.approx(given, abs=1e-9)


def test_one_probability_becomes_its_log_odds() -> None:
    binding = Binding("m", FACTS, {"probabilities": "one"})
    assert binding.logits(np.array([[0.8]])) == pytest.approx(np.log(4))
    assert np.isfinite(binding.logits(np.array([0.0]))).all()
    assert np.isfinite(binding.logits(np.array([1.0]))).all()


@pytest.mark.parametrize("values", [[0.5, 0.6, 0.5, 0, 0], [-3.0, 1, 1, 1, 1], [2.0, -1, 0, 0, 0]])
def test_values_that_are_no_probabilities_are_refused(values: list[float]) -> None:
    binding = Binding("m", FACTS, {"probabilities": "scores"})
    with pytest.raises(ModelPackageError, match="name it logits"):
        binding.logits(np.array(values))


def test_what_is_not_a_number_is_left_to_the_caller() -> None:
    binding = Binding("m", FACTS, {"probabilities": "scores"})
    assert np.isnan(binding.logits(np.array([np.nan, 0, 0, 0, 1]))).any()


def test_an_output_that_is_missing_is_named_with_those_there_are() -> None:
    with pytest.raises(ModelPackageError, match=r"no output 'grades'; it has map, one, scores"):
        Binding("m", FACTS, {"logits": "grades"})


def facts(**outputs: tuple[str, tuple[int, ...]]) -> Facts:
    """A network with these outputs: name, type and shape without the batch."""
    return Facts(
        input_size_px=8,
        input_dtype="float32",
        output_shapes={name: shape for name, (_, shape) in outputs.items()},
        output_types={name: kind for name, (kind, _) in outputs.items()},
    )


@pytest.mark.parametrize(
    ("outputs", "rows"),
    [
        ({"a": ("float32", (5,)), "map": ("float32", (7, 7, 8))}, {"a": 5}),
        ({"a": ("float32", ())}, {"a": 1}),
        # What exporters add for people to read.
        ({"scores": ("float32", (5,)), "classes": ("string", (5,))}, {"scores": 5}),
        ({"scores": ("bfloat16", (5,)), "good": ("bool", ())}, {"scores": 5}),
        ({"scores": ("float16", (5,)), "class_id": ("int64", ())}, {"scores": 5}),
        ({"scores": ("quantised uint8", (5,)), "class_id": ("int32", (1,))}, {"scores": 5}),
        # A class, an order of classes, or scores of an unknown scale.
        ({"class_id": ("int64", ())}, {}),
        ({"order": ("int32", (5,)), "text": ("string", ())}, {}),
        ({"scores": ("uint8", (5,))}, {}),
        # The end of a network that is all convolutions, unless there is a row.
        ({"scores": ("float32", (1, 1, 5)), "map": ("float32", (7, 7, 8))}, {"scores": 5}),
        ({"scores": ("float32", (5,)), "pooled": ("float32", (1, 1, 1024))}, {"scores": 5}),
        ({"scores": ("float32", (1, 1, 5)), "x": ("float32", (2,))}, {"scores": 5, "x": 2}),
        ({"map": ("float32", (-1, -1, 8))}, {}),
        # Which of two, nobody knows.
        ({"a": ("float32", (5,)), "b": ("float32", (5,))}, {"a": 5, "b": 5}),
        ({"a": ("complex64", (5,)), "b": ("string", (5,))}, {}),
    ],
)
def test_which_outputs_could_hold_the_scores(
    outputs: dict[str, tuple[str, tuple[int, ...]]], rows: dict[str, int]
) -> None:
    assert facts(**outputs).vectors == rows


@pytest.mark.parametrize(
    ("beside", "written", "sentence"),
    [
        ("string", GRADE_LABELS, None),
        ("string", ("no_dr", "mild", "moderate", "severe", "proliferative-dr"), None),
        ("int64", ("0", "1", "2", "3", "4"), None),
        (
            "int64",
            ("1", "2", "3", "4", "5"),
            r"'beside' \(1, 2, 3, 4, 5\) names the 5 values of 'y'",
        ),
        ("string", GRADE_LABELS[::-1], "not as they are assumed to be ordered"),
        ("string", (), "'beside' names the 5 values of 'y'"),
    ],
)
def test_what_stands_beside_the_scores_must_say_what_is_assumed(
    beside: str, written: tuple[str, ...], sentence: str | None
) -> None:
    found = facts(y=("float32", (5,)), beside=(beside, (5,)), best=("int64", ()))
    found = replace(found, written={"beside": written} if written else {})
    if sentence is None:
        assert plain_model._check_beside(found, "y", 5)
    else:
        with pytest.raises(ModelPackageError, match=sentence):
            plain_model._check_beside(found, "y", 5)
    assert not plain_model._check_beside(facts(y=("float32", (5,)), x=("int8", ())), "y", 5)
    with pytest.raises(ModelPackageError, match="'y' may be the confidence in what 'best' says"):
        plain_model._check_beside(facts(y=("float32", ()), best=("string", ())), "y", 1)


def test_an_output_of_text_is_not_read_as_numbers() -> None:
    seen = facts(classes=("string", (5,)), scores=("float32", (5,)))
    Binding("m", seen, {"logits": "scores"})
    with pytest.raises(
        ModelPackageError,
        match=r"'classes' of m, named logits, holds no numbers; "
        r"it has classes string \[5\], scores float32 \[5\]",
    ):
        Binding("m", seen, {"logits": "classes"})


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ((1, 5), (5,)),
        ((None, 5), (5,)),
        ((None, None, None, 8), (-1, -1, 8)),
        ((1,), ()),
        ((), ()),
        # Without a batch, as after a squeeze.
        ((5,), (5,)),
    ],
)
def test_the_batch_is_left_out_of_a_shape(
    shape: tuple[int | None, ...], left: tuple[int, ...]
) -> None:
    assert without_batch(shape) == left


def quantised(low: float, high: float) -> Facts:
    return Facts(
        input_size_px=8, input_dtype="int8", output_shapes={"out": (5,)}, input_range=(low, high)
    )


TO_ONE = InputEncoding(scale=(1 / 255,))
AROUND_ZERO = InputEncoding(scale=(1 / 127.5,), offset=(-1.0,))
IMAGENET = InputEncoding(
    scale=(0.0171, 0.0175, 0.0174), offset=(-2.1179, -2.0357, -1.8044), channel_order="rgb"
)


def test_black_and_white_become_the_ends_of_a_range() -> None:
    assert pixel_range(None) == (0, 255)
    assert pixel_range(TO_ONE) == pytest.approx((0, 1))
    assert pixel_range(AROUND_ZERO) == pytest.approx((-1, 1))
    assert pixel_range(IMAGENET) == pytest.approx((-2.118, 2.633), abs=0.01)
    assert pixel_range(InputEncoding(offset=(-103.9, -116.8, -123.7))) == pytest.approx(
        (-123.7, 151.1)
    )


@pytest.mark.parametrize(
    ("held", "encoding", "fits"),
    [
        ((0, 255), None, True),
        ((0, 1), TO_ONE, True),
        # No photograph of the calibration was quite white.
        ((0, 0.9), TO_ONE, True),
        ((-1, 1.004), AROUND_ZERO, True),
        ((-2.1, 2.6), IMAGENET, True),
        ((-128, 127), InputEncoding(offset=(-128.0,)), True),
        # Every pixel but black would be white to the network.
        ((0, 1), None, False),
        ((-1, 1), None, False),
        ((-128, 127), None, False),
        ((0, 1), AROUND_ZERO, False),
        # Every pixel would be black.
        ((0, 255), TO_ONE, False),
    ],
)
def test_pixels_that_a_quantised_input_cannot_hold_are_refused(
    *, held: tuple[float, float], encoding: InputEncoding | None, fits: bool
) -> None:
    if fits:
        check_input_range("m", quantised(*held), encoding)
        return
    with pytest.raises(ModelPackageError, match="pixels from 0 to 255 become"):
        check_input_range("m", quantised(*held), encoding)


@pytest.mark.parametrize(
    ("held", "wanted", "chosen"),
    [
        ((0, 255), "auto", "0..255"),
        ((0, 1), "auto", "0..1"),
        ((0, 0.93), "auto", "0..1"),
        ((-1, 1.004), "auto", "-1..1"),
        ((0, 255), "0..1", "0..1"),
    ],
)
def test_the_range_of_a_quantised_input_is_the_one_it_was_calibrated_for(
    held: tuple[float, float], wanted: str, chosen: str
) -> None:
    assert plain_model._range(quantised(*held), wanted) == chosen


def test_a_range_that_is_none_of_the_usual_is_not_guessed() -> None:
    with pytest.raises(ModelPackageError, match=r"from -2\.1 to 2\.6, which is none of"):
        plain_model._range(quantised(-2.1, 2.6), "auto")


def test_one_signature_is_chosen_or_all_are_named() -> None:
    assert choose_signature(["b", "serving_default"], None, origin="m") == "serving_default"
    assert choose_signature(["b"], None, origin="m") == "b"
    assert choose_signature(["a", "b"], "b", origin="m") == "b"
    for names, wanted, sentence in (
        (["b", "a"], None, r"more than one other.*: a, b"),
        (["a"], "c", r"no signature 'c'; it has a"),
        ([], "c", r"it has none"),
    ):
        with pytest.raises(ModelPackageError, match=sentence):
            choose_signature(names, wanted, origin="m")


class Always:
    """A network with one answer."""

    facts = FACTS

    def __init__(self, *values: float) -> None:
        self._values = np.array(values)

    def bind(self, *_: object, **__: object) -> None:
        """Nothing to bind."""

    def predict(self, _: object, **__: object) -> Outputs:
        return Outputs(logits=self._values, features=None)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((0.2, 0.2, 0.2, 0.2, 0.2), "probabilities"),
        ((-0.2, 0.3, 0.2, 0.2, 0.2), "logits"),
        ((0.1, 4.0, 0.2, 0.2, 0.2), "logits"),
        ((0.7,), "probabilities"),
        ((0.9, 0.8, 0.7, 0.2, 0.1), "do not add up to 1"),
        ((math.nan,) * 5, "are no numbers"),
        ((0.2, math.inf, 0.2, 0.2, 0.2), "are no numbers"),
        ((math.nan,), "are no numbers"),
    ],
)
def test_what_an_output_holds_is_seen_or_refused(values: tuple[float, ...], kind: str) -> None:
    rows = plain_model._answers(Always(*values), 8)
    if kind in ("probabilities", "logits"):
        assert plain_model._kind("scores", rows) == kind
        return
    with pytest.raises(ModelPackageError, match=f"output 'scores' .*{kind}"):
        plain_model._kind("scores", rows)


def test_the_engine_does_not_greet_and_all_else_on_standard_error_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    LiteRTRuntime(TINY_MODEL / "model.tflite", threads=1)
    assert capfd.readouterr().err == ""
    with litert._without_greeting():
        os.write(2, litert._GREETING + b"\nERROR: another thing\n")
        os.write(2, b"WARNING: no end")
    assert capfd.readouterr().err == "ERROR: another thing\nWARNING: no end"


def test_what_the_engine_says_before_it_fails_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with litert._without_greeting():
            os.write(2, b"why\n")
            raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        fail()
    assert capfd.readouterr().err == "why\n"
