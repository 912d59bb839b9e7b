"""The parts of `make bench-faults` that decide what it finds, and the page that it writes."""

import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.faults import report
from benchmarks.faults.__main__ import main
from benchmarks.faults.files import _BOXES as BOXES
from benchmarks.faults.files import _wide_number, good_files, mutated
from benchmarks.faults.findings import Findings, Row, share
from benchmarks.faults.ping import probe_ping
from benchmarks.faults.strain import _Kill, _was_in_hand
from benchmarks.generator import Sent, offer
from benchmarks.http_requests import request_bytes
from tests.photograph_files import ENCODINGS
from tests.service_harness import encoded

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers one connection after another; does nothing at all for a while after the first."""

    def __init__(self, *, freeze_s: float = 0.0, answer: bytes = ANSWER) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        self.port = self._listener.getsockname()[1]
        self._freeze_s, self._answer = freeze_s, answer
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                caller.recv(100_000)
                time.sleep(self._freeze_s)
                self._freeze_s = 0.0
                if self._answer:
                    caller.sendall(self._answer)


@pytest.fixture
def servers() -> Iterator[Any]:
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(Server(**options))
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_a_service_that_freezes_is_seen_in_all_the_requests_that_were_due(servers: Any) -> None:
    """Who waits for an answer before the next request sees one slow request and no more."""
    server = servers(freeze_s=0.6)
    outcome = offer(
        server.port, request_bytes(b"x", close=True), rate_per_s=50, seconds=0.5, keep_alive=False
    )
    assert outcome.answered(200) == len(outcome.requests) >= 24
    slow = [spent for spent in outcome.latencies_s(200) if spent > 0.1]
    assert len(slow) > 15
    assert outcome.refused_connections == 0


def test_callers_and_schedules_and_missing_answers_are_counted(servers: Any) -> None:
    request = request_bytes(b"x", close=True)
    closed = offer(servers().port, request, callers=2, seconds=0.3, keep_alive=False)
    assert closed.answered(200) == len(closed.requests) > 2
    mute = offer(servers(answer=b"").port, request, rate_per_s=20, seconds=0.3, keep_alive=False)
    assert mute.statuses() == {"none": len(mute.requests)}
    busy = servers(answer=ANSWER.replace(b"200 OK", b"429 Full"))
    turned_away = offer(busy.port, request, callers=1, seconds=0.1, keep_alive=False)
    assert set(turned_away.statuses()) == {"429"}
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    outcome = offer(port, request, rate_per_s=20, seconds=0.3)
    assert outcome.requests == []
    assert outcome.refused_connections >= 5


def test_a_ping_that_is_not_200_is_told_apart(servers: Any) -> None:
    assert all(spent >= 0 for spent in probe_ping(servers().port, 0.2, 0.05))
    bad = servers(answer=ANSWER.replace(b"200", b"503"))
    assert set(probe_ping(bad.port, 0.2, 0.05)) == {-1.0}


def test_mutants_are_the_same_for_a_seed_and_touch_every_format() -> None:
    corpus = good_files()
    assert len(corpus) > 40
    some = [mutated(corpus, seed=seed) for seed in range(600)]
    assert some == [mutated(corpus, seed=seed) for seed in range(600)]
    sources = {mutant.name.partition(": ")[2].partition(",")[0] for mutant in some}
    assert sources == {file.name for file in corpus}
    changes = {c for mutant in some for c in mutant.name.split(", ")[1:]}
    assert len(changes) == 8
    whole = {file.body for file in corpus}
    assert sum(mutant.body in whole for mutant in some) < 30


def test_every_number_of_64_bits_of_a_format_is_set_beyond_any_file() -> None:
    corpus = {file.name: file.body for file in good_files()}
    for name, order in (("bigtiff", "<"), ("bigtiff big endian", ">")):
        whole = corpus[f"image/tiff {name}"]
        start = struct.unpack_from(order + "Q", whole, 8)[0]
        count = struct.unpack_from(order + "Q", whole, start)[0]
        entries = range(start + 8, start + 8 + 20 * count, 20)
        wanted = {8, start, *(at + 4 for at in entries), *(at + 12 for at in entries)}
        found = set()
        for seed in range(1000):
            chance = random.Random(seed)  # noqa: S311
            data = _wide_number(chance, bytearray(whole), ())
            (at,) = {
                at for at in wanted | {entries.stop} if data[at : at + 8] != whole[at : at + 8]
            }
            assert struct.unpack_from(order + "Q", data, at)[0] >= 2**32
            found.add(at)
        assert found >= wanted
    jp2 = encoded(Image.new("RGB", (64, 64)), "JPEG2000")
    kinds = set()
    for seed in range(100):
        chance = random.Random(seed)  # noqa: S311
        data = _wide_number(chance, bytearray(jp2), ())
        changed = [kind for kind in BOXES if data[: data.find(kind)][-4:] == b"\0\0\0\1"]
        assert len(changed) == 1
        kinds.update(changed)
    assert kinds == {*BOXES}


@pytest.mark.parametrize(
    ("port", "due_s", "done_s", "in_hand"),
    [(7, 1.0, 2.1, True), (8, 1.0, 2.1, False), (7, 2.01, 3.0, False), (7, 1.0, 1.9, False)],
)
def test_only_what_the_killed_worker_held_is_in_hand(
    port: int, due_s: float, done_s: float, in_hand: bool
) -> None:
    kill = _Kill(at_s=2.0, wall_s=0.0, ports=frozenset({7}))
    sent = Sent(due_s, local_port=port, done_s=done_s)
    assert _was_in_hand(sent, kill) == in_hand


def test_quantiles_are_values_that_were_measured() -> None:
    assert share([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert share([1.0], 0.99) == 1.0


def test_the_page_has_the_tables_of_the_record_and_says_what_falls_short() -> None:
    rows = [
        Row(what="a", wanted="b", found="c", met=True),
        Row(what="d", wanted="e", found="f", met=False),
    ]
    found = report.record(
        {"overload": Findings(rows=rows)}, command="x", model="m", load_before=0.5
    )
    found = json.loads(json.dumps(found))
    page = report.into_page(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", found)
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert "| a | b | c | as wanted |" in page
    assert "| d | e | f | **falls short** |" in page
    assert report.into_page(page, found) == page
    with pytest.raises(ValueError, match="must have the lines"):
        report.into_page("no marks", found)


def test_the_layout_with_nginx_is_not_measured_without_its_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "overload-full", "--tensorflow", str(tmp_path / "python")])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert str(tmp_path / "python") in said
    assert "make setup-training" in said


@pytest.mark.parametrize("part", [*report.TITLES])
def test_what_falls_short_fails_the_run_but_for_what_is_there_for_comparison(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = Row(what="a", wanted="b", found="c", met=False)
    good = Row(what="d", wanted="e", found="f", met=True)

    def parts(*_: Any, **__: Any) -> dict[str, Any]:
        found = {name: Findings(rows=[short if name == part else good]) for name in report.TITLES}
        return {name: lambda made=made: made for name, made in found.items()}

    monkeypatch.setattr("benchmarks.faults.__main__.parts", parts)
    written = tmp_path / "faults.json"
    code = main(["--json", str(written), "--tensorflow", sys.executable])
    assert code == int(part != "overload-full-litert")
    assert "[FAIL] a: c" in capsys.readouterr().out
    assert "| a | b | c | **falls short** |" in report.tables(json.loads(written.read_bytes()))


def test_the_page_agrees_with_the_record(repository: Path) -> None:
    page = (repository / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"in one of {len(ENCODINGS)} encodings" in page
    text = (repository / "docs" / "benchmarks" / "faults.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert report.into_page(page, found) == page
    assert list(found["parts"]) == list(report.TITLES)
    assert found["parts"]["overload-full"]["numbers"]["model"] == "mobilenet-saved"
    assert found["parts"]["overload-full-litert"]["numbers"]["model"] == "mobilenet-demo"
