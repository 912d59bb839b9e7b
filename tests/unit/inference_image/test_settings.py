"""Settings from the environment, CPUs from the control group."""

import re
from pathlib import Path

import pytest

from inference_image import contract
from inference_image.settings import VARIABLES, Settings, SettingsError
from inference_image.sizing import (
    available_cpus,
    available_memory_bytes,
    default_threads,
    default_workers,
)


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = Settings.from_environment({}, cpus=4.0)
    assert settings.model_dir == Path("/opt/ml/model")
    assert (settings.bind_host, settings.port) == ("0.0.0.0", 8080)  # noqa: S104
    assert (settings.workers, settings.threads) == (4, 1)
    assert settings.timeout_s < 60
    assert 12_000_000 <= settings.max_image_pixels <= 60_000_000
    assert settings.operating_point is None
    assert settings.batch is False


@pytest.mark.parametrize(
    ("mode", "cpus", "workers", "threads"),
    [
        ("serverless", 3.4, 1, 3),
        ("local", 2.0, 1, 2),
        ("realtime", 2.0, 2, 1),
        ("realtime", 0.58, 1, 1),
        ("realtime", 3.7, 3, 1),
    ],
)
def test_workers_and_threads_fill_the_cpus_once(
    mode: str, cpus: float, workers: int, threads: int
) -> None:
    settings = Settings.from_environment({"DR_SERVING_MODE": mode}, cpus=cpus)
    assert (settings.workers, settings.threads) == (workers, threads)


@pytest.mark.parametrize(
    ("environment", "cpus", "threads_alone"),
    [
        ({}, 2.0, 2),
        ({}, 1.9, 2),
        ({}, 0.5, 1),
        ({}, 8.0, 4),
        ({"DR_SERVING_MODE": "serverless"}, 6.0, 6),
        ({"DR_THREADS_ALONE": "1"}, 8.0, 1),
        ({"DR_THREADS_ALONE": "6"}, 8.0, 6),
    ],
)
def test_a_request_that_is_alone_gets_the_cpus(
    environment: dict[str, str], cpus: float, threads_alone: int
) -> None:
    assert Settings.from_environment(environment, cpus=cpus).threads_alone == threads_alone


def test_what_is_set_wins() -> None:
    settings = Settings.from_environment(
        {"MODEL_SERVER_WORKERS": "3", "DR_THREADS": "2", "SAGEMAKER_BATCH": "TRUE"}, cpus=8
    )
    assert (settings.workers, settings.threads, settings.batch) == (3, 2, True)


@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("SAGEMAKER_BIND_TO_PORT", "http", "a whole number"),
        ("SAGEMAKER_BIND_TO_PORT", "70000", "between 0 and 65535"),
        ("MODEL_SERVER_WORKERS", "0", "between 1 and 256"),
        ("MODEL_SERVER_WORKERS", "many", "a whole number"),
        ("MODEL_SERVER_TIMEOUT", "nan", "between"),
        ("MODEL_SERVER_TIMEOUT", "-1", "between"),
        ("DR_QUEUE_LIMIT", "1.5", "a whole number"),
        ("DR_MAX_IMAGE_PIXELS", "999999999", "between"),
        ("DR_MAX_IMAGES", "0", "between 1 and 1000"),
        ("DR_MAX_REQUEST_PIXELS", "1e9", "a whole number"),
        ("DR_SERVING_MODE", "batch", "one of serverless, realtime, local"),
        ("DR_LOG_LEVEL", "verbose", "one of debug"),
        ("SAGEMAKER_BATCH", "maybe", "true or false"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: str, fragment: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Settings.from_environment({name: value}, cpus=1)
    assert name in str(refusal.value)
    assert fragment in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MODEL_SERVER_WORKERS", "1_0"),
        ("MODEL_SERVER_WORKERS", "\u0663"),
        ("MODEL_SERVER_TIMEOUT", "5_0"),
        ("MODEL_SERVER_TIMEOUT", "\uff15"),
    ],
)
def test_what_python_alone_takes_for_a_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be a .*number; it is '{text}'"):
        Settings.from_environment({name: text})


def test_auto_may_be_written_as_other_words_may() -> None:
    assert Settings.from_environment({"MODEL_SERVER_WORKERS": "AUTO"}, cpus=3).workers == 3


