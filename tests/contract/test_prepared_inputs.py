"""Models whose inputs are prepared already: no steps, no gate, over the application and `serve`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference_image.contract import GRADE_LABELS
from inference_image.http_app import create_app
from inference_image.model_spec import load_model_spec
from inference_image.runtimes.litert import LiteRTRuntime
from inference_image.settings import Settings
from tests.service_harness import REPOSITORY, InProcess, Served, drawn_pixels, encoded, running

PACKAGE = REPOSITORY / "tests" / "data" / "tiny-prepared"


@pytest.fixture(scope="module", params=["application", "process"])
def service(request: pytest.FixtureRequest) -> Iterator[Any]:
    environment = {"DR_MODEL_DIR": str(PACKAGE)}
    transport: Any = (
        InProcess(create_app(Settings.from_environment(environment)))
        if request.param == "application"
        else Served(PACKAGE)
    )
    with running(transport) as ready:
        yield ready


def grade(service: Any, body: bytes, content_type: str = "image/png") -> Any:
    reply = service.request("POST", "/invocations", body, {"Content-Type": content_type})
    assert reply.status == 200, reply.body
    return reply.json()


def expected(pixels: np.ndarray) -> list[float]:
    """What the engine says about these pixels as they are."""
    spec = load_model_spec(PACKAGE)
    runtime = LiteRTRuntime(PACKAGE / "model.tflite", outputs={"logits": "logits"}, threads=1)
    scaled = runtime.predict(pixels).logits / spec.temperature
    powers = np.exp(scaled - scaled.max())
    return list(powers / powers.sum())


def test_the_package_has_no_steps_and_no_gate() -> None:
    spec = load_model_spec(PACKAGE)
    assert (spec.preprocessing, spec.quality_gate, spec.input_size_px) == ((), None, 28)


@pytest.mark.parametrize("kind", ["noise", "black", "grey"])
def test_an_image_of_28_pixels_reaches_the_engine_unchanged(service: Any, kind: str) -> None:
    pixels = {
        "noise": np.random.default_rng(3).integers(0, 256, (28, 28, 3), dtype=np.uint8),
        "black": np.zeros((28, 28, 3), dtype=np.uint8),
        "grey": np.full((28, 28, 3), 128, dtype=np.uint8),
    }[kind]
    answer = grade(service, encoded(Image.fromarray(pixels), "PNG"))
    assert answer["quality"] == {"gradable": True, "reasons": []}
    assert answer["predictions"] == pytest.approx(expected(pixels), abs=1e-9)
    assert answer["label"] == GRADE_LABELS[answer["grade"]]


def test_another_size_is_fitted_and_never_searched_for_a_disc(service: Any) -> None:
    # A disc in the left half of the frame: a search would cut it out.
    pixels = np.zeros((280, 280, 3), dtype=np.uint8)
    small = np.asarray(Image.fromarray(drawn_pixels()).resize((140, 140)))
    pixels[70:210, :140] = small
    fitted = pixels.reshape(28, 10, 28, 10, 3).mean(axis=(1, 3))
    answer = grade(service, encoded(Image.fromarray(pixels), "PNG"))
    assert answer["predictions"] == pytest.approx(
        expected(np.rint(fitted).astype(np.uint8)), abs=0.01
    )


def test_images_of_retinamnist_are_served(service: Any, shared_data: Path) -> None:
    with np.load(shared_data / "retinamnist" / "retinamnist-train-val.npz") as arrays:
        name = next(n for n in arrays.files if "val" in n and "im" in n)
        images = arrays[name][:8]
    for pixels in images:
        answer = grade(service, encoded(Image.fromarray(pixels), "PNG"))
        assert answer["predictions"] == pytest.approx(expected(pixels), abs=1e-9)
        jpeg = grade(service, encoded(Image.fromarray(pixels), "JPEG", quality=95), "image/jpeg")
        assert jpeg["quality"]["gradable"]
