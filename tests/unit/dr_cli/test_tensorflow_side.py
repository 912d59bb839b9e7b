"""Commands that need TensorFlow find it, or say where it could be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dr_cli import tensorflow_side
from dr_cli.errors import CommandError


def test_without_a_training_environment_the_message_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tensorflow_side.TRAINING_PYTHON, raising=False)
    monkeypatch.setattr(tensorflow_side, "_CHECKOUT", tmp_path)
    with pytest.raises(CommandError, match=r"pip install 'dr-endpoints\[training\]'"):
        tensorflow_side.training_python()
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(CommandError, match="make setup-training"):
        tensorflow_side.training_python()
    monkeypatch.setenv(tensorflow_side.TRAINING_PYTHON, str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match="no Python interpreter"):
        tensorflow_side.training_python()


@pytest.mark.parametrize("fault", ["", "broken"])
def test_the_command_becomes_the_other_interpreter_with_its_exit_code(
    fault: str, tmp_path: Path, repository: Path
) -> None:
    # A module of this folder stands in for one that needs TensorFlow.
    (tmp_path / "other_side.py").write_text(
        "import sys\n"
        "from dr_cli.errors import CommandError\n"
        "def work(*, where, fault):\n"
        "    if fault:\n"
        "        raise CommandError(fault)\n"
        "    print(where, input())\n"
        "    return 7\n"
    )
    code = (
        "import sys; from dr_cli.tensorflow_side import hand_over;"
        f"sys.exit(hand_over('other_side:work', {{'where': 'there', 'fault': {fault!r}}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="typed\n",
        cwd=repository,
        env={
            **os.environ,
            tensorflow_side.TRAINING_PYTHON: sys.executable,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(repository)]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if fault:
        assert (done.returncode, done.stderr) == (1, "dr: broken\n")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (7, "there typed\n", "")


def test_where_tensorflow_is_installed_the_function_is_called_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorflow_side.importlib.util, "find_spec", lambda name: name)
    assert tensorflow_side.hand_over("json:dumps", {"obj": 4}) == int(json.dumps(4))
