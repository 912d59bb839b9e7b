"""The stack that deletes the others of a stage when their time to live is over."""

from typing import Final

import aws_cdk as cdk
from constructs import Construct

from constructs_lib.stack_janitor import StackJanitor
from stacks.matrix import staged
from stacks.settings import Settings

JANITOR: Final = "janitor"


class JanitorStack(cdk.Stack):
    """The janitor of a stage; stack id `dr-janitor`. It lives until it is destroyed by name.

    Without a stage it looks after every stage of the account, since all names begin with `dr-`.
    """

    def __init__(self, scope: Construct, *, settings: Settings) -> None:
        super().__init__(
            scope,
            staged(JANITOR, settings.stage),
            env=settings.environment,
            synthesizer=settings.synthesizer(),
            description="Deletes DR stacks whose time to live is over",
            tags=settings.cost_tags(),
        )
        self.janitor = StackJanitor(self, "Janitor", stack_name_prefix=staged("", settings.stage))
