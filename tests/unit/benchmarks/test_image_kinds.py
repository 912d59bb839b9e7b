"""The experiment on image size: what the kinds are, and how its table is made."""

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.images import kinds
from benchmarks.images.kinds import (
    FOLDER,
    KINDS,
    LEAN,
    OUT,
    Kind,
    Start,
    context,
    merged,
    read,
    started,
    table,
    transfer_s,
    weighed,
)
from dr_experiments.cold_start import ReadyLine

LINE = ReadyLine(imports_ms=2000, model_load_ms=500, warm_up_ms=250, started_to_ready_ms=2900)


def test_a_start_is_split_by_the_containers_own_line() -> None:
    start = Start.of(3.5, LINE, cpu_s=2.8)
    assert start == Start(
        ready_s=3.5,
        cpu_s=2.8,
        process_start_s=0.75,
        imports_s=2.0,
        model_load_s=0.5,
        first_prediction_s=0.25,
    )
    # Two clocks: the parts may add up to more than the whole, and nothing is below zero.
    assert Start.of(2.0, LINE).process_start_s == 0


def test_the_table_has_sizes_means_and_the_modelled_transfer() -> None:
    one, two = Start.of(3.0, LINE, cpu_s=2.5), Start.of(4.0, LINE, cpu_s=2.7)
    kind = Kind(
        name="reduced", measured="2026-11-28", compressed_bytes=300_000_000, on_disk_bytes=10**9,
        starts=(one, two),
    )  # fmt: skip
    cells = [cell.strip() for cell in table([kind]).splitlines()[-1].strip("|").split("|")]
    assert cells[:6] == ["reduced", "300", "1000", "2", "3.50", "2.60"]
    assert cells[6:] == ["0.75", "2.00", "0.50", "0.25", "6.0", "3.0", "1.5"]


def test_a_kind_that_is_measured_again_takes_its_own_place_only(tmp_path: Path) -> None:
    start = (Start.of(3.0, LINE),)
    lean, reduced = (
        Kind(name=name, measured="2026-11-28", compressed_bytes=1, on_disk_bytes=2, starts=start)
        for name in (LEAN, "reduced")
    )
    again = replace(lean, compressed_bytes=9)
    assert merged([lean, reduced], [again]) == [reduced, again]
    assert read(tmp_path / "nothing.json") == []


def test_images_are_built_and_weighed_once_and_started_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    engine: Any = SimpleNamespace(run=lambda *words, **_: done.append(" ".join(words[:1])))
    monkeypatch.setattr(kinds, "build_kind", lambda _, name, *, tag: done.append(f"build {name}"))

    def save(_: Any, tag: str, path: Path) -> Any:
        path.write_bytes(b"")
        return SimpleNamespace(compressed_bytes=3, unpacked_bytes=7)

    monkeypatch.setattr(kinds, "save", save)
    assert weighed(engine, LEAN, tmp_path) == (3, 7)
    assert weighed(engine, LEAN, tmp_path) == (3, 7)
    assert done == [f"build {LEAN}", "load"]

    def start_once(_: Any, tag: str, package: Path) -> Start:
        done.append(tag)
        return Start.of(float(len(done)), LINE)

    done.clear()
    monkeypatch.setattr(kinds, "start_once", start_once)
    found = started(engine, ("reduced", LEAN), tmp_path, starts=2)
    assert done == ["dr-kind:reduced", "dr-kind:lean"] * 3
    assert [start.ready_s for start in found[LEAN]] == [4, 6]  # the first round is not counted


def test_processor_time_is_that_of_the_control_group_or_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "_CGROUPS", tmp_path)
    assert kinds._cpu_s(str(os.getpid())) is None
    assert kinds._cpu_s("no process") is None


def test_the_transfer_is_bytes_over_an_assumed_rate() -> None:
    assert transfer_s(120_000_000, mb_per_s=60) == 2
    with pytest.raises(ValueError, match="above 0 MB/s"):
        transfer_s(1, mb_per_s=0)


def test_each_kind_has_a_dockerfile_that_copies_what_its_context_holds(tmp_path: Path) -> None:
    context(tmp_path)
    assert (tmp_path / "inference_image" / "serve.py").is_file()
    assert list((tmp_path / "inference_image" / "native").glob("fundus-*.so"))
    assert not list(tmp_path.rglob("__pycache__"))
    for name in KINDS:
        if name == LEAN:
            continue
        text = (FOLDER / f"{name}.Dockerfile").read_text()
        sources = re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE)
        assert sources
        assert all((tmp_path / source).exists() for source in sources)
        assert "--require-hashes" in text
    everything = (tmp_path / "everything.txt").read_text()
    serving = (tmp_path / "serving.txt").read_text()
    assert "opencv-python-headless==" in everything
    assert "opencv" not in serving
    assert re.search(r"^tensorflow-cpu==", serving, re.MULTILINE)


def test_a_folder_that_is_no_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kinds.main(["--package", str(tmp_path)]) == 1
    assert "is no model package" in capsys.readouterr().err


def test_the_page_says_what_was_measured(repository: Path) -> None:
    assert table(read(OUT)) in (repository / "docs" / "image.md").read_text("utf-8")
