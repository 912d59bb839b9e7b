"""On what a training runs: one of `tf.distribute`'s strategies by name.

    >>> devices = choose_devices("auto")
    >>> devices.name, devices.replicas, devices.workers
    ('cpu', 1, 1)

`auto` takes, in this order: several workers where `TF_CONFIG` lists them, a TPU where
`TPU_NAME` names one, all GPUs where there are several, the one GPU, the CPU.
"""

import json
import os
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dr_training.data.faults import DataError
from dr_training.fitting.plan import (
    AUTO,
    CPU,
    MIRRORED,
    MULTI_WORKER,
    ONE_GPU,
    STRATEGIES,
    TPU,
)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """A strategy with its name, its replicas over all workers, and this worker's place."""

    name: str
    strategy: tf.distribute.Strategy
    replicas: int
    workers: int
    worker: int

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files."""
        return self.worker == 0

    @property
    def local_replicas(self) -> int:
        """Replicas of this worker."""
        return self.replicas // self.workers


def choose_devices(name: str, *, cpu_devices: int = 1) -> Devices:
    """The strategy of this name; call it before any tensor is made.

    Args:
        name: one of `STRATEGIES`.
        cpu_devices: split the CPU into so many logical devices, to try `mirrored` without GPUs.

    Raises:
        DataError: the name is unknown, or this machine has no such device.
    """
    if name not in STRATEGIES:
        raise DataError(f"strategy must be one of {', '.join(STRATEGIES)}; got {name!r}")
    if cpu_devices < 1:
        raise DataError(f"cpu_devices must be at least 1; got {cpu_devices}")
    if cpu_devices > 1:
        _split_cpu(cpu_devices)
    # Physical devices: to ask for logical ones starts TensorFlow, and workers cannot meet then.
    gpus = tf.config.list_physical_devices("GPU")
    chosen = _automatic(len(gpus), cpu_devices) if name == AUTO else name
    workers, worker = 1, 0
    if chosen == MULTI_WORKER:
        workers, worker = _place()
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif chosen == TPU:
        strategy = _tpu()
        workers = int(strategy.extended.num_hosts)
        if workers > 1:
            raise DataError(
                f"this TPU has {workers} hosts; slices of one host are supported, so take one of "
                "at most 8 chips"
            )
    elif chosen == MIRRORED:
        names = [f"/gpu:{index}" for index in range(len(gpus))]
        names = names or [one.name for one in tf.config.list_logical_devices("CPU")]
        if len(names) < 2:
            raise DataError(
                "mirrored needs two devices or more, and there is one; use --strategy auto, or "
                "--cpu-devices 2 to try it"
            )
        strategy = tf.distribute.MirroredStrategy(names)
    elif chosen == ONE_GPU:
        if not gpus:
            raise DataError("TensorFlow sees no GPU here; use --strategy auto or cpu")
        strategy = tf.distribute.OneDeviceStrategy("/gpu:0")
    else:
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return Devices(
        name=chosen,
        strategy=strategy,
        replicas=int(strategy.num_replicas_in_sync),
        workers=workers,
        worker=worker,
    )


def _automatic(gpus: int, cpu_devices: int) -> str:
    if len(_cluster().get("cluster", {}).get("worker", [])) > 1:
        return MULTI_WORKER
    if os.environ.get("TPU_NAME"):
        return TPU
    if gpus > 1 or cpu_devices > 1:
        return MIRRORED
    return ONE_GPU if gpus else CPU


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError:
        raise DataError(
            "TensorFlow already runs in this process; its CPU can be split at the start only"
        ) from None


def _cluster() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return {}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DataError(f"TF_CONFIG is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("cluster", {}), dict):
        raise DataError("TF_CONFIG must be an object with the keys cluster and task")
    return document


def _place() -> tuple[int, int]:
    document = _cluster()
    cluster, task = document.get("cluster", {}), document.get("task", {})
    hosts = cluster.get("worker")
    if set(cluster) != {"worker"} or not isinstance(hosts, list) or not hosts:
        raise DataError(
            "multi-worker needs TF_CONFIG with a cluster of workers only, for example "
            '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
        )
    index = task.get("index") if isinstance(task, dict) else None
    if task.get("type") != "worker" or not isinstance(index, int) or not 0 <= index < len(hosts):
        raise DataError(
            f"TF_CONFIG's task must be of type worker with an index from 0 to {len(hosts) - 1}"
        )
    return len(hosts), index


def _tpu() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=os.environ.get("TPU_NAME", "local")
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"no TPU can be reached ({reason or type(error).__name__}); on a TPU VM set "
            "TPU_NAME=local and install tensorflow-tpu"
        ) from None
    return tf.distribute.TPUStrategy(resolver)
