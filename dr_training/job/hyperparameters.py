"""Hyper-parameters of the step `train`: SageMaker gives every value as a text.

    >>> read_hyperparameters('{"network": "mobilenet", "epochs": "20", "package_id": "clinic-1"}')
    Hyperparameters(plan=TrainingPlan(network='mobilenet', …), package_id='clinic-1', …)

The names are the options of `dr model train` with `_` for `-`, and `package_id`, the model's id.
What is not known is refused: a training that ignores half of what was asked for is paid for twice.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from dr_training.data.faults import DataError
from dr_training.data.pipeline import default_threads
from dr_training.fitting.plan import AUTO, STRATEGIES, TrainingPlan
from dr_training.job.faults import EXIT_ASKED_WRONGLY, JobError

# Set by SageMaker's own Python SDK, for containers that run scripts.
_SAGEMAKERS: Final = ("sagemaker_", "_tuning_objective_metric")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(
    r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?"
)
_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_MOST_SHOWN: Final = 60
_MOST_THREADS: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What a training job is asked for, checked.

    `threads` decode and compute; the processors that the container may use when left out.
    """

    plan: TrainingPlan
    package_id: str
    strategy: str = AUTO
    cpu_devices: int = 1
    threads: int


def read_hyperparameters(text: str) -> Hyperparameters:
    """Read `hyperparameters.json`.

    Raises:
        JobError: not an object of texts, or a name or value that is not possible; the text names
            it and what is allowed.
    """
    given = _object_of_texts(text)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith(_SAGEMAKERS):
            continue
        values[name] = _reader(name)(name, value)
    if "network" not in values:
        raise _wrong("network is missing; name one, for example mobilenet")
    package_id = _package_id(values)
    own = {name: values.pop(name) for name in _OWN if name in values}
    try:
        plan = TrainingPlan(**values)
    except DataError as error:
        raise _wrong(str(error)) from None
    if package_id is None:
        raise _wrong("package_id is missing; it is the id under which the model is published")
    return Hyperparameters(
        plan=plan, package_id=package_id, **{"threads": default_threads(), **own}
    )


def _object_of_texts(text: str) -> Mapping[str, str]:
    try:
        document = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"the file is not JSON ({str(error) or type(error).__name__})") from None
    if not isinstance(document, dict):
        raise _wrong("the file must hold one JSON object")
    for name, value in document.items():
        if not isinstance(value, str):
            raise _wrong(f"{name!a:.80} must be a text, as SageMaker gives it; it is {value!a:.60}")
    return document


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} given twice")
    return dict(pairs)


def _package_id(values: dict[str, Any]) -> str | None:
    # `dr model train` calls it `--model-id`.
    ids = {values.pop(name) for name in ("package_id", "model_id") if name in values}
    if len(ids) > 1:
        raise _wrong("package_id and model_id are the same thing, and they differ; give one")
    return ids.pop() if ids else None


def _wrong(sentence: str) -> JobError:
    return JobError(f"hyper-parameters: {sentence}", EXIT_ASKED_WRONGLY)


def _shown(value: str) -> str:
    return ascii(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")


def _text(_: str, value: str) -> str:
    # Names of networks, losses and so on: the plan knows which there are, this how long they are.
    return value[:_MOST_SHOWN]


def _whole(name: str, value: str) -> int:
    if not _WHOLE.fullmatch(value):
        raise _wrong(f"{name} must be a whole number; got {_shown(value)}")
    return int(value)


def _number(name: str, value: str) -> float:
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    if not math.isfinite(number):
        raise _wrong(f"{name} must be a number; got {_shown(value)}")
    return number


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _wrong(f"{name} must be true or false; got {_shown(value)}")
    return value.lower() == "true"


def _strategy(name: str, value: str) -> str:
    if value not in STRATEGIES:
        raise _wrong(f"{name} must be one of {', '.join(STRATEGIES)}; got {_shown(value)}")
    return value


def _count(name: str, value: str) -> int:
    number = _whole(name, value)
    if not 1 <= number <= _MOST_THREADS:
        raise _wrong(f"{name} must be from 1 to {_MOST_THREADS}; got {number}")
    return number


def _id(name: str, value: str) -> str:
    if not _ID.fullmatch(value):
        raise _wrong(
            f"{name} may hold up to 100 letters, digits, '-', '_' and '.', and begins with no "
            f"'.'; got {_shown(value)}"
        )
    return value


_Reader = Callable[[str, str], Any]
_OWN: Final[Mapping[str, _Reader]] = {
    "strategy": _strategy,
    "cpu_devices": _count,
    "threads": _count,
}
_OF_TYPE: Final[Mapping[Any, _Reader]] = {
    str: _text,
    int: _whole,
    int | None: _whole,
    float: _number,
    bool: _truth,
}
_READERS: Final[Mapping[str, _Reader]] = {
    **{field.name: _OF_TYPE[field.type] for field in fields(TrainingPlan)},
    **_OWN,
    "package_id": _id,
    "model_id": _id,
}


def _reader(name: str) -> _Reader:
    if name == "restart":
        raise _wrong(
            "restart is not possible here, since the job would begin again at every interruption; "
            "to begin again, name another prefix for the checkpoints"
        )
    found = _READERS.get(name)
    if found is None:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), _READERS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(sorted(_READERS))
        raise _wrong(f"{_shown(name)} is not known; {meant}known are {known}")
    return found
