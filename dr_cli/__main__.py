"""`dr`, and `python -m dr_cli`."""

import os
import signal
import sys
from types import FrameType

from dr_cli.app import app
from dr_cli.errors import EXIT_FAILURE, explain, unexpected

_DEBUG_OPTION = "--debug"
_DEBUG_ENVIRONMENT = "DR_DEBUG"


def main() -> None:
    """Run the command; a mistake is one sentence on stderr and a non-zero exit code."""
    # A termination unwinds like an exception, so that `finally` stops what a command started.
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _terminate)
    debug = _DEBUG_OPTION in sys.argv[1:2] or bool(os.environ.get(_DEBUG_ENVIRONMENT))
    try:
        app()
    except BrokenPipeError:
        # `dr … | head`: the reader has gone; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILURE)
    except Exception as error:
        if debug:
            raise
        print(f"dr: {explain(error) or unexpected(error)}", file=sys.stderr)
        sys.exit(EXIT_FAILURE)


def _terminate(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    main()
