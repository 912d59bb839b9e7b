"""A second engine for requests that have the container to themselves."""

import io
import json
from typing import Any

import pytest

from inference_image.alone import Alone
from inference_image.http_app import create_app
from inference_image.log import JsonLog
from inference_image.metrics import Metrics
from inference_image.model_spec import ModelPackageError
from inference_image.predictor import Predictor, SecondEngine
from inference_image.settings import Settings
from tests.service_harness import REPOSITORY, InProcess, drawn_jpeg, running, wait_until

DEMO_MODEL = REPOSITORY / "model_artifacts" / "mobilenet-demo"


class Engines:
    """Stands for a predictor, and counts what is opened."""

    def __init__(self, *, model_bytes: int = 1000, error: Exception | None = None) -> None:
        self.alone = False
        self.second: SecondEngine | None = SecondEngine(open=self._never, model_bytes=model_bytes)
        self.error = error
        self.widened: list[int] = []

    def _never(self, threads: int) -> Any:
        raise AssertionError(threads)

    def widen(self, threads: int) -> None:
        self.widened.append(threads)
        if self.error is not None:
            raise self.error


class Worker:
    """One of two workers of a container with two CPUs, and what it logs."""

    def __init__(self, engines: Engines, *, memory_bytes: float = 64e9, **environment: str) -> None:
        settings = Settings.from_environment(environment, cpus=2.0, memory_bytes=memory_bytes)
        self.metrics = Metrics(2)
        self.own, self.other = self.metrics.recorder(0), self.metrics.recorder(1)
        self.stream = io.StringIO()
        log = JsonLog(level="info", stream=self.stream)
        self.engines = engines
        self.alone = Alone(engines, settings=settings, metrics=self.metrics, log=log)

    def compute(self, times: int, *, elsewhere: int = 0) -> None:
        self.own.queue(pending=1, bytes_held=0)
        self.other.queue(pending=elsewhere, bytes_held=0)
        for _ in range(times):
            self.alone.begin()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_it_is_opened_once_after_several_requests_in_a_row_that_were_alone() -> None:
    worker = Worker(Engines())
    worker.compute(7)
    worker.alone.widen()
    assert worker.engines.alone
    assert worker.engines.widened == []
    worker.compute(1)
    assert worker.alone.is_due
    worker.alone.widen()
    worker.compute(20)
    worker.alone.widen()
    assert worker.engines.widened == [2]
    assert [(e["event"], e["opened"], e["threads"]) for e in worker.events()] == [
        ("second_engine", True, 2)
    ]


def test_requests_in_another_worker_count_and_break_the_row() -> None:
    worker = Worker(Engines())
    worker.compute(7)
    worker.compute(1, elsewhere=1)
    assert not worker.engines.alone
    worker.compute(7)
    assert worker.engines.alone
    assert not worker.alone.is_due


@pytest.mark.parametrize("environment", [{"DR_THREADS_ALONE": "1"}, {"DR_THREADS": "2"}])
def test_it_is_off_where_it_has_no_more_threads(environment: dict[str, str]) -> None:
    worker = Worker(Engines(), **environment)
    worker.compute(30)
    assert not worker.alone.is_due


def test_an_engine_that_has_no_second_keeps_the_one() -> None:
    engines = Engines()
    engines.second = None
    worker = Worker(engines)
    worker.compute(30)
    assert not worker.alone.is_due


def test_it_is_not_opened_where_memory_is_short() -> None:
    worker = Worker(Engines(model_bytes=2_000_000_000), memory_bytes=8e9)
    worker.compute(8)
    worker.alone.widen()
    assert not worker.alone.is_due
    assert worker.engines.widened == []
    assert worker.events()[0]["reason"] == "memory"


def test_where_it_cannot_be_opened_the_worker_goes_on() -> None:
    worker = Worker(Engines(error=RuntimeError("/opt/ml/model has gone")))
    worker.compute(8)
    worker.alone.widen()
    worker.compute(30)
    worker.alone.widen()
    assert worker.engines.widened == [2]
    (event,) = worker.events()
    assert (event["level"], event["opened"], event["reason"]) == ("warning", False, "RuntimeError")


def test_both_engines_answer_alike_and_the_second_only_what_is_alone() -> None:
    predictor = Predictor.load(DEMO_MODEL, threads=1)
    predictor.warm_up()
    photographs = [drawn_jpeg(seed=seed) for seed in range(3)]
    one = [predictor.predict(photograph).probabilities for photograph in photographs]
    predictor.widen(2)
    calls: list[bool] = []
    for engine, is_second in ((predictor._runtime, False), (predictor._wide, True)):
        predict = engine.predict  # type: ignore[union-attr]

        def counted(
            *words: Any, _predict: Any = predict, _is: bool = is_second, **more: Any
        ) -> Any:
            calls.append(_is)
            return _predict(*words, **more)

        engine.predict = counted  # type: ignore[method-assign, union-attr]
    predictor.alone = True
    assert [predictor.predict(photograph).probabilities for photograph in photographs] == one
    predictor.alone = False
    assert [predictor.predict(photograph).probabilities for photograph in photographs] == one
    assert calls == [True] * 3 + [False] * 3


def test_a_predictor_without_a_second_engine_says_so() -> None:
    predictor = Predictor.load(DEMO_MODEL, threads=1)
    predictor.second = None
    with pytest.raises(ModelPackageError, match="cannot be opened twice"):
        predictor.widen(2)


def test_the_service_opens_it_for_one_caller_and_answers_as_before() -> None:
    stream = io.StringIO()
    settings = Settings.from_environment({"DR_MODEL_DIR": str(DEMO_MODEL)}, cpus=2.0)
    app = create_app(settings, log=JsonLog(level="info", stream=stream), metrics=Metrics(2))
    with running(InProcess(app)) as transport:

        def ask() -> Any:
            answer = transport.request(
                "POST", "/invocations", drawn_jpeg(), {"Content-Type": "image/jpeg"}
            )
            assert answer.status == 200
            return answer.json()["predictions"]

        first = [ask() for _ in range(8)]
        wait_until(lambda: "second_engine" in stream.getvalue())
        assert [ask() for _ in range(8)] == first
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    (opened,) = [event for event in events if event["event"] == "second_engine"]
    assert (opened["opened"], opened["threads"]) == (True, 2)


def test_what_it_will_hold_covers_what_was_measured() -> None:
    mobilenet, vgg19 = 3_500_000, 20_400_000
    assert _second(mobilenet).resident_bytes > 12e6
    assert _second(vgg19).resident_bytes > 54e6


def _second(model_bytes: int) -> SecondEngine:
    return SecondEngine(open=lambda _: Engines(), model_bytes=model_bytes)  # type: ignore[arg-type, return-value]
