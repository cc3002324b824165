"""The pool bounds its threads, hands over results and errors, and begins nothing that was
cancelled.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from deepvm.catalog.signals.fetching import run_in_daemons


def test_results_and_errors() -> None:
    quarter, failed, third = run_in_daemons(lambda n: 12 // n, [3, 0, 4], 2, "test")
    assert [quarter.result(60), third.result(60)] == [4, 3]
    with pytest.raises(ZeroDivisionError):
        failed.result(60)


def test_no_more_threads_than_allowed_and_nothing_new_once_cancelled() -> None:
    go, begun = threading.Event(), list[int]()

    def work(item: int) -> None:
        begun.append(item)
        assert go.wait(60)

    futures = run_in_daemons(work, range(9), 2, "pool-under-test")
    mine = [t for t in threading.enumerate() if t.name.startswith("pool-under-test")]
    for future in futures:
        future.cancel()
    go.set()
    for thread in mine:
        thread.join(60)
    assert len(mine) == 2
    assert len(begun) <= 2


def test_python_exits_while_work_is_stuck() -> None:
    code = (
        "import threading; from deepvm.catalog.signals.fetching import run_in_daemons;"
        "run_in_daemons(lambda _: threading.Event().wait(), [1, 2], 2, 'stuck'); print('over')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "over"
