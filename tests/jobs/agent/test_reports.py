"""What agents report: it is heard, in order, however much trainers print."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.real_agents import Commander, running
from support.jobs.runs import until

from deepvm.jobs.agent import controller_client
from deepvm.jobs.agent.controller_client import ControllerClient, ControllerUnreachable, Reporter
from deepvm.jobs.wire import LARGEST, secret_of


@pytest.fixture
def commander() -> Iterator[Commander]:
    found = Commander()
    yield found
    found.stop()


@pytest.fixture
def reporter(commander: Commander) -> Iterator[Reporter]:
    over = threading.Event()
    client = ControllerClient(lambda: commander.url, "m1", secret_of(commander.secret, "m1"))
    found = Reporter(client, over)
    yield found
    over.set()
    found.join()
    client.close()


@pytest.mark.slow  # a whole agent
def test_a_progress_bar_without_an_end_of_line(commander: Commander, tmp_path: Path) -> None:
    """It is one line of megabytes, and the reason why the training failed stands behind it."""
    bar = (
        "import sys; sys.stderr.write('\\r 12%|####      | 120/1000' * 200_000 + '\\rno such"
        " file'); sys.exit(1)"
    )
    (tmp_path / "bar.py").write_text(bar)
    commander.spec["train"] = f"exec python {tmp_path}/bar.py;"
    commander.run(1, "m1")
    with running(commander, tmp_path / "m1"):
        (ended,) = until(lambda: commander.heard("ended"), 20)
        assert ended["code"] == 1 and ended["lines"][-1].endswith("\rno such file")


def test_long_lines_of_any_kind_are_cut(commander: Commander, reporter: Reporter) -> None:
    """As JSON a character has up to twelve bytes."""
    reporter.add(
        "setup-failed", code=1, lines=["\U0001f525" * 64 * 1024 + str(n) for n in range(100)]
    )
    for _ in range(300):
        reporter.add("line", text="\x00" * 64 * 1024)
    reporter.add("unusable", why="no disk" + "?" * LARGEST)
    until(lambda: commander.heard("unusable"), 20)
    (failed,) = commander.heard("setup-failed")
    assert [line[-2:] for line in failed["lines"]][-3:] == ["97", "98", "99"] and len(
        failed["lines"]
    ) >= 20
    assert len(commander.heard("line")) == 300 and commander.heard("unusable")[0]["why"].startswith(
        "no disk"
    )
    assert failed["lines"][-1].startswith("[63538 characters cut] ")
    assert commander.heard("line")[0]["text"].startswith("[63536 characters cut] ")
    assert commander.heard("unusable")[0]["why"].endswith(
        f"? [{LARGEST + 7 - 2000} characters cut]"
    )


def test_lines_that_come_too_fast_are_counted(
    commander: Commander, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are missing in the log, which says how many and where.

    The newest, and all else, are there.
    """
    monkeypatch.setattr(controller_client, "_MOST_WAITING", 150)
    with reporter._change:  # nothing is sent meanwhile
        for n in range(1000):
            reporter.add("line", text=str(n))
        reporter.add("ended", code=0)
    until(lambda: commander.heard("ended"), 20)
    texts = [report["text"] for report in commander.heard("line")]
    assert texts[:100] == [str(n) for n in range(100)] and texts[101:] == [
        str(n) for n in range(951, 1000)
    ]
    assert texts[100] == "[851 lines are missing here: they came faster than they could be sent]"


def test_a_report_that_is_too_large_after_all_is_dropped(
    commander: Commander, reporter: Reporter
) -> None:
    """It must not keep those behind it."""
    for n in range(3):
        reporter.add("line", text=str(n))
    reporter.add("strange", facts={"deep": "x" * LARGEST})
    reporter.add("ended", code=0)
    until(lambda: commander.heard("ended"), 20)
    assert [report["text"] for report in commander.heard("line")] == [
        "0",
        "1",
        "2",
    ] and not commander.heard("strange")


def test_a_controller_that_has_moved_is_found_while_its_old_address_swallows_everything(
    commander: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing refuses a connection to a machine that is gone.

    The new controller takes its agents for silent soon.
    """
    monkeypatch.setattr(controller_client, "CONNECT_S", 0.3)
    with socket.socket() as hole, contextlib.ExitStack() as waiting:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(2):  # nobody accepts them: the next one is not even answered
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(hole.getsockname())
        now = f"http://127.0.0.1:{hole.getsockname()[1]}"
        client = ControllerClient(lambda: now, "m1", secret_of(commander.secret, "m1"))
        began_s = time.monotonic()
        with pytest.raises(ControllerUnreachable):
            client.ask("/job", {}, 30.0)
        assert time.monotonic() - began_s < 10.0
        now = commander.url
        assert client.ask("/job", {}, 30.0)["name"] == "job"
        client.close()
