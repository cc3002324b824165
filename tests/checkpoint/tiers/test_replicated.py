"""Several memory nodes keep each version: what was acknowledged outlives all but one of those that
keep it.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.checkpoint.images import noise, plain_shard
from support.checkpoint.memory_nodes import (
    MIB,
    TOKEN,
    Acks,
    NodeDisk,
    finished,
    make_image,
    make_layout,
    until,
)
from support.checkpoint.replicas import Machine, holders, machines, mirrored, put, read

from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Reservation
from deepvm.checkpoint.tiers import base, replicated
from deepvm.checkpoint.tiers.base import without_secrets
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError, DamagedError, RequestError, TierBusyError


def test_the_loss_of_either_node_loses_nothing(tmp_path: Path) -> None:
    for lost in (0, 1):
        with machines(2) as places, mirrored(places) as tier:
            data = noise(3 * MIB, lost)
            assert put(tier, 1, data).levels == [Level.REMOTE]
            assert holders(places, 1) == [0, 1]
            places[lost].lose()
            assert read(places, tmp_path) == (1, bytes(data))
            places[lost].start()  # empty
            assert read(places, tmp_path) == (1, bytes(data))


def test_one_copy_is_not_acknowledged_but_restored_if_nothing_else_is_there(tmp_path: Path) -> None:
    with machines(2) as places, mirrored(places) as tier:
        places[0].lose()
        acks = Acks()
        with pytest.raises(CheckpointError, match="is on 1 of 2 memory nodes"):
            tier.put(plain_shard(noise(1000)), acks)
        assert acks.levels == []
        assert read(places, tmp_path) == (1, bytes(noise(1000)))


def test_a_node_leaves_and_joins_while_training_goes_on(tmp_path: Path) -> None:
    with machines(3) as places, mirrored(places) as tier:
        assert put(tier, 1, noise(1000, 1)).levels == [Level.REMOTE]
        assert holders(places, 1) == [0, 1]  # the third one waits
        places[0].lose()
        assert put(tier, 2, noise(1000, 2)).levels == [Level.REMOTE]
        assert holders(places, 2) == [1, 2]
        places[1].lose()
        assert read(places[::2], tmp_path, 2) == (2, bytes(noise(1000, 2)))
        with pytest.raises(CheckpointError, match="on 1 of 2 memory nodes"):
            put(tier, 3, noise(1000, 3))
        for number in (0, 1):
            places[number].start()
        assert until(lambda: not tier._silent)
        assert put(tier, 4, noise(1000, 4)).levels == [Level.REMOTE]
        assert holders(places, 4) == [0, 1, 2]  # all, until one is acknowledged again
        assert put(tier, 5, noise(1000, 5)).levels == [Level.REMOTE]
        assert holders(places, 5) == [0, 1]


def test_a_node_that_is_still_to_come_is_used_when_it_comes() -> None:
    with machines(2) as places:
        places[1].lose()
        with mirrored(places) as tier:
            with pytest.raises(CheckpointError):
                put(tier, 1, noise(1000, 1))
            places[1].start()
            assert until(lambda: not tier._silent)
            assert put(tier, 2, noise(1000, 2)).levels == [Level.REMOTE]


def test_durable_when_one_disk_has_it(tmp_path: Path) -> None:
    with machines(2, tmp_path / "disks") as places, mirrored(places) as tier:
        acks = put(tier, 1, noise(100_000))
        assert acks.wait(Level.DURABLE) and acks.levels == [Level.REMOTE, Level.DURABLE]
        assert tier.settle(5)


def test_what_cannot_be_durable_is_told_once() -> None:
    told: list[CheckpointError] = []
    with machines(2) as places, mirrored(places) as tier:
        shard = Shard(
            "job", 1, 0, make_layout(5000), make_image(make_layout(5000), 1), lost=told.append
        )
        acks = Acks()
        tier.put(shard, acks)
        assert until(lambda: told) and acks.levels == [Level.REMOTE]
        assert "memory only" in str(told[0])
        assert tier.settle(5) and len(told) == 1


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_choose_differently_come_together_again(tmp_path: Path, world: int) -> None:
    """One rank considers the first node silent, the others do not: only node 2 has all parts."""
    layout = make_layout(50_000, world, seed=3)
    with machines(3) as places, ExitStack() as stack:
        tiers = [stack.enter_context(mirrored(places)) for _ in range(world)]
        tiers[0]._silent.add(0)

        def save(version: int) -> list[Acks]:
            acks = [Acks() for _ in tiers]
            threads = [
                threading.Thread(
                    target=t.put,
                    args=(Shard("job", version, r, layout, make_image(layout, version)), acks[r]),
                )
                for r, t in enumerate(tiers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            return acks

        tiers[0]._retry_s = 60
        first = save(1)
        assert holders(places, 1) == [1] and not any(a.levels for a in first)
        stack.callback(setattr, replicated, "_OVERDUE_S", replicated._OVERDUE_S)
        replicated._OVERDUE_S = 0.0
        time.sleep(0.01)
        second = save(2)
        assert all(a.wait(Level.REMOTE) for a in second)
        assert len(holders(places, 2)) >= 2


def test_a_version_that_a_node_took_with_it_is_told_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other rank has not sent its part yet when the node dies.

    Nobody waits for the acknowledgement for minutes.
    """
    monkeypatch.setattr(replicated, "_OVERDUE_S", 0.05)
    told: list[CheckpointError] = []
    layout = make_layout(50_000, 2, seed=3)
    with machines(2) as places, mirrored(places) as tier:
        acks = Acks()
        tier.put(Shard("job", 1, 0, layout, make_image(layout, 1), lost=told.append), acks)
        places[1].lose()
        assert until(lambda: told) and acks.levels == []
        assert "does not answer" in str(told[0]) or "gave it up" in str(told[0])


