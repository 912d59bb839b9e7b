"""What every reader of a photograph's bytes returns and raises.

    >>> raise PhotographError(422, "The JPEG cannot be decoded: it is truncated or damaged.")

Standard library only.
"""

from dataclasses import dataclass


class PhotographError(ValueError):
    """A picture that cannot be used: HTTP status and one sentence for the sender."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class Header:
    """Size of the first image of a file, and the bytes that its samples take when decoded."""

    width_px: int
    height_px: int
    decoded_bytes: int
