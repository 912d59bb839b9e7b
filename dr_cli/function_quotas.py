"""Does the account let functions reserve the environments that their stacks ask for?

`max_concurrency` of a function is taken out of what all functions of the account and region may run
at once. A part of that is nobody's to reserve: a new account, which has 10, can reserve none.

Source: https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html (as known)
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dr_cli.findings import Finding, fault, good, unknown

SUBJECT: Final = "reserved concurrency of functions"
# What the account keeps for functions without a reservation.
KEPT: Final = 100
_PAGE: Final = "https://{region}.console.aws.amazon.com/servicequotas/home/services/lambda/quotas"


def reserved_findings(
    reserved: Mapping[str, int], *, region: str, client: Any
) -> Iterator[Finding]:
    """What the account says to the reservations of the stacks, by the functions' names.

    Args:
        client: of Lambda.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if not reserved:
        return
    page = _PAGE.format(region=region)
    try:
        limit = client.get_account_settings()["AccountLimit"]
        own = sum(_reserved_now(name, client) for name in reserved)
    except (BotoCoreError, ClientError) as error:
        yield unknown(SUBJECT, f"could not be read: {error}", fix=f"look it up at {page}")
        return
    wanted = sum(reserved.values())
    free = max(0, limit["UnreservedConcurrentExecutions"] + own - KEPT)
    said = (
        f"{wanted} environments wanted, {free} can be reserved: the account has "
        f"{limit['ConcurrentExecutions']} in all and keeps {KEPT} for other functions"
    )
    if wanted <= free:
        yield good(SUBJECT, said)
    else:
        yield fault(
            SUBJECT,
            said,
            fix=f"leave max_concurrency out or lower it, or ask for more concurrent executions at "
            f"{page}",
        )


def _reserved_now(name: str, client: Any) -> int:
    """What a function has reserved already and gives back when it is changed; 0 of a new one."""
    from botocore.exceptions import ClientError

    try:
        answer = client.get_function_concurrency(FunctionName=name)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
        return 0
    return int(answer.get("ReservedConcurrentExecutions", 0))
