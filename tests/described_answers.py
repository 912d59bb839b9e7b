"""A transport that compares every answer with the OpenAPI document of the service."""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.faults.document import DescribedService
from tests.service_harness import Reply


class Described:
    """Passes everything on to a transport; an answer that is not described fails the test."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        document = transport.request("GET", "/openapi.json").body
        self.described = DescribedService(json.loads(document))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        reply: Reply = self._transport.request(method, path, body, headers)
        faults = self.described.faults(
            method, path, status=reply.status, headers=reply.headers, body=reply.body
        )
        assert faults == []
        return reply