def test_no_room_is_no_failure() -> None:
    with machines(2) as places, mirrored(places) as tier:
        assert put(tier, 1, noise(20 * MIB, 1)).levels == [Level.REMOTE]
        for place in places:
            assert place.node is not None
            place.node.registry.stopping = True
        with pytest.raises(TierBusyError):
            put(tier, 2, noise(20 * MIB, 2))
        for place in places:
            assert place.node is not None
            place.node.registry.stopping = False
        assert put(tier, 3, noise(20 * MIB, 3)).levels == [Level.REMOTE]


def no_room(patch: pytest.MonkeyPatch, place: Machine) -> None:
    reserve = VersionRegistry.reserve

    def full(registry: VersionRegistry, *words: Any, **more: Any) -> Any:
        busy = place.node is not None and registry is place.node.registry
        return "no room" if busy else reserve(registry, *words, **more)

    patch.setattr(VersionRegistry, "reserve", full)


def test_one_node_without_room_is_no_failure() -> None:
    with machines(2) as places, mirrored(places) as tier:
        assert put(tier, 1, noise(1000)).levels == [Level.REMOTE]
        assert places[0].node is not None and places[1].node is not None
        places[1].node.registry.stopping = True
        acks, shard = Acks(), plain_shard(noise(MIB), 2)
        for _ in range(3):  # as a sharded save does, which waits for room
            with pytest.raises(TierBusyError):
                tier.put(shard, acks)
        assert acks.levels == [] and places[0].node.registry.counts["received_bytes"] < 1.1 * MIB, (
            "sent once"
        )
        places[1].node.registry.stopping = False
        tier.put(shard, acks)
        assert acks.levels == [Level.REMOTE] and holders(places, 2) == [0, 1]
        assert tier.settle(5)
        assert put(tier, 3, noise(1000)).levels == [Level.REMOTE]


