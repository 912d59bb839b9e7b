"""The line that a container logs when it is ready, wherever its log is."""

from collections.abc import Iterable, Mapping
from datetime import UTC, timedelta
from pathlib import Path

from dr_experiments.client import Measurement
from dr_experiments.cold_start import ReadyLine, read_ready_lines
from dr_experiments.targets import MODE_LAMBDA, TargetDescription

# A container may have started before the first request came to it.
_BEFORE: timedelta = timedelta(minutes=10)


def ready_lines_here(logs: Path, endpoint: str) -> dict[str, ReadyLine]:
    """Ready lines in the logs of a local AWS, by start id."""
    found: dict[str, ReadyLine] = {}
    for path in sorted(logs.glob(f"container-{endpoint}-*.log")):
        found |= read_ready_lines(path.read_text("utf-8", "replace").splitlines())
    return found


def ready_lines_on_aws(
    target: TargetDescription, measurements: Iterable[Measurement]
) -> Mapping[str, ReadyLine]:
    """Ready lines of the containers that answered cold, from CloudWatch Logs; waits for them.

    An account that does not let its logs be read gives none: the phases then stay whole.
    """
    import boto3
    import botocore.exceptions

    from dr_experiments.cloudwatch import fetch_ready_lines

    cold = [m for m in measurements if m.cold and m.start_id]
    if not cold:
        return {}
    try:
        return fetch_ready_lines(
            target.name,
            {str(m.start_id) for m in cold},
            since=min(m.started_at for m in cold).astimezone(UTC) - _BEFORE,
            client=boto3.client("logs", region_name=target.region),
            log_group=f"/aws/lambda/{target.name.partition(':')[0]}"
            if target.mode == MODE_LAMBDA
            else None,
        )
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
        return {}


def ready_lines_of(
    target: TargetDescription, measurements: Iterable[Measurement]
) -> Mapping[str, ReadyLine]:
    """Ready lines for the cold answers of a run; empty where there is no log to read."""
    from dr_cli.local import running_local_aws

    local = running_local_aws()
    if local is not None:
        return ready_lines_here(local.local.logs_dir, target.name)
    if target.region is None:
        return {}
    return ready_lines_on_aws(target, measurements)
