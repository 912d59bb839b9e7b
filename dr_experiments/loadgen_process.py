"""MLPerf LoadGen in a process of its own: hands out queries on stdout, takes answers on stdin.

    python -P dr_experiments/loadgen_process.py '{"scenario": "Server", …}' FOLDER

A process of its own, because LoadGen cannot be stopped before its time and ends the program when
it is torn down, and because its schedule must not wait for the client's interpreter lock. It
needs the standard library and `mlperf_loadgen` only.

Lines out: `issue NANOSECONDS ID ID …` (on the clock of `time.perf_counter_ns`, which is one for
all processes of a machine), at the end `done`. Lines in: the id of an answered query each. When
stdin ends, so does the process.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

SETTINGS: Final = (
    "min_duration_ms",
    "min_query_count",
    "server_target_qps",
    "server_target_latency_ns",
    "server_target_latency_percentile",
    "single_stream_target_latency_percentile",
    "offline_expected_qps",
    "qsl_rng_seed",
    "sample_index_rng_seed",
    "schedule_rng_seed",
)


def main(document: str, folder: str) -> None:
    """Run one test with the settings of `document`; LoadGen's logs go to `folder`."""
    import mlperf_loadgen as loadgen

    wanted: dict[str, Any] = json.loads(document)
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, wanted["scenario"])
    settings.mode = loadgen.TestMode.PerformanceOnly
    for name in SETTINGS:
        if name in wanted:
            setattr(settings, name, wanted[name])
    logs = loadgen.LogSettings()
    logs.log_output.outdir = folder
    logs.enable_trace = False

    def answered() -> None:
        for line in sys.stdin:
            response = loadgen.QuerySampleResponse(int(line), 0, 0)
            loadgen.QuerySamplesComplete([response])
        # The client has gone: an orderly end is not to be had.
        os._exit(1)

    def issue(samples: Any) -> None:
        now = time.perf_counter_ns()
        _say(" ".join(("issue", str(now), *(str(sample.id) for sample in samples))))

    threading.Thread(target=answered, daemon=True).start()
    sut = loadgen.ConstructSUT(issue, lambda: None)
    # One photograph is sent again and again, so the library of samples has one.
    library = loadgen.ConstructQSL(1, 1, lambda _: None, lambda _: None)
    # LoadGen looks for an audit's settings in the current folder otherwise.
    loadgen.StartTestWithLogSettings(sut, library, settings, logs, str(Path(folder) / "no-audit"))
    _say("done")
    # Its destructors are known to abort; everything is written by now.
    os._exit(0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