def test_a_part_that_was_lost_while_another_node_had_no_room_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = make_layout(50_000, 2, seed=3)
    with machines(2) as places, mirrored(places) as tier, mirrored(places) as second:
        ranks = [Shard("job", 1, rank, layout, make_image(layout, 1)) for rank in range(2)]
        acks = [Acks(), Acks()]
        with monkeypatch.context() as patch:
            no_room(patch, places[1])
            with pytest.raises(TierBusyError):
                tier.put(ranks[0], acks[0])
        copies = tier._short
        assert copies is not None and copies.there == {0}
        places[0].lose()
        places[0].start()
        assert until(lambda: copies.there == set() and not tier._silent)
        tier.put(ranks[0], acks[0])
        assert copies.there == copies.awaited == {0, 1}
        second.put(ranks[1], acks[1])
        assert all(a.wait(Level.REMOTE) for a in acks) and holders(places, 1) == [0, 1]


def test_a_node_that_had_no_room_is_waited_for_when_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank's part is still to come: until then no node has the version."""
    layout, told = make_layout(50_000, 2, seed=3), list[CheckpointError]()
    with machines(2) as places, mirrored(places) as first, mirrored(places) as second:
        ranks = [
            (tier, Shard("job", 1, rank, layout, make_image(layout, 1), lost=told.append), Acks())
            for rank, tier in enumerate((first, second))
        ]
        with monkeypatch.context() as patch:
            no_room(patch, places[1])
            for tier, shard, acks in ranks:
                with pytest.raises(TierBusyError):
                    tier.put(shard, acks)
        (tier, shard, acks), other = ranks
        tier.put(shard, acks)
        time.sleep(0.2)
        assert told == [] and acks.levels == []
        other[0].put(*other[1:])
        assert acks.wait(Level.REMOTE) and other[2].wait(Level.REMOTE)


