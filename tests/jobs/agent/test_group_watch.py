"""Whether ranks are connected, by the sockets that the kernel shows.

And what an agent makes of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from deepvm.io.host_info import free_port
from deepvm.io.processes import children_of
from deepvm.jobs.agent.group_watch import LATE_S, GroupWatch, are_connected, explanation

LISTENS = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
    " print(flush=True); c = {}"
)
ACCEPTS = LISTENS.format("s.accept()") + "; print(flush=True); sys.stdin.read()"
IDLE = "import sys; print(flush=True); sys.stdin.read()"
CONNECTS = (
    "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    " print(flush=True); "
)
STAYS, GOES = "sys.stdin.read()", "c.close(); sys.stdin.read()"
STARTS_ONE = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[2],"
    " sys.argv[1]]); sys.stdin.read()"
)


class Ranks:
    """Processes that are as far as a test wants them."""

    def __init__(self) -> None:
        self.port = free_port()
        self.all = list[subprocess.Popen[bytes]]()

    def start(self, code: str, *more: str) -> int:
        words = [sys.executable, "-S", "-c", code, str(self.port), *more]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.all.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        return process.pid

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    found = Ranks()
    yield found
    found.end()


def test_ranks_that_do_not_meet(ranks: Ranks) -> None:
    """Whoever else listens and connects is none of them."""
    roots = [ranks.start(IDLE), ranks.start(IDLE)]
    assert not are_connected(roots, ranks.port)
    assert not are_connected([], ranks.port)
    ranks.start(ACCEPTS)
    ranks.start(CONNECTS + STAYS)
    accepts = ranks.all[-2].stdout
    assert accepts is not None and accepts.readline() == b"\n", "until then it looks closed"
    assert not are_connected(roots, ranks.port)


def test_a_store_that_one_of_them_has_opened(ranks: Ranks) -> None:
    roots = [ranks.start(ACCEPTS), ranks.start(IDLE)]
    assert are_connected(roots, ranks.port) and not are_connected(roots[1:], ranks.port)


def test_a_store_on_another_machine(ranks: Ranks) -> None:
    ranks.start(ACCEPTS)
    assert are_connected([ranks.start(CONNECTS + STAYS)], ranks.port)


def test_ranks_that_meet_elsewhere(ranks: Ranks) -> None:
    """With their own ``init_method``, or another library: they are connected to each other."""
    roots = [ranks.start(ACCEPTS), ranks.start(CONNECTS + STAYS)]
    assert are_connected(roots, free_port())
    assert are_connected(roots[1:], free_port(), ["127.0.0.1"]) and not are_connected(
        roots[1:], free_port(), ["8.8.8.8"]
    )


def test_a_memory_node_on_another_machine_is_no_rank(ranks: Ranks) -> None:
    ranks.start(ACCEPTS)
    roots = [ranks.start(CONNECTS + STAYS)]
    assert not are_connected(
        roots, free_port(), ["127.0.0.1"], [f"tcp://127.0.0.1:{ranks.port}?replicas=2"]
    )


def test_the_explanation_names_what_helps() -> None:
    """One process for each machine is no cure where each has one already."""
    four = explanation(4, "m1", 1, "by their first step")
    assert "4 processes run on m1" in four and "--processes-per-machine 1 for one process" in four
    single = explanation(1, "m2", 3, "by their first step")
    assert "m2 and the other machines" in single and "one machine for one process" in single
    assert "--processes-per-machine" not in single and "--independent-processes" in single
    assert "--processes-per-machine 1 and one machine for one process" in explanation(
        4, "m1", 2, ""
    )


def test_what_a_rank_has_started_belongs_to_it(ranks: Ranks) -> None:
    """Its own helper, such as a logger's, is no other rank."""
    both = f"import threading\nexec({LISTENS!r})\nexec({CONNECTS!r})\nsys.stdin.read()"
    roots = [ranks.start(STARTS_ONE, both), ranks.start(IDLE)]
    assert len(children_of(roots[0])) == 1
    assert not are_connected(roots, free_port()) and are_connected(roots, ranks.port)


def test_a_group_that_has_ended_is_still_seen(ranks: Ranks) -> None:
    """Short trainings end between two looks."""
    ranks.start(ACCEPTS)
    ranks.start(CONNECTS + GOES)
    ranks.all[1].communicate()
    ranks.end()
    assert are_connected([], ranks.port) and not are_connected([], ranks.port, count_closed=False)


def test_what_cannot_be_known_stops_nobody(ranks: Ranks) -> None:
    assert are_connected([ranks.start(IDLE)], ranks.port, ["no.such.host.invalid"])


class Ties:
    """Connections that there are, or are not."""

    looks, there = 0, False

    def __call__(self) -> bool:
        self.looks += 1
        return self.there


def test_a_watch_looks_until_there_is_a_group() -> None:
    ties, now_s = Ties(), [0.0]
    watch = GroupWatch(ties, lambda: now_s[0])
    assert not watch.is_formed() and not watch.is_formed() and ties.looks == 1
    assert not watch.is_late()
    now_s[0] = LATE_S
    assert watch.is_late() and not watch.is_late()
    ties.there = True
    assert (
        watch.is_formed()
        and not watch.first_step()
        and watch.is_formed(now=True)
        and ties.looks == 2
    )


def test_a_first_step_decides_once() -> None:
    """A trainer that waits for its end gets it, even if there is a connection later."""
    ties = Ties()
    watch = GroupWatch(ties)
    assert watch.first_step()
    ties.there = True
    assert watch.first_step() and watch.has_failed
