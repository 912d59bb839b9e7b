"""A process that is told to stop while it starts ends, whatever it is doing."""

import subprocess
import sys
from pathlib import Path

import pytest

# Each sends the signal from within a piece of Python whose exceptions go nowhere.
PLACES = {
    "a weak reference's callback": """
import weakref
class Lock: pass
lock = Lock()
reference = weakref.ref(lock, lambda _: os.kill(os.getpid(), signal.SIGTERM))
del lock
""",
    "a finaliser": """
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
Thing()
""",
    "a try that takes everything": """
try:
    os.kill(os.getpid(), signal.SIGTERM)
except BaseException:
    pass
""",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_signal_ends_it_quietly_wherever_it_comes(place: str, repository: Path) -> None:
    code = (
        "import os, signal\nfrom inference_image.stopping import end_now\n"
        "signal.signal(signal.SIGTERM, end_now)\nprint('begun')\n"
        f"{PLACES[place]}\nprint('went on')\nraise SystemExit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")
