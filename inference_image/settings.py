"""The container's settings: read once from the environment, then frozen.

    >>> settings = Settings.from_environment({"MODEL_SERVER_WORKERS": "2"})
    >>> settings.workers, settings.port
    (2, 8080)

Every variable has a row in `VARIABLES`, from which `docs/settings.md` is checked. A value
that cannot be is refused with one sentence; nothing is corrected in silence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from inference_image import contract
from inference_image.sizing import (
    available_cpus,
    available_memory_bytes,
    default_pixels,
    default_threads,
    default_workers,
)

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no", "")
# Pillow warns about more; a warning in a server is a log line that nobody asked for.
_MOST_PIXELS: Final = 89_000_000
_T = TypeVar("_T")


class SettingsError(ValueError):
    """A variable has a value that cannot be used. Its text is one sentence for a person."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One row of the settings table: name, default as text, what it does."""

    name: str
    default: str
    meaning: str


VARIABLES: Final = (
    Variable(
        name=contract.ENV_MODEL_DIR,
        default=contract.DEFAULT_MODEL_DIR,
        meaning="Folder of the unpacked model package (the one with `model.json`).",
    ),
    Variable(
        name=contract.ENV_BIND_HOST,
        default="0.0.0.0",  # noqa: S104
        meaning="Address to listen on; use 127.0.0.1 outside a container.",
    ),
    Variable(
        name=contract.ENV_BIND_TO_PORT,
        default=str(contract.DEFAULT_PORT),
        meaning="Port to listen on, set by SageMaker; 0 takes a free one (the log says which).",
    ),
    Variable(
        name=contract.ENV_SERVING_MODE,
        default=contract.SERVING_MODE_REALTIME,
        meaning="`serverless` (one request at a time, one worker), `realtime` or `local`.",
    ),
    Variable(
        name=contract.ENV_WORKERS,
        default="auto",
        meaning="Worker processes; auto: 1 on serverless and local, else one per whole CPU.",
    ),
    Variable(
        name=contract.ENV_THREADS,
        default="auto",
        meaning="Engine threads of one worker; auto: the CPUs divided by the workers.",
    ),
    Variable(
        name=contract.ENV_TIMEOUT_S,
        default="55",
        meaning="Seconds after which a request is answered 504; the platform gives up at 60.",
    ),
    Variable(
        name=contract.ENV_QUEUE_LIMIT,
        default="64",
        meaning="Requests that may wait or arrive in one worker; one more is answered 429.",
    ),
    Variable(
        name=contract.ENV_MAX_IMAGE_BYTES,
        default=str(25 * 1024 * 1024),
        meaning="Largest encoded image in bytes; a larger one is answered 413.",
    ),
    Variable(
        name=contract.ENV_MAX_IMAGE_PIXELS,
        default="auto",
        meaning="Largest image in pixels; auto: 60 million, fewer where memory is short.",
    ),
    Variable(
        name=contract.ENV_MAX_IMAGES,
        default="16",
        meaning="Images that one request may hold; more are answered 413.",
    ),
    Variable(
        name=contract.ENV_MAX_REQUEST_PIXELS,
        default="120000000",
        meaning="Pixels of all images of one request; an image beyond them gets a 413 of its own.",
    ),
    Variable(
        name=contract.ENV_OPERATING_POINT,
        default="the package's",
        meaning="Name of the operating point when a request does not choose one.",
    ),
    Variable(
        name=contract.ENV_BATCH,
        default="false",
        meaning="Set by Batch Transform: a bad image is then a 200 with a problem record.",
    ),
    Variable(
        name=contract.ENV_LOG_LEVEL,
        default="info",
        meaning="`debug`, `info`, `warning` or `error`; lines are JSON on standard output.",
    ),
    Variable(
        name=contract.ENV_MODEL_URL,
        default="none",
        meaning="Lambda: `s3://BUCKET/models/ID/SHA256.tar.gz`, read when the image has no model.",
    ),
    Variable(
        name=contract.ENV_BASE_PATH,
        default="none",
        meaning="Lambda: path in front of `/invocations` that the gateway adds, such as `/dr`.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment says, checked. Sizes in bytes and pixels, times in seconds."""

    model_dir: Path
    bind_host: str
    port: int
    serving_mode: str
    workers: int
    threads: int
    timeout_s: float
    queue_limit: int
    max_image_bytes: int
    max_image_pixels: int
    max_images: int
    max_request_pixels: int
    operating_point: str | None
    batch: bool
    log_level: str
    model_url: str | None = None
    base_path: str = ""

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str],
        *,
        cpus: float | None = None,
        memory_bytes: float | None = None,
    ) -> "Settings":
        """Read and check every variable.

        Args:
            environment: usually `os.environ`.
            cpus: CPUs available to the process; measured when omitted.
            memory_bytes: memory available to the container; measured when omitted.

        Raises:
            SettingsError: naming the variable, its value and what is allowed.
        """
        read = _Reader(environment)
        available = available_cpus() if cpus is None else cpus
        mode = read.choice(contract.ENV_SERVING_MODE, contract.SERVING_MODES)
        one_worker = mode != contract.SERVING_MODE_REALTIME
        workers = read.auto_integer(contract.ENV_WORKERS, 1, 256) or default_workers(
            available, one_request_at_a_time=one_worker
        )
        if mode == contract.SERVING_MODE_SERVERLESS and workers > 1:
            raise SettingsError(
                f"{contract.ENV_WORKERS} must be 1 where {contract.ENV_SERVING_MODE} is "
                f"{mode}, which sends one request at a time; it is {workers}"
            )
        threads = read.auto_integer(contract.ENV_THREADS, 1, 256)
        pixels = read.auto_integer(contract.ENV_MAX_IMAGE_PIXELS, 1, _MOST_PIXELS)
        memory = available_memory_bytes() if memory_bytes is None else memory_bytes
        return cls(
            model_dir=Path(read.text(contract.ENV_MODEL_DIR)),
            bind_host=read.text(contract.ENV_BIND_HOST),
            port=read.integer(contract.ENV_BIND_TO_PORT, 0, 65_535),
            serving_mode=mode,
            workers=workers,
            threads=threads or default_threads(available, workers),
            timeout_s=read.number(contract.ENV_TIMEOUT_S, 0.001, 3600),
            queue_limit=read.integer(contract.ENV_QUEUE_LIMIT, 0, 100_000),
            max_image_bytes=read.integer(contract.ENV_MAX_IMAGE_BYTES, 1, 2**31),
            max_image_pixels=pixels or default_pixels(memory, workers),
            max_images=read.integer(contract.ENV_MAX_IMAGES, 1, 1000),
            max_request_pixels=read.integer(contract.ENV_MAX_REQUEST_PIXELS, 1, 10**9),
            operating_point=environment.get(contract.ENV_OPERATING_POINT) or None,
            batch=read.boolean(contract.ENV_BATCH),
            log_level=read.choice(contract.ENV_LOG_LEVEL, LOG_LEVELS),
            model_url=environment.get(contract.ENV_MODEL_URL, "").strip() or None,
            base_path=read.path_prefix(contract.ENV_BASE_PATH),
        )


