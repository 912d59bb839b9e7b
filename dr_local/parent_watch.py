"""Stops a server when the process that started it has gone, however it went."""

import os
import signal
import threading
import time

_INTERVAL_S = 0.25


def exit_with_parent(parent_pid: int) -> None:
    """Send this process SIGTERM once `parent_pid` is no longer its parent.

    The kernel's own notice (PR_SET_PDEATHSIG) fires when the *thread* that started the child
    ends, so a server started from a worker thread would stop too early; asking is exact.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
