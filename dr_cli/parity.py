"""`dr bench parity`: does the decision survive a photograph that is made smaller?"""

from collections.abc import Sequence
from pathlib import Path

from dr_cli.errors import CommandError
from dr_cli.photographs import read_photograph
from dr_cli.predict import Place, chosen_target
from dr_experiments.client import Client
from dr_experiments.parity import Parity, compare, summarise_parity


def bench_parity(
    photographs: Sequence[Path],
    *,
    cropped: bool,
    max_side_px: int | None,
    endpoint: str | None,
    url: str | None,
    model: Path | None,
    region: str | None,
) -> None:
    """See `dr bench parity --help`."""
    if not cropped and max_side_px is None:
        raise CommandError("say what is to be compared: --crop, --max-side-px or both")
    payloads = [read_photograph(path) for path in photographs]
    pairs = []
    place = Place(endpoint=endpoint, url=url, region=region)
    with chosen_target(place, model=model) as (target, _, _n):
        client = Client(target)
        for path, payload in zip(photographs, payloads, strict=True):
            try:
                pair = compare(client, payload, cropped=cropped, max_side_px=max_side_px)
            except ValueError as error:
                raise CommandError(f"{path}: {error}") from None
            pairs.append(pair)
            if not pair.answered:
                print(f"{path}: not answered ({pair.before.error or pair.after.error})")
            elif not pair.same_decision:
                print(f"{path}: another decision")
    try:
        print(words(summarise_parity(pairs)))
    except ValueError as error:
        raise CommandError(str(error)) from None


def words(parity: Parity) -> str:
    """What was found, in one paragraph."""
    moved = (
        ""
        if parity.most_moved is None
        else (f" The probability of referable DR moved by at most {parity.most_moved:.3f}.")
    )
    missing = f" {parity.unanswered} were not answered." if parity.unanswered else ""
    return (
        f"{parity.same} of {parity.n} photographs were decided as before ({parity.low:.1%} to "
        f"{parity.high:.1%}, 95 % interval), {parity.same_verdict} had the same verdict on their "
        f"quality, with {parity.bytes_ratio:.2f} of the bytes.{moved}{missing}"
    )
