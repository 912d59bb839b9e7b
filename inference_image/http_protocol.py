"""One connection of a caller, as far as it may go: in front of uvicorn's own protocol.

    >>> config = uvicorn.Config(app, http=bounded_protocol(4096))

uvicorn takes a connection for what a good client makes of it. Here a worker stays answerable
whoever connects: time and size of a header, requests sent ahead of their turn, answers that nobody
reads and connections that do nothing are bounded, and what finds the queue full is refused unread.
A `POST /invocations` that arrives whole is answered without a task of its own.

Imports uvicorn, so that only workers import this.
"""

import asyncio
import math
import re
import resource
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, Self

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from inference_image.contract import INVOCATIONS_PATH, MEDIA_PROBLEM
from inference_image.invocation import CLOSING, REQUEST_ID_NAME
from inference_image.overload import request_id
from inference_image.problems import problem_text

# From connecting to the end of a request's header.
_HEADER_WITHIN_S: Final = 30.0
_MOST_HEADER_BYTES: Final = 65_536
# An answer's header waits so long for its body. What begins so is one, unlike 100 (Continue).
_HEADER_WAITS_S: Final = 0.005
# What asyncio asks the kernel for at a time: most photographs come whole then, header and all. With
# its own 256 KiB a camera's takes several turns of the event loop.
_READ_BYTES: Final = 1024 * 1024
# What a connection holds of a body before the request's handler sees and counts it.
_BODY_PIECE_BYTES: Final = 1024 * 1024
_SMALL_PIECE_BYTES: Final = 4096
_FINAL_STATUS: Final = (b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4", b"HTTP/1.1 5")
# Some of an answer must be read within this time once the buffers in between are full.
_READ_WITHIN_S: Final = 30.0
# Requests on one connection that wait for the answers before theirs; each takes some kilobytes.
_MOST_AHEAD: Final = 32
# Connections of one worker, where as many files may be open. Beside them are its own, connections
# that have just been accepted and others that are being closed.
MOST_CONNECTIONS: Final = 4096
_OTHER_FILES: Final = 256
# A worker that holds so many connections more than another, and by one in so many of its own, asks
# callers to connect anew; it looks this often, and asks one of them.
_MUCH_AHEAD: Final = 2
_AHEAD_SHARE: Final = 3
_LOOKS_EVERY_S: Final = 0.005
_UPGRADE: Final = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_HEAD_ENDS: Final = b"\r\n\r\n"
_CLOSES: Final = b"\r\nconnection: close\r\n\r\n"


def allowed_connections() -> int:
    """As many connections as one process may hold; raises its limit of open files for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    unlimited = soft == resource.RLIM_INFINITY
    return (
        MOST_CONNECTIONS
        if unlimited
        else min(MOST_CONNECTIONS, soft - min(_OTHER_FILES, soft // 2))
    )


def bounded_protocol(
    most_connections: int,
    note: Callable[[int], None] = lambda _: None,
    ahead: Callable[[], int] = lambda: 0,
) -> "type[Protocol]":
    """The protocol of one worker, which holds at most so many connections.

    `note` is told how many there are, whenever that changes; `ahead` says how many more it holds
    than another worker.
    """

    class Bounded(Protocol):
        most = most_connections

        def note_held(self) -> None:
            note(len(self.connections))

        def is_to_move(self) -> bool:
            now = self.loop.time()
            if now < Bounded.next_look_s:
                return False
            Bounded.next_look_s = now + _LOOKS_EVERY_S
            return ahead() >= max(_MUCH_AHEAD, len(self.connections) / _AHEAD_SHARE)

        idle: ClassVar[dict[Protocol, None]] = {}
        next_look_s: ClassVar[float] = -math.inf

    return Bounded


class Protocol(HttpToolsProtocol):
    """A connection that ends when its caller takes too long, sends too much or reads too little.

    uvicorn itself bounds only the pause after an answer, so that whoever connects and
    sends nothing, or a byte a minute, would keep the connection for ever; and its C parser
    takes a header of any length.
    """

    most: ClassVar[int] = MOST_CONNECTIONS
    # Those without a request in hand, the one that has waited longest first.
    idle: ClassVar["dict[Protocol, None]"] = {}

    _unread: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _overdue: asyncio.TimerHandle | None = None
    # Of a request that was turned away: bytes still to come, and what to do then.
    _skipped_left = 0
    _closes = False
    _answered_s = -math.inf
    _header_bytes = 0
    # Why the parser was stopped.
    _refused: str | None = None
    # That is said once the requests before it are answered; what comes meanwhile is dropped.
    _last_words: str | None = None
    # A message has begun to arrive; and its header is complete.
    _begun = False
    _in_message = False
    # A request whose body may have come along with its header.
    _undecided: "tuple[RequestResponseCycle, Any] | None" = None

    def note_held(self) -> None:
        """The number of connections has changed."""

    def is_to_move(self) -> bool:
        """Whether this caller is to connect anew, since another worker has far fewer.

        A worker that is ready later than others would else get nobody: callers, and nginx, keep
        the connections that they have.
        """
        return False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        super().connection_made(_OneWrite(transport, self.loop))  # type: ignore[arg-type]
        self._closing: set[Callable[[], None]] = set()
        self.note_held()
        self._expect_header()
        self._rest()
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._stop_waiting()
        self._stop_watching()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)
        self.note_held()
        for tell in tuple(self._closing):
            tell()

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None:
            return
        if self._skipped_left:
            skipped = min(self._skipped_left, len(data))
            self._skipped_left -= skipped
            if self._closes and not self._skipped_left:
                self.transport.close()
            if skipped == len(data):
                return
            data = data[skipped:]
        if self._turns_away(data):
            return
        in_header = self._overdue is not None
        super().data_received(data if self._in_message else _without_upgrade(data))
        if self._undecided is not None:
            self._decide(*self._undecided)
        if self._in_message or not (self.cycle is None or self.cycle.response_complete):
            return
        # The header is still due; or it is the next one, after a body that was refused
        # before it had arrived.
        if self._overdue is None:
            if self._begun:
                self._expect_header()
        elif in_header:
            self._header_bytes += len(data)
            if self._header_bytes > _MOST_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's header is too long.")

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets a problem as well; the connection ends with it."""
        detail = self._refused or f"{msg.rstrip('.')}."
        if self._waits_for_others():
            self._last_words = detail
            self._stop_waiting()
            # Dropped as it comes: closed over something unread, a connection is reset, and answers
            # may be lost.
            self.flow.resume_reading()
        else:
            self._end_for(detail)

    def _waits_for_others(self) -> bool:
        """Whether what the parser stopped at came behind requests that are not answered yet."""
        if self._in_message and self.pipeline:
            # Its header was read, and its turn would come.
            self.pipeline.popleft()
            return True
        answered = self.cycle is None or self.cycle.response_complete
        return not (answered or self._in_message or len(self.pipeline) >= _MOST_AHEAD)

    def _end_for(self, detail: str) -> None:
        self._end_with(b"400 Bad Request", problem_text(400, detail).encode())

    def _refuse(self, detail: str) -> NoReturn:
        """Stop the parser, from inside a call of its own; the sender is answered 400 with this.

        The parser lets no word of an error through, and uvicorn has one for all of them.
        """
        self._refused = detail
        raise ValueError(detail)

    def _end_with(self, status: bytes, body: bytes, more: bytes = b"") -> None:
        added = b"".join(
            name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers
        )
        self.transport.write(
            b"HTTP/1.1 %b\r\n" % status
            + added
            + more
            + f"content-type: {MEDIA_PROBLEM}\r\ncontent-length: {len(body)}\r\n".encode()
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.close()

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > 2 * _MOST_HEADER_BYTES:
            self._refuse("The request's header or its trailers are too long.")
        # As uvicorn's own does; to call that as well would be a tenth of what a header costs.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        # The parser would not read the body of a CONNECT, and each request ahead of its turn takes
        # memory.
        if self.parser.should_upgrade():
            self._refuse("The request asks for another protocol than HTTP/1.1.")
        if len(self.pipeline) >= _MOST_AHEAD:
            self._refuse(f"More than {_MOST_AHEAD} requests wait on this connection.")
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                # A coding that is not undone here: the bytes are no image (RFC 9112, 6.1).
                self._refuse("The request has a Transfer-Encoding other than chunked.")
        if hosts > 1:
            # Servers differ in which one they go by (RFC 9112, 3.2). Without any is let pass: the
            # plainest health checks are so.
            self._refuse("The request has more than one Host.")
        self._in_message = True
        self.idle.pop(self, None)
        self.scope["extensions"] = {CLOSING: self._closing}  # type: ignore[dict-item]
        super().on_headers_complete()
        # What comes after a body is no header (RFC 9110, 6.5.1).
        self.headers = []
        self.cycle.body = _Pieces()  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Hands a body over whole, or in large pieces.

        uvicorn wakes the handler for each piece that the kernel has, and stops reading at
        64 KiB until it has run: 30 turns of the event loop for a photograph of 1 MB.
        """
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) >= _BODY_PIECE_BYTES:
            self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._begun = self._in_message = False
        super().on_message_complete()
        # A large body has stopped the reading; unread, a closed connection is not noticed.
        # Requests sent ahead of their turn stay unread.
        if not self.pipeline:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope = cycle.scope
        # What is whole already has waited for its turn; what waits to be told that it may send its
        # body is no such either.
        if (
            cycle.more_body
            and not cycle.waiting_for_100_continue
            and scope["path"] == INVOCATIONS_PATH
            and scope["method"] == "POST"
        ):
            self._undecided = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _decide(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a request that is whole without a task: half of its steps are not needed."""
        self._undecided = None
        if cycle.more_body or self.flow.write_paused:
            if self.is_to_move():
                cycle.keep_alive = False
            self.config.app.admission.arrives()  # type: ignore[union-attr]
            super()._start_asgi_task(cycle, app)
            return
        body, cycle.body = bytes(cycle.body), bytearray()
        self.config.app.invoke_at_once(  # type: ignore[union-attr]
            cycle.scope["headers"], body, closing=self._closing, reply=partial(self._reply, cycle)
        )

    def _reply(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Send a whole answer, as `RequestResponseCycle.send` does it in two messages."""
        cycle.response_started = cycle.response_complete = True
        then, cycle.on_response = cycle.on_response, _nothing
        if cycle.disconnected:
            return
        # Whoever has sent the next request already is answered here.
        sent_ahead = self._begun or self._in_message or bool(self.pipeline or self._last_words)
        closes = not cycle.keep_alive or (not sent_ahead and self.is_to_move())
        pairs = [*self.server_state.default_headers, *response.raw_headers]
        said = (b"connection", b"close") in pairs
        if closes and not said:
            pairs.append((b"connection", b"close"))
        header = b"\r\n".join([name + b": " + value for name, value in pairs])
        self.transport.write_now(  # type: ignore[attr-defined]
            b"".join((STATUS_LINE[response.status_code], header, _HEAD_ENDS, response.body))
        )
        if closes or said:
            self.transport.close()
        then()

    def on_response_complete(self) -> None:
        """As uvicorn's own, but for the timer: one is set for many answers."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
                if self._undecided is not None:
                    # Its body is still to come, and nothing else may ever come.
                    self._decide(*self._undecided)
            elif self._last_words is not None:
                self._end_for(self._last_words)
            else:
                self._keep_from_now()
        if self.cycle.response_complete:
            self._rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._watch()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _watch(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(_READ_WITHIN_S, self._end_unread)

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _end_unread(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch()
        else:
            # To close would be to wait until all is read.
            self.transport.abort()

    def _rest(self) -> None:
        self.idle.pop(self, None)
        self.idle[self] = None

    def _make_room(self) -> None:
        """Let the connection go that has been without a request for longest."""
        longest = next(iter(self.idle))
        if longest is not self:
            # It is told of its end in a later turn, when others have come.
            del self.idle[longest]
            longest.transport.abort()
            return
        detail = f"{self.most} connections are busy, which is the limit; try again."
        body = problem_text(503, detail, retry_after_s=1.0).encode()
        self._end_with(
            b"503 Service Unavailable",
            body,
            # What it asks for is not known yet.
            b"retry-after: 1\r\n%b: %b\r\n" % (REQUEST_ID_NAME, request_id("").encode("ascii")),
        )

    def _turns_away(self, data: bytes) -> bool:
        """Whether this was a request that found the queue full, and is answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        # Who does not read is answered in the ordinary way, which waits for it.
        if self._begun or answering or self.flow.write_paused:
            return False
        headers = self.server_state.default_headers
        refused = self.config.app.admission.turn_away(data, headers)  # type: ignore[union-attr]
        if refused is None:
            return False
        answer, self._skipped_left, self._closes = refused
        if not self._closes and self.is_to_move():
            answer = answer.replace(_HEAD_ENDS, _CLOSES, 1)
            self._closes = True
        self._stop_waiting()
        self._rest()
        self.transport.write_now(answer)  # type: ignore[attr-defined]
        if self._closes and not self._skipped_left:
            self.transport.close()
        else:
            # Also the time within which the rest of the body must come.
            self._keep_from_now()
        return True

    def _unset_keepalive_if_required(self) -> None:
        """Nothing: the timer goes on, and finds out by itself whether it still means something.

        To stop and set it for each request would cost as much as to refuse one.
        """

    def _keep_from_now(self) -> None:
        """There was an answer; the next request must come while the connection is kept."""
        self._answered_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_alive(self.timeout_keep_alive)

    def _keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close what has had no request for so long; one that has begun has limits of its own."""
        self.timeout_keep_alive_task = None
        left_s = self._answered_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._keep_alive(left_s)
        elif self in self.idle and self._overdue is None:
            super().timeout_keep_alive_handler()

    def _expect_header(self) -> None:
        self._header_bytes = 0
        self._overdue = self.loop.call_later(_HEADER_WITHIN_S, self._give_up)

    def _stop_waiting(self) -> None:
        self._header_bytes = 0
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _give_up(self) -> None:
        self._overdue = None
        self.transport.close()


class _Pieces:
    """A body as it arrives, put together once: to extend an array copies it again and again.

    Small pieces are put together at once, since each would take more memory than its bytes.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._size = 0

    def __iadd__(self, piece: bytes) -> Self:
        self._size += len(piece)
        if len(piece) >= _SMALL_PIECE_BYTES:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))
        return self

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


def _nothing() -> None:
    """What an answered request leads to."""


def _without_upgrade(data: bytes) -> bytes:
    """Where a header begins: the same without the wish for another protocol.

    A server may pass it over (RFC 9110, 7.8), as nginx does. The parser would leave the body
    unread; Java's client asks for HTTP/2 with the first request of each connection.
    """
    end = data.find(_HEAD_ENDS)
    head = data if end < 0 else data[:end]
    if b"upgrade:" not in head.lower():
        return data
    return _UPGRADE.sub(b"\r\nx-other", head) + data[len(head) :]


class _OneWrite:
    """A transport that sends an answer's header and body in one piece.

    uvicorn writes them one after the other, and each is a call of the kernel, for which the
    interpreter is given away and waited for. So a header waits for what follows it: the body, or
    the end of a moment.
    """

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport = transport
        self._loop = loop
        self._header = b""
        self._overdue: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Send at once, with the header that waits; a header alone is sent soon."""
        if self._header or not data.startswith(_FINAL_STATUS):
            self.write_now(data)
        else:
            self._header = data
            self._overdue = self._loop.call_later(_HEADER_WAITS_S, self._flush)

    def write_now(self, data: bytes) -> None:
        """Send what waits, and this, at once."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        header, self._header = self._header, b""
        self._transport.write(header + data if header else data)

    def close(self) -> None:
        """Close when everything has been sent."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._header:
            self.write_now(b"")
