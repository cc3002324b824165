"""Commands on several hosts: what they say, how they end, and that none of them outlives who
started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

import pytest
from support.pace import soon
from support.processes import gone, until

from deepvm.errors import MeasurementError, RequestError
from deepvm.profiling.hosts.coordinator import Coordinator
from deepvm.profiling.hosts.launcher import Host


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def fact(event: str, **more: Any) -> str:
    return f"echo '@deepvm {json.dumps({'event': event, **more})}'"


@pytest.mark.system
def test_messages_and_ends_of_all_commands_are_heard() -> None:
    heard: list[str] = []
    got = """read x; printf '@deepvm {"event": "got", "line": %s}' "$x" """
    first = f"{fact('one')}; echo rubbish; echo '@deepvm {{'; echo two >&2; exit 3"
    with Coordinator(
        [(Host("a"), shell(first)), (Host("b"), shell(got))], heard.append
    ) as programs:
        programs.send(1, "word")
        found = [programs.next_message(time.monotonic() + 10) for _ in range(4)]
        assert programs.next_message(time.monotonic() + 0.05) is None
        assert programs.tail(0) == ("two",)
    end = "its command ended with exit code {}"
    ended = {"event": "ended", "reason": f"{end.format(3)}; its last line: two", "code": 3}
    assert [m for m in found if m is not None and m[0] == 0] == [(0, {"event": "one"}), (0, ended)]
    ended = {"event": "ended", "reason": end.format(0), "code": 0}
    assert [m for m in found if m is not None and m[0] == 1] == [
        (1, {"event": "got", "line": "word"}),
        (1, ended),
    ]
    assert heard == ["[a] two"]


@pytest.mark.system
def test_one_host_is_heard_while_the_others_speak() -> None:
    first = f"{fact('said', number=1)}; {fact('said', number=2)}"
    second = f"echo rubbish; {fact('said', number=3)}"
    with Coordinator([(Host("a"), shell(first)), (Host("b"), shell(second))]) as programs:
        assert programs.ending(0) == "its command ended with exit code 0"
        assert [programs.answer(place, 5)["number"] for place in (1, 0, 0)] == [3, 1, 2]
        for _ in range(2):
            with pytest.raises(
                MeasurementError, match="host b: its command ended with exit code 0"
            ):
                programs.answer(1, 5, "host b")


@pytest.mark.slow
def test_answers_of_all_and_reasons_of_the_others() -> None:
    scripts = [
        fact("ready"),
        "echo no >&2; exit 7",
        "exec sleep 100",
        fact("failed", reason="no torch"),
    ]
    with Coordinator(
        [(Host(str(n)), shell(script)) for n, script in enumerate(scripts)]
    ) as programs:
        answers, failed = programs.collect(range(4), 2)
    assert answers == {0: {"event": "ready"}}
    assert failed == {
        1: "its command ended with exit code 7; its last line: no",
        2: "nothing was received from it for 2 s",
        3: "no torch",
    }


@pytest.mark.system
def test_no_process_stays_when_the_block_is_left() -> None:
    for script, most_s in [
        ("exec cat", 1.5),  # ends as its input does
        ("exec sleep 100", 4),  # by SIGTERM
        ("trap '' TERM; while :; do sleep 0.1; done", 6),  # by SIGKILL
        ("kill -STOP $$", 6),  # stopped
    ]:
        pid = """printf '@deepvm {"event": "pid", "pid": %d}\\n' $$; """
        programs = Coordinator([(Host(n), shell(pid + script)) for n in "ab"])
        pids = [programs.answer(place, 10)["pid"] for place in range(2)]
        with soon(most_s):
            programs.stop(grace_s=0.3 if "cat" not in script else 5.0)
        assert all(until(lambda pid=pid: gone(pid), 2) for pid in pids)  # type: ignore[misc]


def test_what_cannot_be_started_ends_what_was() -> None:
    ours = f"sleep {100 + os.getpid() / 1e6}"
    with pytest.raises(RequestError, match="a program that can be started"):
        Coordinator([(Host("a"), shell(f"exec {ours}")), (Host("b"), ["/nowhere/at-all"])])
    assert until(
        lambda: not subprocess.run(["pgrep", "-f", f"^{ours}"], capture_output=True).stdout, 5
    )
