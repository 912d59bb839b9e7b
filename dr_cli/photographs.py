"""Reads a photograph that a person named, and draws one where none is named."""

from pathlib import Path
from typing import Final

from dr_cli.errors import CommandError
from dr_experiments.targets import Payload
from inference_image.contract import ACCEPTED_IMAGE_TYPES, MEDIA_JPEG
from inference_image.headers import sniff

# The real-time payload limit; a serverless endpoint refuses more than 4 MB itself.
MAX_FILE_BYTES: Final = 25 * 1024**2


def read_photograph(path: Path) -> Payload:
    """Bytes of an image file as a request. Raises `CommandError` for what the service refuses."""
    if path.is_dir():
        raise CommandError(f"{path} is a folder; name the image files in it")
    if not path.exists():
        raise CommandError(f"there is no file {path}")
    size = path.stat().st_size
    if size == 0:
        raise CommandError(f"{path} is empty")
    if size > MAX_FILE_BYTES:
        raise CommandError(
            f"{path} has {size:,} bytes and endpoints take at most {MAX_FILE_BYTES:,}; "
            "save it as JPEG"
        )
    data = path.read_bytes()
    content_type = sniff(data)
    if content_type not in ACCEPTED_IMAGE_TYPES:
        # The service would take text for JSON or base64, and complain about that.
        known = ", ".join(name.rpartition("/")[2].upper() for name in ACCEPTED_IMAGE_TYPES)
        raise CommandError(f"{path} is not an image that can be graded: {known}")
    return Payload(body=data, content_type=content_type)


def drawn_photograph(*, seed: int, grade: int, size_px: int | None = None) -> Payload:
    """A drawn fundus photograph as JPEG; the same arguments give the same bytes."""
    from dr_training.drawing import DEFAULT_SIZE_PX, draw_fundus

    data = draw_fundus(seed, grade, size_px or DEFAULT_SIZE_PX).jpeg_bytes()
    return Payload(body=data, content_type=MEDIA_JPEG)
