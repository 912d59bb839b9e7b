"""Memory that was freed in pieces goes back to the system."""

import gc
import weakref

import pytest

from inference_image import spare_memory
from inference_image.own_process import resident_mib
from inference_image.spare_memory import return_spare_memory


def test_pages_between_what_is_still_used_are_given_back() -> None:
    # Small pieces come from the heap; those that stay hold on to its upper end.
    pieces = [bytearray(60_000) for _ in range(2000)]
    kept = pieces[::100]
    del pieces
    gc.collect()
    before = resident_mib()
    return_spare_memory()
    after = resident_mib()
    assert before is not None
    assert after is not None
    assert before - after > 50
    assert all(len(piece) == 60_000 for piece in kept)


def test_what_a_refusal_left_in_a_circle_is_let_go() -> None:
    """An exception that a frame of its own traceback holds, with the picture beside it."""

    class Picture:
        pass

    def refuse() -> "weakref.ref[Picture]":
        picture = Picture()
        try:
            raise ValueError("too small")
        except ValueError as error:
            kept = error
        return weakref.ref(picture) if kept else None  # type: ignore[return-value]

    gc.disable()
    try:
        left = refuse()
        assert left() is not None
        return_spare_memory()
        assert left() is None
    finally:
        gc.enable()


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_memory, "_trim", lambda: None)
    assert return_spare_memory() is False
