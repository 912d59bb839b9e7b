"""What the system says of a process."""

import time

from inference_image.own_process import process_start_s


def test_the_process_started_before_now_and_not_long_ago() -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= now - process_start_s() < 3600
