"""Streams: what their own state cannot bring back is read again, and what comes in another order is
reported.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.cut_loaders import WORKERS, check, seed  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

from deepvm.checkpoint import Checkpointer, ResumableLoader  # noqa: E402
from deepvm.checkpoint.loading.resumable_loader import digest  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
needs_torchdata = pytest.mark.skipif(
    importlib.util.find_spec("torchdata") is None, reason="needs torchdata"
)
ROWS = 24


class Counting(IterableDataset[int]):
    """A stream with a state, divided among the workers."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows, self.position = rows, 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while self.position * stride + first < self.rows:
            self.position += 1
            yield (self.position - 1) * stride + first
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def stateful(dataset: Any, batch_size: int, **more: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size, **more)


def rows_of(batches: Any) -> list[int]:
    return [*chain.from_iterable(batch.tolist() for batch in batches)]


def resumed(first: Any, second: Any, at: int) -> tuple[list[int], list[int]]:
    """The rows of an epoch that is cut after so many batches, and those that another loader
    continues with.
    """
    seed(1)
    before, after = ResumableLoader(first), ResumableLoader(second)
    rows = rows_of(islice(iter(before), at))
    after.load_state_dict(before.state_dict())
    seed(2)
    return rows, rows_of(after)


def hugging_face(name: str) -> Any:
    """A stream of the library datasets."""
    datasets = pytest.importorskip("datasets")

    def rows(start: int, count: int = ROWS) -> Any:
        return datasets.Dataset.from_dict(
            {"n": [*range(start, start + count)]}
        ).to_iterable_dataset(num_shards=4)

    def shuffled() -> Any:
        return rows(0).shuffle(seed=3, buffer_size=7)

    mixes = {"probabilities": [0.3, 0.7], "seed": 1, "stopping_strategy": "all_exhausted"}
    made = {
        "plain": lambda: rows(0),
        "shuffled": shuffled,
        "shuffled, mapped": lambda: shuffled().map(lambda row: {"n": row["n"] + 1}),
        "shuffled, batched": (
            lambda: shuffled().map(lambda part: {"n": part["n"]}, batched=True, batch_size=5)
        ),
        "filtered": lambda: rows(0).filter(lambda row: row["n"] % 3),
        "mapped": lambda: rows(0).map(lambda row: {"n": row["n"] + 1}),
        "skipped": lambda: rows(0).skip(3).take(20),
        "repeated": lambda: rows(0, 8).repeat(3),
        "in tensors": lambda: rows(0).with_format("torch"),
        "mixed": lambda: datasets.interleave_datasets([rows(0), rows(100)]),
        "mixed at random": lambda: datasets.interleave_datasets([rows(0), rows(100)], **mixes),
        "mixed, shuffled": lambda: datasets.interleave_datasets([shuffled(), rows(100)]),
        "one after the other": lambda: datasets.concatenate_datasets([rows(0, 12), rows(100, 12)]),
        "of one rank": lambda: datasets.distributed.split_dataset_by_node(rows(0, 48), 1, 2),
    }
    importlib.import_module("datasets.distributed")
    return made[name]()


STREAMS = [
    "plain", "shuffled", "shuffled, mapped", "shuffled, batched", "filtered", "mapped", "skipped",
    "repeated", "in tensors", "mixed", "mixed at random", "mixed, shuffled", "one after the other",
    "of one rank",
]  # fmt: skip


@needs_torchdata
@pytest.mark.parametrize("buffer", [1, 100])
def test_a_resumed_shuffled_stream_has_all_rows(buffer: int) -> None:
    datasets = pytest.importorskip("datasets")

    def loader() -> Any:
        rows = datasets.Dataset.from_dict({"n": [*range(1000)]}).to_iterable_dataset()
        return stateful(
            rows.with_format("torch").shuffle(seed=3, buffer_size=buffer), 10, collate_fn=_numbers
        )

    before, after = resumed(loader(), loader(), 40)
    assert Counter(before + after) == Counter(range(1000))


def _numbers(rows: list[dict[str, Any]]) -> Any:
    return torch.tensor([int(row["n"]) for row in rows])


class Rewound(Counting):
    """Starts at 0 unless a state was loaded; until it yields, its state is that of the end."""

    loaded = False

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.position = 0
        self.loaded = False
        while self.position < self.rows:
            self.position += 1
            yield self.position - 1

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.loaded = state["position"], True


class CountingPasses(Counting):
    """Remembers from one pass to the next."""

    def __iter__(self) -> Iterator[int]:
        while self.position % self.rows or not self.position % (2 * self.rows):
            self.position += 1
            yield self.position
        self.position += self.rows


