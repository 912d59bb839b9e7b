"""Byte-identical photographs, and those among them that carry different grades.

APTOS 2019 holds 128 copies in 123 groups, and in 30 groups the grades disagree: a network that
trains on one and is tested on the other is tested on what it has seen.
"""

from collections import defaultdict
from dataclasses import dataclass

from dr_training.data.table import Photograph, Table


@dataclass(frozen=True)
class DuplicateGroup:
    """Photographs with the same bytes."""

    photographs: tuple[Photograph, ...]

    @property
    def grades(self) -> tuple[int, ...]:
        """The different grades that the group carries, in order."""
        return tuple(sorted({one.grade for one in self.photographs if one.grade is not None}))

    @property
    def conflicting(self) -> bool:
        """Whether the same picture was graded differently."""
        return len(self.grades) > 1


def duplicate_groups(table: Table) -> tuple[DuplicateGroup, ...]:
    """Groups of two or more photographs with one SHA-256, in the order of the table."""
    by_content: dict[str, list[Photograph]] = defaultdict(list)
    for one in table:
        by_content[one.sha256].append(one)
    return tuple(DuplicateGroup(tuple(found)) for found in by_content.values() if len(found) > 1)


def describe(groups: tuple[DuplicateGroup, ...]) -> str:
    """One sentence: copies, groups and conflicts."""
    if not groups:
        return "No two files are the same."
    copies = sum(len(group.photographs) - 1 for group in groups)
    conflicts = sum(group.conflicting for group in groups)
    return (
        f"{copies} byte-identical copies in {len(groups)} groups, {conflicts} of them with "
        "different grades."
    )
