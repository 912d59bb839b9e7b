"""What the workers of one container tell each other."""

from inference_image.board import Board, SlotCounter


def test_workers_count_together_and_share_readiness() -> None:
    board = Board(3)
    counters = [SlotCounter(board, slot) for slot in range(3)]
    assert [counters[slot].next() for slot in (0, 2, 2, 1, 0)] == [0, 1, 2, 3, 4]
    assert not board.any_ready()
    board.set_ready(1, True)
    assert board.any_ready()
    board.set_ready(1, False)
    assert not board.any_ready()
    # Readiness does not reach into the counts.
    assert counters[0].next() == 5


def test_only_the_first_failure_is_told() -> None:
    board = Board(2)
    assert [board.first_failure() for _ in range(3)] == [True, False, False]
