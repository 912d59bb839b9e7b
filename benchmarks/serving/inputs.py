"""The photographs that are sent and the models that answer, made once under `out/bench-serving`.

>>> photographs = make_photographs(folder, PHOTOGRAPHS)
>>> models = make_models(folder, ("mobilenet", "vgg19"))
"""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NETWORKS = ("mobilenet", "vgg19")
PHOTOGRAPHS = ("224px", "camera")
_SEED = 20_261_128
_CAMERA_PX = (3216, 2136)
_SMALL_PX = 224
# Read-out noise of an ordinary camera, in grey levels; with it the file has about 1 MB.
_NOISE_LEVELS = 3.0
_CAMERA_QUALITY = 93


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """A JPEG file and its size in pixels."""

    name: str
    path: Path
    width_px: int
    height_px: int

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.path.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Model:
    """One network three times: the package that is served, the same without a quality gate for
    the ceiling, and the Keras file of the baseline (None where the baseline is not measured)."""

    name: str
    package: Path
    without_gate: Path
    keras_file: Path | None


def make_photographs(folder: Path, names: tuple[str, ...]) -> dict[str, Photograph]:
    """Drawn photographs: `224px`, and `camera`, 3216 x 2136 with noise."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"224px": (_SMALL_PX, _SMALL_PX), "camera": _CAMERA_PX}
    draw = {"224px": _draw_small, "camera": _draw_camera}
    found = {}
    for name in names:
        path = folder / f"{name}.jpg"
        if not path.exists():
            _write(path, draw[name]())
        width, height = sizes[name]
        found[name] = Photograph(name=name, path=path, width_px=width, height_px=height)
    return found


def _draw_small() -> bytes:
    from dr_training.drawing import draw_fundus

    return draw_fundus(_SEED, 2, _SMALL_PX).jpeg_bytes()


def _draw_camera() -> bytes:
    from dr_training.drawing import draw_fundus

    width, height = _CAMERA_PX
    rng = np.random.Generator(np.random.PCG64(_SEED))
    picture = np.zeros((height, width, 3), dtype=np.float32)
    left = (width - height) // 2
    picture[:, left : left + height] = draw_fundus(_SEED, 2, height).image
    picture += rng.normal(0.0, _NOISE_LEVELS, picture.shape)
    encoded = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(
        encoded, "JPEG", quality=_CAMERA_QUALITY
    )
    return encoded.getvalue()


def make_models(folder: Path, networks: tuple[str, ...], *, baseline: bool) -> dict[str, Model]:
    """The committed demo MobileNet and a VGG19 with random weights, both int8.

    Speed does not depend on the values of the weights. Whatever needs TensorFlow runs in a
    process of its own, so that its memory and threads are gone before anything is measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = {}
    for name in networks:
        package = REPOSITORY / "model_artifacts" / f"{name}-demo"
        if not (package / "model.tflite").exists():
            package = folder / f"{name}-random"
        if not (package / "model.json").exists():
            print(f"making a {name} package with random weights …", flush=True)
            _python("-m", "dr_training.random_package", "--network", name, "--out", str(package))
        keras_file = folder / f"{name}.keras" if baseline else None
        if keras_file is not None and not keras_file.exists():
            print(f"making the Keras model of {name} …", flush=True)
            _python("-m", "benchmarks.serving.keras_model", name, str(keras_file))
        models[name] = Model(
            name=name,
            package=package,
            without_gate=_without_gate(package, folder / f"{name}-without-gate"),
            keras_file=keras_file,
        )
    return models


def _without_gate(package: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(package, folder)
    document = json.loads((folder / "model.json").read_bytes())
    document["quality_gate"] = None
    (folder / "model.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def _write(path: Path, data: bytes) -> None:
    whole = path.with_suffix(".part")
    whole.write_bytes(data)
    whole.replace(path)


def _python(*words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, *words], check=True, cwd=REPOSITORY, env=environment)