@pytest.mark.parametrize("disks", [False, True])
def test_a_copy_that_was_lost_before_the_others_came_does_not_count(
    disks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a disk the first node has said its last word, and nobody tells that it has been
    started again.
    """
    monkeypatch.setattr(replicated, "_STALE_S", 0.2)
    told: list[CheckpointError] = []
    with machines(2, tmp_path if disks else None) as places, mirrored(places) as tier:
        disk = NodeDisk("complete", monkeypatch)
        disk.hang()
        commit = VersionRegistry.commit

        def late(registry: VersionRegistry, reservation: Reservation) -> Any:
            if registry is places[1].node.registry:  # type: ignore[union-attr]
                assert until(lambda: [c._remote for c in tier._open] == [{0}])
                places[0].lose()
                places[0].start()
                until(lambda: bool(told), 1.0)
            return commit(registry, reservation)

        monkeypatch.setattr(VersionRegistry, "commit", late)
        acks = Acks()
        try:
            tier.put(replace(plain_shard(noise(1000)), lost=told.append), acks)
        except CheckpointError as error:
            told.append(error)
        assert until(lambda: told) and acks.levels == []
        assert re.search("has lost it|gave it up", str(told[0]))
        disk.work()


def test_two_names_of_one_node_are_one_copy() -> None:
    with machines(1) as places:
        port = places[0].port
        nodes = [
            TcpTier(f"tcp://{host}:{port}", "s1", TOKEN, limit_s=5.0)
            for host in ("127.0.0.1", "localhost")
        ]
        tier = ReplicatedTier(nodes, 2)
        acks = Acks()
        with pytest.raises(CheckpointError, match="same memory node"):
            tier.put(plain_shard(noise(1000)), acks)
        assert acks.levels == []
        tier.close()


@pytest.mark.parametrize("first", [0, 1])
def test_two_names_of_one_node_that_are_asked_at_once_are_one_copy(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either name may be the first to hear who is there."""
    greet, asked = TcpTier.greet, threading.Event()

    def late(node: TcpTier) -> None:
        if node is nodes[1 - first]:
            asked.wait(0.3)
        return greet(node)

    monkeypatch.setattr(TcpTier, "greet", late)
    with machines(1) as places:
        hosts = ("127.0.0.1", "localhost")
        nodes = [
            TcpTier(f"tcp://{host}:{places[0].port}", "s1", TOKEN, limit_s=5.0) for host in hosts
        ]
        tier, acks = ReplicatedTier(nodes, 2), Acks()
        with pytest.raises(CheckpointError, match="same memory node"):
            tier.put(plain_shard(noise(1000)), acks)
        assert acks.levels == []
        tier.close()


def test_a_damaged_copy_is_passed_over(tmp_path: Path) -> None:
    with machines(2) as places, mirrored(places) as tier:
        data = noise(2 * MIB, 4)
        assert put(tier, 1, data).levels == [Level.REMOTE]
        for number in (0, 1):
            assert (node := places[number].node) is not None
            node.registry.complete("job")[1].image[MIB] ^= 1
            if not number:
                assert read(places, tmp_path) == (1, bytes(data))
        (record,) = tier.versions("job")
        with pytest.raises(DamagedError):
            tier.fetch(record, tmp_path)


def test_too_many_silent_nodes_are_no_reason_to_go_back(tmp_path: Path) -> None:
    with machines(3) as places, mirrored(places) as tier:
        put(tier, 1, noise(1000, 1))
        places[2].lose()
        assert read(places, tmp_path)[0] == 1
        places[1].lose()
        for ask in (
            tier.versions,
            tier.damaged,
            lambda job: tier.set_aside(job, {1}),
            lambda job: tier.begin(job, 3),
        ):
            with pytest.raises(CheckpointError, match="2 of 3 nodes do not answer"):
                ask("job")


def test_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("DEEPVM_TOKEN_FILE", str(token))
    tier = open_tier("tcp://a:1,b:2,c:3?replicas=2", "s1")
    assert (
        isinstance(tier, ReplicatedTier)
        and tier.url == "tcp://a:1,b:2,c:3?replicas=2"
        and tier.shared
    )
    assert without_secrets(tier.url) == tier.url
    for bad in (
        "a:1,b:2?replicas=1",
        "a:1,b:2?replicas=3",
        "a:1?replicas=2",
        "a:1,a:1?replicas=2",
        "a:1,b:2?copies=2",
    ):
        with pytest.raises(RequestError):
            open_tier(f"tcp://{bad}", "s1")


class Losses(RuleBasedStateMachine):
    """Saves of one or two ranks.

    Nodes that lose all they have, are cut off for a while, are slow, or whose memory has
    a flipped bit; runs that begin again.

    A version, or a newer one, must be found as long as one of the nodes that had it when it was
    acknowledged answers and has not lost or damaged it since; so fewer than ``replicas`` losses
    have no effect, whatever their order. Where ``replicas`` nodes are silent, nobody may say what
    the newest is.
    """

    count, replicas = 3, 2

    @initialize(world=st.integers(1, 2))
    def begin(self, world: int) -> None:
        self.stack, self.world, self.runs, self.version = ExitStack(), world, 0, 0
        self.places = self.stack.enter_context(machines(self.count))
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.layout = make_layout(20_000, world, seed=1)
        self.truth: dict[int, set[bytes]] = {}
        self.promised: dict[int, set[int]] = {}  # version: who had it, and has not lost it since
        self.tiers: list[ReplicatedTier] = []
        self.run()

    def run(self) -> None:
        for tier in self.tiers:
            tier.close()
        self.runs += 1
        self.tiers = [self.tier(f"run{self.runs}", 0.02) for _ in range(self.world)]

    def tier(self, session: str, retry_s: float) -> ReplicatedTier:
        nodes = []
        for place in self.places:
            node = TcpTier(place.url, session, TOKEN, limit_s=5.0, wire_bytes=8192)

            def connect(*words: Any, real: Any = node._connect, place: Machine = place) -> Any:
                if place.cut:
                    raise ConnectionRefusedError("cut off")
                time.sleep(place.slow_s)
                return real(*words)

            node._connect = connect  # type: ignore[method-assign]
            nodes.append(node)
        return ReplicatedTier(nodes, self.replicas, retry_s=retry_s)

    @rule(only=st.sampled_from([0, 1, None, None, None]))
    def save(self, only: int | None) -> None:
        """All ranks send their part, or one of them is killed before."""
        self.version += 1
        image = make_image(self.layout, 1000 * self.runs + self.version)
        self.truth.setdefault(self.version, set()).add(finished(image, self.layout))
        acks = [Acks() for _ in self.tiers]

        def work(rank: int) -> None:
            try:
                self.tiers[rank].put(
                    Shard("job", self.version, rank, self.layout, image), acks[rank]
                )
            except CheckpointError:
                return

        ranks = [r for r in range(self.world) if only is None or r == only % self.world]
        threads = [threading.Thread(target=work, args=(r,)) for r in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        if len(ranks) == self.world and self._all_there():
            until(lambda: all(a.levels for a in acks), 0.3)
        if any(a.levels for a in acks):
            self.promised[self.version] = set(holders(self.places, self.version))
            assert len(self.promised[self.version]) >= self.replicas

    def _all_there(self) -> bool:
        return sum(p.node is not None and not p.cut for p in self.places) >= self.replicas

    @rule(number=st.integers(0, 2))
    def lose(self, number: int) -> None:
        place = self.places[number % self.count]
        if place.node is not None:
            place.lose()
            for kept in self.promised.values():
                kept.discard(number % self.count)

    @rule(number=st.integers(0, 2))
    def come_back(self, number: int) -> None:
        place = self.places[number % self.count]
        if place.node is None:
            place.start()

    @rule(number=st.integers(0, 2), cut=st.booleans())
    def cut_off(self, number: int, cut: bool) -> None:
        """New connections fail; what it has stays."""
        self.places[number].cut = cut

    @rule(number=st.integers(0, 2), slow=st.booleans())
    def slow_down(self, number: int, slow: bool) -> None:
        """Each connection takes longer than the whole save by others."""
        self.places[number].slow_s = 0.05 if slow else 0.0

    @rule(number=st.integers(0, 2), at=st.integers(0, 19_999))
    def damage(self, number: int, at: int) -> None:
        """A bit of the newest version that it has flips in its memory."""
        node = self.places[number].node
        if node is not None and (complete := node.registry.complete("job")):
            complete[max(complete)].image[at] ^= 1
            self.promised.get(max(complete), set()).discard(number)

    @rule()
    def all_are_there_again(self) -> None:
        for place in self.places:
            place.cut, place.slow_s = False, 0.0
            if place.node is None:
                place.start()
        assert until(lambda: not any(t._silent for t in self.tiers))

    @rule()
    def begin_again(self) -> None:
        """A new run goes on from what it finds, which is no older than what was promised."""
        time.sleep(0.6 if self.runs % 3 == 0 else 0)  # the lease of the old run, now and then
        self.run()
        try:
            self.version = max(
                [*(r.version for r in self.tiers[0].versions("job")), *self.kept()], default=0
            )
        except CheckpointError:
            return

    def kept(self) -> set[int]:
        """What was promised and is there."""
        return {v for v, kept in self.promised.items() if any(not self.places[n].cut for n in kept)}

    @invariant()
    def what_was_promised_is_there(self) -> None:
        if not getattr(self, "tiers", None):
            return
        reader = self.tier("reader", 60)
        try:
            # Not knowing is no going back
            if sum(p.node is None or p.cut for p in self.places) >= self.replicas:
                with pytest.raises(CheckpointError, match="do not answer"):
                    reader.versions("job")
                return
            restored = self.restored(reader)
            newest = max(self.kept(), default=0)
            assert restored >= newest, f"{restored} is restored, promised {newest}"
        finally:
            reader.close()

    def restored(self, reader: ReplicatedTier) -> int:
        """The newest version that is undamaged, as a new run finds it; 0 for none."""
        for record in reader.versions("job"):
            with suppress(DamagedError):
                assert (
                    reader.fetch(record, self.folder).read_bytes() in self.truth[record.version]
                ), "other bytes"
                return record.version
        return 0

    def teardown(self) -> None:
        for tier in getattr(self, "tiers", ()):
            tier.close()
        if hasattr(self, "stack"):
            self.stack.close()


FEW = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    database=None,
)


def test_any_order_of_saves_losses_and_restarts() -> None:
    run_state_machine_as_test(Losses, settings=settings(FEW, max_examples=4))


@pytest.mark.slow
def test_any_order_of_saves_losses_and_restarts_at_length() -> None:
    run_state_machine_as_test(
        Losses, settings=settings(FEW, max_examples=120, stateful_step_count=30)
    )


def acknowledges_the_first_copy(patch: pytest.MonkeyPatch) -> None:
    real = replicated._Copies.__init__
    patch.setattr(
        replicated._Copies,
        "__init__",
        lambda self, shard, told, needed, *more: real(self, shard, told, 1, *more),
    )


def acknowledges_what_is_only_sent(patch: pytest.MonkeyPatch) -> None:
    """This rank's part is there; the version is complete only with those of the others."""
    real = replicated._Copies.taken

    def taken(self: Any, number: int) -> None:
        real(self, number)
        self.reached(number, Level.REMOTE, "")

    patch.setattr(replicated._Copies, "taken", taken)


def reads_the_first_node_alone(patch: pytest.MonkeyPatch) -> None:
    real = ReplicatedTier._ask
    patch.setattr(ReplicatedTier, "_ask", lambda self, question: real(self, question)[:1])


def takes_silence_for_emptiness(patch: pytest.MonkeyPatch) -> None:
    def ask(self: ReplicatedTier, question: Callable[[TcpTier], Any]) -> list[tuple[int, Any]]:
        found = []
        for number, node in enumerate(self._nodes):
            with suppress(CheckpointError):
                found.append((number, question(node)))
        return found

    patch.setattr(ReplicatedTier, "_ask", ask)


def restores_the_oldest_first(patch: pytest.MonkeyPatch) -> None:
    real = ReplicatedTier.versions
    patch.setattr(ReplicatedTier, "versions", lambda self, job: real(self, job)[::-1])


def takes_the_first_copy_alone(patch: pytest.MonkeyPatch) -> None:
    """Though that one may be damaged."""
    real = ReplicatedTier.fetch

    def fetch(self: ReplicatedTier, record: Any, folder: Path) -> Path:
        return real(self, replace(record, copies=record.copies[:1]), folder)

    patch.setattr(ReplicatedTier, "fetch", fetch)


def checks_no_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(base, "verified", lambda pieces, *_: pieces)


Step = Callable[[Losses], None]
SEEN: dict[Callable[[pytest.MonkeyPatch], None], tuple[int, list[Step]]] = {
    # broken: (ranks, what happens)
    takes_the_first_copy_alone: (1, [lambda run: run.save(None), lambda run: run.damage(0, 5000)]),
    checks_no_bytes: (1, [lambda run: run.save(None), lambda run: run.damage(0, 5000)]),
    acknowledges_the_first_copy: (
        1,
        [
            lambda run: run.cut_off(0, True),
            lambda run: run.cut_off(1, True),
            lambda run: run.save(None),
        ],
    ),
    acknowledges_what_is_only_sent: (2, [lambda run: run.save(0)]),
    reads_the_first_node_alone: (
        1,
        [
            lambda run: run.cut_off(0, True),
            lambda run: run.save(None),
            lambda run: run.cut_off(0, False),
        ],
    ),
    takes_silence_for_emptiness: (1, [lambda run: run.lose(0), lambda run: run.lose(1)]),
    restores_the_oldest_first: (1, [lambda run: run.save(None), lambda run: run.save(None)]),
}


def carry_out(world: int, steps: list[Step]) -> None:
    run = Losses()
    try:
        run.begin(world)
        for step in steps:
            step(run)
            run.what_was_promised_is_there()
    finally:
        run.teardown()


@pytest.mark.parametrize("broken", SEEN, ids=lambda broken: broken.__name__)
def test_a_rule_that_is_broken_is_seen(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(*SEEN[broken])
    broken(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        carry_out(*SEEN[broken])
