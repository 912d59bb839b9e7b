"""What the runners have in common, and which one an environment has."""

from pathlib import Path
from typing import Any, Protocol

from dr_training.study.study_file import FRAMEWORK, REFERRAL, Environment, Study


class Runner(Protocol):
    """Runs one specification to its end."""

    def run(self, spec: dict[str, Any], out: Path) -> dict[str, Any]:
        """Leave `result.json`, `monitor.csv` and logs in `out`; what is in `result.json`.

        A training that fails is a result. `DataError` is raised when there can be none: the
        machine cannot be reached, or no interpreter is there.
        """


def runner_for(study: Study, environment: Environment, *, session: Any = None) -> Runner:
    """The runner of an environment; `session` is a boto3 session for SageMaker."""
    if environment.runner == "ssh":
        from dr_training.study.runners.ssh import SshRunner

        return SshRunner(host=environment.where, settings=study.settings["ssh"])
    if environment.runner == "sagemaker":
        from dr_training.study.runners.sagemaker import SageMakerRunner

        return SageMakerRunner(
            instance_type=environment.where,
            settings=study.settings["sagemaker"],
            session=session,
        )
    from dr_training.study.runners.local import LocalRunner

    return LocalRunner(study.settings.get("python", {}))


def python_key(spec: dict[str, Any]) -> str:
    """What a run's interpreter is listed under in [python]."""
    return str(spec["parameters"].get(FRAMEWORK, REFERRAL))


def failed(spec: dict[str, Any], status: str, reason: str, *, life_s: float) -> dict[str, Any]:
    """A result without a training: the machine never got that far."""
    return {
        "run": spec["run"],
        "scenario": spec["scenario"],
        "repetition": spec["repetition"],
        "status": status,
        "reason": reason,
        "worker": {},
        "life_s": life_s,
        "training_s": 0.0,
    }
