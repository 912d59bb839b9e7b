"""The step `train`: from the channel `records` to a package, on one host or several.

Checkpoints are written by the chief alone, in the folder that SageMaker brings to S3 while the job
runs and back when it starts again. The hosts share no folder: the others keep a folder of their own
for what the chief sends them (`dr_training.fitting.sharing`), outside of the one that is brought to
S3, where they would overwrite, or delete, what the chief has written.
"""

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from dr_training.data.faults import DataError
from dr_training.data.pipeline import read_manifest
from dr_training.data.preparation import MANIFEST
from dr_training.fitting.plan import AUTO, MULTI_WORKER
from dr_training.job.faults import EXIT_ASKED_WRONGLY, EXIT_STOPPED, JobError
from dr_training.job.hosts import Hosts, read_hosts, wait_for_names
from dr_training.job.hyperparameters import Hyperparameters, read_hyperparameters
from dr_training.job.places import TrainingPlaces
from dr_training.job.shards import check_shards
from dr_training.remarks import REMARKS
from inference_image.training_job import TRAIN, one_sentence, reason_file, write_reason

_MOST_CONFIG_BYTES: Final = 1024 * 1024
# Canonical status codes (google.rpc.Code), which TensorFlow's errors have as `error_code`.
_OF_THE_OTHER_HOSTS: Final = {
    1: "cancelled",
    4: "deadline exceeded",
    10: "aborted",
    14: "unavailable",
}
_RESOURCE_EXHAUSTED: Final = 8
# How `dr_training.fitting` names what a command line would have: with hyphens.
_OTHER_FOLDER: Final = re.compile(r"name another --out\b[^;.]*--restart\b[^;.]*")
_OPTION: Final = re.compile(r"(?<!\S)--([a-z]+(?:-[a-z]+)*)")


def run(root: Path, arguments: Sequence[str]) -> None:
    """Train as the job's files say, and write package, report and epochs to `model/`.

    Raises:
        JobError: a file of the job is missing or says what cannot be; or the job was told to stop.
        DataError: the records, or what is asked for with them, cannot be used.
    """
    if arguments:
        raise JobError(
            f"train takes no arguments, but hyper-parameters; got {' '.join(arguments)!a:.80}",
            EXIT_ASKED_WRONGLY,
        )
    places = TrainingPlaces(root)
    wanted = read_hyperparameters(_read(places.hyperparameters))
    hosts = read_hosts(_read(places.resource_config), os.environ)
    _check_strategy(wanted, hosts)
    if not (places.records / MANIFEST).is_file():
        raise JobError(
            f"the channel records ({places.records}) holds no {MANIFEST}; give it a folder of the "
            "step prepare or of `dr data prepare`, whole to every host",
            EXIT_ASKED_WRONGLY,
        )
    _end_at_sigterm(root)
    # On every host: the hosts compare the manifest only, and the gate the test part only.
    for part in read_manifest(places.records)["parts"].values():
        check_shards(places.records, part["shards"])
    _set_cluster(hosts)
    if hosts.is_chief:
        places.checkpoints.mkdir(parents=True, exist_ok=True)
        _train(places, wanted, hosts, places.checkpoints)
    else:
        with tempfile.TemporaryDirectory(prefix="dr-worker-") as own:
            _train(places, wanted, hosts, Path(own))


def _check_strategy(wanted: Hyperparameters, hosts: Hosts) -> None:
    """With a strategy of one host, every one of several would train alone, and write as chief."""
    count = len(hosts.addresses)
    if wanted.strategy == AUTO or (wanted.strategy == MULTI_WORKER) == (count > 1):
        return
    few, job = ("several hosts", "one") if count == 1 else ("one host", str(count))
    raise JobError(
        f"hyper-parameters: strategy {wanted.strategy} is for {few}, and the job has {job}; "
        "leave it out",
        EXIT_ASKED_WRONGLY,
    )


def _set_cluster(hosts: Hosts) -> None:
    """`TF_CONFIG` is the job's: one that was set before would name another cluster."""
    config = hosts.tf_config()
    if config is None:
        os.environ.pop("TF_CONFIG", None)
        return
    wait_for_names(hosts.addresses)
    os.environ["TF_CONFIG"] = config


