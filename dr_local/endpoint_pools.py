"""Which container answers: the platform's rules of concurrency for one endpoint.

Serverless: a container serves one request at a time, a request that finds none free starts a
cold one, and above MaxConcurrency it is refused. Real-time: one container for all requests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dr_local.containers import Container
from dr_local.deployments import Deployment
from dr_local.platform_errors import ThrottlingException

MakeContainer = Callable[[Deployment], Container]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A container for one request. `setup_ms` is 0 when it was warm."""

    container: Container
    cold: bool
    setup_ms: float


class EndpointPool:
    """The containers of one endpoint; all methods run in the server's event loop."""

    def __init__(self, *, deployment: Deployment, make_container: MakeContainer) -> None:
        self.deployment = deployment
        self._make = make_container
        # The most recently used is last: the others become idle and are stopped, as on AWS.
        self._free: list[Container] = []
        self._all: list[Container] = []
        self._shared: asyncio.Task[Container] | None = None
        self._retired = False
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def containers(self) -> tuple[Container, ...]:
        return tuple(self._all)

    @asynccontextmanager
    async def assigned(self) -> AsyncIterator[Assignment]:
        """A container for the duration of one request.

        Raises:
            ThrottlingException: MaxConcurrency requests are being served.
            StartFailedError: a new container did not start.
        """
        assignment = await (
            self._take_own() if self.deployment.is_serverless else self._take_shared()
        )
        container = assignment.container
        try:
            yield assignment
        finally:
            container.busy -= 1
            self._give_back(container)

    async def _take_own(self) -> Assignment:
        while self._free:
            container = self._free.pop()
            if container.is_running:
                container.busy += 1
                return Assignment(container=container, cold=False, setup_ms=0.0)
            self._end(container)
        if len(self._all) >= self.deployment.max_concurrency:
            raise ThrottlingException(
                f"Rate exceeded: {self.deployment.endpoint_name} serves "
                f"{self.deployment.max_concurrency} requests at once (MaxConcurrency)."
            )
        container = self._make(self.deployment)
        self._all.append(container)
        container.busy += 1
        try:
            await container.start()
        except BaseException:
            self._all.remove(container)
            raise
        return Assignment(container=container, cold=True, setup_ms=container.times.setup_ms or 0.0)

    async def _take_shared(self) -> Assignment:
        begin = time.monotonic()
        task = self._shared
        starting = task is None or not task.done()
        if task is not None and task.done():
            failed = task.cancelled() or task.exception() is not None
            if failed or not task.result().is_running:
                if not failed:
                    self._end(task.result())
                task, starting = None, True
        if task is None:
            task = self._shared = asyncio.create_task(self._start_shared())
        # Many requests may wait for the one start; one that is cancelled does not end it.
        container = await asyncio.shield(task)
        container.busy += 1
        setup_ms = round((time.monotonic() - begin) * 1000, 2) if starting else 0.0
        return Assignment(container=container, cold=starting, setup_ms=setup_ms)

    async def _start_shared(self) -> Container:
        container = self._make(self.deployment)
        self._all.append(container)
        try:
            await container.start()
        except BaseException:
            self._all.remove(container)
            raise
        return container

    def _give_back(self, container: Container) -> None:
        if container.busy or container not in self._all:
            return
        if self._retired or not container.is_running:
            self._end(container)
        elif self.deployment.is_serverless:
            self._free.append(container)

    def discard(self, container: Container) -> None:
        """Never use this container again; it is stopped when its request has ended."""
        if container in self._all:
            self._end(container)

    def stop_idle(self, *, idle_timeout_s: float) -> None:
        """Stop serverless containers that nobody has used for `idle_timeout_s`."""
        oldest_use = time.monotonic() - idle_timeout_s
        for container in [c for c in self._free if c.last_used <= oldest_use]:
            self._free.remove(container)
            self._end(container)

    def retire(self) -> None:
        """The endpoint changed or went: stop what is free now, the rest after its requests.

        May be called again, for containers that were starting the first time.
        """
        self._retired = True
        for container in [c for c in self._all if not c.busy]:
            # Requests wait for a container that is starting; it ends after the last of them.
            if container.is_ready:
                self._end(container)

    async def close(self) -> None:
        """Stop every container now."""
        self._retired = True
        if self._shared is not None:
            self._shared.cancel()
            await asyncio.gather(self._shared, return_exceptions=True)
        await asyncio.gather(
            *(container.stop() for container in self._all), *self._endings, return_exceptions=True
        )
        self._all.clear()

    @property
    def is_empty(self) -> bool:
        """True when the last container has ended."""
        return not self._all and not self._endings

    def _end(self, container: Container) -> None:
        if container in self._all:
            self._all.remove(container)
        if container in self._free:
            self._free.remove(container)
        task = asyncio.get_running_loop().create_task(container.stop())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def report(self, *, machine_cores: int) -> dict[str, Any]:
        """The endpoint as an entry of `/metrics.json`."""
        deployment = self.deployment
        return {
            "config": deployment.config_name,
            "model_data_url": deployment.model_data_url,
            "image": deployment.image,
            "memory_mib": deployment.memory_mib,
            "max_concurrency": deployment.max_concurrency if deployment.is_serverless else None,
            "instance_type": deployment.instance_type,
            # More instances would share this machine's cores, and measure nothing new.
            "instances_run": 0 if deployment.is_serverless else min(1, deployment.instance_count),
            "architecture": deployment.architecture,
            "vcpus": round(deployment.vcpus, 3),
            "distinguishable": deployment.distinguishable(machine_cores=machine_cores),
            "containers": [container.report() for container in self._all],
        }
