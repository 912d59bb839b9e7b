"""Refuses requests that find the queue full, before they are parsed.

    >>> head = read_head(data, most_bytes=35_000_000)
    >>> transport.write(refusal(head, retry_after_s=0.8, waiting=64, headers=default_headers))

Under overload there are many refusals for each answer, and whatever one of them costs is taken
from the answers: a parsed request, a task and a line in the log cost some twenty times as much
as this. Only plain requests are read here, as every client sends them; anything unusual goes
the ordinary way and is refused there. The answer is the same.
"""

import json
import math
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from inference_image.contract import INVOCATIONS_PATH, MEDIA_PROBLEM, PROBLEM_TITLES

_START: Final = f"POST {INVOCATIONS_PATH} HTTP/1.1\r\n".encode("ascii")
_END: Final = b"\r\n\r\n"
_LONGEST_HEAD: Final = 8192
_LENGTH, _CONNECTION, _ID = b"content-length", b"connection", b"x-request-id"
_UNUSUAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
# Of a list such as "TE, close" the parser finds out what it means.
_CLOSE: Final = b"close"
_CONNECTIONS: Final = frozenset({b"", _CLOSE, b"keep-alive"})
_FIELDS: Final = frozenset({_LENGTH, _CONNECTION, _ID, *_UNUSUAL})
# A UUID, or 16 to 32 random bytes as hexadecimal text. Anything shorter may be a number that
# stands for a person, and the id is logged.
REQUEST_ID: Final = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32,64}", re.ASCII | re.IGNORECASE
)
_ID_BYTES: Final = 16
_IDS_AT_ONCE: Final = 256
_VARIANTS: Final = "89ab"
_STATUS: Final = b"HTTP/1.1 429 Too Many Requests\r\n"
_RANDOM: Final[list[bytes]] = []


class Head(NamedTuple):
    """What a refusal needs to know: bytes of the body still to come, and two headers."""

    body_left: int
    closes: bool
    request_id: str


def request_id(given: str) -> str:
    """The caller's id where it is one that stands for nothing else, else a new one."""
    return given if given and REQUEST_ID.fullmatch(given) else _new_id()


def _new_id() -> str:
    if not _RANDOM:
        # Asked for one by one, each would cost a call of the kernel, and with it the interpreter.
        block = os.urandom(_ID_BYTES * _IDS_AT_ONCE)
        _RANDOM.extend(block[at : at + _ID_BYTES] for at in range(0, len(block), _ID_BYTES))
    text = _RANDOM.pop().hex()
    # Version and variant of RFC 9562, as `uuid.uuid4` sets them.
    return f"{text[:12]}4{text[13:16]}{_VARIANTS[int(text[16], 16) % 4]}{text[17:]}"


def read_head(data: bytes, *, most_bytes: int) -> Head | None:
    """The head of a plain `POST /invocations` at the start of `data`; None for anything else.

    Args:
        data: the first bytes that a connection has sent since the last answer.
        most_bytes: a body may have; a longer one is refused for its size instead.
    """
    if not data.startswith(_START):
        return None
    end = data.find(_END, 0, _LONGEST_HEAD)
    if end < 0:
        return None
    fields: dict[bytes, bytes] = {}
    text = data[len(_START) : end]
    lines = text.split(b"\r\n")
    if not text.count(b"\n") == text.count(b"\r") == len(lines) - 1:
        # Where a line ends that has one of them alone, programs do not agree.
        return None
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _FIELDS:
            if name in _UNUSUAL or name in fields:
                return None
            fields[name] = value.strip(b" \t")
    connection = fields.get(_CONNECTION, b"").lower()
    if connection not in _CONNECTIONS:
        return None
    length = fields.get(_LENGTH, b"")
    if not length.isdigit() or len(length) > 18 or int(length) > most_bytes:
        return None
    left = int(length) - (len(data) - end - len(_END))
    if left < 0:
        # The next request has come along with it.
        return None
    return Head(
        body_left=left,
        closes=connection == _CLOSE,
        request_id=request_id(fields.get(_ID, b"").decode("latin-1")),
    )


def queue_full_detail(waiting: int) -> str:
    """The sentence of a 429."""
    return f"{waiting} requests are waiting, which is the limit; send it again later."


def refusal(
    head: Head, *, retry_after_s: float, waiting: int, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """A whole 429 answer.

    Args:
        head: of the request.
        retry_after_s: when there will be room, in seconds.
        waiting: how many requests wait.
        headers: what the server adds to each answer.
    """
    added = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
    before, after = _parts(round(retry_after_s, 2), waiting, head.closes)
    return b"".join((_STATUS, added, before, head.request_id.encode("ascii"), after))


@lru_cache(maxsize=64)
def _parts(retry_after_s: float, waiting: int, closes: bool) -> tuple[bytes, bytes]:
    """What stands before and after the request's id; the same for many refusals in a row."""
    body = json.dumps(
        {
            "type": "about:blank",
            "title": PROBLEM_TITLES[429],
            "status": 429,
            "detail": queue_full_detail(waiting),
            "retry_after_s": retry_after_s,
        }
    )
    before = (
        f"content-type: {MEDIA_PROBLEM}\r\ncontent-length: {len(body)}\r\n"
        f"retry-after: {max(1, math.ceil(retry_after_s))}\r\nx-request-id: "
    )
    closing = "connection: close\r\n" if closes else ""
    return before.encode("ascii"), f"\r\n{closing}\r\n{body}".encode("ascii")
