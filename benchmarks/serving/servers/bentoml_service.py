"""BentoML with this project's engine: one worker for each CPU, one thread each.

    DR_BENCH_MODEL=model_artifacts/mobilenet-demo DR_BENCH_WORKERS=2 \\
        bentoml serve benchmarks.serving.servers.bentoml_service:Grader --port 8000

A photograph is the request's body, BentoML's documented root input for a file.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import bentoml
from bentoml.validators import ContentType

from benchmarks.serving.servers.shared_engine import answer, load_predictor


@bentoml.service(
    workers=int(os.environ.get("DR_BENCH_WORKERS", "1")),
    threads=1,
    traffic={"timeout": 120},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Grader:
    """Decode, locate, judge and grade in BentoML's worker."""

    def __init__(self) -> None:
        """Load the model once a worker."""
        self.predictor = load_predictor()

    @bentoml.api(route="/invocations")
    def grade(self, photograph: Annotated[Path, ContentType("image/jpeg")], /) -> dict[str, Any]:
        """Grade one photograph."""
        return answer(self.predictor, photograph.read_bytes())
