"""Asks a service again and again whether it is well, while something else strains it.

    python -m benchmarks.faults.ping PORT SECONDS INTERVAL_S

In a process of its own, so that it does not wait for whoever makes the load; prints what
`probe_ping` has found, as JSON.
"""

import contextlib
import json
import socket
import sys
import time
from typing import Final

_PING: Final = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


def probe_ping(port: int, seconds: float, interval_s: float) -> list[float]:
    """Seconds that each `GET /ping` took, on a connection of its own; -1 where it was not 200."""
    took = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        status = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=5) as caller,
        ):
            caller.sendall(_PING)
            status = caller.recv(4096)[9:12]
        spent_s = time.perf_counter() - now
        took.append(spent_s if status == b"200" else -1.0)
        time.sleep(max(0.0, interval_s - spent_s))
    return took


if __name__ == "__main__":
    print(json.dumps(probe_ping(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
