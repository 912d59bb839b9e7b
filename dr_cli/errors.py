"""Turns what went wrong into one sentence for the person at the terminal."""

from collections.abc import Mapping
from typing import Final

from dr_cli.invocation import dr

EXIT_FAILURE: Final = 1


class CommandError(Exception):
    """A mistake or a missing thing that a person can put right; the text says how."""


# By name, so that looking at an error imports nothing: if one of these was raised, its module
# is loaded. Their texts are written for people.
_SPEAKING: Final = frozenset(
    {
        "dr_cli.errors.CommandError",
        "dr_experiments.pricing.PriceTableError",
        "dr_experiments.pricing.UnknownPriceError",
        "dr_experiments.records.RecordsError",
        "dr_experiments.study.StudyError",
        "dr_experiments.sweep.journal.JournalError",
        "dr_experiments.sweep.runner.SweepError",
        "dr_local.errors.LocalAwsError",
        "dr_local.publish.UploadError",
        "dr_training.data.faults.DataError",
        "inference_image.model_spec.ModelPackageError",
        "inference_image.settings.SettingsError",
        "constructs_lib.rules.ValidationError",
    }
)
_EXTRA_OF_MODULE: Final[Mapping[str, str]] = {
    "ai_edge_litert": "serving",
    "fastapi": "serving",
    "starlette": "serving",
    "uvicorn": "serving",
    "boto3": "experiments",
    "jinja2": "experiments",
    "matplotlib": "experiments",
    "numpy": "experiments",
    "PIL": "experiments",
    "psutil": "experiments",
    "scipy": "experiments",
    "yaml": "experiments",
    "markdown_it": "experiments",
    "tensorflow": "training",
    "keras": "training",
    "google_crc32c": "data",
    "moto": "local",
    "aws_cdk": "local",
}


def explain(error: BaseException) -> str | None:
    """One sentence for a known error; None for one that is nobody's fault but the program's."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if names & _SPEAKING:
        return _one_line(str(error))
    if isinstance(error, ModuleNotFoundError):
        return _missing_module(error)
    if isinstance(error, OSError) and error.filename:
        reason = (error.strerror or type(error).__name__).lower()
        return f"{error.filename}: {reason}"
    if "botocore.exceptions.BotoCoreError" in names or "botocore.exceptions.ClientError" in names:
        return _aws(error, names)
    return None


def unexpected(error: BaseException) -> str:
    """What is said about an error that was not foreseen."""
    text = _one_line(str(error))
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return (
        f"unexpected error ({detail}); run the same command as `{dr('--debug …')}` to see where, "
        "and report it"
    )


def _missing_module(error: ModuleNotFoundError) -> str | None:
    module = (error.name or "").partition(".")[0]
    if module == "stacks":
        return (
            "this command needs the stacks, which are in a checkout of dr-endpoints; run it there"
        )
    extra = _EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return f"this command needs {module}; install it with: pip install 'dr-endpoints[{extra}]'"


def _aws(error: BaseException, names: set[str]) -> str:
    short = {name.rpartition(".")[2] for name in names}
    if short & {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}:
        return (
            "no AWS credentials were found; set them up with `aws configure`, or run the local "
            f"AWS with `{dr('local up')}`"
        )
    if "NoRegionError" in short:
        return (
            "no local AWS runs from this folder and no AWS region is set; start one with "
            f"`{dr('local up')}`, or set AWS_REGION, for example AWS_REGION=us-east-1"
        )
    if short & {"EndpointConnectionError", "ConnectTimeoutError"}:
        return f"AWS cannot be reached: {_one_line(str(error))}"
    return f"AWS refused: {_one_line(str(error))}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
