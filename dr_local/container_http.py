"""A small HTTP/1.1 client for one container: loopback, kept-alive connections, exact timing.

The runtime server stands between the client and the container, so its own cost is measured as
the platform's overhead; a general client would be most of it.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import h11

HOST = "127.0.0.1"
_READ_BYTES = 256 * 1024
_MAX_HEADER_BYTES = 64 * 1024


class ConnectionBrokenError(ConnectionError):
    """The container closed the connection without a whole answer."""


class AnswerTooLargeError(Exception):
    """The container's answer is longer than the platform passes on."""


@dataclass(frozen=True, kw_only=True)
class ContainerAnswer:
    """What the container answered; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class ContainerHttp:
    """Connections to the container that listens on `port` of the loopback interface."""

    def __init__(self, *, port: int) -> None:
        self._port = port
        self._idle: list[_Connection] = []

    async def listens(self, path: str) -> bool:
        """True when `path` answers 200 now; False while nobody listens."""
        try:
            answer = await self._once(
                await _Connection.open(self._port), "GET", path, [], b"", limit_bytes=1 << 20
            )
        except OSError:
            return False
        return answer.status == 200

    async def post(
        self, path: str, *, headers: Sequence[tuple[str, str]], body: bytes, limit_bytes: int
    ) -> ContainerAnswer:
        """Send `body`; a cancelled call closes its connection.

        Raises:
            ConnectionBrokenError: no whole answer came.
            AnswerTooLargeError: the answer is over `limit_bytes`.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.closed_by_peer():
                connection.close()
                continue
            try:
                return await self._once(
                    connection, "POST", path, headers, body, limit_bytes=limit_bytes
                )
            except ConnectionBrokenError:
                if connection.answered_anything:
                    raise
                # The server had given up the idle connection before it saw the request.
                break
        try:
            connection = await _Connection.open(self._port)
        except OSError as error:
            raise ConnectionBrokenError(str(error)) from None
        return await self._once(connection, "POST", path, headers, body, limit_bytes=limit_bytes)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _once(
        self,
        connection: "_Connection",
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        *,
        limit_bytes: int,
    ) -> ContainerAnswer:
        try:
            answer = await connection.exchange(
                method, path, [("Host", f"{HOST}:{self._port}"), *headers], body, limit_bytes
            )
        except (OSError, h11.ProtocolError) as error:
            connection.close()
            raise ConnectionBrokenError(str(error)) from None
        except BaseException:
            connection.close()
            raise
        if connection.reusable():
            self._idle.append(connection)
        else:
            connection.close()
        return answer


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)
        self.answered_anything = False

    @classmethod
    async def open(cls, port: int) -> "_Connection":
        return cls(*await asyncio.open_connection(HOST, port))

    def closed_by_peer(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def reusable(self) -> bool:
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        self.answered_anything = False
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        limit_bytes: int,
    ) -> ContainerAnswer:
        request = h11.Request(
            method=method, target=path, headers=[*headers, ("Content-Length", str(len(body)))]
        )
        parts = [self._state.send(request), self._state.send(h11.Data(data=body))]
        self._writer.write(b"".join(part for part in parts if part))
        self._state.send(h11.EndOfMessage())
        with contextlib.suppress(ConnectionError):
            # A container may answer 413 and close before it has read everything.
            await self._writer.drain()
        return await self._answer(limit_bytes)

    async def _answer(self, limit_bytes: int) -> ContainerAnswer:
        status = 0
        answer_headers: dict[str, str] = {}
        chunks: list[bytes] = []
        size = 0
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                self.answered_anything = self.answered_anything or bool(data)
                self._state.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                answer_headers = {
                    name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
                }
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > limit_bytes:
                    raise AnswerTooLargeError(f"the answer is longer than {limit_bytes} bytes")
                chunks.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return ContainerAnswer(status=status, headers=answer_headers, body=b"".join(chunks))
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise ConnectionBrokenError("the connection was closed")
