"""Options that several groups of commands have."""

import math
from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", help="A model package (folder or model.tar.gz); the demo model when left out."
    ),
]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="TCP port on 127.0.0.1.")]
FunctionOption = Annotated[
    str | None, typer.Option(help="A Lambda function by its name, with its REPORT lines.")
]
FunctionUrlOption = Annotated[
    str | None, typer.Option(help="A Lambda function by its URL; requests are signed.")
]


def finite(value: float | None) -> float | None:
    """Callback of an option: bounds let `nan` pass, and where there is one bound only, `inf`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value
