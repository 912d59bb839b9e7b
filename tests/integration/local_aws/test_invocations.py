"""InvokeEndpoint through the ordinary boto3 client, at the edges of the platform's rules."""

import gzip
import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dr_local.lifecycle import LocalAws
from dr_local.process_tree import descendants
from tests.integration.local_aws.endpoints import (
    BUCKET,
    Deploy,
    Endpoint,
    realtime,
    serverless,
    wait_until,
)

MIB = 1024**2


class TestAnswer:
    def test_an_endpoint_that_was_never_deployed_is_a_validation_error(self, local: LocalAws):
        absent = Endpoint(name="dr-absent", local=local, runtime_url=local.runtime_url)
        error = absent.fails()
        assert error["Exception"] == "ValidationError"
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert error["Error"]["Message"] == "Endpoint dr-absent of account 123456789012 not found."

    def test_the_answer_comes_from_the_bytes_in_the_local_bucket(self, deploy: Deploy, package):
        from inference_image.model_spec import load_model_spec

        model_dir = package("the-bytes")
        endpoint = deploy(model_dir=model_dir)
        assert endpoint.facts()["model"]["sha256"] == load_model_spec(model_dir).sha256

    def test_headers_reach_the_container_and_come_back(self, deploy: Deploy):
        answer = deploy().invoke(
            b"12345",
            ContentType="image/jpeg",
            Accept="application/json",
            CustomAttributes="explain=gradcam",
            InferenceId="case-7",
        )
        facts = json.loads(answer["Body"])
        assert facts["body_bytes"] == 5
        assert facts["headers"]["content-type"] == "image/jpeg"
        assert facts["headers"]["accept"] == "application/json"
        assert facts["headers"]["x-amzn-sagemaker-custom-attributes"] == "explain=gradcam"
        assert facts["headers"]["x-amzn-sagemaker-inference-id"] == "case-7"
        assert "authorization" not in facts["headers"]
        assert answer["ContentType"] == "application/json"
        assert answer["CustomAttributes"] == "answered=yes"
        assert answer["InvokedProductionVariant"] == "main"

    def test_the_container_has_the_environment_of_the_model_and_nobodys_keys(
        self, deploy: Deploy, monkeypatch
    ):
        environment = deploy(
            environment={"DR_SERVING_MODE": "serverless", "DR_BIND_HOST": "192.0.2.1"}
        ).facts()["environment"]
        assert environment["DR_SERVING_MODE"] == "serverless"
        # The platform's own settings win, or a model could listen on every interface.
        assert environment["DR_BIND_HOST"] == "127.0.0.1"
        assert not [name for name in environment if name.startswith("AWS_")]

    def test_cold_then_warm_with_the_three_latencies(self, deploy: Deploy):
        endpoint = deploy()
        cold, warm = (endpoint.invoke()["ResponseMetadata"]["HTTPHeaders"] for _ in range(2))
        assert cold["x-dr-local-cold-start"] == "true"
        assert warm["x-dr-local-cold-start"] == "false"
        setup_ms = float(cold["x-dr-local-model-setup-ms"])
        assert setup_ms > 0
        # A cold start is part of the overhead, not of the model's time.
        assert float(cold["x-dr-local-overhead-latency-ms"]) >= setup_ms
        assert float(cold["x-dr-local-model-latency-ms"]) < setup_ms
        assert float(warm["x-dr-local-model-setup-ms"]) == 0
        assert float(cold["x-dr-local-start-to-first-prediction-ms"]) > 0
        assert float(cold["x-dr-local-memory-rss-mib"]) > 5

    def test_metrics_list_the_container_with_its_memory(self, deploy: Deploy):
        endpoint = deploy(variant=serverless(memory_mib=2048))
        endpoint.invoke()
        metrics = endpoint.local.metrics()
        entry = metrics["endpoints"][endpoint.name]
        (container,) = entry["containers"]
        assert container["memory_rss_mib"] > 5
        assert container["start_to_first_prediction_ms"] >= container["boot_ms"] > 0
        assert entry["vcpus"] == pytest.approx(2048 / 1769, abs=1e-3)
        assert [r for r in metrics["invocations"] if r["endpoint"] == endpoint.name]

    def test_cloudwatch_receives_the_platforms_metrics(self, deploy: Deploy):
        endpoint = deploy()
        endpoint.invoke()
        cloudwatch = endpoint.local.client("cloudwatch")

        def names() -> set[str]:
            found = cloudwatch.list_metrics(
                Namespace="AWS/SageMaker",
                Dimensions=[{"Name": "EndpointName", "Value": endpoint.name}],
            )
            return {metric["MetricName"] for metric in found["Metrics"]}

        wanted = {"Invocations", "ModelLatency", "OverheadLatency", "ModelSetupTime"}
        assert wait_until(lambda: names() >= wanted)


