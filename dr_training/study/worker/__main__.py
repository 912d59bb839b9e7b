"""`python -m dr_training.study.worker SPEC.json OUT`: one training, then the end."""

import importlib
import json
import sys
import traceback
from pathlib import Path

from dr_training.study.worker.record import Record

# Workload -> its module, whose `train(spec, record, out)` does the work.
WORKLOADS = {"classification": "classification", "referral": "referral"}
FAILED = 1
# What the frameworks say when there is not enough memory; they agree on no exception.
_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "resource_exhausted",
    "resourceexhausted",
    "unable to allocate",
    "oom when allocating",
    "failed to allocate",
)


def kind_of(error: BaseException) -> str:
    """The kind of failure that an exception is."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, MemoryError) or any(sign in text for sign in _MEMORY_SIGNS):
        return "memory"
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"UnavailableError", "ModuleNotFoundError"}:
        return "unavailable"
    return "data" if names & {"ImagesError", "DataError"} else "error"


def main(spec_file: str, out: str) -> int:
    """Run one specification; 0, or 1 with the reason in `worker.json`."""
    record = Record(Path(out))
    record.mark("started")
    try:
        spec = json.loads(Path(spec_file).read_text())
        module = importlib.import_module(f"dr_training.study.worker.{WORKLOADS[spec['workload']]}")
        module.train(spec, record, Path(out))
    except Exception as error:  # noqa: BLE001 - whatever it is becomes the run's reason
        traceback.print_exc()
        record.fail(kind_of(error), f"{type(error).__name__}: {error}")
        return FAILED
    record.mark("done")
    record.save()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
