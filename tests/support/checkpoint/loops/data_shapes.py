"""Positions in the data: objects that advance before the forward, iterators, loaders, samplers,
prefetched batches.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from deepvm.checkpoint import ResumableLoader
from support.checkpoint.loops.parts import (
    BATCH,
    INPUTS,
    LABELS,
    ROWS,
    Fields,
    OwnGenerator,
    adam,
    classify,
    mlp,
    rows,
)
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import Hooks, Steps, shape


class Corpus(Fields):
    """nanoGPT's loader: it hands out the rows at its position, and advances."""

    def __init__(self) -> None:
        super().__init__(position=0)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        current = rows(self.position)
        self.position += 8
        return current


def train_on(run: Run, model: Any, optimizer: torch.optim.Optimizer, data: Any) -> None:
    """Forward, backward and step on these inputs and labels."""
    optimizer.zero_grad()
    run.loss(classify(model, *data)).backward()
    optimizer.step()


@shape()
def next_batch_before_the_forward(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    corpus = Corpus()
    run.checkpoint(model, optimizer, {"corpus": corpus})
    for _ in run.iterations():
        data = corpus.next_batch()
        run.place()
        train_on(run, model, optimizer, data)


@shape()
def next_batch_with_accumulation(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    scheduler = lr_scheduler.StepLR(optimizer, 5, 0.9)
    corpus = Corpus()
    run.checkpoint(model, optimizer, {"corpus": corpus, "scheduler": scheduler})
    for _ in run.iterations():
        optimizer.zero_grad()
        for _micro in range(3):
            run.loss(classify(model, *corpus.next_batch()) / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()


@shape()
def next_batch_fetched_after_the_step(run: Run) -> None:
    """nanoGPT fetches the next batch while the step runs.

    The batch is part of the loader's state.
    """
    model = mlp()
    optimizer = adam(model)

    class Prefetching(Corpus):
        def __init__(self) -> None:
            super().__init__()
            self.ready = list(self.next_batch())

        def turn(self) -> list[torch.Tensor]:
            current, self.ready = self.ready, list(self.next_batch())
            return current

    corpus = Prefetching()
    run.checkpoint(model, optimizer, {"corpus": corpus})
    for _ in run.iterations():
        train_on(run, model, optimizer, corpus.turn())


@shape(steps=Steps.OWN_STATE)
def prefetched_in_a_local_variable(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    corpus = Corpus()
    run.checkpoint(model, optimizer, {"corpus": corpus})
    following = corpus.next_batch()
    for _ in run.iterations():
        data, following = following, corpus.next_batch()
        train_on(run, model, optimizer, data)


@shape()
def wrapped_generator(run: Run) -> None:
    """A Python generator that is skipped forward on a resume."""

    class Stream:
        def __init__(self) -> None:
            self.count, self.source = 0, self._all()

        @staticmethod
        def _all() -> Iterator[Any]:
            generator = torch.Generator().manual_seed(8)
            while True:
                index = torch.randint(0, len(ROWS), (8,), generator=generator)
                yield ROWS[index], LABELS[index]

        def take(self) -> Any:
            self.count += 1
            return next(self.source)

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count, self.source = (
                state["count"],
                itertools.islice(self._all(), state["count"], None),
            )

    model = mlp()
    optimizer = adam(model)
    stream = Stream()
    run.checkpoint(model, optimizer, {"stream": stream})
    for _ in run.iterations():
        train_on(run, model, optimizer, stream.take())


@shape()
def epoch_counted_at_the_top(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    progress = Fields(epoch=-1)
    run.checkpoint(model, optimizer, {"progress": progress})
    for step in run.iterations():
        if step % 3 == 0:
            progress.epoch += 1
        order = torch.randperm(48, generator=torch.Generator().manual_seed(progress.epoch))
        index = order[step % 3 * 16 :][:16]
        train_on(run, model, optimizer, (ROWS[index], LABELS[index]))


@shape()
def order_drawn_at_the_top(run: Run) -> None:
    """The epoch's order is drawn from torch's generator, and kept."""
    model = mlp()
    optimizer = adam(model)
    shuffled = Fields(order=torch.arange(48), position=48)
    run.checkpoint(model, optimizer, {"shuffled": shuffled})
    for _ in run.iterations():
        if shuffled.position >= 48:
            shuffled.order, shuffled.position = torch.randperm(48), 0
        index = shuffled.order[shuffled.position :][:16]
        shuffled.position += 16
        train_on(run, model, optimizer, (ROWS[index], LABELS[index]))


@shape()
def position_in_a_dict(run: Run) -> None:
    """The state that is handed out is the very dictionary that advances."""
    model = mlp()
    optimizer = adam(model)

    class Kept:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"position": 0, "seen": {"rows": 0}}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    kept = Kept()
    run.checkpoint(model, optimizer, {"kept": kept})
    for _ in run.iterations():
        data = rows(kept.state["position"])
        kept.state["position"] += 8
        kept.state["seen"]["rows"] += len(data[0])
        train_on(run, model, optimizer, data)


@shape()
def position_in_a_numpy_array(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)

    class Counters:
        def __init__(self) -> None:
            self.counts = numpy.zeros(2, dtype=numpy.int64)

        def state_dict(self) -> dict[str, Any]:
            return {"counts": self.counts.tolist()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.counts[:] = state["counts"]

    counters = Counters()
    run.checkpoint(model, optimizer, {"counters": counters})
    for _ in run.iterations():
        data = rows(int(counters.counts[0]))
        counters.counts += [8, 1]
        train_on(run, model, optimizer, data)


@shape()
def position_in_a_tensor(run: Run) -> None:
    """The state has the live tensor, which is advanced in place before the forward."""
    model = mlp()
    optimizer = adam(model)
    place = Fields(position=torch.zeros((), dtype=torch.int64))
    run.checkpoint(model, optimizer, {"place": place})
    for _ in run.iterations():
        data = rows(int(place.position))
        place.position += 8
        train_on(run, model, optimizer, data)


@shape()
def position_in_a_buffer(run: Run) -> None:
    """The model itself counts rows; the loop advances the count before the forward."""
    model = mlp()
    model.register_buffer("position", torch.zeros((), dtype=torch.int64))
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        data = rows(int(model.position))
        model.position += 8
        train_on(run, model, optimizer, data)


@shape(Hooks.SILENT)
def position_after_the_step(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    place = Fields(position=0)
    run.checkpoint(model, optimizer, {"place": place})
    for _ in run.iterations():
        train_on(run, model, optimizer, rows(place.position))
        place.position += 8


@shape(Hooks.SILENT)
def a_stateful_iterator(run: Run) -> None:
    class Rows(Fields):
        def __iter__(self) -> Rows:
            return self

        def __next__(self) -> Any:
            self.position += 8
            return rows(self.position)

    model = mlp()
    optimizer = adam(model)
    source = Rows(position=0)
    run.checkpoint(model, optimizer, {"source": source})
    for _ in run.iterations():
        train_on(run, model, optimizer, next(source))


@shape()
def batches_of_an_own_generator(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    own = OwnGenerator()
    run.checkpoint(model, optimizer, {"own": own})
    for _ in run.iterations():
        index = torch.randint(0, len(ROWS), (8,), generator=own.generator)
        train_on(run, model, optimizer, (ROWS[index], LABELS[index]))


@shape()
def batches_of_numpy(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        index = torch.from_numpy(numpy.random.randint(0, len(ROWS), 8))
        noise = torch.from_numpy(numpy.random.randn(8, INPUTS).astype("float32"))
        train_on(run, model, optimizer, (ROWS[index] + 0.1 * noise, LABELS[index]))


@shape()
def batches_of_python(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        index = random.sample(range(len(ROWS)), 8)
        train_on(run, model, optimizer, (ROWS[index] * random.gauss(1, 0.1), LABELS[index]))


@shape()
def batches_of_an_own_numpy_generator(run: Run) -> None:
    class Draws:
        def __init__(self) -> None:
            self.generator = numpy.random.Generator(numpy.random.PCG64(4))

        def state_dict(self) -> dict[str, Any]:
            state: dict[str, Any] = self.generator.bit_generator.state  # type: ignore[assignment]
            # Integers of 128 bits: as text.
            return {**state, "state": {name: str(value) for name, value in state["state"].items()}}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            inner = {name: int(value) for name, value in state["state"].items()}
            self.generator.bit_generator.state = {**state, "state": inner}

    model = mlp()
    optimizer = adam(model)
    draws = Draws()
    run.checkpoint(model, optimizer, {"draws": draws})
    for _ in run.iterations():
        index = torch.from_numpy(draws.generator.integers(0, len(ROWS), 8))
        train_on(run, model, optimizer, (ROWS[index], LABELS[index]))


class Noisy(Dataset[Any]):
    """Rows, augmented with all three random generators."""

    def __len__(self) -> int:
        return 72

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(INPUTS) + 0.1 * random.random() + 0.1 * numpy.random.rand()
        return (ROWS[number] + noise).float(), LABELS[number]


def forever(loader: Any) -> Iterator[Any]:
    """Pass after pass."""
    while True:
        yield from loader


@shape(Hooks.SILENT)
def resumable_loader(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    loader = ResumableLoader(DataLoader(Noisy(), 8, shuffle=True))
    run.checkpoint(model, optimizer, {"loader": loader})
    batches = forever(loader)
    for _ in run.iterations():
        train_on(run, model, optimizer, next(batches))


@shape(Hooks.SILENT)
def resumable_loader_with_workers(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    loader = ResumableLoader(DataLoader(Noisy(), 8, shuffle=True, num_workers=2))
    scheduler = lr_scheduler.StepLR(optimizer, 9, 0.7)
    run.checkpoint(model, optimizer, {"loader": loader, "scheduler": scheduler})
    batches = forever(loader)
    for _ in run.iterations():
        train_on(run, model, optimizer, next(batches))
        scheduler.step()


@shape(Hooks.SILENT)
def accumulation_with_a_resumable_loader(run: Run) -> None:
    """Three micro-batches a step, and a pass of nine: passes end inside and between iterations."""
    model = mlp()
    optimizer = adam(model)
    loader = ResumableLoader(DataLoader(Noisy(), 10, shuffle=True))
    run.checkpoint(model, optimizer, {"loader": loader})
    batches = forever(loader)
    for _ in run.iterations():
        optimizer.zero_grad()
        for _micro in range(3):
            run.loss(classify(model, *next(batches)) / 3).backward()
        optimizer.step()


@shape()
def steps_and_batches_in_one_zip(run: Run) -> None:
    """At the end of a pass a step has been handed out, and no batch: the loop is entered again at
    that step.
    """
    model = mlp()
    optimizer = adam(model)
    loader = ResumableLoader(DataLoader(Noisy(), 8, shuffle=True))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    run.checkpoint(model, optimizer, {"loader": loader, "scheduler": scheduler}, restore=True)
    while run.version < run.total:
        for _step, data in zip(run.iterations(), loader):  # noqa: B905
            train_on(run, model, optimizer, data)
        if run.version < run.total:
            scheduler.step()


@shape()
def passes_around_iterations(run: Run) -> None:
    """A loop over passes, with as many steps as a pass has batches, and a validation after each."""
    model = mlp()
    optimizer = adam(model)
    loader = ResumableLoader(DataLoader(Noisy(), 8, shuffle=True))
    best = Fields(loss=9.0, epoch=-1)
    run.checkpoint(model, optimizer, {"loader": loader, "best": best}, restore=True)
    batches = forever(loader)
    while run.version < run.total:
        end = min(run.total, (run.version // len(loader) + 1) * len(loader))
        for step in run.iterations(end):
            train_on(run, model, optimizer, next(batches))
            if step + 1 == end:
                model.eval()
                with torch.no_grad():
                    loss = float(classify(model, *rows(0, 64)))
                model.train()
                if loss < best.loss:
                    best.loss, best.epoch = loss, loader.epoch


@shape(Hooks.SILENT)
def sampler_with_a_state(run: Run) -> None:
    class Shuffled(Sampler[int]):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(2)

        def __iter__(self) -> Iterator[int]:
            while True:
                yield int(torch.randint(0, len(ROWS), (), generator=self.generator))

        def state_dict(self) -> dict[str, Any]:
            return {"generator": self.generator.get_state()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.generator.set_state(state["generator"])

    model = mlp()
    optimizer = adam(model)
    sampler = Shuffled()
    run.checkpoint(model, optimizer, {"sampler": sampler})
    numbers = iter(sampler)
    for _ in run.iterations():
        index = [next(numbers) for _ in range(BATCH)]
        train_on(run, model, optimizer, (ROWS[index], LABELS[index]))


@shape()
def shuffle_buffer(run: Run) -> None:
    """A stream is shuffled through a buffer of rows, which is part of the state."""

    class Shuffling:
        def __init__(self) -> None:
            self.position, self.buffer = 32, [ROWS[n] for n in range(32)]

        def take(self) -> torch.Tensor:
            chosen = []
            for _ in range(8):
                number = random.randrange(len(self.buffer))
                chosen.append(self.buffer[number])
                self.buffer[number] = ROWS[self.position % len(ROWS)]
                self.position += 1
            return torch.stack(chosen)

        def state_dict(self) -> dict[str, Any]:
            return {"position": self.position, "buffer": list(self.buffer)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.position, self.buffer = state["position"], list(state["buffer"])

    model = mlp()
    optimizer = adam(model)
    stream = Shuffling()
    run.checkpoint(model, optimizer, {"stream": stream})
    for _ in run.iterations():
        inputs = stream.take()
        train_on(run, model, optimizer, (inputs, (inputs[:, 0] > 0).long()))


@shape()
def hard_examples(run: Run) -> None:
    """The rows with the largest losses come again: which they are is written after the forward and
    before the step.
    """
    model = mlp()
    optimizer = adam(model)
    hard = Fields(index=torch.arange(4))
    run.checkpoint(model, optimizer, {"hard": hard})
    for _ in run.iterations():
        index = torch.cat([hard.index, torch.randint(0, len(ROWS), (12,))])
        outputs = model(ROWS[index])
        losses = nn.functional.cross_entropy(outputs, LABELS[index], reduction="none")
        hard.index = index[losses.detach().topk(4).indices]
        optimizer.zero_grad()
        run.loss(losses.mean()).backward()
        optimizer.step()


@shape()
def curriculum(run: Run) -> None:
    """How hard the data are is decided at the top, from the losses so far."""
    model = mlp()
    optimizer = adam(model)
    course = Fields(level=0, average=2.0, stay=0)
    run.checkpoint(model, optimizer, {"course": course})
    for _ in run.iterations():
        course.stay += 1
        if course.average < 1.45 or course.stay > 5:
            course.level, course.stay = course.level + 1, 0
        inputs, labels = rows(course.level * 8, 16)
        loss = classify(model, inputs + 0.05 * course.level * torch.randn_like(inputs), labels)
        optimizer.zero_grad()
        run.loss(loss).backward()
        optimizer.step()
        course.average = 0.8 * course.average + 0.2 * float(loss.detach())
