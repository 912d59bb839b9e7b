"""nginx's configuration and what is said where the full layout cannot start."""

import re
from pathlib import Path
from typing import Any

import pytest

from inference_image import full_layout, serve, worker
from inference_image.board import Board
from inference_image.contract import LAYOUT_FULL, LAYOUT_LEAN
from inference_image.settings import Settings
from inference_image.sizing import fitting_workers

GIB = 1024**3


def settings(**environment: str) -> Settings:
    return Settings.from_environment(environment, cpus=2, memory_bytes=4 * GIB)


def configuration(*, as_root: bool = False, host: str = "10.0.0.1", **environment: str) -> str:
    return full_layout.nginx_configuration(
        settings(**environment), address=(host, 9000), folder=Path("/tmp/f"), as_root=as_root
    )


def seconds(text: str, directive: str) -> list[int]:
    return [int(number) for number in re.findall(rf"\b{directive} (\d+)s;", text)]


@pytest.mark.parametrize(
    ("hard", "files", "kept"),
    [(65_536, 4160, 1024), (-1, 4160, 1024), (1088, 1088, 256), (64, 64, 8)],
)
def test_a_quarter_of_the_connections_may_be_kept_ones_to_the_workers(
    hard: int, files: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the limit is now does not matter: nginx raises it.
    monkeypatch.setattr(full_layout.resource, "getrlimit", lambda _: (32, hard))
    text = configuration()
    assert f"\nworker_rlimit_nofile {files};" in text
    assert f" worker_connections {4 * kept}; " in text
    assert f" keepalive {kept};" in text


@pytest.mark.parametrize("limit_s", ["5", "55", "58.5", "120"])
def test_one_time_limit_drives_all_and_none_is_below_the_platforms(limit_s: str) -> None:
    text = configuration(MODEL_SERVER_TIMEOUT=limit_s)
    (read_s,) = seconds(text, "proxy_read_timeout")
    assert read_s >= 60
    assert read_s > float(limit_s)
    assert full_layout.timeout_s(settings(MODEL_SERVER_TIMEOUT=limit_s)) == read_s


def test_connections_live_longer_the_nearer_they_are_to_the_worker() -> None:
    callers_s, workers_s = seconds(configuration(), "keepalive_timeout")
    # Whoever sends must give up first; 60 s is what the platform's proxy keeps a connection.
    assert workers_s < worker._KEEP_ALIVE_S
    assert callers_s > 60


@pytest.mark.parametrize("limit", [str(6 * 1024**2), str(500 * 1024**2)])
def test_the_body_limit_is_above_the_platforms_and_the_services(limit: str) -> None:
    (body,) = re.findall(r"client_max_body_size (\d+);", configuration(DR_MAX_IMAGE_BYTES=limit))
    assert int(body) >= 100 * 1024**2
    assert int(body) > int(limit) * 4 / 3


def test_everything_that_is_written_lies_in_the_folder() -> None:
    text = configuration()
    paths = re.findall(r"^\s*(?:pid|\w+_temp_path) (\S+);", text, re.MULTILINE)
    assert len(paths) == 6
    assert all(path.startswith("/tmp/f/") for path in paths)
    assert "access_log off;" in text
    assert "error_log stderr" in text


def test_no_temporary_folder_at_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**_: Any) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/']")

    monkeypatch.setattr(full_layout.tempfile, "mkdtemp", nowhere)
    monkeypatch.setattr(full_layout.tempfile, "gettempdir", nowhere)
    with pytest.raises(full_layout.LayoutError, match=r"cannot \(No usable .*--tmpfs /tmp"):
        full_layout._make_folder()


def test_it_listens_where_the_service_was_told_to() -> None:
    assert "listen 10.0.0.1:9000 " in configuration()
    assert "listen [::1]:9000 " in configuration(host="::1")


def test_root_stays_root_and_others_are_not_asked() -> None:
    assert configuration(as_root=True).startswith("user root;")
    assert "user " not in configuration()


@pytest.mark.parametrize(
    ("runtime", "layout", "chosen"),
    [
        ("auto", "auto", LAYOUT_LEAN),
        ("litert", "auto", LAYOUT_LEAN),
        ("tensorflow", "auto", LAYOUT_FULL),
        ("tensorflow", "lean", LAYOUT_LEAN),
        ("litert", "full", LAYOUT_FULL),
    ],
)
def test_the_layout_follows_the_runtime_unless_it_is_set(
    runtime: str, layout: str, chosen: str
) -> None:
    assert settings(DR_RUNTIME=runtime, DR_LAYOUT=layout).layout == chosen


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_layout.shutil, "which", lambda *_, **__: None)
    with pytest.raises(full_layout.LayoutError, match=r"needs nginx \(a program\), which"):
        full_layout.find_nginx()
    monkeypatch.setattr(full_layout.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(full_layout.LayoutError, match=r"nginx \(a program\) and gunicorn"):
        full_layout.find_nginx()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '*3 upstream closed, client: 10.0.0.1, request: "POST /invocations?patient=x"',
            "upstream closed",
        ),
        ("bind() to 0.0.0.0:80 failed (13: Permission denied)",) * 2,
    ],
)
def test_nginxs_lines_lose_addresses_and_requests(line: str, message: str) -> None:
    assert full_layout._without_request(line) == message


@pytest.mark.parametrize(
    ("memory_gib", "worker_mib", "wanted", "fits"),
    [
        (4, 80, 2, 2),
        # 700 MiB of TensorFlow and 183 MiB for the largest picture.
        (4, 700, 4, 4),
        (2, 700, 4, 2),
        (1, 700, 4, 1),
        # One always runs: whether it fits, only the kernel knows.
        (0.5, 700, 4, 1),
        (float("inf"), 700, 4, 4),
    ],
)
def test_as_many_workers_as_fit_in_the_memory(
    memory_gib: float, worker_mib: int, wanted: int, fits: int
) -> None:
    memory_bytes = memory_gib * GIB
    chosen = fitting_workers(
        memory_bytes, worker_bytes=worker_mib * 1024**2, pixels=12_000_000, wanted=wanted
    )
    assert chosen == fits


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def test_one_worker_starts_and_the_others_when_its_memory_is_known() -> None:
    log: Any = Log()
    board = Board(4)
    chosen = Settings.from_environment(
        {"DR_SERVING_MODE": "realtime"}, cpus=4, memory_bytes=2.5 * GIB
    )
    assert serve._planned_workers(chosen, board, log) == 1
    board.note_resident(700 * 1024**2)
    assert serve._planned_workers(chosen, board, log) == 2
    assert serve._planned_workers(chosen, board, log) == 2
    (line,) = log.lines
    assert (line["workers"], line["wanted"], line["worker_mib"]) == (2, 4, 700.0)


def test_a_number_of_workers_that_was_set_is_kept() -> None:
    log: Any = Log()
    chosen = Settings.from_environment(
        {"DR_SERVING_MODE": "realtime", "MODEL_SERVER_WORKERS": "4"}, cpus=4, memory_bytes=GIB
    )
    assert serve._planned_workers(chosen, Board(4), log) == 4
    assert log.lines == []
