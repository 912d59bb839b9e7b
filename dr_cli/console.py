"""Progress that reads well on a terminal and in a log: one line per step, with its seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

# Wide enough for the tables: the width of files and pipes, and the most that is easy to read.
_WIDTH = 110


def make_console() -> Console:
    """Console on stdout; without colours and with a fixed width when it is no terminal."""
    if sys.stdout.isatty():
        console = Console(highlight=False)
        return Console(highlight=False, width=min(console.width, _WIDTH))
    return Console(highlight=False, width=_WIDTH)


class Steps:
    """Numbered headings, and steps below them that show that something is happening."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._number = 0

    def heading(self, text: str) -> None:
        """Begin the next numbered part."""
        self._number += 1
        self.console.print(f"\n[bold cyan]{self._number}[/]  [bold]{text}[/]")

    def say(self, text: str, *, style: str = "") -> None:
        """A sentence below the heading."""
        self.console.print(f"   {text}", style=style, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, text: str) -> Iterator[Callable[[str], None]]:
        """A step that takes time; call what is yielded to replace its text.

        with steps.step("Deploying") as rename:
            rename("Deployed 2 stacks")
        """
        begin = time.perf_counter()
        current = text

        def rename(new: str) -> None:
            nonlocal current
            current = new
            if status is not None:
                status.update(f"  {new} …")

        status = self.console.status(f"  {text} …") if self.console.is_terminal else None
        if status is not None:
            status.start()
        try:
            yield rename
        except BaseException:
            self._finish(status, "[red]✗[/]", current, begin)
            raise
        self._finish(status, "[green]✓[/]", current, begin)

    def _finish(self, status: object, mark: str, text: str, begin: float) -> None:
        if status is not None:
            status.stop()  # type: ignore[attr-defined]
        seconds = time.perf_counter() - begin
        self.console.print(f" {mark} {text} [dim]({seconds:.1f} s)[/]", soft_wrap=True)