class TestRefusals:
    @pytest.mark.parametrize(
        ("parameters", "said"),
        [
            ({"TargetModel": "a.tar.gz"}, "TargetModel"),
            ({"TargetVariant": "other"}, "Variant other not found"),
            ({"TargetContainerHostname": "box"}, "TargetContainerHostname"),
            ({"InferenceComponentName": "part"}, "InferenceComponentName"),
        ],
    )
    def test_what_the_endpoint_does_not_have_is_a_validation_error(
        self, deploy: Deploy, parameters, said
    ):
        error = deploy().fails(**parameters)
        assert error["Exception"] == "ValidationError"
        assert said in error["Error"]["Message"]

    @pytest.mark.parametrize("value", ["explain=\u00e9", "x" * 1025])
    def test_a_header_that_the_platform_refuses_is_a_validation_error(
        self, deploy: Deploy, value: str
    ):
        endpoint = deploy()
        url = f"{endpoint.local.runtime_url}/endpoints/{endpoint.name}/invocations"
        request = urllib.request.Request(
            url,
            data=b"x",
            headers={"X-Amzn-SageMaker-Custom-Attributes": value},
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=30)
        assert refusal.value.code == 400
        assert "printable ASCII" in refusal.value.read().decode()

    def test_serverless_takes_4_mib_and_not_a_byte_more(self, deploy: Deploy):
        endpoint = deploy()
        assert endpoint.facts(body=b"x" * 4 * MIB)["body_bytes"] == 4 * MIB
        error = endpoint.fails(b"x" * (4 * MIB + 1))
        assert error["Exception"] == "ValidationError"
        assert "oversize body" in error["Error"]["Message"]

    def test_realtime_takes_6_mib_and_not_a_byte_more(self, deploy: Deploy):
        endpoint = deploy(variant=realtime())
        assert endpoint.facts(body=b"x" * 6 * MIB)["body_bytes"] == 6 * MIB
        error = endpoint.fails(b"x" * (6 * MIB + 1))
        assert error["Error"]["Code"] == "413"
        assert error["Error"]["Message"] == f"HTTP content length exceeded {6 * MIB} bytes."

    def test_an_answer_over_the_limit_is_a_model_error(self, deploy: Deploy):
        error = deploy().fails({"answer_bytes": 4 * MIB + 1})
        assert error["Exception"] == "ModelError"
        assert "longer than" in error["OriginalMessage"]

    def test_streaming_is_refused_in_words(self, deploy: Deploy, local: LocalAws):
        runtime = local.client("sagemaker-runtime")
        with pytest.raises(runtime.exceptions.ClientError, match="exist on AWS only"):
            runtime.invoke_endpoint_with_response_stream(EndpointName=deploy().name, Body=b"x")


