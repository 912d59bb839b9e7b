"""What a check of an account or of a stack found: one line each, with the fix beside a fault."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.padding import Padding
from rich.text import Text


class Level(StrEnum):
    """How much a finding matters; only a fault makes the command fail."""

    GOOD = "✓"
    UNKNOWN = "?"
    FAULT = "✗"


_STYLES = {Level.GOOD: "green", Level.UNKNOWN: "yellow", Level.FAULT: "red"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One checked thing. `fix` says what to do, and is empty where all is well."""

    level: Level
    subject: str
    text: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.level is Level.FAULT and not self.fix:
            raise ValueError(f"a fault needs its fix: {self.text}")


def good(subject: str, text: str) -> Finding:
    """Something that is as it should be."""
    return Finding(level=Level.GOOD, subject=subject, text=text)


def unknown(subject: str, text: str, *, fix: str = "") -> Finding:
    """Something that could not be told."""
    return Finding(level=Level.UNKNOWN, subject=subject, text=text, fix=fix)


def fault(subject: str, text: str, *, fix: str) -> Finding:
    """Something that will not work, or does not."""
    return Finding(level=Level.FAULT, subject=subject, text=text, fix=fix)


def show(findings: Sequence[Finding], console: Console) -> int:
    """Print findings with their fixes; returns how many are faults."""
    for finding in findings:
        line = Text.assemble(
            (f"{finding.level.value} ", _STYLES[finding.level]),
            (f"{finding.subject}: ", "bold"),
            finding.text,
        )
        console.print(line)
        if finding.fix:
            console.print(Padding(Text(f"→ {finding.fix}"), (0, 0, 0, 2), expand=False))
    return sum(finding.level is Level.FAULT for finding in findings)
