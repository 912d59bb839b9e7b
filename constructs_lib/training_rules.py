"""What a training pipeline cannot be, said before a job is started.

As in `constructs_lib.rules`: every fault, one sentence each; `None` and tokens are not judged.
No `aws_cdk` here.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from constructs_lib import limits
from constructs_lib.rules import (
    bounded_fault,
    fault,
    is_integer,
    is_number,
    listed,
    shown,
    whole_number_fault,
)
from constructs_lib.tokens import is_token
from constructs_lib.training_states import JOB_END_CHARACTERS
from inference_image.contract import RUNTIME_TENSORFLOW, TASK_GRADE5, TASKS

# Of a job's name behind the pipeline's: hyphen, longest step, hyphen, end of a UUID.
_JOB_SUFFIX_CHARACTERS: Final = len("-prepare-") + JOB_END_CHARACTERS
PIPELINE_NAME_CHARACTERS: Final = limits.JOB_NAME_CHARACTERS - _JOB_SUFFIX_CHARACTERS
# Lower case: SageMaker writes names in lower case into some ARNs, and policies compare case.
_PIPELINE_NAME: Final = re.compile(r"[a-z0-9](-*[a-z0-9])*")
# As the step `train` takes it.
_PACKAGE_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_LEAST_PHOTOGRAPHS: Final = 30
DAY_S: Final = 86_400
# What the steps take, which are not imported here: a test holds these lists and theirs together.
HYPERPARAMETERS: Final = (
    "augment",
    "batch_size",
    "class_weights",
    "cpu_devices",
    "dropout",
    "epochs",
    "focal_gamma",
    "learning_rate",
    "loss",
    "monitor",
    "network",
    "network_size_px",
    "precision",
    "reduce_factor",
    "reduce_patience",
    "seed",
    "stop_patience",
    "strategy",
    "task",
    "threads",
    "train",
    "weight_decay",
    "weights",
)
MULTI_WORKER: Final = "multi-worker"
# The others would train one model on each host.
OF_SEVERAL_HOSTS: Final = ("auto", MULTI_WORKER)
PREPARATION: Final = (
    "exclude_conflicting",
    "image_format",
    "keep_ungradable",
    "max_unreadable",
    "prepared_already",
    "records_per_shard",
    "seed",
    "shares",
    "size_px",
    "split_column",
    "workers",
)


@dataclass(frozen=True, kw_only=True)
class GateThresholds:
    """What a model must show on the test part of the records to be registered.

    The gate compares the lower bounds of 95 % intervals with them, not the figures themselves.

    Attributes:
        min_sensitivity: of referable DR at the package's operating point, 0 to below 1.
        min_specificity: at the same operating point, 0 to below 1.
        min_kappa: quadratic weighted kappa of the grades, -1 to below 1; left out for a model that
            only refers (`hyperparameters={"task": "referable", ...}`), and for no other.
        min_photographs: fewer photographs in the test part decide nothing; at least 30.
    """

    min_sensitivity: float
    min_specificity: float
    min_kappa: float | None = None
    min_photographs: int = 100

    def faults(self) -> list[str]:
        """What cannot be."""
        faults = []
        for name, low in (("min_sensitivity", 0), ("min_specificity", 0), ("min_kappa", -1)):
            value = getattr(self, name)
            if value is None and name == "min_kappa":
                continue
            if not is_token(value) and not (is_number(value) and low <= value < 1):
                faults.append(
                    f"gate.{name} must be a number from {low} to below 1, because no number of "
                    f"photographs shows a 1; got {shown(value)}"
                )
        faults += whole_number_fault(
            "gate.min_photographs",
            self.min_photographs,
            _LEAST_PHOTOGRAPHS,
            because=", because fewer show nothing",
        )
        return faults

    def arguments(self) -> list[str]:
        """As arguments of the step `gate`."""
        return option_arguments(dataclasses.asdict(self))


def option_arguments(options: Mapping[str, object]) -> list[str]:
    """`{"size_px": 224, "keep_ungradable": True}` as `["--size-px", "224", "--keep-ungradable"]`.

    False and None leave an option out.
    """
    words = []
    for name, value in options.items():
        if value is not False and value is not None:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """`{"epochs": 20, "augment": False}` as SageMaker takes it: `{"epochs": "20", …: "false"}`."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def job_faults(
    *,
    training_instance_type: str | None = None,
    training_instance_count: int | None = None,
    training_volume_gb: int | None = None,
    training_max_runtime_s: int | None = None,
    training_max_wait_s: int | None = None,
    spot: bool = True,
    processing_instance_type: str | None = None,
    processing_volume_gb: int | None = None,
    processing_max_runtime_s: int | None = None,
    volume_key: bool = False,
) -> list[str]:
    """Faults of the machines; volumes in GB as SageMaker counts them, times in seconds.

    `volume_key` is whether the volumes shall be encrypted with a key of one's own.
    """
    faults = []
    for name, value, known, limit in (
        (
            "training_instance_type",
            training_instance_type,
            limits.TRAINING_INSTANCE_TYPES,
            "TRAINING_INSTANCE_TYPES",
        ),
        (
            "processing_instance_type",
            processing_instance_type,
            limits.PROCESSING_INSTANCE_TYPES,
            "PROCESSING_INSTANCE_TYPES",
        ),
    ):
        if value is None:
            continue
        faults += _type_faults(name, value, known, limit, volume_key=volume_key)
    for name, number, (low, high), limit in (
        (
            "training_instance_count",
            training_instance_count,
            (limits.TRAINING_MIN_INSTANCES, None),
            "TRAINING_MIN_INSTANCES",
        ),
        ("training_volume_gb", training_volume_gb, limits.TRAINING_VOLUME_GB, "TRAINING_VOLUME_GB"),
        (
            "training_max_runtime_s",
            training_max_runtime_s,
            limits.TRAINING_RUNTIME_S,
            "TRAINING_RUNTIME_S",
        ),
        (
            "processing_volume_gb",
            processing_volume_gb,
            limits.PROCESSING_VOLUME_GB,
            "PROCESSING_VOLUME_GB",
        ),
        (
            "processing_max_runtime_s",
            processing_max_runtime_s,
            limits.PROCESSING_RUNTIME_S,
            "PROCESSING_RUNTIME_S",
        ),
    ):
        if number is not None:
            faults += bounded_fault(name, number, low, high, limit)
    if training_max_wait_s is None:
        return faults
    if not spot:
        faults.append("training_max_wait_s is the wait for Spot capacity: leave it out, or spot")
    elif not is_integer(training_max_wait_s, 1, None):
        faults += bounded_fault(
            "training_max_wait_s", training_max_wait_s, 1, None, "TRAINING_RUNTIME_S"
        )
    elif (
        is_integer(training_max_runtime_s, *limits.TRAINING_RUNTIME_S)
        and training_max_wait_s < training_max_runtime_s
    ):
        faults.append(
            fault(
                "training_max_wait_s",
                f"at least training_max_runtime_s ({training_max_runtime_s}), because the wait "
                "for Spot capacity and the training count together",
                training_max_wait_s,
                "TRAINING_RUNTIME_S",
            )
        )
    return faults


