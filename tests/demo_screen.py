"""Reads a terminal's screen as text."""

import re

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def readable(screen: str) -> str:
    """`screen` without colours and cursor movements, its runs of blanks made one."""
    return re.sub(r"[ \t\u2502]+", " ", _CONTROL.sub("", screen))