class TestModelError:
    @pytest.mark.parametrize(
        ("status", "party"), [(400, "client"), (415, "client"), (429, "client"), (500, "server")]
    )
    def test_carries_the_containers_status_and_text(self, deploy: Deploy, status, party):
        error = deploy().fails({"status": status, "text": '{"title": "no"}'})
        assert error["Exception"] == "ModelError"
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert error["OriginalStatusCode"] == status
        assert error["OriginalMessage"] == '{"title": "no"}'
        assert error["LogStreamArn"].startswith(
            "arn:aws:logs:us-east-1:123456789012:log-group:/aws/sagemaker/Endpoints/dr-test-"
        )
        assert f"Received {party} error ({status}) from primary" in error["Error"]["Message"]

    def test_a_dropped_connection(self, deploy: Deploy):
        endpoint = deploy()
        before = endpoint.facts()["pid"]
        error = endpoint.fails({"close": True})
        assert error["Exception"] == "ModelError"
        assert error["OriginalStatusCode"] == 0
        assert error["OriginalMessage"] == "The container closed the connection without an answer."
        assert endpoint.facts()["pid"] == before

    @pytest.mark.parametrize("variant", [serverless(), realtime()], ids=["serverless", "realtime"])
    def test_a_container_that_ends_is_replaced(self, deploy: Deploy, variant):
        endpoint = deploy(variant=variant)
        before = endpoint.facts()["pid"]
        error = endpoint.fails({"exit": 3})
        assert error["OriginalMessage"] == "The container ended with exit code 3."
        assert endpoint.facts()["pid"] != before

    def test_out_of_memory_says_so(self, deploy: Deploy):
        endpoint = deploy(variant=serverless(memory_mib=1024))
        before = endpoint.facts()["pid"]
        error = endpoint.fails({"allocate_mib": 1200, "hold_s": 2})
        assert error["Exception"] == "ModelError"
        assert "ran out of memory: it may use 1024 MB" in error["OriginalMessage"]
        assert endpoint.facts()["pid"] != before

    def test_below_the_memory_limit_nothing_happens(self, deploy: Deploy):
        endpoint = deploy(variant=serverless(memory_mib=1024))
        endpoint.invoke({"allocate_mib": 700, "hold_s": 0.3})
        (container,) = endpoint.containers()
        assert container["running"]
        assert container["memory_rss_mib"] > 700

    def test_too_slow_ends_after_the_limit(self, deploy: Deploy, another_runtime):
        url, _, _ = another_runtime("--invocation-timeout-s", "1")
        endpoint = deploy(runtime_url=url)
        before = endpoint.facts()["pid"]
        begin = time.monotonic()
        error = endpoint.fails({"sleep_s": 20})
        assert 1 <= time.monotonic() - begin < 5
        assert error["Exception"] == "ModelError"
        assert error["OriginalStatusCode"] == 0
        assert "timed out while waiting for a response" in error["OriginalMessage"]
        # It is still busy, and a serverless container serves one request at a time.
        assert endpoint.facts()["pid"] != before


class TestConcurrency:
    def test_serverless_serves_one_request_per_container(self, deploy: Deploy):
        endpoint = deploy(variant=serverless(max_concurrency=2))
        endpoint.invoke()
        with ThreadPoolExecutor(2) as threads:
            slow = threads.submit(endpoint.invoke, {"sleep_s": 1.5})
            endpoint.wait_until_busy()
            second = endpoint.invoke()
            slow_container = slow.result()["ResponseMetadata"]["HTTPHeaders"]
        headers = second["ResponseMetadata"]["HTTPHeaders"]
        assert headers["x-dr-local-cold-start"] == "true"
        assert headers["x-dr-local-container"] != slow_container["x-dr-local-container"]

    def test_above_max_concurrency_it_throttles(self, deploy: Deploy):
        endpoint = deploy(variant=serverless(max_concurrency=1))
        endpoint.invoke()
        with ThreadPoolExecutor(1) as threads:
            slow = threads.submit(endpoint.invoke, {"sleep_s": 1.0})
            endpoint.wait_until_busy()
            error = endpoint.fails()
            slow.result()
        assert error["Error"]["Code"] == "ThrottlingException"
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 429
        assert endpoint.facts()["pid"]

    def test_realtime_serves_many_requests_in_one_container(self, deploy: Deploy):
        endpoint = deploy(variant=realtime())
        barrier = threading.Barrier(6)

        def invoke(_: int) -> str:
            barrier.wait()
            answer = endpoint.invoke({"sleep_s": 0.3})
            return answer["ResponseMetadata"]["HTTPHeaders"]["x-dr-local-container"]

        with ThreadPoolExecutor(6) as threads:
            used = set(threads.map(invoke, range(6)))
        assert len(used) == 1
        assert len(endpoint.containers()) == 1


