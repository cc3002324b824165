"""A training that is cut anywhere and goes on with new objects sees what it would have seen with
torch's loader.
"""

from __future__ import annotations

import importlib.util
import logging
import random
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.cut_loaders import WORKERS, check, cut, resumed, seed  # noqa: E402
from support.checkpoint.loaders import KINDS, Items, Remembering, plain  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset  # noqa: E402

from deepvm.checkpoint import ResumableLoader  # noqa: E402
from deepvm.checkpoint.loading import resumable_loader  # noqa: E402
from deepvm.errors import CheckpointError, RequestError  # noqa: E402

FEW = [0, 2, 8, 10]
"""Before a pass, in it, at its end, in the next one."""


@pytest.mark.parametrize(
    "kind",
    [
        "shuffled",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("stream", "weighted", "eager sampler")),
    ],
)
def test_cut_anywhere_without_workers(kind: str) -> None:
    check(KINDS[kind], FEW)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_everywhere_without_workers(kind: str, ahead: int) -> None:
    check(KINDS[kind], [*range(24)], ahead)


@pytest.mark.parametrize("kind", ["with replacement"])
def test_cut_with_a_batch_fetched_ahead(kind: str) -> None:
    check(KINDS[kind], FEW, ahead=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "2, kept"])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_anywhere_with_workers(kind: str, workers: str, ahead: int) -> None:
    check(
        lambda: KINDS[kind](**WORKERS[workers]), [0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 14, 17, 20], ahead
    )


@pytest.mark.system
@pytest.mark.parametrize("workers", ["2", pytest.param("2, kept", marks=pytest.mark.slow)])
def test_a_cut_with_workers(workers: str) -> None:
    check(lambda: KINDS["shuffled"](**WORKERS[workers]), [4, 11])


@pytest.mark.skipif(importlib.util.find_spec("torchdata") is None, reason="needs torchdata")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dataset", [Items, Remembering])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_loader_of_torchdata(workers: str, dataset: type[Any], shuffle: bool) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    if dataset is Remembering and workers == "2, kept":
        pytest.skip("what persistent workers remember from one pass to the next is out of reach")
    check(
        lambda: StatefulDataLoader(dataset(), 4, shuffle=shuffle, **WORKERS[workers]),
        [*range(20)] if workers == "0" else [0, 1, 2, 3, 4, 7, 8, 11, 16],
    )


def test_a_dataset_is_not_read_to_come_to_a_batch() -> None:
    class Counted(Dataset[Any]):
        read = 0

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, place: int) -> int:
            Counted.read += 1
            return place

    first = ResumableLoader(DataLoader(Counted(), 10, shuffle=True))
    for _, _batch in zip(range(50), first, strict=False):
        pass
    second = ResumableLoader(DataLoader(Counted(), 10, shuffle=True))
    second.load_state_dict(first.state_dict())
    Counted.read = 0
    next(iter(second))
    assert Counted.read == 10


