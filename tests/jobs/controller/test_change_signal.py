"""Handlers that wait for a change of the world, and are cancelled as their machine hangs up."""

import asyncio
import random
import time

import pytest

from deepvm.jobs.controller.api import ChangeSignal


def test_whoever_waits_is_woken_and_nobody_later() -> None:
    async def run() -> None:
        signal = ChangeSignal()
        waiting = [asyncio.create_task(signal.wait(30)) for _ in range(3)]
        await asyncio.sleep(0)
        signal.notify()
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        began = time.monotonic()
        await signal.wait(0.05)  # an older change is no news
        assert time.monotonic() - began >= 0.04

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
def test_waiters_that_are_cancelled_at_any_moment_block_no_other(seed: int) -> None:
    """As their time is up and as they are woken: a job that said "Lock is not acquired" never
    ended.
    """

    async def run() -> None:
        rng, signal = random.Random(seed), ChangeSignal()
        for _ in range(20):
            waiting = [asyncio.create_task(signal.wait(0.002)) for _ in range(60)]
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.002)))
            signal.notify()
            for task in waiting:
                if rng.random() < 0.5:
                    task.cancel()
                if rng.random() < 0.2:
                    await asyncio.sleep(0)
            ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
            assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
        last = asyncio.create_task(signal.wait(30))
        await asyncio.sleep(0)
        signal.notify()
        await asyncio.wait_for(last, 5)

    asyncio.run(run())
