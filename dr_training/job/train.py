"""The step `train`: from the channel `records` to a package, on one host or several.

Checkpoints are written by the chief alone, in the folder that SageMaker brings to S3 while the job
runs and back when it starts again. The hosts share no folder: the others keep a folder of their own
for what the chief sends them (`dr_training.fitting.sharing`), outside of the one that is brought to
S3, where they would overwrite, or delete, what the chief has written.
"""

import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from dr_training.data.preparation import MANIFEST
from dr_training.job.faults import EXIT_ASKED_WRONGLY, EXIT_STOPPED, JobError
from dr_training.job.hosts import Hosts, read_hosts, wait_for_names
from dr_training.job.hyperparameters import Hyperparameters, read_hyperparameters
from dr_training.job.places import TrainingPlaces
from inference_image.training_job import TRAIN, reason_file, write_reason

_MOST_CONFIG_BYTES: Final = 1024 * 1024


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
    if not (places.records / MANIFEST).is_file():
        raise JobError(
            f"the channel records ({places.records}) holds no {MANIFEST}; give it a folder of the "
            "step prepare or of `dr data prepare`, whole to every host",
            EXIT_ASKED_WRONGLY,
        )
    _end_at_sigterm(root)
    _set_cluster(hosts)
    if hosts.is_chief:
        places.checkpoints.mkdir(parents=True, exist_ok=True)
        _train(places, wanted, hosts, places.checkpoints)
    else:
        with tempfile.TemporaryDirectory(prefix="dr-worker-") as own:
            _train(places, wanted, hosts, Path(own))


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
        raise JobError(str(error).replace("--learning-rate", "learning_rate")) from None
    except tf.errors.OpError as error:
        if len(hosts.addresses) == 1:
            raise
        raise JobError(
            f"the other hosts do not answer ({type(error).__name__}): one has ended, and its log "
            "says why, or the security group does not let them talk"
        ) from None
    if hosts.is_chief:
        report = trained.report
        print(
            f"best epoch {report['best_epoch']} of {report['epochs']}, "
            f"{report['devices']['workers']} hosts; results in {places.model}",
            flush=True,
        )


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
