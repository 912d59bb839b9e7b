"""Refusals as the caller reads them: `application/problem+json` (RFC 9457).

>>> problem(429, "Too many requests wait.", retry_after_s=0.8)
"""

import json
import math

from starlette.responses import Response

from inference_image.contract import MEDIA_PROBLEM, TITLES, Problem


def problem(
    status: int,
    detail: str,
    *,
    retry_after_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An `application/problem+json` answer.

    The retry time is in the body as well: SageMaker drops the headers of a refusal.
    """
    every = dict(headers or {})
    if retry_after_s is not None:
        every["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return Response(
        content=problem_text(status, detail, retry_after_s=retry_after_s),
        status_code=status,
        media_type=MEDIA_PROBLEM,
        headers=every,
    )


def problem_text(status: int, detail: str, *, retry_after_s: float | None = None) -> str:
    """The body of a problem as JSON."""
    return json.dumps(problem_record(status, detail, retry_after_s=retry_after_s))


def problem_record(status: int, detail: str, *, retry_after_s: float | None = None) -> Problem:
    """The body of a problem; also the record of a bad image under Batch Transform."""
    record: Problem = {
        "type": "about:blank",
        "title": TITLES.get(status, "Refused"),
        "status": status,
        "detail": detail,
    }
    if retry_after_s is not None:
        record["retry_after_s"] = round(retry_after_s, 2)
    return record