def test_a_sampler_that_cannot_be_repeated_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def drawn() -> Any:
        return DataLoader(range(100), batch_sampler=Drawing())  # type: ignore[arg-type]

    class Drawing(torch.utils.data.Sampler[Any]):
        def __iter__(self) -> Any:
            left = [*range(100)]
            while left:
                yield [left.pop(int(torch.randint(len(left), ())))]

    first = ResumableLoader(drawn())
    for _, _batch in zip(range(9), first, strict=False):
        torch.rand(3)  # dropout draws between
    second = ResumableLoader(drawn())
    second.load_state_dict(first.state_dict())
    with caplog.at_level(logging.WARNING):
        next(iter(second))
    assert "has not drawn the same order" in caplog.text


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [(2, 0, 3), (0, 2, 2), (3, 1, 0)])
@pytest.mark.parametrize("own", [False, True])
def test_other_numbers_of_workers_go_on_in_the_same_order(
    workers: tuple[int, ...], own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut where no worker's turn begins, and again."""
    seed(1)
    seen: list[int] = []
    state = None
    for number, cut_at in zip(workers, (5, 4, None), strict=True):
        generator = torch.Generator().manual_seed(4) if own else None
        made = DataLoader(range(40), 2, shuffle=True, num_workers=number, generator=generator)  # type: ignore[arg-type]
        loader = ResumableLoader(made)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        for batch in islice(batches, cut_at):
            seen += batch.tolist()
        state = loader.state_dict()
    assert sorted(seen) == [*range(40)] and not caplog.records


def test_less_data_than_before_is_said(caplog: pytest.LogCaptureFixture) -> None:
    first = ResumableLoader(DataLoader(range(40), 2))  # type: ignore[arg-type]
    for _ in zip(range(9), first, strict=False):
        pass
    second = ResumableLoader(DataLoader(range(12), 2))  # type: ignore[arg-type]
    second.load_state_dict(first.state_dict())
    assert [*second] == [] and "has not drawn the same order" in caplog.text


def test_a_state_before_the_first_pass_and_right_after_a_restore() -> None:
    seed(1)
    undisturbed = plain(KINDS["shuffled"]())
    seed(1)
    state = ResumableLoader(KINDS["shuffled"]()).state_dict()
    seed(2)
    assert resumed(KINDS["shuffled"], state) == undisturbed
    seed(1)
    seen, state = cut(KINDS["shuffled"], 8)
    again = ResumableLoader(KINDS["shuffled"]())
    again.load_state_dict(state)
    assert (again.epoch, again.batch) == (state["epoch"], state["batch"]) != (0, 0)
    assert resumed(KINDS["shuffled"], again.state_dict()) == undisturbed[len(seen) :]


def test_a_pass_that_is_left_early_is_over() -> None:
    loader = ResumableLoader(DataLoader(range(10), 2))  # type: ignore[arg-type]
    next(iter(loader))
    assert (loader.epoch, loader.batch) == (0, 1)
    next(iter(loader))
    assert (loader.epoch, loader.batch) == (1, 1)
    assert len([*loader]) == len(loader) == 5
    assert (loader.epoch, loader.batch, loader.batch_size) == (3, 0, 2)


def test_other_ranks_go_on_where_all_were() -> None:
    first = ResumableLoader(DataLoader(range(40), 2))  # type: ignore[arg-type]
    for _, _batch in zip(range(6), first, strict=False):
        pass
    state = first.state_dict()
    second = ResumableLoader(DataLoader(range(40), 2))  # type: ignore[arg-type]
    patch = pytest.MonkeyPatch()
    patch.setattr(resumable_loader, "world_size", lambda: 3)
    second.load_state_dict(state)
    patch.undo()
    assert second.batch == 2 and next(iter(second)).tolist() == [4, 5]


@pytest.mark.parametrize("size", [4, 2], ids=["the same batch of a rank", "the same batch of all"])
def test_more_ranks_go_on_with_the_samples_that_are_left_and_their_own_random_numbers(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank_of(rank: int, world: int, size: int) -> ResumableLoader:
        monkeypatch.setattr(resumable_loader, "world_size", lambda: world)
        torch.manual_seed(100 + rank)
        data = TensorDataset(torch.arange(64))
        return ResumableLoader(
            DataLoader(data, size, sampler=DistributedSampler(data, world, rank, shuffle=True))
        )

    seen: list[int] = []
    states = []
    for rank in range(2):
        loader = rank_of(rank, 2, 4)
        for _, (places,) in zip(range(4), loader, strict=False):
            seen += places.tolist()
        states.append(loader.state_dict())
    draws = set()
    for rank in range(4):
        loader = rank_of(rank, 4, size)
        loader.load_state_dict(states[0])
        for number, (places,) in enumerate(loader):
            seen += places.tolist()
            if not number:
                draws.add(torch.rand(1).item())
    assert sorted(seen) == [*range(64)] and len(draws) == 4


def test_another_batch_size_of_the_same_ranks_goes_on_at_the_same_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = ResumableLoader(DataLoader(range(40), 2))  # type: ignore[arg-type]
    for _ in zip(range(6), first, strict=False):
        pass
    second = ResumableLoader(DataLoader(range(40), 4))  # type: ignore[arg-type]
    second.load_state_dict(first.state_dict())
    assert next(iter(second)).tolist() == [12, 13, 14, 15] and not caplog.records


@pytest.mark.parametrize("loader", [[1, 2], ResumableLoader(DataLoader(range(2)))])  # type: ignore[arg-type]
def test_what_is_no_loader_is_refused(loader: Any) -> None:
    with pytest.raises(RequestError, match="DataLoader"):
        ResumableLoader(loader)


def test_batches_in_no_order_are_refused() -> None:
    with pytest.raises(RequestError, match="order"):
        ResumableLoader(DataLoader(range(4), num_workers=2, in_order=False))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "state", [{}, {"epoch": 1, "batch": 2, "record": torch.zeros(9, dtype=torch.uint8)}]
)
def test_what_is_no_position_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="no position"):
        ResumableLoader(DataLoader(range(4))).load_state_dict(state)  # type: ignore[arg-type]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_layout_of_a_state_stays() -> None:
    """Another length would change the layout of the file with each version."""
    for workers in (0, 2, 5):
        loader = ResumableLoader(KINDS["shuffled"](num_workers=workers))
        sizes = {loader.state_dict()["record"].numel()}
        for _ in loader:
            sizes.add(loader.state_dict()["record"].numel())
        assert len(sizes) == 1, workers


