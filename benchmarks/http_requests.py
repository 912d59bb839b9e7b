"""Whole HTTP/1.1 requests as bytes, and one answer.

>>> request = post("/invocations", jpeg, "image/jpeg")
>>> ask(port, request)
b'{"grade": ...}'
"""

import contextlib
import http.client
import socket
from collections.abc import Sequence

from benchmarks.generator import LoadError

_SHOWN_BYTES = 400


def post(
    path: str,
    body: bytes,
    content_type: str,
    *,
    headers: Sequence[str] = ("Accept: application/json",),
) -> bytes:
    """A `POST` with these header lines besides those that every one needs."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {content_type}",
        *headers,
        f"Content-Length: {len(body)}",
        "\r\n",
    )
    return "\r\n".join(lines).encode("ascii") + body


def form(path: str, name: str, body: bytes, content_type: str) -> bytes:
    """A request that carries `body` as the file `name` of a form."""
    boundary = "7f0a5c1e9d3b48d2"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; '
        f'filename="photograph"\r\nContent-Type: {content_type}\r\n\r\n'
    )
    content = head.encode("ascii") + body + f"\r\n--{boundary}--\r\n".encode("ascii")
    return post(path, content, f"multipart/form-data; boundary={boundary}")


def request_bytes(body: bytes, *, content_type: str = "image/jpeg", close: bool = False) -> bytes:
    """A `POST /invocations` that says whether its connection takes another one."""
    kept = "close" if close else "keep-alive"
    return post("/invocations", body, content_type, headers=[f"Connection: {kept}"])


def ask(port: int, request: bytes, *, timeout_s: float = 60.0) -> bytes:
    """The body of one answer, over a connection of its own.

    Raises:
        OSError: nobody listens, or not in time.
        LoadError: another status than 200, or no whole answer.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request)
        with contextlib.closing(http.client.HTTPResponse(connection)) as answer:
            try:
                answer.begin()
                if answer.length is None:
                    raise LoadError("the server's answer has no Content-Length")
                body = answer.read()
            except (http.client.RemoteDisconnected, http.client.IncompleteRead):
                raise LoadError("the server closed the connection") from None
            except http.client.HTTPException as error:
                raise LoadError(f"the server answered: {error}") from None
    if answer.status != http.HTTPStatus.OK:
        said = body[:_SHOWN_BYTES].decode("latin-1")
        raise LoadError(f"the server answered: {answer.status} {answer.reason} {said}")
    return body
