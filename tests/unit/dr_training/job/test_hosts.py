"""`resourceconfig.json` to `TF_CONFIG`."""

import json
from typing import Any

import pytest

from dr_training.job.faults import JobError
from dr_training.job.hosts import read_hosts, wait_for_names


def _text(current: Any, *hosts: Any, **more: Any) -> str:
    return json.dumps({"current_host": current, "hosts": list(hosts), **more})


def test_one_host_needs_no_cluster() -> None:
    hosts = read_hosts(_text("algo-1", "algo-1", network_interface_name="eth0"))
    assert hosts.is_chief
    assert hosts.tf_config() is None


def test_every_host_has_the_same_order_and_its_own_place() -> None:
    names = ["algo-10", "algo-2", "algo-1"]
    configs = []
    for name in names:
        hosts = read_hosts(_text(name, *names), {"DR_TRAINING_PORT": ""})
        config = json.loads(hosts.tf_config() or "")
        assert config["task"] == {"type": "worker", "index": hosts.worker}
        assert hosts.is_chief == (name == "algo-1")
        configs.append(config["cluster"])
    wanted = {"worker": ["algo-1:2222", "algo-10:2222", "algo-2:2222"]}
    assert configs == [wanted] * 3


def test_the_port_can_be_another_and_a_hosts_own() -> None:
    text = _text("127.0.0.1:4002", "127.0.0.1:4001", "127.0.0.1:4002", "b")
    hosts = read_hosts(text, {"DR_TRAINING_PORT": "3000"})
    assert hosts.addresses == ("127.0.0.1:4001", "127.0.0.1:4002", "b:3000")
    assert hosts.worker == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "one JSON object"),
        ("{}", "hosts must be a list of names; it is None"),
        (_text("a"), "hosts must be a list of names; it is []"),
        (_text("a", "a", 3), "hosts must be a list of names"),
        (_text("a", "a", "a"), "hosts names one twice"),
        (_text("b", "a"), "current_host 'b' is not one of hosts"),
        (_text(None, "a"), "current_host None is not one of hosts"),
        (_text("a b", "a b"), "'a b' is no name of a host"),
        (_text("a/b", "a/b"), "'a/b' is no name of a host"),
        (_text("a:0", "a:0"), "must be a port from 1 to 65535; got '0'"),
        (_text("a:65536", "a:65536"), "must be a port from 1 to 65535"),
        (_text("a" * 300, "a" * 300), "is no name of a host"),
        # What cannot be asked of a name server at all.
        (_text("a..b", "a..b"), "'a..b' is no name of a host"),
        (_text("a." + "b" * 64, "a." + "b" * 64), "is no name of a host"),
    ],
)
def test_a_file_that_does_not_say_the_hosts_is_refused(text: str, said: str) -> None:
    with pytest.raises(JobError, match=r"must be a port|resourceconfig\.json") as found:
        read_hosts(text)
    assert said in str(found.value)
    assert found.value.code == 2


@pytest.mark.parametrize("port", ["0", "70000", "x", "22 ", "-1", "٣"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(JobError, match="DR_TRAINING_PORT must be a port from 1 to 65535; got"):
        read_hosts(_text("a", "a"), {"DR_TRAINING_PORT": port})


def test_names_that_are_not_known_yet_are_waited_for() -> None:
    asked: list[str] = []

    def look_up(name: str) -> str:
        asked.append(name)
        if asked.count("algo-2") < 3:
            raise OSError("not yet")
        return "10.0.0.1"

    slept: list[float] = []
    wait_for_names(["algo-2:2222", "algo-3:2222"], look_up=look_up, sleep=slept.append)
    assert asked == ["algo-2", "algo-2", "algo-2", "algo-3"]
    assert len(slept) == 2


@pytest.mark.parametrize("error", [OSError, UnicodeError])
def test_a_name_that_stays_unknown_is_named(error: type[Exception]) -> None:
    now = [100.0]

    def look_up(name: str) -> str:
        # A name server that does not answer.
        now[0] += 5
        raise error(name)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(JobError, match="host algo-2 has no address after 10 s"):
        wait_for_names(
            ["algo-2:2222"], within_s=10, look_up=look_up, sleep=sleep, clock=lambda: now[0]
        )
    assert 110 <= now[0] <= 117


def test_all_names_together_have_the_time_of_one() -> None:
    now = [0.0]

    def look_up(name: str) -> str:
        now[0] += 4
        if now[0] < 9 or name == "b":
            raise OSError(name)
        return "10.0.0.1"

    with pytest.raises(JobError, match="host b has no address after 10 s"):
        wait_for_names(
            ["a:1", "b:1"],
            within_s=10,
            look_up=look_up,
            sleep=lambda _: None,
            clock=lambda: now[0],
        )
    assert now[0] == 16