class CountingSampler(torch.utils.data.Sampler[list[int]]):
    """Another order in each pass, by a counter of its own."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        self.epoch += 1
        order = torch.randperm(22, generator=generator).tolist()
        return iter([order[at : at + 4] for at in range(0, 22, 4)])


@pytest.mark.parametrize("sampler", ["a counter", "torchdata", "set_epoch is not called"])
def test_a_sampler_that_counts_its_passes(sampler: str) -> None:
    def made() -> Any:
        if sampler == "a counter":
            return DataLoader(Items(), batch_sampler=CountingSampler())
        if sampler == "torchdata":
            stateful = pytest.importorskip("torchdata.stateful_dataloader.sampler")
            return DataLoader(
                Items(), 4, sampler=stateful.StatefulDistributedSampler(Items(), 1, 0)
            )
        return DataLoader(Items(), 4, sampler=DistributedSampler(Items(), 1, 0))

    check(made, [3, 8, 9, 11])


def test_a_sampler_goes_back_in_the_same_process() -> None:
    def numbers(rows: Any) -> list[int]:
        return [number for number, _ in rows]

    loader = ResumableLoader(
        DataLoader(Items(), batch_sampler=CountingSampler(), collate_fn=numbers)
    )
    state = loader.state_dict()
    first, second = [*loader], [*loader]
    loader.load_state_dict(state)
    assert [*loader] == first != second


def test_a_sampler_of_another_number_of_ranks_keeps_its_own_rank() -> None:
    first = ResumableLoader(DataLoader(range(8), 2, sampler=DistributedSampler(range(8), 2, 1)))  # type: ignore[arg-type]
    first.loader.sampler.set_epoch(5)
    next(iter(first))
    sampler = DistributedSampler(range(8), 1, 0)  # type: ignore[arg-type, var-annotated]
    ResumableLoader(DataLoader(range(8), 2, sampler=sampler)).load_state_dict(first.state_dict())  # type: ignore[arg-type]
    assert (sampler.epoch, sampler.rank, sampler.num_replicas) == (5, 0, 1)


def test_a_dataset_with_a_generator_that_is_not_saved_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Augmented(Items):
        def __init__(self) -> None:
            self.rng, self.rows, self.transform, self.module = (
                random.Random(0),
                [1, 2],
                torch.nn.Dropout(),
                random,
            )

    with caplog.at_level(logging.WARNING):
        for dataset in (Items(), Augmented(), Remembering()):
            loader = ResumableLoader(DataLoader(dataset, 4))
            next(iter(loader))
            next(iter(loader))
    assert [record.args for record in caplog.records] == [("Augmented", "rng")]
