"""Progress that reads well on a terminal and in a log: one line per step, with its seconds."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Wide enough for the tables: the width of files and pipes, and the most that is easy to read.
_WIDTH = 110
_LEAST_WIDTH = 40
_INDENT = 3


def make_console() -> Console:
    """Console on stdout; without colours, and `COLUMNS` or 110 wide, when it is no terminal."""
    if sys.stdout.isatty():
        console = Console(highlight=False)
        return Console(highlight=False, width=min(console.width, _WIDTH))
    columns = os.environ.get("COLUMNS", "")
    width = max(int(columns), _LEAST_WIDTH) if columns.isdecimal() else _WIDTH
    return Console(highlight=False, width=width)


def indented(content: RenderableType) -> Padding:
    """`content` below a heading: each line of it that wraps keeps the indent."""
    return Padding(content, (0, 0, 0, _INDENT), expand=False)


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
        self.console.print(indented(Text(text, style=style)))

    def say_path(self, text: str, *, style: str = "") -> None:
        """A line with a path, which is never broken, so that it can be copied."""
        self.console.print(f"{' ' * _INDENT}{text}", style=style, markup=False, soft_wrap=True)

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
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_column(width=_INDENT - 1)
        line.add_column()
        line.add_row(f" {mark}", Text.assemble(text, (f" ({seconds:.1f} s)", "dim")))
        self.console.print(line)


def print_note(text: str) -> None:
    """One line about the data, where there is something to say."""
    if text:
        print(f"note: {text}")
