"""The parts of `serve` that need no process of their own."""

import socket
import time
from contextlib import closing

from inference_image import serve
from inference_image.settings import Settings


def settings(port: int = 0) -> Settings:
    environment = {"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": str(port)}
    return Settings.from_environment(environment, cpus=1)


def test_accepted_connections_name_their_protocol_so_that_asyncio_disables_nagle() -> None:
    with closing(serve._listen(settings())) as listener:
        address = listener.getsockname()
        with closing(socket.create_connection(address)), closing(listener.accept()[0]) as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_workers_count_together_and_share_readiness() -> None:
    board = serve.Board(3)
    counters = [serve.SlotCounter(board, slot) for slot in range(3)]
    assert [counters[slot].next() for slot in (0, 2, 2, 1, 0)] == [0, 1, 2, 3, 4]
    assert not board.any_ready()
    board.set_ready(1, True)
    assert board.any_ready()
    board.set_ready(1, False)
    assert not board.any_ready()
    # Readiness does not reach into the counts.
    assert counters[0].next() == 5


def test_only_the_first_failure_is_told() -> None:
    board = serve.Board(2)
    assert [board.first_failure() for _ in range(3)] == [True, False, False]


def test_the_process_started_before_now_and_not_long_ago() -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= now - serve.process_start_s() < 3600


def test_the_answer_while_loading_is_complete_http() -> None:
    head, _, body = serve._LOADING.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert f"content-length: {len(body)}".encode() in head
