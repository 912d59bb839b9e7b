"""A server whose every word is in the test, on sockets of this machine."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
END_WITHIN_S = 10.0


class Caller:
    """One connection as the server sees it."""

    def __init__(self, connection: socket.socket, port: int) -> None:
        self.connection = connection
        self.port = port

    def hear(self, size: int) -> bytes:
        """So many bytes; raises `ConnectionError` where the caller goes before."""
        parts = []
        while size:
            part = self.connection.recv(min(size, 1_000_000))
            if not part:
                raise ConnectionResetError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def say(self, *pieces: bytes) -> None:
        """Each piece by itself."""
        for piece in pieces:
            self.connection.sendall(piece)


class ScriptedServer:
    """Calls `talk` with each caller, in a thread of its own; closes the connection behind it."""

    def __init__(self, talk: Callable[[Caller], None], *, port: int = 0) -> None:
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", port), backlog=500)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._callers: list[Caller] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(END_WITHIN_S)
        for caller in self._callers:
            with contextlib.suppress(OSError):
                caller.connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(END_WITHIN_S)
            assert not thread.is_alive()

    @property
    def ports(self) -> list[int]:
        """Of all callers so far."""
        return [caller.port for caller in self._callers]

    def _accept(self) -> None:
        while True:
            try:
                connection, (_, port) = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._callers.append(Caller(connection, port))
            self._threads.append(threading.Thread(target=self._serve, args=[self._callers[-1]]))
            self._threads[-1].start()

    def _serve(self, caller: Caller) -> None:
        # The generator may end in the middle of an answer.
        with caller.connection, contextlib.suppress(OSError):
            self._talk(caller)


@contextlib.contextmanager
def answering(
    request: bytes,
    answer: bytes = OK,
    *,
    pieces: int = 1,
    before: Callable[[int], object] = lambda _number: None,
    closes: bool = False,
) -> Iterator[ScriptedServer]:
    """Answers each whole request, in pieces, after `before` was given its number."""
    size = -(-len(answer) // pieces) or 1
    parts = [answer[at : at + size] for at in range(0, len(answer), size)]
    numbers = iter(range(1_000_000))

    def talk(caller: Caller) -> None:
        while True:
            assert caller.hear(len(request)) == request
            before(next(numbers))
            caller.say(*parts)
            if closes:
                return

    with ScriptedServer(talk) as server:
        yield server
