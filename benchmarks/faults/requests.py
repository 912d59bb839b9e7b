"""Requests made from an OpenAPI document: as it says, and wrong in ways that it rules out.

    >>> for request in made_requests(document, random.Random(1), 100):
    ...     print(request.method, request.path)

The generator reads the document and nothing else of the service: paths, methods, parameters,
media types and schemas. What a base64 text stands for is the one thing that a schema cannot say,
so photographs whole and broken are put there.
"""

import base64
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.faults.files import good_files, mutated

_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
_ACCEPT: Final = ("*/*", "text/csv", "application/json", "text/csv;q=0", "image/png", ",;,=", "")
_ODD_NUMBERS: Final = (0, -1, 1e308, -(2**63), 2**64, 0.1)
_ODD_TEXTS: Final = ("", "\0", "a" * 5000, "é", '"', "../..", "%00", "\ud800", "null")


@dataclass(frozen=True, kw_only=True)
class Made:
    """One request."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def made_requests(document: Mapping[str, Any], chance: random.Random, count: int) -> Iterator[Made]:
    """`count` requests; about half of them as the document says."""
    operations = [
        (path, method.upper(), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    # What takes a body has more to get wrong.
    weights = [20 if "requestBody" in operation else 1 for _, _, operation in operations]
    pool = _Pool(chance)
    for _ in range(count):
        path, method, operation = chance.choices(operations, weights)[0]
        headers = _headers(operation, chance)
        body = b""
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]
            media_type = chance.choice(list(content))
            body = pool.body(media_type, content[media_type]["schema"])
            headers["Content-Type"] = _typed(media_type, chance)
        wrong = chance.random()
        if wrong < 0.05:
            method = chance.choice(_METHODS)
        elif wrong < 0.1:
            path = chance.choice((path + "/", path + "/x", "/" + path, "/%2e%2e" + path, "/é"))
            path = path.encode("ascii", "ignore").decode("ascii")
        elif wrong < 0.15:
            path += chance.choice(("?", "?a=b", "?" + "x" * 2000, "?%00", "?a[]=1&a[]=2"))
        yield Made(method=method, path=path, body=body, headers=headers)


def _headers(operation: Mapping[str, Any], chance: random.Random) -> dict[str, str]:
    headers = {}
    for parameter in operation.get("parameters", []):
        kind = chance.random()
        if kind < 0.2 and "example" in parameter:
            headers[parameter["name"]] = str(parameter["example"])
        elif kind < 0.4:
            odd = chance.choice(("", "=", ",,;", "a" * 3000, "explain=", "x=y", "\xe9\xff", "  "))
            headers[parameter["name"]] = odd
    if chance.random() < 0.4:
        headers["Accept"] = chance.choice(_ACCEPT)
    return headers


def _typed(media_type: str, chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.05:
        return chance.choice(("", "text/plain", "image/", "application/jsonx", "a" * 2000, ";;"))
    if kind < 0.15:
        return media_type.upper()
    if media_type.startswith("multipart/") and kind < 0.8:
        return f"{media_type}; boundary=----form"
    return media_type + chance.choice(("", "; charset=utf-8", ";boundary=", "; a=b; c"))


class _Pool:
    """Values that fit a schema, or do not."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._files = good_files(128)

    def body(self, media_type: str, schema: Mapping[str, Any]) -> bytes:
        """A body of a media type."""
        chance = self._chance
        if media_type == "application/json":
            value = self.value(schema)
            if chance.random() < 0.3:
                value = self._spoiled(value)
            text = json.dumps(value, ensure_ascii=chance.random() < 0.8)
            return text.encode("utf-8", "surrogatepass")
        fitting = [f for f in self._files if f.content_type.partition(";")[0] == media_type]
        file = chance.choice(fitting or self._files)
        if chance.random() < 0.5:
            file = mutated([file], seed=chance.getrandbits(32))
        return file.body

    def value(self, schema: Mapping[str, Any]) -> Any:
        """A value as the schema says."""
        chance = self._chance
        for key in ("oneOf", "anyOf"):
            if key in schema:
                return self.value(chance.choice(schema[key]))
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if kind == "object":
            names = schema.get("required", [])
            return {name: self.value(schema["properties"].get(name, {})) for name in names}
        if kind == "array":
            least = schema.get("minItems", 0)
            many = chance.choice((least, least + 1, least + 2, least + 20))
            return [self.value(schema["items"]) for _ in range(many)]
        if kind == "string":
            return self._text(schema)
        return chance.choice((None, True, *_ODD_NUMBERS))

    def _text(self, schema: Mapping[str, Any]) -> str:
        chance = self._chance
        if schema.get("contentEncoding") != "base64":
            return chance.choice(_ODD_TEXTS)
        file = chance.choice(self._files)
        if chance.random() < 0.5:
            file = mutated([file], seed=chance.getrandbits(32))
        text = base64.b64encode(file.body).decode("ascii")
        kind = chance.random()
        if kind < 0.1:
            return f"data:{file.content_type};base64,{text}"
        if kind < 0.2:
            return text[: chance.randrange(len(text) + 1)]
        return text

    def _spoiled(self, value: Any) -> Any:
        """The value with something in it of another type, too much, or too deep."""
        chance = self._chance
        if isinstance(value, dict) and value and chance.random() < 0.7:
            name = chance.choice(list(value))
            kind = chance.randrange(3)
            if kind == 0:
                return {**value, name: self._spoiled(value[name])}
            if kind == 1:
                return {**value, chance.choice(("image", "inputs", "x", *_ODD_TEXTS)): "x"}
            return {}
        if isinstance(value, list) and value and chance.random() < 0.5:
            at = chance.randrange(len(value))
            return [*value[:at], self._spoiled(value[at]), *value[at + 1 :]]
        deep: Any = 1
        for _ in range(chance.choice((3, 300))):
            deep = [deep]
        return chance.choice((None, True, {}, [], deep, *_ODD_NUMBERS, *_ODD_TEXTS))


def raw_requests(chance: random.Random, count: int, jpeg: bytes) -> Iterator[bytes]:
    """Requests whose HTTP itself is damaged."""
    head = (
        b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        b"Content-Length: %d\r\n\r\n" % len(jpeg)
    )
    for _ in range(count):
        data = bytearray(head + jpeg[:200])
        for _change in range(chance.choice((1, 2, 5))):
            at = chance.randrange(max(1, min(len(data), len(head))))
            kind = chance.randrange(4)
            if kind == 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            elif kind == 1:
                del data[at : at + chance.choice((1, 2, 20))]
            elif kind == 2:
                data[at:at] = chance.choice((b"\r\n", b"\0", b":", b" ", b"x" * 70_000, b"\r"))
            else:
                data = data[:at]
        yield bytes(data)
