"""How many requests a load plans before it sends the first one."""

from typing import Final

from dr_cli.errors import CommandError
from dr_cli.scenario_runs import OPEN
from dr_experiments.loadgen import LOADGEN_SCENARIOS, OFFLINE, SERVER

# A request is some 6 kB in memory until its record is written: 3 GB for all of these.
MOST_PLANNED: Final = 500_000


def check_planned(shape: str, *, rate_per_s: float, duration_s: float, queries: int) -> None:
    """Refuse a load whose schedule holds more requests than the memory of a machine.

    Users who wait for their answers have no schedule: how many requests they send is not planned.

    Raises:
        CommandError: more than `MOST_PLANNED` requests.
    """
    arrivals = rate_per_s * duration_s if shape in (OPEN, SERVER, OFFLINE) else 0
    if arrivals > MOST_PLANNED:
        raise CommandError(
            f"--rate-per-s {rate_per_s:g} for --duration-s {duration_s:g} plans {arrivals:,.0f} "
            f"requests, and one run takes at most {MOST_PLANNED:,}: a lower rate, a shorter time "
            "or several runs"
        )
    if shape in LOADGEN_SCENARIOS and queries > MOST_PLANNED:
        raise CommandError(f"--queries {queries}: one run takes at most {MOST_PLANNED:,} requests")
