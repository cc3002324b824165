"""The pool bounds its threads, hands over results and errors, and begins nothing after it is closed."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from queue import Empty

import pytest

from deepvm.catalog.signals.daemon_pool import DaemonPool


def test_results_and_errors_with_their_places() -> None:
    with closing(DaemonPool(lambda n: 12 // n, [3, 0, 4], 2, "test")) as pool:
        done = sorted((pool.next(60) for _ in range(3)), key=lambda d: d.place)
    assert [done[0].result(), done[2].result()] == [4, 3]
    with pytest.raises(ZeroDivisionError):
        done[1].result()
    with pytest.raises(Empty):
        pool.next(0)


def test_no_more_threads_than_allowed_and_nothing_new_once_closed() -> None:
    go, begun = threading.Event(), list[int]()

    def work(item: int) -> None:
        begun.append(item)
        assert go.wait(60)

    pool = DaemonPool(work, range(9), 2, "pool-under-test")
    mine = [t for t in threading.enumerate() if t.name.startswith("pool-under-test")]
    pool.close()
    go.set()
    for thread in mine:
        thread.join(60)
    assert len(mine) == 2
    assert len(begun) <= 2


def test_python_exits_while_work_is_stuck() -> None:
    code = (
        "import threading; from deepvm.catalog.signals.daemon_pool import DaemonPool;"
        "DaemonPool(lambda _: threading.Event().wait(), [1, 2], 2, 'stuck'); print('over')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "over"
