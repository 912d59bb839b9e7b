"""When the event loop works: at once with few requests, and else for many in one go."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self

import pytest

from inference_image import turns as module
from inference_image.turns import Turns

FOREVER_S = 60.0
SOON_S = 5.0


class Worker:
    """An event loop in a thread of its own, and this thread in the place of the prediction's."""

    def __init__(self, *, waiting: int) -> None:
        self.turns = Turns()
        self.turns.queued(waiting + 1)
        self.turns.begun()
        self.turns.predicting = True
        self.loop = asyncio.new_event_loop()
        self.given: list[str] = []
        self.turn = 0
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.turns.predicting = False
        self.turns._go_on.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()
        self.loop.close()

    def finish(self, name: str) -> None:
        """One prediction ends and the next one begins."""
        self.turns.finished(self.loop, lambda: self.given.append(name))
        self.turns.begun()

    def until(self, is_so: Callable[[], bool]) -> bool:
        end = time.monotonic() + SOON_S
        while not is_so() and time.monotonic() < end:
            time.sleep(0.001)
        return is_so()

    @property
    def is_paused(self) -> bool:
        return self.turns._paused_since is not None

    def run(self, steps: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(steps, self.loop).result(SOON_S)


@pytest.fixture(autouse=True)
def endless_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses end for their reasons, and not because time has passed."""
    monkeypatch.setattr(module, "_PAUSE_S", FOREVER_S)
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", FOREVER_S)


@pytest.mark.parametrize("waiting", [0, 1, module._MANY - 1])
def test_with_few_that_wait_an_answer_is_handed_over_at_once(waiting: int) -> None:
    with Worker(waiting=waiting) as worker:
        worker.turns.finished(worker.loop, lambda: worker.given.append("one"))
        assert worker.until(lambda: worker.given == ["one"])
        time.sleep(0.02)
        assert not worker.is_paused


def test_with_many_that_wait_answers_are_handed_over_together_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Worker(waiting=20) as worker:
        worker.finish("first")
        assert worker.until(lambda: worker.is_paused)
        assert worker.given == ["first"]
        for name in ("second", "third", "fourth"):
            worker.finish(name)
        # The engine begins, but not much time has passed.
        worker.turns.enter_engine()
        time.sleep(0.02)
        assert worker.given == ["first"]
        monkeypatch.setattr(module, "_PAUSE_S", 0.0)
        worker.turns.enter_engine()
        assert worker.until(lambda: len(worker.given) == 4)
        assert worker.given == ["first", "second", "third", "fourth"]


def test_an_answer_that_fails_keeps_no_other_from_its_own() -> None:
    def fail() -> None:
        raise OSError("gone")

    with Worker(waiting=module._MANY + 5) as worker:
        worker.loop.set_exception_handler(lambda _loop, context: failed.append(context))
        failed: list[dict[str, Any]] = []
        worker.finish("first")
        assert worker.until(lambda: worker.is_paused)
        worker.turns.finished(worker.loop, fail)
        worker.finish("second")
        worker.turns._go_on.set()
        assert worker.until(lambda: worker.given == ["first", "second"])
        assert isinstance(failed[0]["exception"], OSError)


def test_a_pause_ends_before_the_predictions_run_out() -> None:
    with Worker(waiting=module._MANY + 3) as worker:
        worker.finish("0")
        assert worker.until(lambda: worker.is_paused)
        names = ["0"]
        while worker.turns.waiting > module._FEW:
            names.append(str(len(names)))
            worker.finish(names[-1])
        time.sleep(0.02)
        assert worker.given == ["0"]
        worker.turns.begun()
        worker.turns.finished(worker.loop, lambda: worker.given.append("last"))
        assert worker.until(lambda: worker.given == [*names, "last"])


def test_what_was_taken_back_does_not_count_as_waiting() -> None:
    with Worker(waiting=module._MANY + 1) as worker:
        assert worker.turns.is_busy
        for _ in range(2):
            worker.turns.queued(-1)
        assert worker.turns.waiting == module._MANY - 1
        assert not worker.turns.is_busy
        worker.finish("one")
        assert worker.until(lambda: worker.given == ["one"])
        time.sleep(0.02)
        assert not worker.is_paused


def test_a_pause_is_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.01)
    with Worker(waiting=50) as worker:
        worker.finish("one")
        assert worker.until(lambda: worker.given == ["one"])
        worker.finish("two")
        assert worker.until(lambda: worker.given == ["one", "two"])


def test_all_that_are_refused_together_share_one_pause() -> None:
    pauses: list[float | None] = []

    async def refuse(turns: Turns, count: int) -> None:
        pause = turns._pause

        def noted() -> None:
            pauses.append(turns._paused_since)
            pause()

        turns._pause = noted  # type: ignore[method-assign]
        for _ in range(count):
            turns.refused()

    # A queue of one place is full long before many wait.
    with Worker(waiting=1) as worker:
        worker.run(refuse(worker.turns, 3))
        assert worker.until(lambda: worker.is_paused)
        worker.turns.finished(worker.loop, lambda: worker.given.append("one"))
        assert worker.until(lambda: worker.given == ["one"])
        assert worker.until(lambda: not worker.is_paused)
        assert len(pauses) == 1


def test_without_a_prediction_there_is_nothing_to_wait_for() -> None:
    async def refuse(turns: Turns) -> None:
        for _ in range(3):
            turns.refused()

    with Worker(waiting=0) as worker:
        worker.turns.predicting = False
        worker.run(refuse(worker.turns))
        time.sleep(0.02)
        assert not worker.turns._planned
        assert not worker.is_paused


def test_between_two_predictions_the_loop_does_not_turn_for_nothing() -> None:
    """The next one needs the interpreter to begin."""
    with Worker(waiting=20) as worker:
        worker.turns.predicting = False
        worker.finish("one")
        assert worker.until(lambda: worker.is_paused)
        time.sleep(0.02)
        assert worker.is_paused


def test_an_answer_for_a_loop_that_has_ended_is_let_go() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    turns = Turns()
    turns.finished(loop, lambda: None)
    assert len(turns._answers) == 1