class TestStart:
    def test_the_sentence_of_a_failed_start_is_in_the_error(self, deploy: Deploy):
        error = deploy(environment={"FAKE_START": "fail"}).fails()
        assert error["Exception"] == "ModelError"
        assert error["OriginalMessage"] == "The container did not start: the model has no graph"

    def test_a_start_that_hangs_ends_at_the_limit(self, deploy: Deploy, another_runtime):
        url, process, _ = another_runtime("--startup-timeout-s", "2")
        endpoint = deploy(environment={"FAKE_START": "hang"}, runtime_url=url)
        error = endpoint.fails()
        assert "not ready within 2 s; its last words: still loading" in error["OriginalMessage"]
        assert not descendants(process.pid)

    @pytest.mark.parametrize("damage", ["truncated", "noise", "escape", "other package", "absent"])
    def test_a_damaged_package_never_serves(
        self, deploy: Deploy, package, local: LocalAws, tmp_path: Path, damage
    ):
        from inference_image.model_package import pack_model

        archive = tmp_path / "model.tar.gz"
        spec = pack_model(package("whole"), archive)
        data = archive.read_bytes()
        if damage == "truncated":
            data = data[: len(data) // 2]
        elif damage == "noise":
            data = b"\x1f\x8b" + bytes(range(256)) * 4
        elif damage == "escape":
            data = _archive_with("../outside.txt")
        elif damage == "other package":
            pack_model(package("other"), archive)
            data = archive.read_bytes()
        key = f"damaged/{damage.replace(' ', '-')}/{spec.sha256}.tar.gz"
        if damage != "absent":
            local.client("s3").put_object(Bucket=BUCKET, Key=key, Body=data)
        endpoint = deploy(model_data_url=f"s3://{BUCKET}/{key}")
        for _ in range(2):
            error = endpoint.fails()
            assert error["Exception"] == "ModelError"
            assert key in error["OriginalMessage"]
        assert not list(local.state_dir.rglob("outside.txt"))
        assert not endpoint.containers()


def _archive_with(name: str) -> bytes:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    return gzip.compress(buffer.getvalue())


class TestUpdates:
    def test_a_new_model_answers_at_once_under_the_same_name(self, deploy: Deploy, package):
        endpoint = deploy(model_dir=package("first"))
        first = endpoint.facts()
        for text, suffix in (("second", ""), ("third", "Hashed"), ("fourth", "Hashed2")):
            deploy(name=endpoint.name, model_dir=package(text), suffix=suffix)
            then = endpoint.facts()
            assert then["model"]["sha256"] != first["model"]["sha256"]
            assert then["pid"] != first["pid"]
            first = then
        wait_until(lambda: len(endpoint.containers()) == 1)

    def test_old_containers_finish_their_request_first(self, deploy: Deploy, package):
        endpoint = deploy(model_dir=package("old"))
        old = endpoint.facts()
        with ThreadPoolExecutor(1) as threads:
            slow = threads.submit(endpoint.invoke, {"sleep_s": 1.5})
            endpoint.wait_until_busy()
            deploy(name=endpoint.name, model_dir=package("new"))
            assert endpoint.facts()["model"] != old["model"]
            assert slow.result()["ResponseMetadata"]["HTTPStatusCode"] == 200
        wait_until(lambda: not Path(f"/proc/{old['pid']}").exists())

    def test_a_deleted_endpoint_is_gone_and_its_container_too(self, deploy: Deploy):
        endpoint = deploy(variant=realtime())
        pid = endpoint.facts()["pid"]
        endpoint.local.client("cloudformation").delete_stack(StackName=endpoint.name)
        assert endpoint.fails()["Exception"] == "ValidationError"
        wait_until(lambda: not Path(f"/proc/{pid}").exists())


class TestSizes:
    def test_a_small_serverless_container_sees_one_processor(self, deploy: Deploy):
        assert deploy(variant=serverless(memory_mib=1024)).facts()["cpus"] == 1

    def test_its_share_of_the_processor_is_kept(self, deploy: Deploy):
        # 1024 / 1769 = 0.58 of a processor: 0.5 s of work take at least 0.8 s.
        endpoint = deploy(variant=serverless(memory_mib=1024))
        endpoint.invoke()
        begin = time.monotonic()
        endpoint.invoke({"burn_cpu_s": 0.5})
        assert time.monotonic() - begin > 0.75

    def test_rows_above_the_machine_are_marked(self, deploy: Deploy):
        import os

        cores = len(os.sched_getaffinity(0))
        endpoint = deploy(variant=realtime(instance_type="ml.c7g.16xlarge"))
        endpoint.invoke()
        entry = endpoint.local.metrics()["endpoints"][endpoint.name]
        assert entry["vcpus"] == 64
        assert entry["distinguishable"] is (cores >= 64)


class TestWithoutCgroups:
    def test_memory_and_share_are_held_by_watching_and_stopping(
        self, deploy: Deploy, another_runtime
    ):
        url, _, _ = another_runtime("--no-cgroups")
        with urllib.request.urlopen(f"{url}/metrics.json") as answer:
            metrics = json.load(answer)
        assert metrics["memory_limit_by"] == "watcher"
        assert metrics["cpu_share_by"] == "stop-and-continue"
        endpoint = deploy(runtime_url=url, variant=serverless(memory_mib=1024))
        endpoint.invoke()
        begin = time.monotonic()
        endpoint.invoke({"burn_cpu_s": 0.5})
        assert time.monotonic() - begin > 0.7
        error = endpoint.fails({"allocate_mib": 1200, "hold_s": 2})
        assert "was killed (watcher of resident memory)" in error["OriginalMessage"]
        assert endpoint.facts()["cpus"] == 1


class TestContainersEnd:
    def test_an_idle_container_is_stopped_and_the_next_request_is_cold(
        self, deploy: Deploy, another_runtime
    ):
        url, _, state_dir = another_runtime("--idle-timeout-s", "0.4")
        endpoint = deploy(runtime_url=url)
        pid = endpoint.facts()["pid"]
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
        wait_until(lambda: not list((state_dir / "containers").iterdir()))
        again = endpoint.invoke()
        assert again["ResponseMetadata"]["HTTPHeaders"]["x-dr-local-cold-start"] == "true"

    def test_a_realtime_container_is_never_idle(self, deploy: Deploy, another_runtime):
        url, _, _ = another_runtime("--idle-timeout-s", "0.1")
        endpoint = deploy(runtime_url=url, variant=realtime())
        pid = endpoint.facts()["pid"]
        time.sleep(1.0)
        assert endpoint.facts()["pid"] == pid

    def test_killing_the_runtime_leaves_no_container(self, deploy: Deploy, another_runtime):
        url, process, _ = another_runtime()
        endpoint = deploy(runtime_url=url, environment={"FAKE_START": "child"})
        endpoint.invoke()
        below = descendants(process.pid)
        # The container's first process, its supervisor and the worker below it.
        assert len(below) >= 3
        process.kill()
        process.wait()
        wait_until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])
        instance = f"t{url.rpartition(':')[2]}"
        wait_until(lambda: not list(Path("/sys/fs/cgroup").rglob(f"dr-local-{instance}-*")))

    def test_terminating_the_runtime_removes_folders_and_processes(
        self, deploy: Deploy, another_runtime
    ):
        url, process, state_dir = another_runtime()
        deploy(runtime_url=url).invoke()
        below = descendants(process.pid)
        process.terminate()
        process.wait(10)
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
        assert not list((state_dir / "containers").iterdir())
