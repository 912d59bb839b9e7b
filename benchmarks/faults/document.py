"""Compares answers with the service's OpenAPI document.

    >>> described = DescribedService(document)
    >>> described.faults("POST", "/invocations", status=200, headers=headers, body=body)
    []

An answer is as described where its status, media type, headers and body are in the document.
Paths and methods that the service does not have are described by `components.responses`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonschema

# What HTTP itself adds to any answer.
_OF_HTTP: Final = frozenset(
    {"connection", "content-length", "content-type", "date", "server", "transfer-encoding"}
)
_NO_PATH, _NO_METHOD, _NOT_READY = "NotFound", "MethodNotAllowed", "NotReady"


class DescribedService:
    """An OpenAPI 3.1 document, and which of its answers have been seen."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.seen: set[tuple[str, str, int]] = set()
        self._validators: dict[int, Any] = {}

    def answers(self) -> set[tuple[str, str, int]]:
        """Every (method, path, status) that the document has."""
        return {
            (method.upper(), path, int(status))
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
            for status in operation["responses"]
        }

    def faults(
        self, method: str, path: str, *, status: int, headers: Mapping[str, str], body: bytes
    ) -> list[str]:
        """What about one answer is not in the document, as sentences.

        Args:
            method: of the request, in upper case.
            path: of the request, without a query.
            status: of the answer.
            headers: of the answer, by lower-case name.
            body: of the answer.
        """
        described = self._response(method, path, status)
        if described is None:
            return [f"{method} {path} answers {status}, which is not described"]
        self.seen.add((method, path, status))
        return [
            f"{method} {path} {status}: {fault}"
            for fault in (
                *_header_faults(described.get("headers", {}), headers),
                *(
                    # The type is that of GET's answer.
                    (["there is a body"] if body else [])
                    if method == "HEAD"
                    else self._body_faults(described.get("content", {}), headers, body)
                ),
            )
        ]

    def _response(self, method: str, path: str, status: int) -> Mapping[str, Any] | None:
        beyond = self.document["components"]["responses"]
        operations = self.document["paths"].get(path)
        if operations is None or method.lower() not in operations:
            absent = {404: _NO_PATH} if operations is None else {405: _NO_METHOD}
            name = {**absent, 503: _NOT_READY}.get(status)
            return None if name is None else beyond[name]
        responses: Mapping[str, Any] = operations[method.lower()]["responses"]
        return responses.get(str(status))

    def _body_faults(
        self, described: Mapping[str, Any], headers: Mapping[str, str], body: bytes
    ) -> Iterator[str]:
        media_type = headers.get("content-type", "").partition(";")[0]
        if media_type not in described:
            yield f"the media type {media_type!r} is not described"
            return
        if not media_type.endswith("json"):
            return
        schema = described[media_type]["schema"]
        validator = self._validators.setdefault(id(schema), jsonschema.Draft202012Validator(schema))
        try:
            value = json.loads(body)
        except ValueError:
            yield "the body is not JSON"
            return
        for error in validator.iter_errors(value):
            yield f"at {error.json_path}: {error.message[:200]}"


def _header_faults(described: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
    known = {name.lower(): header for name, header in described.items()}
    for name in headers:
        if name not in known and name not in _OF_HTTP:
            yield f"the header {name} is not described"
    for name, header in known.items():
        if header.get("required") and name not in headers:
            yield f"the header {name} is missing"
        if name in headers and header["schema"]["type"] == "integer":
            if not headers[name].isdecimal():
                yield f"the header {name} is no whole number"
            elif int(headers[name]) < header["schema"].get("minimum", 0):
                yield f"the header {name} is too small"