def test_a_batch_is_given_the_time_and_the_room_that_its_platform_has() -> None:
    """A refusal fails the whole job; the platform waits for 600 s and sends at most 100 at once."""
    usual, batch = (
        Settings.from_environment({"SAGEMAKER_BATCH": value}, cpus=1) for value in ("", "true")
    )
    assert (usual.timeout_s, usual.queue_limit) == (55, 64)
    assert (batch.timeout_s, batch.queue_limit) == (595, 100)
    chosen = {"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "30", "DR_QUEUE_LIMIT": "2"}
    settings = Settings.from_environment(chosen, cpus=1)
    assert (settings.timeout_s, settings.queue_limit) == (30, 2)


def test_serverless_has_one_worker() -> None:
    environment = {"DR_SERVING_MODE": "serverless", "MODEL_SERVER_WORKERS": "2"}
    with pytest.raises(SettingsError, match="MODEL_SERVER_WORKERS must be 1"):
        Settings.from_environment(environment, cpus=4)


@pytest.mark.parametrize(
    ("memory_mib", "workers", "pixels"),
    [
        (512, "1", 13_893_632),
        (128, "1", 12_000_000),
        (1024, "1", 47_448_064),
        (2048, "1", 60_000_000),
        (2048, "2", 47_448_064),
    ],
)
def test_the_largest_picture_follows_the_memory(memory_mib: int, workers: str, pixels: int) -> None:
    memory = memory_mib * 2**20
    environment = {"MODEL_SERVER_WORKERS": workers}
    settings = Settings.from_environment(environment, cpus=2, memory_bytes=memory)
    assert settings.max_image_pixels == pixels
    chosen = {**environment, "DR_MAX_IMAGE_PIXELS": "80000000"}
    settings = Settings.from_environment(chosen, cpus=2, memory_bytes=memory)
    assert settings.max_image_pixels == 80_000_000


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"memory.max": "1073741824\n"}, "0::/\n", 1073741824),
        ({"memory.max": "max\n"}, "0::/\n", 2**34),
        ({"a/memory.max": "4096\n", "a/b/memory.max": "max\n"}, "0::/a/b\n", 4096),
        ({"memory/x/memory.limit_in_bytes": "8192\n"}, "5:memory:/x\n", 8192),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "5:memory:/\n", 2**34),
        ({}, "", 2**34),
    ],
)
def test_the_tightest_memory_limit_counts(
    tmp_path: Path, files: dict[str, str], own: str, expected: int
) -> None:
    root = write(tmp_path / "cgroup", files)
    self_cgroup = tmp_path / "self"
    self_cgroup.write_text(own, encoding="ascii")
    found = available_memory_bytes(cgroup_root=root, self_cgroup=self_cgroup, physical_bytes=2**34)
    assert found == expected


