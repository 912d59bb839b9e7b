"""Grad-CAM without automatic differentiation: where in the photograph the grade comes from.

    >>> head = DenseHead.load(Path("head.npz"))
    >>> heat = grad_cam(features, head, grade=2)   # h x w, 0..1
    >>> jpeg = overlay(prepared.pixels, heat, side_px=224)

After global average pooling the network is a few dense layers, so the gradient of a logit
with respect to the pooled features is a product of small matrices. Spread over the feature
map it is the Grad-CAM weight of each channel (Selvaraju et al., ICCV 2017, arXiv:1610.02391).

`head.npz` holds `kernel_0`, `bias_0`, `kernel_1`, `bias_1`, ... from the pooled features to
the logits; kernels are inputs x outputs, every layer but the last is followed by a ReLU.
"""

import io
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.contract import MEDIA_JPEG, MEDIA_PNG
from inference_image.model_spec import ModelPackageError

_BLEND: Final = 0.45
_JPEG_QUALITY: Final = 88

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class DenseHead:
    """The dense layers after global average pooling, first to last."""

    kernels: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]

    @classmethod
    def load(cls, path: Path) -> "DenseHead":
        """Read `head.npz`; raises `ModelPackageError` where it does not hold such layers."""
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ModelPackageError(f"{path.name} cannot be read as NumPy arrays") from error
        if any(array.dtype.kind not in "fiu" for array in arrays.values()):
            raise ModelPackageError(f"{path.name} must hold numbers only")
        count = sum(name.startswith("kernel_") for name in arrays)
        names = [f"{part}_{layer}" for layer in range(count) for part in ("kernel", "bias")]
        if count == 0 or sorted(names) != sorted(arrays):
            raise ModelPackageError(
                f"{path.name} must hold kernel_0, bias_0, kernel_1, ...; "
                f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
            )
        with np.errstate(over="ignore"):
            kernels = tuple(arrays[f"kernel_{layer}"].astype(np.float32) for layer in range(count))
            biases = tuple(arrays[f"bias_{layer}"].astype(np.float32) for layer in range(count))
        for layer, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
            before = kernels[layer - 1] if layer else kernel.T
            follows = kernel.ndim == 2 and kernel.shape[0] == before.shape[1]
            if not follows or bias.shape != (kernel.shape[1],):
                raise ModelPackageError(
                    f"{path.name}: layer {layer} has a kernel of shape {list(kernel.shape)} and a "
                    f"bias of shape {list(bias.shape)}, which do not fit"
                )
            if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
                raise ModelPackageError(f"{path.name}: layer {layer} has a value that is no number")
        return cls(kernels=kernels, biases=biases)

    def logits(self, pooled: FloatArray) -> FloatArray:
        """The head's own answer for pooled features: equal to the engine's up to rounding."""
        values = pooled
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            values = np.maximum(values @ kernel + bias, 0)
        return np.asarray(values @ self.kernels[-1] + self.biases[-1])

    def gradient(self, pooled: FloatArray, grade: int) -> FloatArray:
        """d logit[grade] / d pooled feature, one value per channel."""
        active = []
        values = pooled
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            values = values @ kernel + bias
            active.append(values > 0)
            values = np.maximum(values, 0)
        slope: FloatArray = self.kernels[-1][:, grade]
        for kernel, mask in zip(reversed(self.kernels[:-1]), reversed(active), strict=True):
            slope = kernel @ (slope * mask)
        return slope


def grad_cam(features: FloatArray, head: DenseHead, grade: int) -> FloatArray:
    """Heat map of the feature map's size, scaled to 0..1; all 0 where nothing speaks for it."""
    height, width, _ = features.shape
    pooled = features.mean(axis=(0, 1))
    weights = head.gradient(pooled, grade) / (height * width)
    heat: FloatArray = np.maximum(features @ weights, 0)
    top = float(heat.max())
    return heat / top if top > 0 else heat


def overlay(
    pixels: npt.NDArray[np.uint8],
    heat: FloatArray,
    *,
    side_px: int,
    media_type: str = MEDIA_JPEG,
) -> bytes:
    """The prepared photograph with the heat map over it, encoded.

    Args:
        pixels: what the model saw, square, height x width x 3.
        heat: height x width of the feature map, 0 to 1.
        side_px: of the picture. A large PNG takes longer than the prediction.
        media_type: JPEG or PNG.
    """
    size = (side_px, side_px)
    if pixels.shape[:2] != size:
        resized = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
        pixels = np.asarray(resized)
    fine = Image.fromarray(np.rint(heat * 255).astype(np.uint8)).resize(
        size, Image.Resampling.BICUBIC
    )
    colours = _palette()[np.asarray(fine)]
    # The heat itself is the opacity: where the model looked at nothing, the eye sees the eye.
    opacity = (np.asarray(fine, dtype=np.float32) * (_BLEND / 255))[:, :, np.newaxis]
    mixed = pixels * (1 - opacity) + colours * opacity
    buffer = io.BytesIO()
    picture = Image.fromarray(np.rint(mixed).astype(np.uint8))
    if media_type == MEDIA_PNG:
        # Its fastest level: the default takes four times as long for a tenth of the bytes.
        picture.save(buffer, "PNG", compress_level=1)
    else:
        picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _palette() -> FloatArray:
    """Black-blue-cyan-yellow-white: fundus photographs are red, so red would not be seen."""
    stops = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    colours = np.array(
        [(0, 0, 64), (0, 64, 255), (0, 224, 224), (255, 240, 64), (255, 255, 255)], dtype=float
    )
    levels = np.linspace(0, 1, 256)
    channels = [np.interp(levels, stops, colours[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).astype(np.float32)
