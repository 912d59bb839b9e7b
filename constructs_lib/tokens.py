"""What is known when the app is synthesized, and what only the deployment will know.

The CDK hides a token in an ordinary value: in text behind a marker, in a number among those that
nobody would type, in a list as its only entry. They are recognised here as `Token.is_unresolved`
does it, without `aws_cdk`, so that the rules can tell them from a value that somebody got wrong.
"""

import struct
from typing import Final

_IN_TEXT: Final = "${Token["
_IN_LIST: Final = "#{Token["
# The upper 16 bits of a number that stands for a token (aws-cdk-lib, core/lib/private/encoding).
_IN_NUMBER: Final = 0xFBFF

ONLY_LATER: Final = "a value that only the deployment knows"


def is_token(value: object) -> bool:
    """Whether only the deployment will know `value`, or a part of it."""
    if isinstance(value, str):
        return _IN_TEXT in value or value.startswith(_IN_LIST)
    if isinstance(value, float):
        (bits,) = struct.unpack(">Q", struct.pack(">d", value))
        return bool(bits >> 48 == _IN_NUMBER)
    if isinstance(value, list | tuple):
        return any(isinstance(it, str) and it.startswith(_IN_LIST) for it in value)
    return False


def known_text(value: str | None) -> str | None:
    """`value`, or `None` where it is a token whose text only the deployment knows."""
    return None if is_token(value) else value


def known_number(value: int | None) -> int | None:
    """`value`, or `None` where it is a token whose number only the deployment knows."""
    return None if is_token(value) else value
