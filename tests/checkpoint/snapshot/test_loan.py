"""Versions that a tier reads in the training's memory: they are of one step, and no step waits for
a node.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint.memory_nodes import running, tier, until
from support.checkpoint.proxy import Proxy
from support.pace import soon

torch = pytest.importorskip("torch")

from support.checkpoint.trainings import Fill, model_of, numbers_in  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.format.tensor_bytes import as_bytes  # noqa: E402
from deepvm.checkpoint.format.torch_zip import plan_image  # noqa: E402
from deepvm.checkpoint.snapshot import zero_copy as loans  # noqa: E402
from deepvm.checkpoint.snapshot.copying import Copying  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot, Sources  # noqa: E402
from deepvm.checkpoint.snapshot.strategies import Strategy  # noqa: E402
from deepvm.checkpoint.training.hooks import without_autograd  # noqa: E402
from deepvm.checkpoint.training.save_handle import Handle  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

MIB = 2**20
LIMIT_S = 30.0
SIZE = 2 * 8 * MIB
"""Bytes of the training's model and optimizer."""


def slot_of(sizes: list[int], seed: int = 0) -> tuple[Slot, Sources]:
    """A slot for tensors of so many bytes, and their memory."""
    random.seed(seed)
    tree = {
        "model": {
            str(n): torch.randint(0, 255, (size,), dtype=torch.uint8)
            for n, size in enumerate(sizes)
        }
    }
    parts = flatten(tree)
    return Slot(plan_image(tree, parts)), [as_bytes(storage) for storage in parts.storages]


@given(
    st.lists(st.sampled_from([1, 50, 63, 64, 200, 1000]), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=20),
)
def test_any_range_reads_as_the_copy_would(sizes: list[int], ranges: list[tuple[int, int]]) -> None:
    slot, sources = slot_of(sizes)
    copied = Slot(slot.image)
    copied.copy(sources, range(len(sizes)))
    whole, end = bytes(copied.view), len(copied.view)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loans, "_LEAST_BYTES", 64)
        loan = loans.ZeroCopySend(slot, sources, range(len(sizes)), lambda: None)
    assert [*loan.lent, *loan.rest] == sorted(range(len(sizes)), key=lambda n: sizes[n] < 64)
    slot.copy(sources, loan.rest)
    loan.begin()
    for a, b in [(0, end), *((min(p) % end, max(p) % end) for p in ranges)]:
        with loan.bytes(a, b) as parts:
            assert b"".join(parts) == whole[a:b]
    slot.copy(sources, loan.lent)
    loan.end()
    with loan.bytes(0, end) as parts:
        assert b"".join(parts) == whole and len(parts) == 1