@needs_torchdata
@pytest.mark.parametrize(
    "dataset",
    [Rewound, *(pytest.param(d, marks=pytest.mark.slow) for d in (Counting, CountingPasses))],
)
@pytest.mark.parametrize(
    ("cuts", "ahead"),
    [([3, 8, 9], 0), pytest.param([*range(18)], 1, marks=pytest.mark.slow)],
    ids=["few", "ahead"],
)
def test_cut_streams_with_state(dataset: type[Counting], cuts: list[int], ahead: int) -> None:
    """In a pass, between two, and where one has started and has no batch yet."""
    check(lambda: stateful(dataset(), 4), cuts, ahead)


@needs_torchdata
@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(n, marks=pytest.mark.slow) for n in STREAMS[1:])]
)
@pytest.mark.parametrize("loader", [stateful, pytest.param(DataLoader, marks=pytest.mark.slow)])
def test_cut_streams_of_datasets(name: str, loader: Callable[..., Any]) -> None:
    """Bit for bit, in later passes too: what brought one pass back must not start the next ones in
    the middle.
    """
    check(lambda: loader(hugging_face(name), 4, collate_fn=_numbers), [3, 8, 9])


@needs_torchdata
@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("workers", ["2", "2, kept"])
@pytest.mark.parametrize("loader", [stateful, DataLoader])
def test_cut_streams_of_datasets_with_workers(
    name: str, workers: str, loader: Callable[..., Any]
) -> None:
    check(
        lambda: loader(hugging_face(name), 4, collate_fn=_numbers, **WORKERS[workers]), [1, 3, 8, 9]
    )


class Wrapper(IterableDataset[Any]):
    """A dataset of the user around a stream of datasets."""

    def __init__(self, name: str) -> None:
        self.parts = {"train": hugging_face(name)}

    def __iter__(self) -> Iterator[Any]:
        yield from self.parts["train"]

    def state_dict(self) -> Any:
        return self.parts["train"].state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.parts["train"].load_state_dict(state)


@needs_torchdata
@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffled", "plain"])
def test_a_stream_in_a_dataset_of_the_user(name: str) -> None:
    check(lambda: stateful(Wrapper(name), 4, collate_fn=_numbers), [3, 8])


@needs_torchdata
def test_what_is_read_again_has_a_line_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        resumed(
            *(stateful(hugging_face("shuffled"), 4, collate_fn=_numbers) for _ in range(2)), at=3
        )
    assert "epoch 0: 3 batches are read again" in caplog.text
    assert "shuffle buffer" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        resumed(*(stateful(hugging_face("plain"), 4, collate_fn=_numbers) for _ in range(2)), at=3)
    assert not caplog.text


