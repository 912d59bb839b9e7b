"""What is the same for every engine: the input's scaling and what an output means."""

import numpy as np
import pytest

from inference_image.model_spec import InputEncoding, ModelPackageError
from inference_image.runtimes import Binding, Facts, encode

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
