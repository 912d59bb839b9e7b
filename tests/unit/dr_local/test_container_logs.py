"""The sentence that a container leaves when it cannot start."""

from pathlib import Path

import pytest

from dr_local.containers import last_sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ('{"level": "error", "message": "no model.json in /x"}\n', "no model.json in /x"),
        ('Traceback (most recent call last):\n  File "x"\nValueError: bad\n', "ValueError: bad"),
        ("{broken json\n", "{broken json"),
        ("[1]\n", "[1]"),
        ("x" * 2000, "x" * 600),
    ],
)
def test_the_last_line_speaks(tmp_path: Path, text: str, sentence: str):
    log = tmp_path / "log"
    log.write_text(text)
    assert last_sentence(log) == sentence


def test_no_log_no_sentence(tmp_path: Path):
    assert last_sentence(tmp_path / "absent") == ""
