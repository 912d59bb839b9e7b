"""What is known when the app is synthesized, and what only the deployment will know."""

import aws_cdk as cdk


def known_text(value: str | None) -> str | None:
    """`value`, or `None` where it is a token whose text only the deployment knows."""
    return None if value is None or cdk.Token.is_unresolved(value) else value


def known_number(value: int | None) -> int | None:
    """`value`, or `None` where it is a token whose number only the deployment knows."""
    return None if value is None or cdk.Token.is_unresolved(value) else value
