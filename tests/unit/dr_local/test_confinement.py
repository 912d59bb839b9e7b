"""Control groups of both versions, tried before they are trusted."""

from pathlib import Path

import pytest

from dr_local import confinement
from dr_local.confinement import (
    FALLBACK,
    Confinement,
    Controller,
    find_confinement,
    group_name,
    remove_groups,
)


def read(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_limits_of_version_1(tmp_path: Path):
    controller = Controller(version=1, parent=tmp_path)
    held = Confinement(memory=controller, cpu=controller)
    group = held.group("dr-local-a-1", memory_bytes=1024**3, cpu_share=0.58)
    assert read(tmp_path / "dr-local-a-1") == {
        "memory.limit_in_bytes": str(1024**3),
        "memory.memsw.limit_in_bytes": str(1024**3),
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "58000",
    }
    assert group.procs_files == [str(tmp_path / "dr-local-a-1" / "cgroup.procs")]
    assert held.memory_mechanism == held.cpu_mechanism == "cgroup v1"


def test_limits_of_version_2(tmp_path: Path):
    controller = Controller(version=2, parent=tmp_path)
    Confinement(memory=controller, cpu=controller).group("g", memory_bytes=7, cpu_share=1.158)
    assert read(tmp_path / "g") == {
        "memory.max": "7",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.max": "115800 100000",
    }


def test_limits_that_are_not_asked_for_make_no_group(tmp_path: Path):
    controller = Controller(version=2, parent=tmp_path)
    group = Confinement(memory=controller, cpu=controller).group(
        "g", memory_bytes=None, cpu_share=None
    )
    assert (group.memory, group.cpu, group.procs_files) == (None, None, [])
    assert not list(tmp_path.iterdir())


def test_the_fallback_names_itself():
    assert FALLBACK.memory_mechanism == "watcher"
    assert FALLBACK.cpu_mechanism == "stop-and-continue"
    assert FALLBACK.parents == ()


def test_files_that_are_accepted_but_enforce_nothing_are_not_trusted(tmp_path: Path, monkeypatch):
    """A plain folder takes every file that a control group has, and limits nobody."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    monkeypatch.setattr(confinement, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(confinement, "_own_groups", lambda: ({}, "/"))
    monkeypatch.setattr(confinement, "_PROBE_MEMORY_BYTES", 16 * 1024**2)
    assert find_confinement(instance="t") == FALLBACK


def test_a_machine_without_control_groups_uses_the_fallback(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(confinement, "_CGROUP_ROOT", tmp_path / "absent")
    assert find_confinement(instance="t") == FALLBACK


def test_what_this_machine_offers_is_tried_and_cleared_away():
    found = find_confinement(instance="unittest")
    assert found.memory_mechanism in {"cgroup v1", "cgroup v2", "watcher"}
    assert found.cpu_mechanism in {"cgroup v1", "cgroup v2", "stop-and-continue"}
    for parent in found.parents:
        assert not list(parent.glob("dr-local-unittest-*"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("0::/user.slice/a\n", ({}, "/user.slice/a")),
        ("4:memory:/m\n2:cpu,cpuacct:/c\n0::/\n", ({"memory": "/m", "cpu": "/c"}, "/")),
    ],
)
def test_own_groups_are_read_in_both_versions(monkeypatch, lines: str, expected):
    monkeypatch.setattr(Path, "read_text", lambda _: lines)
    versions_1, version_2 = confinement._own_groups()
    assert version_2 == expected[1]
    assert {key: versions_1[key] for key in expected[0]} == expected[0]


def test_groups_of_another_instance_stay(tmp_path: Path):
    mine, other = (tmp_path / group_name(name, "0001") for name in ("mine", "other"))
    mine.mkdir()
    other.mkdir()
    remove_groups([tmp_path, tmp_path / "absent"], instance="mine")
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
