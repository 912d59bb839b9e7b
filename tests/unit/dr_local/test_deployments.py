"""Sizes of a deployment, by the platform's published numbers and one stated assumption."""

import pytest

from dr_local.deployments import MIB_PER_VCPU, Deployment


def deployment(**changes: object) -> Deployment:
    values: dict = {
        "endpoint_name": "dr",
        "config_name": "config",
        "variant_name": "main",
        "model_name": "model",
        "image": "image",
        "model_data_url": None,
        "environment": (),
        "memory_mib": 2048,
        "max_concurrency": 5,
        "instance_type": None,
        "instance_count": 1,
        "log_stream_arn": "arn",
        **changes,
    }
    return Deployment(**values)


def realtime(instance_type: str) -> Deployment:
    return deployment(memory_mib=None, instance_type=instance_type)


def test_a_serverless_container_gets_its_share_of_a_processor():
    assert deployment(memory_mib=MIB_PER_VCPU).vcpus == 1.0
    assert deployment(memory_mib=1024).vcpus == pytest.approx(0.5789, abs=1e-4)
    assert deployment(memory_mib=2048).memory_limit_bytes == 2 * 1024**3


@pytest.mark.parametrize(
    ("instance_type", "vcpus", "memory_gib"),
    [("ml.m4.xlarge", 4, 16), ("ml.m5.xlarge", 4, 16), ("ml.c7g.xlarge", 4, 8)],
)
def test_a_realtime_container_gets_the_instance(instance_type: str, vcpus: int, memory_gib: int):
    assert realtime(instance_type).vcpus == vcpus
    assert realtime(instance_type).memory_limit_bytes == memory_gib * 1024**3


def test_rows_above_the_machines_cores_measure_the_machine():
    assert deployment(memory_mib=3072).distinguishable(machine_cores=2)
    assert not deployment(memory_mib=4096).distinguishable(machine_cores=2)
    assert not realtime("ml.m5.xlarge").distinguishable(machine_cores=2)
    assert realtime("ml.m5.xlarge").distinguishable(machine_cores=4)


def test_payload_limits_differ():
    assert deployment().payload_limit_bytes == 4 * 1024**2
    assert realtime("ml.m5.xlarge").payload_limit_bytes == 6 * 1024**2


def test_any_difference_that_a_container_could_notice_makes_another_deployment():
    one = deployment()
    assert one == deployment(log_stream_arn="other")
    for change in ({"config_name": "b"}, {"environment": (("A", "1"),)}, {"image": "b"}):
        assert one != deployment(**change)
