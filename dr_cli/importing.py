"""`dr model import`: asks what the file does not say, wraps it, and shows what it answers."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as Grid

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_training.data.readers import LIMITS
from dr_training.imported import (
    ORDERS,
    SCALINGS,
    Declared,
    import_model,
    needs_tensorflow,
    sanity_check,
)

_MOST_IMAGES = 12
_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".dcm")


def import_package(
    *,
    source: str,
    out: str,
    model_id: str | None,
    labels: str | None,
    scaling: str | None,
    channel_order: str | None,
    preparation: str,
    threshold: float,
    licence: str | None,
    images: str | None,
) -> int:
    """Write the package and print the sanity check and what it cannot offer."""
    pictures = _pictures(Path(images)) if images else []
    declared = Declared(
        labels=tuple(
            part.strip()
            for part in _asked(
                "labels",
                labels,
                "Which class is each output, in the network's order (0,1,2,3,4; or "
                "'not referable,referable')?",
            ).split(",")
        ),
        scaling=_asked(
            "scaling", scaling, f"What do pixels 0..255 become ({', '.join(SCALINGS)})?"
        ),
        channel_order=_asked(
            "channel-order",
            channel_order,
            f"In which order are the channels ({', '.join(ORDERS)})?",
        ),
        preparation=preparation,
        threshold=threshold,
        licence=licence,
    )
    made = import_model(Path(source), Path(out), declared, model_id=model_id or Path(out).name)
    samples, doubts = sanity_check(Path(out), pictures)
    grid = Grid("photograph", "answer", "P(referable)", box=None, padding=(0, 2, 0, 0))
    for one in samples:
        score = "" if one.referable is None else f"{one.referable:.3f}"
        grid.add_row(one.name, one.answer, score)
    print("Sanity check (drawings show that answers differ, not that they are right):")
    make_console().print(grid)
    for doubt in doubts:
        print(f"doubtful: {doubt}")
    for missing in made.cannot:
        print(f"it offers {missing}")
    print(f"wrote {out} ({made.spec.sha256[:12]})")
    return 0


def takes_tensorflow(source: Path) -> bool:
    """Whether this source is wrapped in the training environment."""
    if not source.exists():
        raise CommandError(f"there is no model at {source}; name a file or a SavedModel folder")
    return needs_tensorflow(source)


def _asked(option: str, value: str | None, question: str) -> str:
    """The value that was given, or the answer of the person at the terminal; never a guess."""
    if value is not None:
        return value
    if not sys.stdin.isatty():
        raise CommandError(
            f"the file does not say it and nothing is assumed: give --{option}. {question}"
        )
    print(question)
    return input(f"{option}: ").strip()


def _pictures(folder: Path) -> Sequence[Path]:
    if not folder.is_dir():
        raise CommandError(f"--images names {folder}, which is no folder")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    if not found:
        raise CommandError(f"--images names {folder}, which holds no photograph")
    large = [path.name for path in found if path.stat().st_size > LIMITS.max_bytes]
    if large:
        raise CommandError(f"{large[0]} is larger than {LIMITS.max_bytes:,} bytes")
    return found[:_MOST_IMAGES]
