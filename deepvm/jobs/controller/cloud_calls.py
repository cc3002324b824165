"""The controller's calls to its cloud, in threads; each result is an event."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from deepvm.errors import DeepVMError
from deepvm.io.failpoints import point
from deepvm.jobs.cloud import Cloud, Launch, NetworkFaults, RefusedError, Start
from deepvm.jobs.controller.injector import FaultKind, InjectedFault
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.world import MachineRecord
from deepvm.jobs.loggers import jobs_log as log

_MOST = 32
_AGAIN_S = 1.0
_FINISH_S = 60.0
_T = TypeVar("_T")


class CloudCalls:
    """For one job and one event loop."""

    def __init__(self, cloud: Cloud, job: str, feed: Callable[[d.Event], None]) -> None:
        self._cloud = cloud
        self._job = job
        self._feed = feed
        # Of its own: calls that hang must keep nothing else of this process from being done.
        self._threads = ThreadPoolExecutor(_MOST, "cloud")
        self._releasing = set[str]()
        self._listed_s = float("-inf")
        self._is_listing = False

    async def call(self, call: Callable[..., _T], *words: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *words)

    async def request(self, record: MachineRecord, start: Start) -> None:
        """Launch a machine; if the outcome is unknown, the cloud's list will show it."""
        with _errors_logged():
            try:
                point("cloud.before-request")
                made = await self.call(self._cloud.request, record, start)
                point("cloud.after-request")
            except RefusedError as error:
                self._feed(d.Refused(record.id, str(error)))
                return
            launch = made if isinstance(made, Launch) else Launch(made)
            self._feed(d.Launched(record.id, launch.launched_s, launch.zone, launch.usd_per_hour))

    async def release(self, machine: str) -> None:
        """Have a machine ended; it is asked for again as long as the machine lives."""
        if machine in self._releasing:
            return
        self._releasing.add(machine)
        try:
            with _errors_logged():
                point("cloud.before-release")
                await self.call(self._cloud.release, self._job, machine)
                point("cloud.after-release")
        finally:
            self._releasing.remove(machine)
        if self._cloud.near:  # it is gone already
            self._listed_s = float("-inf")

    def is_list_due(self, every_s: float) -> bool:
        return not self._is_listing and time.monotonic() - self._listed_s >= every_s

    async def list(self) -> None:
        self._listed_s = time.monotonic()
        self._is_listing = True
        try:
            with _errors_logged():
                self._feed(await self.call(self._cloud.listing, self._job))
        finally:
            self._is_listing = False

    async def inject(self, fault: InjectedFault) -> bool:
        """False: it is unknown whether that was done."""
        with _errors_logged():
            if fault.blow is FaultKind.RECOMMEND:
                await self.call(self._cloud.recommend, self._job, fault.id)
            elif fault.blow is FaultKind.CUT and isinstance(self._cloud, NetworkFaults):
                await self.call(self._cloud.cut, self._job, fault.id)
            else:
                await self.call(self._cloud.preempt, self._job, fault.id, fault.grace_s)
            return True
        return False

    async def finish(self) -> None:
        until_s = time.monotonic() + _FINISH_S
        while True:
            try:
                await self.call(self._cloud.finish, self._job)
                break
            except Exception as error:
                if time.monotonic() >= until_s:
                    log.warning(
                        "what the machines of %s shared is not removed: %s", self._job, error
                    )
                    break
                await asyncio.sleep(_AGAIN_S)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Errors are logged instead of raised; unexpected ones with their location."""
    try:
        yield
    except Exception as error:
        log.warning("%s", error, exc_info=not isinstance(error, (DeepVMError, OSError)))
