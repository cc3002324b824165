"""Copies beside the training, on a device that does its work late: what is not waited for has not
happened.
"""

from __future__ import annotations

import mmap
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.trainings import Fill, contents, model_of  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.format.layout import Layout, Segment  # noqa: E402
from deepvm.checkpoint.format.tensor_bytes import as_bytes  # noqa: E402
from deepvm.checkpoint.format.torch_zip import plan_image  # noqa: E402
from deepvm.checkpoint.snapshot import host_buffer  # noqa: E402
from deepvm.checkpoint.snapshot.copying import SnapshotCopy  # noqa: E402
from deepvm.checkpoint.snapshot.host_buffer import Slot  # noqa: E402
from deepvm.checkpoint.snapshot.strategies import Cuda, DeviceCopyStrategy, Strategy  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402


class LateEvent:
    def __init__(self) -> None:
        self.happened = threading.Event()

    def synchronize(self) -> None:
        assert self.happened.wait(30)

    def query(self) -> bool:
        return self.happened.is_set()


class LateStream:
    """Work is done in its order, by a thread, each piece after a pause."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.work.get()()

    def record_event(self, event: Any = None) -> LateEvent:
        made = LateEvent()
        self.work.put(made.happened.set)
        return made

    def wait_event(self, event: Any) -> None:
        self.work.put(event.synchronize)


class Now:
    """The stream of the training: on this device work is done at once, so whoever waits stands
    still.
    """

    def record_event(self, event: Any = None) -> LateEvent:
        made = LateEvent()
        made.happened.set()
        return made

    def wait_event(self, event: Any) -> None:
        event.synchronize()


class Late(Cuda):
    """The processor in the part of a GPU. Scalars stay with the processor, as Adam's step does."""

    def __init__(self, pause_s: float = 0.002) -> None:
        self.pause_s, self.copies, self.locked = pause_s, 0, list[tuple[int, int]]()

    def has(self, device: torch.device) -> bool:
        return True

    def stream(self, device: torch.device) -> Any:
        return LateStream()

    def current(self, device: torch.device) -> Any:
        return Now()

    def mark(self, stream: Any) -> LateEvent:
        return stream.record_event()

    def copy(self, stream: Any, into: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        def work() -> None:
            time.sleep(self.pause_s)
            for target, source in zip(into, out, strict=True):
                target.copy_(source)

        self.copies += 1
        stream.work.put(work)

    @contextmanager
    def within(self, streams: Sequence[Any]) -> Iterator[None]:
        yield

    def room(self, device: torch.device) -> int:
        return 2**40

    def pin(self, address: int, size: int) -> str:
        self.locked.append((address, size))
        return ""

    def unpin(self, address: int) -> None:
        self.locked = [pair for pair in self.locked if pair[0] != address]


def fill_and_save(folder: Path, strategy: Strategy, steps: int = 30) -> dict[int, set[float]]:
    model = model_of(8)
    model.register_buffer("seen", torch.zeros(5000))
    optimizer = Fill(model.parameters())
    saver = Checkpointer(
        model=model, optimizer=optimizer, tiers=[folder.as_uri()], every=3, keep=1000
    )
    saver._layers.strategy = strategy
    with saver:
        for step in range(1, steps + 1):
            saver._before_forward()
            # As a forward does: the buffer of the version before must be in its copy by now
            model.seen.fill_(step)
            optimizer.step()
        saver.save(block=True)
    return contents(folder)


@pytest.mark.parametrize("kind", [Strategy, DeviceCopyStrategy])
def test_a_version_holds_the_numbers_of_one_step(
    kind: type[Strategy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_buffer, "GROUP_BYTES", 2**19)  # several groups
    api = Late()
    found = fill_and_save(tmp_path, kind(api))
    assert len(found) >= 2 and all(values == {version} for version, values in found.items()), found
    assert api.copies > 4 * len(found)


@pytest.mark.parametrize("kind", [Strategy, DeviceCopyStrategy])
@pytest.mark.parametrize("missing", ["gate", "early"])
def test_without_waiting_for_events_that_test_fails(
    kind: type[Strategy], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutations: the stream of the training waits for no event at the gate, or for none of the
    buffers' copies.
    """
    wait = Now.wait_event

    def sometimes(self: Now, event: Any) -> None:
        if (threading.current_thread() is threading.main_thread()) and waits():
            wait(self, event)

    begun = [False]

    def waits() -> bool:
        return begun[0] == (missing == "gate")

    begin = SnapshotCopy.__init__

    def noted(self: SnapshotCopy, *args: Any, **options: Any) -> None:
        begun[0] = True
        begin(self, *args, **options)
        begun[0] = False

    monkeypatch.setattr(host_buffer, "GROUP_BYTES", 2**19)
    monkeypatch.setattr(SnapshotCopy, "__init__", noted)
    monkeypatch.setattr(Now, "wait_event", sometimes)
    # A busy machine may once copy in time by chance
    tries = (fill_and_save(tmp_path / str(n), kind(Late())) for n in range(5))
    assert any(values != {v} for found in tries for v, values in found.items())


def test_progress_is_told_when_the_device_has_come_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that reads what was reported finds it there, though it was only queued before."""
    monkeypatch.setattr(host_buffer, "GROUP_BYTES", 1000)
    tree = {"model": {str(n): torch.full((100,), float(n + 1)) for n in range(20)}}
    parts = flatten(tree)
    image = plan_image(tree, parts)
    strategy = Strategy(Late(0.005))
    slot = strategy.slot(image, image.layout(), 0)
    sources = [as_bytes(storage) for storage in parts.storages]
    copying = SnapshotCopy(strategy, slot, sources, range(len(slot.pieces)), (), hold=False)
    told = []

    def reached(end: int) -> None:
        told.append(end)
        for number, offset in enumerate(image.storages):
            if offset + 400 <= end:
                assert (
                    torch.frombuffer(slot.view, dtype=torch.float32, count=100, offset=offset)
                    .eq(number + 1)
                    .all()
                )

    copying.run(reached)
    assert told == sorted(told) and len(told) == 10 and told[-1] == image.size - 1


@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_a_ranks_part_waits_until_the_copy_is_known_to_be_right(rank: int) -> None:
    """Not only the end of the file, which one rank has: the others' parts would be whole at the
    node before that.
    """
    tree = {"model": {str(n): torch.full((100,), float(n + 1)) for n in range(20)}}
    parts = flatten(tree)
    image = plan_image(tree, parts)
    middle = image.storages[10]
    layout = Layout(
        image.size, ((Segment(0, middle),), (Segment(middle, image.size - middle),)), image.fields
    )
    strategy = Strategy()
    slot = strategy.slot(image, layout, rank)
    copying = SnapshotCopy(
        strategy,
        slot,
        [as_bytes(s) for s in parts.storages],
        range(len(slot.pieces)),
        (),
        hold=False,
    )
    copying.watch(lambda: "a tensor was changed")
    told: list[int] = []
    with pytest.raises(CheckpointError, match="a tensor was changed"):
        copying.run(told.append)
    assert told and max(told) == (middle, image.size)[rank] - 1


@pytest.mark.parametrize(
    "numbers", [[250] * 47, [130] * 46, [100 + 300 * (n % 7 == 0) for n in range(500)], [5000]]
)
def test_a_copy_is_queued_with_few_events(
    numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA makes the thread that queues more than 56 of them wait for the device.

    There are two such queues.
    """
    monkeypatch.setattr(host_buffer, "GROUP_BYTES", 1000)
    tree = {"model": {str(n): torch.full((count,), float(n)) for n, count in enumerate(numbers)}}
    parts = flatten(tree)
    image = plan_image(tree, parts)
    api = Late(0)
    strategy = Strategy(api)
    slot = strategy.slot(image, image.layout(), 0)
    pieces = range(len(slot.pieces))
    sources = [as_bytes(storage) for storage in parts.storages]
    SnapshotCopy(strategy, slot, sources, pieces, (), hold=False).run(lambda end: None)
    assert 10 < api.copies <= 25
    assert all(slot.targets[n].equal(slot.pieces[n].of(sources)) for n in pieces)


def test_a_refused_lock_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA tells the error again to whoever asks next, which must not be the training."""
    told: list[str] = []

    class Refuses:
        @staticmethod
        def cudaHostRegister(address: int, size: int, flags: int) -> int:  # noqa: N802  as CUDA calls it
            return 1

    class Asks:
        @staticmethod
        def zero_() -> None:
            told.append("kernel")
            raise RuntimeError("CUDA error: invalid argument")

    def empty(*_: Any, **options: Any) -> type[Asks]:
        told.append(options["device"])
        return Asks

    monkeypatch.setattr(torch.cuda, "cudart", Refuses)
    monkeypatch.setattr(torch, "empty", empty)
    assert Cuda().pin(0, 1) == "cudaHostRegister returned error 1" and told == ["cuda", "kernel"]


def test_memory_is_page_locked_while_a_gpu_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    image = plan_image({"x": torch.ones(1000)})
    api = Late()
    assert Strategy(api).slot(image, image.layout(), 0) and not api.locked  # no GPU in use
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    slot = Strategy(api).slot(image, image.layout(), 0)
    assert api.locked == [(slot.address, image.size)]
    slot.release()
    assert not api.locked
    page = mmap.PAGESIZE
    image = plan_image({"x": torch.ones(5 * page // 4)})
    (place,) = image.storages
    own = Segment(place + 2 * page, 9)
    end = own.offset + own.length
    rest = Segment(0, own.offset), Segment(end, image.size - end)
    slot = Strategy(api).slot(image, Layout(image.size, (rest, (own,)), image.fields), 1)
    (locked,) = api.locked  # of a part, the pages in which it is
    assert locked[0] % page == 0 and locked[1] in (page, 2 * page)
    assert locked[0] <= slot.address + own.offset and slot.address + end <= sum(locked)
    slot.release()
    assert not api.locked
    monkeypatch.setattr(api, "pin", lambda address, size: "cudaHostRegister returned error 2")
    strategy = Strategy(api)
    assert all(isinstance(strategy.slot(image, image.layout(), 0), Slot) for _ in range(3))
    assert len(caplog.messages) == 1 and "error 2" in caplog.text


def test_what_torch_offers_is_called_by_its_right_names() -> None:
    """No GPU is needed to see that these exist; how they behave, test_gpu.py tells."""
    assert callable(torch.cuda.Stream.wait_event) and callable(torch.cuda.Stream.record_event)
    assert callable(torch.cuda.mem_get_info) and callable(torch.cuda.cudart)
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
