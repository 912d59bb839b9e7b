"""The container's environment variables: name, default, meaning, and which values can be.

    >>> setting_fault("MODEL_SERVER_WORKERS", "many")
    "MODEL_SERVER_WORKERS must be a whole number; it is 'many'"

Standard library only: the constructs refuse at synthesis what the container would refuse when
it starts, by the same table.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inference_image import contract

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no", "")
# Pillow warns about more; a warning in a server is a log line that nobody asked for.
_MOST_PIXELS: Final = 89_000_000
# Names that begin so are ours, or somebody's by chance; those that are as similar as this are ours.
_PREFIXES: Final = ("DR_", "MODEL_SERVER_")
_MISSPELT: Final = 0.85
# Reads a text that is set: (name, text) -> value.
_Read = Callable[[str, str], Any]


class SettingsError(ValueError):
    """A variable has a value that cannot be used. Its text is one sentence for a person."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One row of the settings table: name, default as text, what it does, how it is read.

    `read` takes name and text; with `unset_is_none` the default is words, not a value. `in_batch`
    is the default under Batch Transform, where that is another.
    """

    name: str
    default: str
    meaning: str
    read: _Read
    unset_is_none: bool = False
    in_batch: str | None = None

    def value(self, environment: Mapping[str, str]) -> Any:
        """What `environment` says; unset or empty is the default.

        Raises:
            SettingsError: naming the variable, its value and what is allowed.
        """
        text = environment.get(self.name, "").strip()
        if text:
            return self.read(self.name, text)
        if self.unset_is_none:
            return None
        if self.in_batch is not None and read_setting(contract.ENV_BATCH, environment):
            return self.read(self.name, self.in_batch)
        return self.read(self.name, self.default)


def _text(_: str, text: str) -> str:
    return text


def _choices(allowed: tuple[str, ...]) -> _Read:
    """Any of the allowed words, separated by commas; "none" for none of them."""

    def read(name: str, text: str) -> frozenset[str]:
        words = [word.strip().lower() for word in text.split(",")]
        if words == ["none"]:
            return frozenset()
        for word in words:
            if word not in allowed:
                raise SettingsError(
                    f"{name} must be any of {', '.join(allowed)}, separated by commas, or none; "
                    f"it holds {word!r}"
                )
        return frozenset(words)

    return read


def _choice(allowed: tuple[str, ...]) -> _Read:
    def read(name: str, text: str) -> str:
        value = text.lower()
        if value not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}; it is {value!r}")
        return value

    return read


def _path_prefix(name: str, text: str) -> str:
    """A path of a URL without the last slash."""
    value = text.rstrip("/")
    if value and not value.startswith("/"):
        raise SettingsError(f"{name} must begin with '/'; it is {value!r}")
    return value


def _boolean(name: str, text: str) -> bool:
    value = text.lower()
    if value not in (*_TRUE, *_FALSE):
        raise SettingsError(f"{name} must be true or false; it is {value!r}")
    return value in _TRUE


def _integer(lowest: int, highest: int) -> _Read:
    return _bounded(int, lowest, highest, "a whole number")


def _number(lowest: float, highest: float) -> _Read:
    return _bounded(float, lowest, highest, "a number")


def _auto(read: _Read) -> _Read:
    """As `read`; None for "auto"."""
    return lambda name, text: None if text.lower() == "auto" else read(name, text)


def _bounded(convert: Callable[[str], float], lowest: float, highest: float, kind: str) -> _Read:
    def read(name: str, text: str) -> float:
        # Python reads digits of any script, and "1_0" as ten.
        plain = text.isascii() and "_" not in text
        try:
            value = convert(text if plain else "")
        except ValueError:
            raise SettingsError(f"{name} must be {kind}; it is {text!r}") from None
        if not lowest <= value <= highest:
            raise SettingsError(f"{name} must be between {lowest} and {highest}; it is {text!r}")
        return value

    return read


VARIABLES: Final = (
    Variable(
        name=contract.ENV_MODEL_DIR,
        default=contract.DEFAULT_MODEL_DIR,
        meaning="Folder of the unpacked model package (the one with `model.json`).",
        read=_text,
    ),
    Variable(
        name=contract.ENV_BIND_HOST,
        default="0.0.0.0",  # noqa: S104
        meaning="Address to listen on; use 127.0.0.1 outside a container.",
        read=_text,
    ),
    Variable(
        name=contract.ENV_BIND_TO_PORT,
        default=str(contract.DEFAULT_PORT),
        meaning="Port to listen on, set by SageMaker; 0 takes a free one (the log says which).",
        read=_integer(0, 65_535),
    ),
    Variable(
        name=contract.ENV_SERVING_MODE,
        default=contract.SERVING_MODE_REALTIME,
        meaning="`serverless` (one request at a time, one worker), `realtime` or `local`.",
        read=_choice(contract.SERVING_MODES),
    ),
    Variable(
        name=contract.ENV_RUNTIME,
        default=contract.RUNTIME_AUTO,
        meaning="Engine: `litert`, `tensorflow`, or auto: the first that package and image have.",
        read=_choice((*contract.RUNTIMES, contract.RUNTIME_AUTO)),
    ),
    Variable(
        name=contract.ENV_LAYOUT,
        default=contract.LAYOUT_AUTO,
        meaning="`lean`: uvicorn alone; `full`: nginx and gunicorn; auto: full for tensorflow.",
        read=_choice((*contract.LAYOUTS, contract.LAYOUT_AUTO)),
    ),
    Variable(
        name=contract.ENV_PLAIN_INPUT,
        default=contract.PLAIN_INPUT_AUTO,
        meaning="Pixels of a floating-point model without model.json: 0..255, 0..1 or -1..1.",
        read=_choice((*contract.PLAIN_INPUT_RANGES, contract.PLAIN_INPUT_AUTO)),
    ),
    Variable(
        name=contract.ENV_KERNEL,
        default=contract.KERNEL_AUTO,
        meaning="Finds and judges the disc: `numpy`, or auto: compiled code where it is there.",
        read=_choice((contract.KERNEL_NUMPY, contract.KERNEL_AUTO)),
    ),
    Variable(
        name=contract.ENV_WORKERS,
        default="auto",
        meaning="Worker processes; auto: 1 on serverless and local, else one per whole CPU.",
        read=_auto(_integer(1, 256)),
    ),
    Variable(
        name=contract.ENV_THREADS,
        default="auto",
        meaning="Engine threads of one worker; auto: the CPUs divided by the workers.",
        read=_auto(_integer(1, 256)),
    ),
    Variable(
        name=contract.ENV_THREADS_ALONE,
        default="auto",
        meaning="Of a request that has the container to itself; auto: the CPUs, up to 4; 1: off.",
        read=_auto(_integer(1, 256)),
    ),
    Variable(
        name=contract.ENV_TIMEOUT_S,
        default="55",
        # A batch waits for 600 s (ModelClientConfig of CreateTransformJob, read 2026-11-28).
        in_batch="595",
        meaning="Seconds until a request is answered 504; the platform gives up at 60. Batch: 595.",
        read=_number(0.001, 3600),
    ),
    Variable(
        name=contract.ENV_QUEUE_LIMIT,
        default="64",
        # The platform sends no more at once: requests times their largest size are at most 100 MB.
        in_batch="100",
        meaning="Requests that may wait or arrive in one worker, else 429. Batch: 100.",
        read=_integer(0, 100_000),
    ),
    Variable(
        name=contract.ENV_MAX_IMAGE_BYTES,
        default=str(25 * 1024 * 1024),
        meaning="Largest encoded image in bytes; a larger one is answered 413.",
        read=_integer(1, 2**31),
    ),
    Variable(
        name=contract.ENV_MAX_IMAGE_PIXELS,
        default="auto",
        meaning="Largest image in pixels; auto: 60 million, fewer where memory is short.",
        read=_auto(_integer(1, _MOST_PIXELS)),
    ),
    Variable(
        name=contract.ENV_MAX_IMAGES,
        default="16",
        meaning="Images that one request may hold; more are answered 413.",
        read=_integer(1, 1000),
    ),
    Variable(
        name=contract.ENV_MAX_REQUEST_PIXELS,
        default="120000000",
        meaning="Pixels of all images of one request; an image beyond them gets a 413 of its own.",
        read=_integer(1, 10**9),
    ),
    Variable(
        name=contract.ENV_OPERATING_POINT,
        default="the package's",
        meaning="Name of the operating point when a request does not choose one.",
        read=_text,
        unset_is_none=True,
    ),
    Variable(
        name=contract.ENV_BATCH,
        default="false",
        meaning="Set by Batch Transform: a bad image is then a 200 with a problem record.",
        read=_boolean,
    ),
    Variable(
        name=contract.ENV_LOG_LEVEL,
        default="info",
        meaning="`debug`, `info`, `warning` or `error`; lines are JSON on standard output.",
        read=_choice(LOG_LEVELS),
    ),
    Variable(
        name=contract.ENV_METRICS,
        default=contract.METRICS_PROMETHEUS,
        meaning="`prometheus` (`GET /metrics`), `emf` (CloudWatch, in the log), both, or `none`.",
        read=_choices(contract.METRICS),
    ),
    Variable(
        name=contract.ENV_MODEL_URL,
        default="none",
        meaning="Lambda: `s3://BUCKET/models/ID/SHA256.tar.gz`, read when the image has no model.",
        read=_text,
        unset_is_none=True,
    ),
    Variable(
        name=contract.ENV_BASE_PATH,
        default="none",
        meaning="Lambda: path in front of `/invocations` that the gateway adds, such as `/dr`.",
        read=_path_prefix,
        unset_is_none=True,
    ),
)

_BY_NAME: Final = {row.name: row for row in VARIABLES}


def read_setting(name: str, environment: Mapping[str, str]) -> Any:
    """The value of the variable `name`, or its default.

    Raises:
        SettingsError: naming the variable, its value and what is allowed.
    """
    return _BY_NAME[name].value(environment)


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are one of ours misspelt: the setting would be passed over in silence.

    Other unknown names stay, since a platform adds variables of its own (Kubernetes one such as
    `DR_SERVICE_HOST` for each service).

    Raises:
        SettingsError: naming the variable and the one that was meant.
    """
    for name in sorted(names):
        if name in _BY_NAME or not name.startswith(_PREFIXES):
            continue
        # Imported here: hardly any environment has such a name.
        from difflib import get_close_matches

        meant = get_close_matches(name, _BY_NAME, n=1, cutoff=_MISSPELT)
        if meant:
            raise SettingsError(f"{name} is not a setting; {meant[0]} is meant, it seems")


def setting_fault(name: str, text: str) -> str | None:
    """What is wrong with `text` as the value of `name`; None if nothing is, or nobody reads it."""
    if name not in _BY_NAME:
        return None
    try:
        read_setting(name, {name: text})
    except SettingsError as error:
        return str(error)
    return None