@pytest.mark.parametrize("seed", range(5))
def test_readers_see_one_state_only(seed: int) -> None:
    """Two threads of a tier keep reading while the training passes the gate and writes."""
    slot, sources = slot_of([2 * MIB] * 4)
    for source in sources:
        assert source is not None
        source.fill_(1)
    starts = [slot.offset(number) for number in range(len(slot.pieces))]
    copying = Copying(
        Strategy(), slot, sources, range(len(slot.pieces)), (), hold=False, lend_s=LIMIT_S
    )
    loan, may_read = copying.loan, threading.Event()
    assert loan is not None
    thread = threading.Thread(target=copying.run, args=(lambda end: may_read.set(),))
    thread.start()
    assert may_read.wait(LIMIT_S)
    wrong: list[bytes] = []
    reads = [0, 0]
    stop = threading.Event()

    def read(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while not stop.is_set():
            start = rng.choice(starts) + rng.randrange(MIB)
            with loan.bytes(start, start + 2**18) as parts:
                time.sleep(0.0005)  # as a message takes
                found = set(b"".join(parts))
            reads[number] += 1
            if found != {1}:
                wrong.append(bytes(found))

    readers = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    for reader in readers:
        reader.start()
    time.sleep(random.Random(seed).random() * 0.02)
    assert copying.wait(LIMIT_S)
    for source in sources:
        source.fill_(2)
    seen = sum(reads)
    assert until(lambda: sum(reads) > seen + 50)
    stop.set()
    for reader in [*readers, thread]:
        reader.join()
    assert not wrong


class Training:
    """A small training that saves to a node through a proxy, with version 1 there.

    It lends for ``lend_s``.
    """

    def __init__(self, node: Any, folder: Path, lend_s: float = LIMIT_S, width: int = 512) -> None:
        self.proxy = Proxy((node.address.host, node.address.port))
        self.model = model_of(8 * 512**2 // width**2, width)
        self.optimizer = Fill(self.model.parameters())
        self.tier = tier(self.proxy, limit_s=20.0)
        self.folder = folder
        self.saver = Checkpointer(
            model=self.model, optimizer=self.optimizer, tiers=[self.tier], job="job"
        )
        self.saver._snapshotter._lend_s = lambda: lend_s  # type: ignore[method-assign]
        self.optimizer.step()
        self.save().remote_done.result(LIMIT_S)
        self.optimizer.step()

    def save(self) -> Handle:
        """As the schedule does it: ``save()`` itself would wait until all is copied."""
        with without_autograd():
            self.saver._take(None, None)
        return self.saver.handles[-1]

    def held(self) -> Handle:
        """Save, and hold what is sent half way."""
        half = self.proxy.sent + SIZE // 2
        self.proxy.hold_after(SIZE // 2)
        handle = self.save()
        assert until(lambda: self.proxy.sent > half)
        assert not handle.snapshot_done.done()
        return handle

    def numbers(self, version: int) -> set[float]:
        """What the node has of a version."""
        (manifest,) = (m for m in self.tier.versions("job") if m.version == version)
        tree = torch.load(self.tier.fetch(manifest, self.folder), weights_only=True)
        return numbers_in(tree["model"]) | numbers_in(tree["optimizer"])

    def close(self) -> None:
        self.proxy.flowing.set()
        with contextlib.suppress(CheckpointError):  # some tests lose the newest version on purpose
            self.saver.close()
        self.proxy.close()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    with running(256 * MIB) as node:
        made = Training(node, tmp_path)
        yield made
        made.close()


def test_nothing_is_copied_while_the_node_is_faster(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    copy = Slot.copy

    def counted(slot: Slot, sources: Any, which: Any, *more: Any) -> None:
        copied.extend(slot.pieces[number].length for number in which)
        copy(slot, sources, which, *more)

    monkeypatch.setattr(Slot, "copy", counted)
    for version in (2, 3):
        handle = training.save()
        handle.remote_done.result(LIMIT_S)
        assert handle.snapshot_done.result(LIMIT_S) == version
        training.optimizer.step()
        assert training.numbers(version) == {version}
    assert sum(copied) < 2**16


def test_training_waits_for_a_copy_and_not_for_the_node(training: Training) -> None:
    handle = training.held()
    with soon(5):
        training.optimizer.step()
    assert handle.snapshot_done.result(LIMIT_S) == 2 and not handle.remote_done.done()
    training.optimizer.step()
    training.proxy.flowing.set()
    assert handle.remote_done.result(LIMIT_S) == 2
    assert training.numbers(2) == {2}


def test_it_is_copied_in_time_for_the_gate(tmp_path: Path) -> None:
    """A training whose gate is wanted two seconds after a save: a copy has ended by then, if it is
    needed at all.
    """
    with running(256 * MIB) as node:
        training = Training(node, tmp_path)
        del training.saver._snapshotter._lend_s  # type: ignore[attr-defined]
        training.saver._snapshotter._gates_s.clear()
        seen: list[float] = []
        for held in (False, False, True):
            if held:
                training.proxy.hold_after(SIZE // 2)
            handle = training.save()
            start = time.monotonic()
            if held:
                assert handle.snapshot_done.result(LIMIT_S)
                seen.append(time.monotonic() - start)
            time.sleep(max(start + 2.0 - time.monotonic(), 0.0))
            training.optimizer.step()
            training.proxy.flowing.set()
            assert handle.remote_done.result(LIMIT_S) == handle.version
            assert training.numbers(handle.version) == {handle.version}
        training.close()
    assert 0.5 < seen[0] < 2.0


def test_before_anything_is_known_it_is_copied_at_once(training: Training) -> None:
    snapshotter = training.saver._snapshotter
    policy = type(snapshotter)._lend_s
    copying = snapshotter._copying
    assert copying is not None
    copying.took_s = 0.0
    snapshotter._gates_s.clear()
    assert policy(snapshotter) == 0
    snapshotter._gates_s.append(5.0)
    snapshotter._copy_s = 0.0
    assert policy(snapshotter) == 0
    copying.took_s = 2.0
    assert policy(snapshotter) == 2.5
    copying.took_s = 0.0
    assert 2.5 < policy(snapshotter) < 2.7, "what was not needed again is forgotten, slowly"
    snapshotter._gates_s.append(1.0)
    assert policy(snapshotter) == 0


@pytest.mark.parametrize("steps_on", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_broken_connection_costs_no_version(
    training: Training, share: float, steps_on: bool
) -> None:
    training.proxy.cut_after(int(share * SIZE))
    handle = training.save()
    if steps_on:
        training.optimizer.step()
    assert handle.remote_done.result(LIMIT_S) == 2
    assert not training.proxy.cuts and handle.snapshot_done.result(LIMIT_S) == 2
    training.optimizer.step()
    assert training.numbers(2) == {2}


def test_bytes_that_are_damaged_on_their_way_are_copied_and_sent_again(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, damaged = loans.ZeroCopySend._places, [False]

    def once(loan: loans.ZeroCopySend, start: int, end: int, read: Any) -> Iterator[memoryview]:
        for part in places(loan, start, end, read):
            if len(part) > 1000 and not damaged[0] and start > 4 * MIB:
                damaged[0] = True  # what is hashed is not what is sent
                yield memoryview(bytes(len(part)))
            else:
                yield part

    monkeypatch.setattr(loans.ZeroCopySend, "_places", once)
    handle = training.save()
    assert handle.remote_done.result(LIMIT_S) == 2
    training.optimizer.step()
    assert damaged[0] and training.numbers(2) == {2}


def test_a_state_that_is_changed_meanwhile_does_not_count(training: Training) -> None:
    handle = training.held()
    with torch.no_grad():
        training.model[5].weight.add_(1)  # by no optimizer
    training.proxy.flowing.set()
    with pytest.raises(CheckpointError, match="1 tensors were changed in forward or backward"):
        handle.remote_done.result(LIMIT_S)
    with pytest.raises(CheckpointError, match="1 tensors were changed"):
        handle.snapshot_done.result(LIMIT_S)
    assert [m.version for m in training.tier.versions("job")] == [1]
    training.optimizer.step()
    assert training.save().remote_done.result(LIMIT_S) == 3
    assert training.numbers(3) == {3}


@pytest.mark.parametrize("width", [160, 1024])
def test_memory_that_moves_is_followed(tmp_path: Path, width: int) -> None:
    """A tensor that is given to another process gets other memory, without being changed."""
    with running(256 * MIB) as node:
        training = Training(node, tmp_path, width=width)
        handle = training.held()
        for tensor in [
            *training.model.parameters(),
            *(s["m"] for s in training.optimizer.state.values()),
        ]:
            tensor.share_memory_()
        fresh = [torch.full((width, width), 7.0) for _ in range(20)]  # where it was
        training.proxy.flowing.set()
        assert handle.remote_done.result(LIMIT_S) == 2 and fresh
        training.optimizer.step()
        assert training.numbers(2) == {2}
        training.close()


def test_a_read_during_which_memory_moves_does_not_count(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, tensor = loans.ZeroCopySend._places, training.model[5].weight

    def moving(loan: loans.ZeroCopySend, start: int, end: int, read: Any) -> Iterator[memoryview]:
        yield from places(loan, start, end, read)
        if any(part.data_ptr() == tensor.data_ptr() for part, _ in read) and not tensor.is_shared():
            kept.append(tensor.untyped_storage().clone())
            tensor.share_memory_()

    kept: list[Any] = []
    monkeypatch.setattr(loans.ZeroCopySend, "_places", moving)
    with pytest.raises(CheckpointError, match="tensors got other memory while they were read"):
        training.save().remote_done.result(LIMIT_S)
    assert [m.version for m in training.tier.versions("job")] == [1]


def test_what_happens_after_the_node_has_it_is_of_no_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a change by hand nor a copy that fails makes a committed version a failed one."""
    over, go = loans.ZeroCopySend.over, threading.Event()

    def late(loan: loans.ZeroCopySend) -> None:
        assert go.wait(LIMIT_S)
        over(loan)

    def fails(*_: Any) -> None:
        raise RuntimeError("no memory")

    with running(256 * MIB, tmp_path / "persisted") as node:
        training = Training(node, tmp_path)
        monkeypatch.setattr(loans.ZeroCopySend, "over", late)
        handle = training.save()
        assert handle.remote_done.result(LIMIT_S) == 2
        with torch.no_grad():
            training.model[5].weight.add_(1)
        with monkeypatch.context() as patch:
            patch.setattr(Slot, "copy", fails)
            training.optimizer.step()
        go.set()
        assert handle.snapshot_done.result(LIMIT_S) == handle.durable.result(LIMIT_S) == 2
        assert training.numbers(2) == {2}
        training.close()


def test_a_copy_that_fails_does_not_count(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = training.held()

    def fails(*_: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Slot, "copy", fails)
        training.optimizer.step()
        assert until(handle.snapshot_done.done)
    training.proxy.flowing.set()
    for future in (handle.snapshot_done, handle.remote_done):
        with pytest.raises(CheckpointError, match="the state could not be copied: no memory"):
            future.result(LIMIT_S)
    assert until(lambda: not training.saver._pipeline.under_way)
    assert [m.version for m in training.tier.versions("job")] == [1]
    training.optimizer.step()
    assert training.save().remote_done.result(LIMIT_S) == 4


def test_a_node_that_is_gone_holds_nobody(tmp_path: Path) -> None:
    with running(256 * MIB) as node:
        training = Training(node, tmp_path)
        handle = training.held()
        training.proxy.close()
    # There is no copy, and none is needed
    for future in (handle.remote_done, handle.snapshot_done):
        with pytest.raises(CheckpointError, match=r"tcp://127.0.0.1"):
            future.result(LIMIT_S)
    with soon(5):
        training.optimizer.step()
    training.close()


def test_an_urgent_version_overtakes_one_that_is_lent(training: Training) -> None:
    late = training.held()
    urgent = training.saver.request_save(deadline=time.time() + 1)
    training.optimizer.step()
    training.model(torch.ones(1, 512))
    training.proxy.flowing.set()
    assert urgent.remote_done.result(LIMIT_S) == 3
    assert late.local_done.exception(LIMIT_S) is not None or training.numbers(2) == {2}
    assert training.numbers(3) == {3}
