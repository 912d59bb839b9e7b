"""What a process reaches that only decodes, locates, prepares and runs the network: no HTTP,
no quality gate, no JSON, no log.

    python -m benchmarks.serving.servers.ceiling PACKAGE PHOTOGRAPH

Says `ready` on standard output; each line of standard input is a number of seconds to run, and
its answer a line of JSON: photographs, seconds and CPU seconds.
"""

import json
import sys
import time
from pathlib import Path

from inference_image.predictor import Predictor


def main() -> int:
    """Run until standard input ends."""
    package, photograph = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
    predictor = Predictor.load(package, threads=1)
    predictor.warm_up()
    predictor.predict(photograph)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line)
        cpu = time.process_time()
        begun = now = time.perf_counter()
        took_ms = []
        while now < begun + seconds or len(took_ms) < 3:
            predictor.predict(photograph)
            after = time.perf_counter()
            took_ms.append((after - now) * 1000)
            now = after
        record = {
            "photographs": len(took_ms),
            "seconds": now - begun,
            "cpu_s": time.process_time() - cpu,
            "took_ms": took_ms,
        }
        print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
