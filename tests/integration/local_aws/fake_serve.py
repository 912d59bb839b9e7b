"""A container that does what its request asks for: sleep, allocate, fail, close, end.

It speaks the two routes of the SageMaker contract, so that the platform's rules can be tested
at their edges; the real `serve` has its own tests.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_HELD: list[bytearray] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        order = json.loads(body) if body.startswith(b"{") else {}
        time.sleep(order.get("sleep_s", 0))
        if "allocate_mib" in order:
            block = bytearray(order["allocate_mib"] * 1024**2)
            block[::4096] = b"x" * len(block[::4096])
            _HELD.append(block)
            time.sleep(order.get("hold_s", 0))
        if "burn_cpu_s" in order:
            end = time.process_time() + order["burn_cpu_s"]
            while time.process_time() < end:
                pass
        if "exit" in order:
            os._exit(order["exit"])
        if order.get("close"):
            self.close_connection = True
            return
        if "status" in order:
            self._answer(order["status"], order["text"].encode())
            return
        if "answer_bytes" in order:
            self._answer(200, b"x" * order["answer_bytes"])
            return
        self._answer(200, json.dumps(self._facts(len(body))).encode())

    def _facts(self, body_bytes: int) -> dict[str, object]:
        model_json = Path(os.environ["DR_MODEL_DIR"], "model.json")
        digest = hashlib.sha256(model_json.read_bytes()).hexdigest()
        return {
            "model": {"sha256": digest},
            "pid": os.getpid(),
            "cpus": len(os.sched_getaffinity(0)),
            "body_bytes": body_bytes,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "environment": dict(os.environ),
        }

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Amzn-SageMaker-Custom-Attributes", "answered=yes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    mode = os.environ.get("FAKE_START", "")
    if mode == "fail":
        print(json.dumps({"level": "error", "message": "the model has no graph"}), flush=True)
        sys.exit(4)
    if mode == "hang":
        print("still loading", flush=True)
        time.sleep(3600)
    if mode == "child":
        # A worker process below the supervisor, as uvicorn has.
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            sys.exit(0)
    port = int(os.environ["SAGEMAKER_BIND_TO_PORT"])
    _Server((os.environ["DR_BIND_HOST"], port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
