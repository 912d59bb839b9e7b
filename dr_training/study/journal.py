"""What has been run: one line per event, each on disk before the next thing happens.

A run that was started and has no end was cut off; it is run again. The last line may be cut
itself, when the machine went down: it is put aside and not believed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dr_training.data.faults import DataError

JOURNAL: Final = "journal.jsonl"
STARTED, ENDED, STOPPED = EVENTS = ("started", "ended", "stopped")


@dataclass(frozen=True, kw_only=True)
class State:
    """The last known of each run: its status, the attempts and the time that all of them took."""

    status: Mapping[str, str]
    attempts: Mapping[str, int]
    cut_off: tuple[str, ...]
    life_s: Mapping[str, float]


class Journal:
    """Events of one folder.

    >>> journal = Journal(out)
    >>> journal.add("started", run="C1-r1")
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def add(self, event: str, **facts: Any) -> None:
        """Append an event and wait until it is on disk."""
        if event not in EVENTS:
            raise ValueError(f"event must be one of {', '.join(EVENTS)}; got {event!r}")
        line = json.dumps({"event": event, **facts}) + "\n"
        with self.path.open("ab+") as file:
            # A line that was cut off has no end; what follows must not be glued to it.
            if file.tell() and not self._ends_with_newline():
                line = "\n" + line
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def events(self) -> list[dict[str, Any]]:
        """All whole events.

        Raises:
            DataError: a line in the middle is no event: the file was changed by hand.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        found = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
                if event["event"] not in EVENTS:
                    raise ValueError(event["event"])
            except (ValueError, KeyError, TypeError):
                # Cut off by a crash: no newline was written after it, or one when it went on.
                following = [text for text in lines[number:] if text.strip()]
                if not following or line[:1] == b"{":
                    continue
                raise DataError(f"{self.path} line {number} is no event of a study") from None
            found.append(event)
        return found

    def state(self) -> State:
        """What the events add up to."""
        status: dict[str, str] = {}
        attempts: dict[str, int] = {}
        open_runs: dict[str, None] = {}
        life: dict[str, float] = {}
        for event in self.events():
            run = event.get("run")
            if run is None:
                continue
            if event["event"] == STARTED:
                attempts[run] = attempts.get(run, 0) + 1
                open_runs[run] = None
            elif event["event"] == ENDED:
                status[run] = event["status"]
                life[run] = life.get(run, 0.0) + float(event.get("life_s", 0.0))
                open_runs.pop(run, None)
        return State(status=status, attempts=attempts, cut_off=tuple(open_runs), life_s=life)

    def _ends_with_newline(self) -> bool:
        return self.path.read_bytes()[-1:] == b"\n"
