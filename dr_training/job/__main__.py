"""Runs one step of a training on SageMaker; the image's `inference_image.training_job` starts it.

    python3 -m dr_training.job train

A step is a module of this package with a function `run(root, arguments)`; it is imported only when
it is asked for. `root` is `/opt/ml`, or what `DR_ML_ROOT` names. A step that cannot go on raises
`JobError`, `DataError` or `ModelPackageError`: their one sentence goes to standard error and to
the file that SageMaker shows as the reason. With `DR_DEBUG` set, the traceback is shown as well.

Exit codes: 0 done, 1 data or files cannot be used, 2 what was asked for is wrong, 143 told to stop.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from dr_training.data.faults import DataError
from dr_training.job.faults import EXIT_ASKED_WRONGLY, EXIT_FAILED, JobError
from inference_image.model_spec import ModelPackageError
from inference_image.training_job import (
    DEFAULT_ROOT,
    ENV_DEBUG,
    ENV_ROOT,
    STEPS,
    one_sentence,
    reason_file,
    write_reason,
)

_SEE_WHERE: Final = f"set {ENV_DEBUG}=1 in the job's environment to see where"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step that the first argument names; the others are its own."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    root = Path(os.environ.get(ENV_ROOT) or DEFAULT_ROOT)
    step = words[0] if words else ""
    if step not in STEPS:
        print(f"job: the step must be one of {', '.join(STEPS)}; got {step!a}.", file=sys.stderr)
        return EXIT_ASKED_WRONGLY
    try:
        _run(step)(root, words[1:])
    except JobError as error:
        return _failed(root, step, str(error), error.code)
    except DataError as error:
        # Others read a job's log and its reason than those who may read its data.
        return _failed(root, step, error.anonymous, EXIT_FAILED)
    except ModelPackageError as error:
        return _failed(root, step, str(error), EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 - the process ends here, and says why
        if os.environ.get(ENV_DEBUG):
            traceback.print_exc()
        return _failed(root, step, _unforeseen(error), EXIT_FAILED)
    return 0


def _run(step: str) -> Callable[[Path, Sequence[str]], None]:
    run: Callable[[Path, Sequence[str]], None] = import_module(f"dr_training.job.{step}").run
    return run


def _unforeseen(error: Exception) -> str:
    # Never the file: photographs may be named after patients.
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror.lower()}, while this step read or wrote a file; {_SEE_WHERE}"
    if isinstance(error, ModuleNotFoundError):
        return f"the image holds no Python module {error.name!r}, which this step needs"
    if isinstance(error, MemoryError):
        return "the memory is not enough; take a larger instance type"
    # The text may hold data; the kind says enough to begin with, and DR_DEBUG shows the rest.
    return f"unexpected {type(error).__name__} in this step; {_SEE_WHERE}, and report it"


def _failed(root: Path, step: str, sentence: str, code: int) -> int:
    shown = one_sentence(sentence)
    print(f"job {step}: {shown}", file=sys.stderr, flush=True)
    write_reason(reason_file(root, step), shown)
    return code


if __name__ == "__main__":
    sys.exit(main())
