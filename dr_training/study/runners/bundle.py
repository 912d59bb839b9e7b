"""The part of this package that a machine needs to run a training, as a tar archive."""

import gzip
import io
import tarfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
# What `supervise` and the workers import. The referral workload reads records as well, and
# runs only where the whole project is installed.
FILES = (
    "__init__.py",
    "study/__init__.py",
    "study/counters.py",
    "study/monitor.py",
    "study/sagemaker_job.py",
    "study/supervise.py",
)


def bundle() -> bytes:
    """A tar.gz of `dr_training` with those files and the workers; the same bytes each time."""
    files = [_PACKAGE / name for name in FILES]
    files += sorted((_PACKAGE / "study" / "worker").glob("*.py"))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            entry = tarfile.TarInfo(f"dr_training/{file.relative_to(_PACKAGE).as_posix()}")
            content = file.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    # Without the time, which would make it another file each second.
    return gzip.compress(stream.getvalue(), mtime=0)
