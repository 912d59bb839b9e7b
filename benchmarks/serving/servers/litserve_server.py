"""LitServe with this project's engine: one inference worker and one HTTP server for each CPU.

    DR_BENCH_MODEL=model_artifacts/mobilenet-demo \\
        python -m benchmarks.serving.servers.litserve_server --port 8000 --workers 2

A photograph comes as a form's file, LitServe's documented way for files.
"""

import argparse
from typing import Any

import litserve

from benchmarks.serving.servers.shared_engine import answer, load_predictor


class Grader(litserve.LitAPI):
    """Decode, locate, judge and grade in LitServe's inference worker."""

    def setup(self, device: str) -> None:
        """Load the model once a worker."""
        self.predictor = load_predictor()

    # An annotation would make LitServe validate the request by it and not parse the form.
    def decode_request(self, request) -> bytes:  # type: ignore[no-untyped-def]
        """The file's bytes."""
        return request["request"].file.read()

    def predict(self, photograph: bytes) -> dict[str, Any]:
        """Grade one photograph."""
        return answer(self.predictor, photograph)

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        """The record as it is."""
        return output


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    server = litserve.LitServer(
        Grader(api_path="/invocations"),
        accelerator="cpu",
        workers_per_device=options.workers,
        timeout=120,
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=options.workers,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
