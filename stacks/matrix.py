"""The deployments that this project offers: a table that checks itself.

    >>> [row.stack_id for row in select(models=["vgg19"], modes=["realtime"])][:2]
    ['dr-realtime-vgg19-m4-xlarge', 'dr-realtime-vgg19-m5-xlarge']

Data only: no `aws_cdk` here, so the experiments and the command line read the same table that
the stacks are made from.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from constructs_lib import limits
from constructs_lib.rules import (
    ValidationError,
    lambda_faults,
    realtime_faults,
    refuse,
    serverless_faults,
)
from constructs_lib.stage_names import STACK_PREFIX, staged
from inference_image.contract import (
    RUNTIME_LITERT,
    RUNTIMES,
    SERVING_MODE_REALTIME,
    SERVING_MODE_SERVERLESS,
)


class Arch(StrEnum):
    """Processor architecture of image and machine, by its container name."""

    AMD64 = limits.AMD64
    ARM64 = limits.ARM64


class Mode(StrEnum):
    """How the endpoint is run. On SageMaker the container sees the value in `DR_SERVING_MODE`."""

    SERVERLESS = SERVING_MODE_SERVERLESS
    REALTIME = SERVING_MODE_REALTIME
    LAMBDA = "lambda"


# Model of a row -> the package folder in model_artifacts/ that it serves.
MODEL_PACKAGES: Final = {"mobilenet": "mobilenet-demo", "vgg19": "vgg19-demo"}

# Half of what a new account may run at once (10 invocations in all, in most regions).
DEFAULT_MAX_CONCURRENCY: Final = 5


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A row: mode, model, runtime, architecture and size.

    A serverless row has `memory_mib` (and `max_concurrency`, containers at once), a real-time
    row has `instance_type`, a row on Lambda has `memory_mib`. A row that SageMaker or Lambda would
    refuse cannot be constructed.

    Raises:
        ValidationError: listing every fault of the row.
    """

    mode: Mode
    model: str
    architecture: Arch
    runtime: str = RUNTIME_LITERT
    memory_mib: int | None = None
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY
    instance_type: str | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.model not in MODEL_PACKAGES:
            faults.append(f"model must be one of {_listed(MODEL_PACKAGES)}; got {self.model!r}")
        if self.runtime not in RUNTIMES:
            faults.append(f"runtime must be one of {_listed(RUNTIMES)}; got {self.runtime!r}")
        if self.mode == Mode.SERVERLESS:
            if self.memory_mib is None or self.instance_type is not None:
                faults.append("a serverless row has memory_mib and no instance_type")
            faults += serverless_faults(
                memory_mib=self.memory_mib,
                max_concurrency=self.max_concurrency,
                architecture=self.architecture,
            )
        elif self.mode == Mode.REALTIME:
            if self.instance_type is None or self.memory_mib is not None:
                faults.append("a real-time row has instance_type and no memory_mib")
            faults += realtime_faults(
                instance_type=self.instance_type, architecture=self.architecture
            )
        elif self.mode == Mode.LAMBDA:
            if self.memory_mib is None or self.instance_type is not None:
                faults.append("a row on Lambda has memory_mib and no instance_type")
            faults += lambda_faults(memory_mib=self.memory_mib, architecture=self.architecture)
        else:
            faults.append(f"mode must be one of {_listed(Mode)}; got {self.mode!r}")
        refuse(f"stacks/matrix.py row {self._name}", faults)

    @property
    def _name(self) -> str:
        size = self.memory_mib or str(self.instance_type).removeprefix("ml.").replace(".", "-")
        # Elsewhere the size says which architecture it is.
        kind = f"-{self.architecture}" if self.mode == Mode.LAMBDA else ""
        return f"{self.mode}-{self.model}{kind}-{size}"

    @property
    def stack_id(self) -> str:
        """Id of the row's stack, and name of its endpoint, without a stage."""
        return f"{STACK_PREFIX}-{self._name}"

    def stack_id_in(self, stage: str | None) -> str:
        """Id of the row's stack in `stage`: `dr-ana-serverless-mobilenet-2048`."""
        return staged(self._name, stage)

    @property
    def package(self) -> str:
        """Name of the model package in `model_artifacts/`."""
        return MODEL_PACKAGES[self.model]


_MODELS = tuple(MODEL_PACKAGES)
# The instance types of the studies that this project follows, then the newest generation of
# each of their families among the names that SageMaker hosting accepts (see limits.SOURCES):
# m (x86-64), m (Graviton), c (Graviton).
_REALTIME_INSTANCE_TYPES = (
    "ml.m4.xlarge",
    "ml.m5.xlarge",
    "ml.m6g.xlarge",
    "ml.c7g.xlarge",
    "ml.m7i.xlarge",
    "ml.m8g.xlarge",
    "ml.c8g.xlarge",
)
# The smallest that serverless inference has, too; one whole vCPU; the most of a new account.
_LAMBDA_SIZES_MIB = (1024, 1769, 3008)

MATRIX: Final[tuple[Deployment, ...]] = (
    *(
        Deployment(
            mode=Mode.SERVERLESS, model=model, architecture=Arch.AMD64, memory_mib=memory_mib
        )
        for model in _MODELS
        for memory_mib in limits.SERVERLESS_MEMORY_SIZES_MIB
    ),
    *(
        Deployment(
            mode=Mode.REALTIME,
            model=model,
            architecture=Arch(limits.INSTANCE_TYPES[instance_type].architecture),
            instance_type=instance_type,
        )
        for model in _MODELS
        for instance_type in _REALTIME_INSTANCE_TYPES
    ),
    *(
        Deployment(mode=Mode.LAMBDA, model=model, architecture=arch, memory_mib=memory_mib)
        for model in _MODELS
        for arch in Arch
        for memory_mib in _LAMBDA_SIZES_MIB
    ),
)


def select(
    *, models: Iterable[str] | None = None, modes: Iterable[str] | None = None
) -> tuple[Deployment, ...]:
    """Rows with one of `models` and one of `modes`; `None` selects all.

    Raises:
        ValueError: a name that no row has; the known ones are listed.
    """
    wanted_models = _known("models", models, _MODELS)
    wanted_modes = _known("modes", modes, tuple(mode.value for mode in Mode))
    return tuple(
        row for row in MATRIX if row.model in wanted_models and row.mode.value in wanted_modes
    )


def _known(name: str, wanted: Iterable[str] | None, known: tuple[str, ...]) -> frozenset[str]:
    if wanted is None:
        return frozenset(known)
    chosen = frozenset(wanted)
    unknown = sorted(chosen.difference(known))
    if unknown or not chosen:
        got = _listed(repr(value) for value in unknown) or "nothing"
        raise ValueError(f"{name} must be of {_listed(known)}; got {got}")
    return chosen


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


__all__ = [
    "DEFAULT_MAX_CONCURRENCY",
    "MATRIX",
    "MODEL_PACKAGES",
    "RUNTIMES",
    "STACK_PREFIX",
    "Arch",
    "Deployment",
    "Mode",
    "ValidationError",
    "select",
    "staged",
]
