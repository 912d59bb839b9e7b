"""The platform's rules of concurrency, over containers that are only counted."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dr_local.containers import StartFailedError
from dr_local.endpoint_pools import EndpointPool
from dr_local.platform_errors import ThrottlingException
from tests.unit.dr_local.test_deployments import deployment, realtime


class Counted:
    """Stands for a container: starts, stops, counts."""

    def __init__(self, *, start_s: float = 0.0, fails: bool = False) -> None:
        self.times = SimpleNamespace(setup_ms=None)
        self.busy = 0
        self.last_used = time.monotonic()
        self.running = False
        self.stops = 0
        self._start_s = start_s
        self._fails = fails

    @property
    def is_running(self) -> bool:
        return self.running

    @property
    def is_ready(self) -> bool:
        return self.running and self.times.setup_ms is not None

    async def start(self) -> None:
        self.running = True
        await asyncio.sleep(self._start_s)
        if self._fails:
            self.running = False
            raise StartFailedError("no model")
        self.times.setup_ms = 12.0

    async def stop(self) -> None:
        self.running = False
        self.stops += 1


def pool_of(deployed: Any, **settings: Any) -> tuple[EndpointPool, list[Counted]]:
    made: list[Counted] = []

    def make(_: Any) -> Any:
        made.append(Counted(**settings))
        return made[-1]

    return EndpointPool(deployment=deployed, make_container=make), made


async def request(pool: EndpointPool, *, hold_s: float = 0.0) -> tuple[Any, bool]:
    async with pool.assigned() as assignment:
        await asyncio.sleep(hold_s)
        return assignment.container, assignment.cold


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(test())


def test_one_request_at_a_time_and_the_container_is_used_again():
    async def scenario() -> None:
        pool, made = pool_of(deployment())
        for expected_cold in (True, False, False):
            _, cold = await request(pool)
            assert cold is expected_cold
        assert len(made) == 1

    run(scenario)


def test_requests_at_once_start_cold_containers_up_to_max_concurrency():
    async def scenario() -> None:
        pool, made = pool_of(deployment(max_concurrency=3), start_s=0.01)
        answers = await asyncio.gather(
            *(request(pool, hold_s=0.05) for _ in range(5)), return_exceptions=True
        )
        refused = [a for a in answers if isinstance(a, ThrottlingException)]
        assert len(refused) == 2
        assert "3 requests at once" in refused[0].message
        assert len(made) == 3
        _, cold = await request(pool)
        assert not cold

    run(scenario)


def test_a_failed_start_gives_its_place_back():
    async def scenario() -> None:
        pool, made = pool_of(deployment(max_concurrency=1), fails=True)
        for _ in range(3):
            with pytest.raises(StartFailedError):
                await request(pool)
        assert len(made) == 3
        assert pool.is_empty

    run(scenario)


def test_a_dead_container_is_not_used_again():
    async def scenario() -> None:
        pool, made = pool_of(deployment(max_concurrency=1))
        first, _ = await request(pool)
        first.running = False
        second, cold = await request(pool)
        assert cold
        assert second is not first
        assert len(made) == 2

    run(scenario)


def test_a_discarded_container_ends_though_its_request_is_still_open():
    async def scenario() -> None:
        pool, _ = pool_of(deployment(max_concurrency=1))
        async with pool.assigned() as assignment:
            pool.discard(assignment.container)
        await asyncio.sleep(0)
        assert assignment.container.stops == 1
        second, cold = await request(pool)
        assert cold
        assert second is not assignment.container

    run(scenario)


def test_idle_containers_are_stopped_and_used_ones_are_not():
    async def scenario() -> None:
        pool, made = pool_of(deployment())
        await asyncio.gather(request(pool, hold_s=0.01), request(pool, hold_s=0.01))
        made[0].last_used -= 100
        pool.stop_idle(idle_timeout_s=50)
        await asyncio.sleep(0)
        assert [container.stops for container in made] == [1, 0]
        _, cold = await request(pool)
        assert not cold

    run(scenario)


def test_realtime_requests_share_one_container_and_one_start():
    async def scenario() -> None:
        pool, made = pool_of(realtime("ml.m5.xlarge"), start_s=0.02)
        answers = await asyncio.gather(*(request(pool, hold_s=0.02) for _ in range(8)))
        assert len(made) == 1
        assert len({id(container) for container, _ in answers}) == 1
        _, cold = await request(pool)
        assert not cold

    run(scenario)


def test_realtime_starts_again_after_a_failure():
    async def scenario() -> None:
        pool, made = pool_of(realtime("ml.m5.xlarge"), fails=True)
        answers = await asyncio.gather(*(request(pool) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(answer, StartFailedError) for answer in answers)
        with pytest.raises(StartFailedError):
            await request(pool)
        assert len(made) == 2

    run(scenario)


@pytest.mark.parametrize("deployed", [deployment(), realtime("ml.m5.xlarge")], ids=["sls", "rt"])
def test_a_retired_pool_lets_its_requests_end_first(deployed: Any):
    async def scenario() -> None:
        pool, made = pool_of(deployed, start_s=0.02)
        open_request = asyncio.create_task(request(pool, hold_s=0.05))
        await asyncio.sleep(0.01)
        # Once while the container starts, once while the request is with it.
        pool.retire()
        await asyncio.sleep(0.03)
        pool.retire()
        assert made[0].running
        await open_request
        await asyncio.sleep(0)
        assert made[0].stops == 1
        await asyncio.sleep(0)
        assert pool.is_empty

    run(scenario)


def test_close_stops_everything():
    async def scenario() -> None:
        pool, made = pool_of(deployment())
        await asyncio.gather(request(pool, hold_s=0.01), request(pool, hold_s=0.01))
        await pool.close()
        assert [container.running for container in made] == [False, False]

    run(scenario)
