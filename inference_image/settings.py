"""The container's settings: read once from the environment, then frozen.

    >>> settings = Settings.from_environment({"MODEL_SERVER_WORKERS": "2"})
    >>> settings.workers, settings.port
    (2, 8080)

Every variable has a row in `inference_image.variables`, from which `docs/settings.md` is checked.
A value that cannot be is refused with one sentence; nothing is corrected in silence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_image import contract
from inference_image.sizing import (
    available_cpus,
    available_memory_bytes,
    default_pixels,
    default_threads,
    default_threads_alone,
    default_workers,
)
from inference_image.variables import (
    VARIABLES,
    SettingsError,
    Variable,
    check_names,
    read_setting,
)

__all__ = ["VARIABLES", "Settings", "SettingsError", "Variable"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment says, checked. Sizes in bytes and pixels, times in seconds."""

    model_dir: Path
    bind_host: str
    port: int
    serving_mode: str
    workers: int
    threads: int
    threads_alone: int
    timeout_s: float
    queue_limit: int
    max_image_bytes: int
    max_image_pixels: int
    max_images: int
    max_request_pixels: int
    operating_point: str | None
    batch: bool
    log_level: str
    metrics: frozenset[str] = frozenset({contract.METRICS_PROMETHEUS})
    model_url: str | None = None
    base_path: str = ""
    runtime: str = contract.RUNTIME_AUTO
    layout: str = contract.LAYOUT_LEAN
    plain_input: str = contract.PLAIN_INPUT_AUTO
    # Checked here, and read by `inference_image.kernel`: not only the service finds the disc.
    kernel: str = contract.KERNEL_AUTO
    # Bytes of memory for the container; with `workers_fit` as many workers run as fit there.
    memory_bytes: float = math.inf
    workers_fit: bool = False

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
        check_names(environment)
        available = available_cpus() if cpus is None else cpus

        def read(name: str) -> Any:
            return read_setting(name, environment)

        runtime = read(contract.ENV_RUNTIME)
        layout = read(contract.ENV_LAYOUT)
        if layout == contract.LAYOUT_AUTO:
            # The image of the tensorflow flavour sets its runtime, and holds nginx and gunicorn.
            full = runtime == contract.RUNTIME_TENSORFLOW
            layout = contract.LAYOUT_FULL if full else contract.LAYOUT_LEAN
        mode = read(contract.ENV_SERVING_MODE)
        one_worker = mode != contract.SERVING_MODE_REALTIME
        workers = read(contract.ENV_WORKERS) or default_workers(
            available, one_request_at_a_time=one_worker
        )
        if mode == contract.SERVING_MODE_SERVERLESS and workers > 1:
            raise SettingsError(
                f"{contract.ENV_WORKERS} must be 1 where {contract.ENV_SERVING_MODE} is "
                f"{mode}, which sends one request at a time; it is {workers}"
            )
        threads = read(contract.ENV_THREADS) or default_threads(available, workers)
        memory = available_memory_bytes() if memory_bytes is None else memory_bytes
        return cls(
            model_dir=Path(read(contract.ENV_MODEL_DIR)),
            bind_host=read(contract.ENV_BIND_HOST),
            port=read(contract.ENV_BIND_TO_PORT),
            serving_mode=mode,
            workers=workers,
            threads=threads,
            threads_alone=(
                read(contract.ENV_THREADS_ALONE) or default_threads_alone(available, threads)
            ),
            timeout_s=read(contract.ENV_TIMEOUT_S),
            queue_limit=read(contract.ENV_QUEUE_LIMIT),
            max_image_bytes=read(contract.ENV_MAX_IMAGE_BYTES),
            max_image_pixels=(
                read(contract.ENV_MAX_IMAGE_PIXELS) or default_pixels(memory, workers)
            ),
            max_images=read(contract.ENV_MAX_IMAGES),
            max_request_pixels=read(contract.ENV_MAX_REQUEST_PIXELS),
            operating_point=read(contract.ENV_OPERATING_POINT),
            batch=read(contract.ENV_BATCH),
            log_level=read(contract.ENV_LOG_LEVEL),
            metrics=read(contract.ENV_METRICS),
            model_url=read(contract.ENV_MODEL_URL),
            base_path=read(contract.ENV_BASE_PATH) or "",
            runtime=runtime,
            layout=layout,
            plain_input=read(contract.ENV_PLAIN_INPUT),
            kernel=read(contract.ENV_KERNEL),
            memory_bytes=memory,
            workers_fit=read(contract.ENV_WORKERS) is None,
        )