def test_every_environment_name_of_the_contract_is_a_variable_and_documented(
    repository: Path,
) -> None:
    names = {value for name, value in vars(contract).items() if name.startswith("ENV_")}
    assert {row.name for row in VARIABLES} == names
    table = (repository / "docs" / "settings.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `([A-Z_]+)` \| (.+?) \|", table, flags=re.MULTILINE))
    assert set(documented) == names
    for row in VARIABLES:
        assert f"| `{row.name}` | {row.default} | {row.meaning} |" in table


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("files", "own", "affinity", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, "0::/\n", 48, 2.0),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 48, 48.0),
        ({"a/b/cpu.max": "50000 100000\n"}, "0::/a/b\n", 4, 0.5),
        ({"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 4, 1.0),
        (
            {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            "4:cpu,cpuacct:/\n",
            8,
            1.5,
        ),
        (
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "25000\n",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            "4:cpu,cpuacct:/x\n1:name=systemd:/y\n",
            8,
            0.25,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "", 2, 2.0),
        ({"cpu.max": "800000 100000\n"}, "0::/\n", 2, 2.0),
        # Fractions, an own group without a file, limits inside one another in both hierarchies.
        ({"cpu.max": "33333 100000\n"}, "0::/\n", 4, 0.33333),
        ({"cpu.max": "150 100000\n"}, "0::/\n", 4, 0.01),
        ({"cpu.max": "250000\n"}, "0::/\n", 4, 4.0),
        ({"cpu.max": "0 100000\n"}, "0::/\n", 4, 4.0),
        ({"cpu.max": "50000 0\n"}, "0::/\n", 4, 4.0),
        ({"cpu.max": "-1 100000\n"}, "0::/\n", 4, 4.0),
        ({"cpu.max": "²00000 100000\n"}, "0::/\n", 4, 4.0),
        ({"a/cpu.max": "70000 100000\n"}, "0::/a/b/c\n", 4, 0.7),
        ({"cpu.max": "50000 100000\n", "a/cpu.max": "max 100000\n"}, "0::/a\n", 4, 0.5),
        (
            {
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "cpu/a/cpu.cfs_quota_us": "60000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "cpu/a/b/cpu.cfs_quota_us": "90000\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
            },
            "4:cpu,cpuacct:/a/b\n0::/elsewhere\n",
            8,
            0.6,
        ),
        ({"cpu/cpu.cfs_quota_us": "60000\n"}, "4:cpu,cpuacct:/\n", 8, 8.0),
        # A name may be any text, also with a colon, a space or no ASCII.
        ({"ä: b/cpu.max": "20000 100000\n"}, "0::/ä: b\n", 2, 0.2),
        ({"cpu.max": "garbage"}, "0::/../..\n", 3, 3.0),
        ({}, "", 1, 1.0),
    ],
)
def test_the_tightest_cpu_limit_counts(
    tmp_path: Path, files: dict[str, str], own: str, affinity: int, expected: float
) -> None:
    root = write(tmp_path / "cgroup", files) if files else tmp_path / "absent"
    self_cgroup = tmp_path / "self"
    self_cgroup.write_text(own, encoding="utf-8")
    cpus = available_cpus(cgroup_root=root, self_cgroup=self_cgroup, affinity=affinity)
    assert cpus == expected


def test_what_cannot_be_read_is_no_limit(tmp_path: Path) -> None:
    """A folder in a file's place, and a group whose name is no text at all."""
    root = tmp_path / "cgroup"
    (root / "cpu.max").mkdir(parents=True)
    (root / "memory.max").write_bytes(b"\xff\xfe")
    self_cgroup = tmp_path / "self"
    self_cgroup.write_bytes(b"0::/\xff\xfe\n")
    assert available_cpus(cgroup_root=root, self_cgroup=self_cgroup, affinity=3) == 3.0
    found = available_memory_bytes(cgroup_root=root, self_cgroup=self_cgroup, physical_bytes=2**34)
    assert found == 2**34


def test_this_machine_has_some_cpu() -> None:
    assert available_cpus() > 0


@pytest.mark.parametrize(("cpus", "workers"), [(0.3, 1), (1.9, 1), (2.0, 2), (47.5, 47)])
def test_less_than_a_cpu_is_one_worker(cpus: float, workers: int) -> None:
    assert default_workers(cpus, one_request_at_a_time=False) == workers
    assert default_workers(cpus, one_request_at_a_time=True) == 1
    assert default_threads(cpus, workers) >= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"prometheus"}),
        ("none", set()),
        ("EMF", {"emf"}),
        ("prometheus, emf", {"prometheus", "emf"}),
    ],
)
def test_metrics_are_chosen_by_name(text: str, expected: set[str]) -> None:
    assert Settings.from_environment({"DR_METRICS": text}).metrics == expected


@pytest.mark.parametrize("text", ["statsd", "none,emf", "emf,,prometheus", ","])
def test_metrics_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="DR_METRICS must be any of prometheus, emf"):
        Settings.from_environment({"DR_METRICS": text})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DR_MAX_IMAGE_PIXEL", "DR_MAX_IMAGE_PIXELS"),
        ("DR_LOGLEVEL", "DR_LOG_LEVEL"),
        ("MODEL_SERVER_WORKER", "MODEL_SERVER_WORKERS"),
    ],
)
def test_a_name_that_is_misspelt_is_refused(name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not a setting; {meant} is meant"):
        Settings.from_environment({name: "1"})


@pytest.mark.parametrize(
    "name", ["DR_SERVICE_HOST", "DR_PORT", "DR_SHARED", "DR_LOG_LEVEL", "MY_DR_LOG_LEVELS"]
)
def test_names_of_others_are_left_alone(name: str) -> None:
    assert Settings.from_environment({name: "info"}).log_level == "info"
