"""What all groups of commands have in common: help in full, and one word when interrupted."""

import signal
import sys
from typing import Any

from typer.core import TyperGroup

EXIT_INTERRUPTED = 128 + signal.SIGINT


class CommandGroup(TyperGroup):
    """A group whose help shows whole descriptions, and which says that Ctrl-C was understood."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with one word and exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # The terminal has written ^C on the line.
            print("\nInterrupted.", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands; Click's own list cuts a description off after one line."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, " ".join((command.help or "").split())))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