class _Reader:
    """Reads variables; an unset or empty one has the default of its row."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._defaults = {row.name: row.default for row in VARIABLES}

    def text(self, name: str) -> str:
        return self._environment.get(name, "").strip() or self._defaults[name]

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name).lower()
        if value not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}; it is {value!r}")
        return value

    def path_prefix(self, name: str) -> str:
        """A path of a URL without the last slash; "" where there is none."""
        value = self._environment.get(name, "").strip().rstrip("/")
        if value and not value.startswith("/"):
            raise SettingsError(f"{name} must begin with '/'; it is {value!r}")
        return value

    def boolean(self, name: str) -> bool:
        value = self.text(name).lower()
        if value not in (*_TRUE, *_FALSE):
            raise SettingsError(f"{name} must be true or false; it is {value!r}")
        return value in _TRUE

    def integer(self, name: str, lowest: int, highest: int) -> int:
        return self._bounded(name, int, lowest, highest, "a whole number")

    def number(self, name: str, lowest: float, highest: float) -> float:
        return self._bounded(name, float, lowest, highest, "a number")

    def auto_integer(self, name: str, lowest: int, highest: int) -> int | None:
        """As `integer`; None for "auto"."""
        return None if self.text(name) == "auto" else self.integer(name, lowest, highest)

    def _bounded(
        self,
        name: str,
        convert: Callable[[str], _T],
        lowest: float,
        highest: float,
        kind: str,
    ) -> _T:
        text = self.text(name)
        try:
            value = convert(text)
        except ValueError:
            raise SettingsError(f"{name} must be {kind}; it is {text!r}") from None
        if not lowest <= float(value) <= highest:  # type: ignore[arg-type]
            raise SettingsError(f"{name} must be between {lowest} and {highest}; it is {text!r}")
        return value