def _type_faults(
    name: str, value: str, known: frozenset[str], limit: str, *, volume_key: bool
) -> list[str]:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=3)
        hint = f" (near it: {listed(sorted(near))})" if near else ""
        if re.match(limits.ACCELERATED_PATTERN, str(value)):
            hint = ", because the image uses no GPU and no accelerator"
        elif value in limits.INSTANCE_TYPES:
            hint = ", and this one is for hosting only"
        return [fault(name, f"a CPU instance type of such jobs{hint}", value, limit)]
    family = value.removeprefix("ml.").partition(".")[0]
    if volume_key and family in limits.LOCAL_DISK_FAMILIES:
        return [
            fault(
                name,
                "a type without local disks where encryption_key is given: SageMaker takes no key "
                "for these, their hardware encrypts them",
                value,
                limit,
            )
        ]
    return []


def image_runtime_faults(*, runtime: str | None, architecture: str) -> list[str]:
    """Faults of an image that is to train."""
    faults = []
    if runtime is None:
        faults.append(
            "image must be known to be of runtime tensorflow: give runtime='tensorflow' to "
            "from_uri or from_repository, if it is; got one whose runtime is not said"
        )
    elif runtime != RUNTIME_TENSORFLOW:
        faults.append(
            "image must be of runtime tensorflow, because the other holds nothing that trains "
            f"(InferenceImageRepo.image(runtime='tensorflow')); got {shown(runtime)}"
        )
    if architecture not in limits.JOB_ARCHITECTURES:
        faults.append(
            fault(
                "image",
                f"of architecture {listed(limits.JOB_ARCHITECTURES)}, because no instance type of "
                "training or processing jobs has another",
                architecture,
                "JOB_ARCHITECTURES",
            )
        )
    return faults


def pipeline_faults(
    *,
    pipeline_name: str | None = None,
    package_id: str | None = None,
    model_package_group_name: str | None = None,
) -> list[str]:
    """Faults of names."""
    faults = []
    if pipeline_name is not None and not (
        isinstance(pipeline_name, str)
        and 1 <= len(pipeline_name) <= PIPELINE_NAME_CHARACTERS
        and _PIPELINE_NAME.fullmatch(pipeline_name)
    ):
        faults.append(
            fault(
                "pipeline_name",
                f"at most {PIPELINE_NAME_CHARACTERS} lower-case letters, digits and inner hyphens "
                "(names of jobs begin with it)",
                pipeline_name,
                "JOB_NAME_CHARACTERS",
            )
        )
    if package_id is not None and not _PACKAGE_ID.fullmatch(package_id):
        faults.append(
            "package_id must be at most 100 letters a to z, digits, '-', '_' and '.', and not "
            f"begin with a dot; got {shown(package_id)}"
        )
    most = limits.MODEL_PACKAGE_GROUP_CHARACTERS
    if model_package_group_name is not None and not (
        len(model_package_group_name) <= most
        and re.fullmatch(limits.MODEL_PACKAGE_GROUP_PATTERN, model_package_group_name)
    ):
        faults.append(
            fault(
                "model_package_group_name",
                f"the name of a group, no ARN: 1 to {most} letters, digits and inner hyphens",
                model_package_group_name,
                "MODEL_PACKAGE_GROUP_PATTERN",
            )
        )
    return faults


