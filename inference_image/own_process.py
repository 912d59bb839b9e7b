"""What the system says of this process: when it began, and how much memory it has."""

import os
import time
from pathlib import Path


def process_start_s() -> float:
    """When this process began, on the boot clock (10 ms steps): before Python's own start-up."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        # The name in brackets may hold spaces; the start time is the 20th field after it.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def resident_mib() -> float | None:
    """Resident memory of this process in MiB, or None where the kernel does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
