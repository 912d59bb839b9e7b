"""The sentence that a container leaves when it cannot start."""

from pathlib import Path

import pytest

from dr_local.containers import last_sentence, prune_logs


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


def test_only_the_newest_logs_are_kept(tmp_path: Path):
    import os

    for age in range(5):
        path = tmp_path / f"container-dr-{age}.log"
        path.write_text("")
        os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "runtime_server.log").write_text("")
    prune_logs(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "container-dr-0.log",
        "container-dr-1.log",
        "runtime_server.log",
    ]