def _train(places: TrainingPlaces, wanted: Hyperparameters, hosts: Hosts, out: Path) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    # How many there are decides in which order sums are added, so it is said, not left open.
    tf.config.threading.set_intra_op_parallelism_threads(wanted.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from dr_training.fitting.loop import TrainingStoppedError
    from dr_training.fitting.run import train_records

    try:
        trained = train_records(
            places.records,
            out,
            wanted.plan,
            strategy=wanted.strategy,
            cpu_devices=wanted.cpu_devices,
            threads=wanted.threads,
            package_id=wanted.package_id,
            command=_command(wanted),
            results=places.model,
            # What the image of this job serves; it holds no LiteRT.
            saved_model=True,
        )
    except TrainingStoppedError as stopped:
        raise JobError(
            f"stopped by SIGTERM in epoch {stopped.epoch}; the state is saved", EXIT_STOPPED
        ) from None
    except FloatingPointError as error:
        raise JobError(as_hyperparameters(str(error))) from None
    except DataError as error:
        raise DataError(
            as_hyperparameters(str(error)), anonymous=as_hyperparameters(error.anonymous)
        ) from None
    except tf.errors.OpError as error:
        sentence = why_tensorflow_ended(error.error_code, len(hosts.addresses))
        if sentence is None:
            raise
        raise JobError(sentence) from None
    if hosts.is_chief:
        report = trained.report
        for remark in report[REMARKS]:
            print(f"note: {remark}", flush=True)
        print(
            f"best epoch {report['best_epoch']} of {report['epochs']}, "
            f"{report['devices']['workers']} hosts; results in {places.model}",
            flush=True,
        )


def why_tensorflow_ended(code: int, hosts: int) -> str | None:
    """A sentence for a status code of TensorFlow; None where the code alone does not say why."""
    if code == _RESOURCE_EXHAUSTED:
        return (
            "the memory is not enough; take a larger instance type, or a smaller batch_size "
            "(TensorFlow: resource exhausted)"
        )
    if hosts == 1 or code not in _OF_THE_OTHER_HOSTS:
        return None
    return (
        f"the other hosts do not answer (TensorFlow: {_OF_THE_OTHER_HOSTS[code]}): one has ended, "
        "and its log says why, or the security group does not let them talk"
    )


def as_hyperparameters(text: str) -> str:
    """A sentence for who typed `dr model train`, for who started a job."""
    named = _OTHER_FOLDER.sub("name another prefix for the checkpoints", text)
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), named)


def _command(wanted: Hyperparameters) -> str:
    """What to type to do the same elsewhere, for the package's provenance."""
    plan = wanted.plan
    usual = type(plan)(network=plan.network).as_document()
    words = ["dr model train records --out model --network", plan.network]
    for name, value in plan.as_document().items():
        if value == usual[name]:
            continue
        if name == "augment":
            words.append("--no-augment")
        else:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join([*words, "--threads", str(wanted.threads)])


def _end_at_sigterm(root: Path) -> None:
    """Before the first epoch and after the last; within, the training loop saves and says so.

    The process ends in the handler: an exception there could be swallowed, see
    `inference_image.stopping`.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        sentence = (
            "stopped by SIGTERM before the first epoch or after the last one; what was saved "
            "before is as it was"
        )
        write_reason(reason_file(root, TRAIN), sentence)
        # Not `print`: the step may just be printing, and its stream cannot be entered twice.
        with contextlib.suppress(OSError):
            os.write(2, f"job {TRAIN}: {one_sentence(sentence)}\n".encode())
        os._exit(EXIT_STOPPED)

    signal.signal(signal.SIGTERM, end)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_CONFIG_BYTES + 1)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise JobError(f"{path} cannot be read: {why}", EXIT_ASKED_WRONGLY) from None
    if len(content) > _MOST_CONFIG_BYTES:
        raise JobError(f"{path} is larger than {_MOST_CONFIG_BYTES} bytes", EXIT_ASKED_WRONGLY)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise JobError(f"{path} is not UTF-8", EXIT_ASKED_WRONGLY) from None
