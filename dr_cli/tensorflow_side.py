"""Runs the part of a command that needs TensorFlow: in this environment, or in the training one.

    >>> hand_over("dr_cli.quantise:quantise_package", {"package": "model", "out": "variants"})

The command line and TensorFlow live in two environments of a checkout (`.venv`,
`.venv-training`), whose locked packages differ. `hand_over` calls the function where TensorFlow
can be imported; elsewhere this process becomes the other interpreter, so that signals, terminal
and exit code are those of the command that was typed.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from dr_cli.errors import EXIT_FAILURE, CommandError, explain, unexpected

TRAINING_PYTHON: Final = "DR_TRAINING_PYTHON"
_CHECKOUT: Final = Path(__file__).resolve().parent.parent
_DEBUG: Final = "DR_DEBUG"


def hand_over(function: str, arguments: Mapping[str, Any]) -> int:
    """Call `module:function` with these JSON values where TensorFlow is; gives its exit code.

    The function takes keyword arguments only, and gives an exit code or None. It may import
    TensorFlow, but neither Typer nor what serving the command line needs.

    Raises:
        CommandError: TensorFlow is neither installed here nor in a training environment.
    """
    quiet_tensorflow()
    if importlib.util.find_spec("tensorflow") is None:
        _become(training_python(), function, arguments)
    return _call(function, arguments)


def training_python() -> Path:
    """The interpreter of the training environment.

    Raises:
        CommandError: there is none; the text says how to get one.
    """
    named = os.environ.get(TRAINING_PYTHON)
    if named:
        if not Path(named).is_file():
            raise CommandError(f"{TRAINING_PYTHON} names {named}, which is no Python interpreter")
        return Path(named)
    if not (_CHECKOUT / "pyproject.toml").is_file():
        raise CommandError(
            "this command needs TensorFlow; install it with: pip install 'dr-endpoints[training]'"
        )
    python = _CHECKOUT / ".venv-training" / "bin" / "python"
    if not python.exists():
        raise CommandError(
            "this command needs TensorFlow, which has an environment of its own; make it with "
            f"`make setup-training`, or name its interpreter in {TRAINING_PYTHON}"
        )
    return python


def quiet_tensorflow() -> None:
    """Keep TensorFlow's notes about the machine off the terminal; before it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _become(python: Path, function: str, arguments: Mapping[str, Any]) -> NoReturn:
    environment = dict(os.environ)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(_CHECKOUT), *filter(None, [inherited])])
    if "--debug" in sys.argv[1:2]:
        environment[_DEBUG] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    command = [str(python), "-m", "dr_cli.tensorflow_side", function, json.dumps(arguments)]
    os.execve(python, command, environment)  # noqa: S606 - no shell is wanted


def _call(function: str, arguments: Mapping[str, Any]) -> int:
    module, _, name = function.partition(":")
    return int(getattr(importlib.import_module(module), name)(**arguments) or 0)


def main() -> int:
    """The other side of `hand_over`: errors are one sentence here, too."""
    quiet_tensorflow()
    _, function, arguments = sys.argv
    try:
        return _call(function, json.loads(arguments))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get(_DEBUG):
            raise
        print(f"dr: {explain(error) or unexpected(error)}", file=sys.stderr)
        return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
