"""Names of the stacks, with a stage that keeps two people apart in one account.

    >>> staged("shared", "ana")
    'dr-ana-shared'

Installed from a wheel, the command line finds the shared stack by this rule, although the
stacks themselves belong to the checkout.
"""

import re
from typing import Final

from inference_image.contract import SERVING_MODES

STACK_PREFIX: Final = "dr"
# Of a function on Lambda: what its URL answers with.
FUNCTION_ALIAS: Final = "live"
STAGE_PATTERN: Final = r"[a-z][a-z0-9]{0,15}"
# A stage of this name would make its stacks look like another stage's.
RESERVED_STAGES: Final = frozenset({"shared", "janitor", "lambda", *SERVING_MODES})


def staged(name: str, stage: str | None) -> str:
    """`dr-<name>`, or `dr-<stage>-<name>` so that two people can share an account.

    Raises:
        ValueError: the stage is not 1 to 16 lower-case letters and digits, or is a word that
            would make its stacks look like another stage's.
    """
    if stage is None:
        return f"{STACK_PREFIX}-{name}"
    if not re.fullmatch(STAGE_PATTERN, stage) or stage in RESERVED_STAGES:
        raise ValueError(
            f"stage must be 1 to 16 lower-case letters and digits, begin with a letter, and not "
            f"be one of {', '.join(sorted(RESERVED_STAGES))}; got {stage!r}"
        )
    return f"{STACK_PREFIX}-{stage}-{name}"