def keeping_faults(keep_runs_days: object, *, own_bucket: bool, longest_s: int | None) -> list[str]:
    """Faults of how many days runs are kept; None is for ever.

    `own_bucket` is whether the bucket is made here, `longest_s` how many seconds an execution may
    take, or None where that is not known.
    """
    if keep_runs_days is None:
        return []
    if not own_bucket:
        return ["keep_runs_days is for the bucket that is made here: set rules on your runs_bucket"]
    if longest_s is None:
        return whole_number_fault("keep_runs_days", keep_runs_days, 1)
    return whole_number_fault(
        "keep_runs_days",
        keep_runs_days,
        math.ceil(longest_s / DAY_S),
        because=", because an execution may take so many days, and needs what it keeps",
    )


def hyperparameter_faults(
    options: Mapping[str, object], *, network_isolation: bool = False, hosts: object = None
) -> list[str]:
    """Faults of what a training is asked for.

    Args:
        network_isolation: whether the job can fetch no weights.
        hosts: that train together; None or a token where it is not known.
    """
    faults = _option_faults("hyperparameters", options, HYPERPARAMETERS)
    if "network" not in options:
        faults.append("hyperparameters must name a network, {'network': 'mobilenet'} for example")
    if network_isolation and options.get("weights") == "imagenet":
        faults.append(
            "hyperparameters['weights'] must not be imagenet with network_isolation, because the "
            "image fetches these weights: give network_isolation=False, or other weights; "
            "got 'imagenet'"
        )
    strategy = options.get("strategy", "auto")
    if isinstance(hosts, int) and not is_token(hosts) and not is_token(strategy):
        if hosts > 1 and strategy not in OF_SEVERAL_HOSTS:
            faults.append(
                f"hyperparameters['strategy'] must be one of {', '.join(OF_SEVERAL_HOSTS)} with "
                f"training_instance_count={hosts}, because any other is for one host; "
                f"got {shown(strategy)}"
            )
        elif hosts == 1 and strategy == MULTI_WORKER:
            faults.append(
                "hyperparameters['strategy'] must not be multi-worker with "
                "training_instance_count=1, because the workers are hosts; leave it out"
            )
    return faults


def task_faults(options: Mapping[str, object], gate: GateThresholds) -> list[str]:
    """Faults of what is trained beside what it is judged by: only a grader has a kappa."""
    task = options.get("task", TASK_GRADE5)
    if is_token(task):
        return []
    if task not in TASKS:
        return [f"hyperparameters['task'] must be one of {', '.join(TASKS)}; got {shown(task)}"]
    if task == TASK_GRADE5 and gate.min_kappa is None:
        return ["gate.min_kappa must be given, because a model that grades has a kappa; got None"]
    if task != TASK_GRADE5 and gate.min_kappa is not None:
        fault = (
            f"gate.min_kappa must be left out with hyperparameters['task'] {task!r}, because a "
            f"model that only refers has no kappa; got {shown(gate.min_kappa)}"
        )
        return [fault]
    return []


def preparation_faults(options: Mapping[str, object]) -> list[str]:
    """Faults of how records are prepared."""
    return _option_faults("preparation", options, PREPARATION)


def _option_faults(prop: str, options: Mapping[str, object], known: Sequence[str]) -> list[str]:
    faults = []
    for name, value in options.items():
        if name == "package_id":
            faults.append(f"{prop} may not set package_id: package_id= does")
        elif name not in known:
            near = difflib.get_close_matches(str(name), known, n=3)
            hint = f"near it: {listed(near)}" if near else f"known: {listed(known)}"
            faults.append(
                f"{prop} must hold options that the step knows; got {shown(name)} ({hint})"
            )
        elif is_token(value):
            continue
        elif not _is_scalar(value):
            faults.append(
                f"{prop}[{name!r}] must be text, a number, True or False; got {shown(value)}"
            )
        elif isinstance(value, str):
            faults += _length_faults(f"{prop}[{name!r}]", value)
    return faults


def _length_faults(name: str, value: str) -> list[str]:
    most = limits.HYPERPARAMETER_TEXT_CHARACTERS
    if len(value) <= most:
        return []
    allowed = f"text of at most {most} characters"
    return [fault(name, allowed, f"{len(value)} characters", "HYPERPARAMETER_TEXT_CHARACTERS")]


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int | bool)
