"""Holds the files of records against the digests that their manifest recorded.

    >>> check_shards(folder, manifest["parts"]["test"]["shards"])
    {'test-00000.tfrecord': '9f86d0…'}

The manifest's own digest stands for the whole folder: `train` writes it down and `gate` compares
it. That says something about the records only where each file is the one that the manifest names.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dr_training.data.preparation import MANIFEST
from dr_training.job.faults import JobError
from inference_image.model_spec import file_sha256


def check_shards(folder: Path, shards: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """SHA-256 of each file, in the manifest's order.

    Raises:
        JobError: a file is missing or another than the manifest says, or has no digest there.
    """
    found: dict[str, str] = {}
    for shard in shards:
        name, recorded = shard["file"], shard.get("sha256")
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise JobError(f"{MANIFEST} names {name!a:.80}, which is no file beside it")
        if recorded is None:
            raise JobError(f"{MANIFEST} has no digests of its files; prepare the records again")
        try:
            digest = file_sha256(folder / name)
        except OSError as error:
            reason = (error.strerror or "unreadable").lower()
            raise JobError(
                f"{name}, which {MANIFEST} names, cannot be read ({reason}); every host needs the "
                "whole folder"
            ) from None
        if digest != recorded:
            raise JobError(
                f"{name} is not the file that {MANIFEST} names: digests differ; give the folder "
                "as it was prepared, whole to every host"
            )
        found[name] = digest
    return found
