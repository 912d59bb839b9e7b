"""`dr model card`: writes the card of a package with its pictures."""

from pathlib import Path

from dr_cli.errors import CommandError
from dr_training.card_page import write_card_page


def write_card(package: Path) -> None:
    """Write the card and say where it is."""
    if not package.is_dir():
        raise CommandError(f"{package} is no folder; name the folder that holds model.json")
    for path in write_card_page(package):
        print(path)