@needs_torchdata
@pytest.mark.parametrize("loader", [stateful, DataLoader])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_stream_in_the_wrong_epoch_is_reported(
    loader: Any, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (loader(hugging_face("plain"), 4, collate_fn=_numbers) for _ in range(2))
    first.dataset.set_epoch(2)
    second.dataset.set_epoch(epoch)
    with caplog.at_level(logging.WARNING):
        before, after = resumed(first, second, 3)
    assert (
        ("set_epoch" in caplog.text) is (sorted(before + after) != [*range(ROWS)]) is (epoch != 2)
    )


@needs_torchdata
@pytest.mark.parametrize("first", [stateful, DataLoader])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_stream_with_state_continues_with_another_batch_size_or_loader(
    first: Any, size: int
) -> None:
    before, after = resumed(first(Counting(), 4), stateful(Counting(), size), 3)
    assert before + after == [*range(ROWS)]


@needs_torchdata
def test_a_stream_without_its_own_state_any_more() -> None:
    before, after = resumed(stateful(Counting(), 4), DataLoader(Counting(), 4), 3)
    assert before + after == [*range(ROWS)]


@pytest.mark.system
@needs_torchdata
@pytest.mark.parametrize("loader", [stateful, DataLoader])
@pytest.mark.parametrize("workers", [(0, 2), (2, 0), pytest.param((2, 3), marks=pytest.mark.slow)])
def test_other_numbers_of_workers_of_a_stream_are_reported(
    loader: Any, workers: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        resumed(*(loader(Counting(), 2, num_workers=number) for number in workers), at=3)
    assert (
        f"workers: {workers[0]}, ranks: 1, batch size: 2; now with workers: {workers[1]}, ranks: 1"
        in caplog.text
    )


def test_a_stream_of_another_number_of_ranks_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepvm.checkpoint.loading import resumable_loader

    loader = ResumableLoader(DataLoader(Counting(), 2))
    next(iter(loader))
    state = loader.state_dict()
    monkeypatch.setattr(resumable_loader, "world_size", lambda: 2)
    with caplog.at_level(logging.WARNING):
        ResumableLoader(DataLoader(Counting(), 2)).load_state_dict(state)
    assert "ranks: 1, batch size: 2; now with workers: 0, ranks: 2" in caplog.text


class Unseeded(IterableDataset[int]):
    """A stream in an order of its own, as in each process another; it may have become shorter."""

    def __init__(self, order: int, rows: int = ROWS) -> None:
        self.order, self.rows = order, rows

    def __iter__(self) -> Iterator[int]:
        order = [*range(self.rows)]
        random.Random(self.order).shuffle(order)
        yield from order


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("order", "rows", "same"), [(1, ROWS, True), (2, ROWS, False), (1, 6, False)]
)
def test_a_stream_in_another_order_is_reported(
    order: int, rows: int, same: bool, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (
        DataLoader(each, 4, num_workers=workers) for each in (Unseeded(1), Unseeded(order, rows))
    )
    with caplog.at_level(logging.WARNING):
        resumed(first, second, at=3)
    assert ("the dataset does not yield the same batches again" in caplog.text) is not same


def test_a_stream_that_has_become_shorter_ends_one_epoch() -> None:
    first = ResumableLoader(DataLoader(Counting(), 4))
    for _ in islice(iter(first), 5):
        pass
    second = ResumableLoader(DataLoader(Counting(8), 4))
    second.load_state_dict(first.state_dict())
    assert rows_of(second) == []
    assert second.epoch == 1
    assert rows_of(second) == [*range(8)]


def test_a_second_resume_compares_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    state = None
    for at in (2, 3, 5):
        loader = ResumableLoader(DataLoader(Unseeded(1), 4))
        if state is not None:
            loader.load_state_dict(state)
        for _ in islice(iter(loader), at - loader.batch):
            pass
        state = loader.state_dict()
    with caplog.at_level(logging.WARNING):
        loader = ResumableLoader(DataLoader(Unseeded(1), 4))
        loader.load_state_dict(state)
        assert len(rows_of(loader)) == 4
    assert not caplog.text


@needs_torchdata
def test_a_loader_that_does_not_take_back_its_own_state_names_itself() -> None:
    class Broken(Counting):
        def load_state_dict(self, state: dict[str, int]) -> None:
            raise KeyError("shard")

    with pytest.raises(CheckpointError, match="Broken.*KeyError.*shard"):
        resumed(stateful(Counting(), 4), stateful(Broken(), 4), 3)


@dataclasses.dataclass
class Opaque:
    """Nothing is known of what it holds."""

    number: int


def test_digests_tell_batches_apart() -> None:
    for one, other in [
        (torch.arange(9), torch.arange(1, 10)),
        (torch.arange(9), torch.arange(9).float()),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(300, 300), torch.ones(300, 300)),
        (torch.zeros(3, 4, 5, 6), torch.ones(3, 4, 5, 6).permute(0, 3, 2, 1).reshape(3, 4, 5, 6)),
        (torch.zeros(()), torch.ones(())),
        (torch.zeros(0), torch.zeros(0, 1)),
        (torch.ones(4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [2, 1]),
        (["x"], ["y"]),
        (b"x", b"y"),
        (1.5, 2.5),
        ([torch.zeros(3), "x"], [torch.ones(3), "x"]),
        (Opaque(1), [Opaque(1)]),
        (torch.zeros(3).to_sparse(), torch.zeros(4).to_sparse()),
    ]:
        assert digest(one) != digest(other)
        assert digest(one) == digest(one)


def test_digests_of_what_cannot_be_compared_are_the_same() -> None:
    assert digest(Opaque(1)) == digest(Opaque(2))
    array = pytest.importorskip("numpy").arange(4)
    assert digest(array) == digest(array.copy()) != digest(array + 1)


@needs_torchdata
def test_a_stateful_loader_by_its_own_state_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In ``extra`` as it is: what is in its shuffle buffer would be lost."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"row": range(ROWS)}).to_iterable_dataset()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for stream, loses in ((rows, False), (rows.shuffle(seed=1, buffer_size=8), True)):
        caplog.clear()
        extra = {"data": stateful(stream, 2)}
        Checkpointer(
            model=model, optimizer=optimizer, extra=extra, tiers=tmp_path, job="job"
        ).close()
        assert (
            "extra['data']" in caplog.text and "the rows in its shuffle buffer" in caplog.text
        ) == loses
