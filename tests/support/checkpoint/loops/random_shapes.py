"""Random numbers that are drawn between the step and the next forward."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from support.checkpoint.loops.parts import (
    LABELS,
    ROWS,
    Fields,
    OwnGenerator,
    adam,
    batch,
    classify,
    mlp,
    momentum_sgd,
    rows,
)
from support.checkpoint.loops.plain_shapes import train
from support.checkpoint.loops.run import EVERY, Run
from support.checkpoint.loops.shape import Hooks, shape

VALIDATION = TensorDataset(ROWS[:48], LABELS[:48])


def validate(run: Run, model: Any, loader: Any) -> None:
    model.eval()
    with torch.no_grad():
        run.note(sum(float(classify(model, *data)) for data in loader))
    model.train()


@shape()
def validation_loader(run: Run) -> None:
    """Every iterator of a DataLoader draws a seed, also one that does not shuffle."""
    model = mlp()
    optimizer = adam(model)
    loader = DataLoader(VALIDATION, 16)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % EVERY == EVERY - 1:
            validate(run, model, loader)


@shape()
def validation_loader_that_shuffles(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    loader = DataLoader(VALIDATION, 16, shuffle=True)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % EVERY == EVERY - 1:
            validate(run, model, loader)


@shape()
def validation_at_the_top(run: Run) -> None:
    """nanoGPT evaluates before the training step."""
    model = mlp()
    optimizer = adam(model)
    loader = DataLoader(VALIDATION, 16)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        if step % EVERY == 0:
            validate(run, model, loader)
        train(run, model, optimizer)


@shape()
def validation_before_the_step(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    loader = DataLoader(VALIDATION, 16)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        if step % EVERY == EVERY - 1:
            validate(run, model, loader)
        optimizer.step()


@shape(Hooks.SILENT)
def validation_that_draws_nothing(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 2:
            validate(run, model, [rows(position, 16) for position in (0, 16)])


@shape()
def noise_on_the_weights(run: Run) -> None:
    model = mlp()
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)


@shape()
def noise_on_the_weights_by_data(run: Run) -> None:
    model = mlp()
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)
        for parameter in model.parameters():
            parameter.data += 1e-3 * torch.randn_like(parameter)


@shape()
def noise_for_one_pass(run: Run) -> None:
    """Added before the forward, and taken off after backward."""
    model = mlp(batch_norm=False)
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        kept = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-2)
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
        optimizer.step()


@shape()
def noise_for_one_pass_by_data(run: Run) -> None:
    """As before, but through .data, which no version counter sees."""
    model = mlp(batch_norm=False)
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        kept = [p.data.clone() for p in model.parameters()]
        for parameter in model.parameters():
            parameter.data += 1e-2 * torch.randn_like(parameter)
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.data.copy_(value)
        optimizer.step()


@shape()
def a_layer_is_reset(run: Run) -> None:
    """As against the primacy bias, with the optimizer's state of that layer."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 6 == 5:
            model[6].reset_parameters()
            for parameter in model[6].parameters():
                for value in optimizer.state[parameter].values():
                    value.zero_()


@shape()
def dropout_of_another_model(run: Run) -> None:
    """A teacher in training mode makes labels after the step."""
    model, teacher = mlp(), mlp(dropout=0.3)
    optimizer = adam(model)
    targets = Fields(labels=torch.zeros(16, dtype=torch.int64))
    run.checkpoint(model, optimizer, {"teacher": teacher, "targets": targets})
    for step in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, rows(step * 8, 16)[0], targets.labels)).backward()
        optimizer.step()
        with torch.no_grad():
            targets.labels = teacher(rows(step * 8 + 8, 16)[0]).argmax(1)


@shape()
def samples_are_drawn(run: Run) -> None:
    """Text is generated now and then."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % EVERY == EVERY - 1:
            model.eval()
            with torch.no_grad():
                chances = functional.softmax(model(ROWS[:4]), 1)
                run.note(torch.multinomial(chances, 1).sum())
            model.train()


@shape()
def python_draws_after_the_step(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *rows(random.randrange(900)))).backward()
        optimizer.step()
        run.note(random.random())


@shape()
def numpy_draws_after_the_step(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *rows(int(numpy.random.randint(900))))).backward()
        optimizer.step()
        run.note(numpy.random.normal())


@shape()
def own_generator_draws_after_the_step(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    own = OwnGenerator()
    run.checkpoint(model, optimizer, {"own": own})
    for _ in run.iterations():
        train(run, model, optimizer)
        run.note(torch.rand((), generator=own.generator))


@shape(Hooks.SILENT)
def stochastic_depth(run: Run) -> None:
    """Python's generator decides inside forward."""

    class Skipping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = mlp(outputs=16), mlp(outputs=16), mlp()

        def forward(self, inputs: torch.Tensor) -> Any:
            hidden = self.first(inputs)
            if random.random() < 0.5:
                hidden = hidden + self.middle(hidden)
            return self.last(hidden)

    model = Skipping()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)


@shape()
def seeds_set_per_epoch(run: Run) -> None:
    """torch.manual_seed at the top of every third iteration."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        if step % EVERY == 0:
            torch.manual_seed(step)
        train(run, model, optimizer)


@shape()
def mixup_drawn_for_the_next_batch(run: Run) -> None:
    """The mixing weight of the next iteration is drawn after the step, and kept in extra."""
    model = mlp()
    optimizer = adam(model)
    mixing = Fields(weight=0.5)
    run.checkpoint(model, optimizer, {"mixing": mixing})
    for _ in run.iterations():
        inputs, labels = batch()
        mixed = mixing.weight * inputs + (1 - mixing.weight) * inputs.flip(0)
        optimizer.zero_grad()
        run.loss(classify(model, mixed, labels)).backward()
        optimizer.step()
        mixing.weight = float(numpy.random.beta(0.4, 0.4))
