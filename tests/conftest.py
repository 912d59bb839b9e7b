"""Markers by folder, the data that stays outside the repository, and the shared packages."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent
_MARKERS = (
    "unit",
    "snapshot",
    "property",
    "contract",
    "architecture",
    "integration",
    "slow",
    "aws",
)

# Node 24 and npm lie beside the interpreter; a Node of the system may be too old for the CDK.
# An nginx that `make nginx` had to fetch comes last.
os.environ["PATH"] = os.pathsep.join(
    [
        str(Path(sys.executable).parent),
        os.environ.get("PATH", ""),
        str(REPOSITORY / ".nginx" / "bin"),
    ]
)

# The CDK validates every synth with a WASM validator that takes 9-18 s at its first use;
# one test of the full matrix turns it on again.
os.environ.setdefault("CDK_VALIDATION", "false")


# Whoever starts the tests in the background of a shell has them ignore Ctrl-C, and all that they
# start; some tests are about Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Text is as wide as in a pipe, in the workers of pytest-xdist as well, which are told a width.
os.environ.pop("COLUMNS", None)

# How fast an example runs says how busy the machine is. (In CI the library's own profile says so.)
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):
    settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by the folder it lies in."""
    for item in items:
        folder = item.path.relative_to(REPOSITORY / "tests").parts[0]
        if folder in _MARKERS:
            item.add_marker(getattr(pytest.mark, folder))


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Photographs and measurements that stay outside the repository.

    They lie in `$DR_SHARED` or in `../shared/data` beside the checkout. Without them a
    developer's run skips what needs them; a CI run fails, since a skipped test proves nothing.
    """
    folder = Path(os.environ.get("DR_SHARED", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        message = f"no test data at {folder}; set DR_SHARED to the folder that holds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def real_photograph(shared_data: Path) -> Path:
    """A real fundus photograph, 1411 x 1411, CC0, no disease by its title."""
    return shared_data / "fundus" / "retina_normal_cc0.jpg"
