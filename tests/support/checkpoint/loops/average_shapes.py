"""Copies of a model that follow it: momentum encoders, teachers, averages, codebooks, queues and
other buffers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from support.checkpoint.loops.parts import (
    CLASSES,
    INPUTS,
    WIDTH,
    adam,
    batch,
    classify,
    mlp,
    momentum_sgd,
    numbered,
    rows,
)
from support.checkpoint.loops.plain_shapes import train
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import Hooks, shape


@torch.no_grad()
def follow(own: nn.Module, other: nn.Module, share: float = 0.1) -> None:
    for mine, new in zip(own.parameters(), other.parameters(), strict=True):
        mine.lerp_(new, share)


def follow_by_data(own: nn.Module, other: nn.Module) -> None:
    for mine, new in zip(own.parameters(), other.parameters(), strict=True):
        mine.data = 0.9 * mine.data + 0.1 * new.data


class Contrast(nn.Module):
    """MoCo: a query and a key encoder, and a queue of keys with a pointer."""

    def __init__(self, *, follows_in_forward: bool = False) -> None:
        super().__init__()
        self.query = mlp(dropout=0.1)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.follows_in_forward = follows_in_forward
        self.register_buffer("queue", functional.normalize(torch.randn(64, CLASSES)))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> Any:
        queries = functional.normalize(self.query(inputs + 0.1 * torch.randn_like(inputs)))
        with torch.no_grad():
            if self.follows_in_forward:
                follow(self.key, self.query)
            keys = functional.normalize(self.key(inputs + 0.1 * torch.randn_like(inputs)))
        scores = torch.cat(
            [(queries * keys).sum(1, keepdim=True), queries @ self.queue.T.clone()], 1
        )
        with torch.no_grad():
            first = int(self.pointer)
            self.queue[first : first + len(keys)] = keys
            self.pointer.copy_(torch.tensor((first + len(keys)) % 64))
        return functional.cross_entropy(scores / 0.2, torch.zeros(len(inputs), dtype=torch.int64))


def contrast(run: Run, model: Contrast, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    run.loss(model(torch.randn(16, INPUTS))).backward()
    optimizer.step()


@shape()
def momentum_encoder_at_the_top(run: Run) -> None:
    model = Contrast()
    optimizer = adam(model.query)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        follow(model.key, model.query)
        contrast(run, model, optimizer)


@shape()
def momentum_encoder_at_the_top_after_wait(run: Run) -> None:
    """The change is announced by wait(), as the guide advises."""
    model = Contrast()
    optimizer = adam(model.query)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        run.announce()
        follow(model.key, model.query)
        contrast(run, model, optimizer)


@shape()
def momentum_encoder_in_the_forward(run: Run) -> None:
    model = Contrast(follows_in_forward=True)
    optimizer = adam(model.query)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        contrast(run, model, optimizer)


@shape()
def momentum_encoder_at_the_bottom(run: Run) -> None:
    model = Contrast()
    optimizer = adam(model.query)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        contrast(run, model, optimizer)
        follow(model.key, model.query)


@shape()
def momentum_encoder_at_the_bottom_by_data(run: Run) -> None:
    model = Contrast()
    optimizer = adam(model.query)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        contrast(run, model, optimizer)
        follow_by_data(model.key, model.query)


@shape()
def momentum_encoder_before_the_step(run: Run) -> None:
    model = Contrast()
    optimizer = adam(model.query)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(model(torch.randn(16, INPUTS))).backward()
        follow(model.key, model.query)
        optimizer.step()


@shape()
def byol(run: Run) -> None:
    """A predictor, a target network that follows at the bottom with a share that grows, all in one
    container.
    """
    online = mlp(outputs=8)
    model = nn.ModuleDict(
        {
            "online": online,
            "predictor": nn.Linear(8, 8),
            "target": copy.deepcopy(online).requires_grad_(False),
        }
    )
    optimizer = momentum_sgd(nn.ModuleList([model["online"], model["predictor"]]))
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        inputs, _labels = batch()
        guess = functional.normalize(
            model["predictor"](model["online"](inputs + 0.1 * torch.randn_like(inputs)))
        )
        with torch.no_grad():
            goal = functional.normalize(model["target"](inputs + 0.1 * torch.randn_like(inputs)))
        optimizer.zero_grad()
        run.loss((guess - goal).square().sum(1).mean()).backward()
        optimizer.step()
        follow(model["target"], model["online"], 0.01 + 0.1 * step / run.total)


def taught(run: Run, model: Any, teacher: Any, optimizer: torch.optim.Optimizer) -> None:
    inputs, _labels = batch()
    with torch.no_grad():
        goal = functional.softmax(teacher(inputs), 1)
    optimizer.zero_grad()
    run.loss(functional.cross_entropy(model(inputs), goal)).backward()
    optimizer.step()


@shape(Hooks.SILENT)
def mean_teacher_at_the_bottom(run: Run) -> None:
    """The teacher is an extra."""
    model = mlp(batch_norm=False)
    teacher = mlp(batch_norm=False).requires_grad_(False)
    optimizer = adam(model)
    run.checkpoint(model, optimizer, {"teacher": teacher})
    for _ in run.iterations():
        taught(run, model, teacher, optimizer)
        follow(teacher, model)


@shape()
def mean_teacher_at_the_top(run: Run) -> None:
    model = mlp(batch_norm=False)
    teacher = mlp(batch_norm=False).requires_grad_(False)
    optimizer = adam(model)
    run.checkpoint(model, optimizer, {"teacher": teacher})
    for _ in run.iterations():
        follow(teacher, model)
        taught(run, model, teacher, optimizer)


@shape()
def teacher_copied_now_and_then(run: Run) -> None:
    """load_state_dict of an extra, at the top."""
    model, teacher = mlp(), mlp().eval().requires_grad_(False)
    optimizer = adam(model)
    run.checkpoint(model, optimizer, {"teacher": teacher})
    for step in run.iterations():
        if step % 3 == 0:
            teacher.load_state_dict(model.state_dict())
        taught(run, model, teacher, optimizer)


@shape()
def center_of_outputs(run: Run) -> None:
    """DINO: the center is a buffer that follows the teacher's outputs after the loss."""
    model = nn.ModuleDict(
        {"student": mlp(), "teacher": mlp(batch_norm=False).requires_grad_(False)}
    )
    model.register_buffer("center", torch.zeros(CLASSES))
    optimizer = adam(model["student"])
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        inputs, _labels = batch()
        outputs = model["teacher"](inputs)
        goal = functional.softmax((outputs - model.center) / 0.1, 1)
        optimizer.zero_grad()
        run.loss(functional.cross_entropy(model["student"](inputs), goal)).backward()
        model.center.lerp_(outputs.mean(0), 0.1)
        optimizer.step()


@shape(Hooks.SILENT)
def averaged_model(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    run.checkpoint(model, optimizer, {"average": average})
    for _ in run.iterations():
        train(run, model, optimizer)
        average.update_parameters(model)


@shape()
def averaged_model_at_the_top(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    run.checkpoint(model, optimizer, {"average": average})
    for _ in run.iterations():
        average.update_parameters(model)
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def swa(run: Run) -> None:
    model = mlp()
    optimizer = momentum_sgd(model)
    average, scheduler = AveragedModel(model), lr_scheduler.CosineAnnealingLR(optimizer, 30)
    final = SWALR(optimizer, 0.01, anneal_epochs=5)
    run.checkpoint(model, optimizer, {"average": average, "scheduler": scheduler, "final": final})
    for step in run.iterations():
        train(run, model, optimizer)
        if step > 20:
            average.update_parameters(model)
            final.step()
        else:
            scheduler.step()


class Average:
    """Averages in a dictionary: in place, or new tensors each time."""

    def __init__(self, model: nn.Module, *, in_place: bool) -> None:
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.in_place, self.updates = in_place, 0

    def state_dict(self) -> dict[str, Any]:
        return {"values": dict(self.values), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.updates = dict(state["values"]), state["updates"]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        share = min(0.5, 2 / (1 + self.updates))
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                self.values[name] = value.clone()
            elif self.in_place:
                self.values[name].lerp_(value, share)
            else:
                self.values[name] = self.values[name] * (1 - share) + value * share


@shape(Hooks.SILENT)
def average_in_a_dict(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    average = Average(model, in_place=True)
    run.checkpoint(model, optimizer, {"average": average})
    for _ in run.iterations():
        train(run, model, optimizer)
        average.update(model)


@shape(Hooks.SILENT)
def average_of_new_tensors(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    average = Average(model, in_place=False)
    run.checkpoint(model, optimizer, {"average": average})
    for _ in run.iterations():
        train(run, model, optimizer)
        average.update(model)


@shape()
def average_swapped_in_for_validation(run: Run) -> None:
    """The averages are put into the model, also by .data, and the weights back."""
    model = mlp()
    optimizer = adam(model)
    average = Average(model, in_place=True)
    run.checkpoint(model, optimizer, {"average": average})
    for step in run.iterations():
        train(run, model, optimizer)
        average.update(model)
        if step % 3 == 2:
            kept = [p.data.clone() for p in model.parameters()]
            for name, parameter in model.named_parameters():
                parameter.data.copy_(average.values[name])
            model.eval()
            with torch.no_grad():
                run.note(classify(model, *rows(0, 32)))
            model.train()
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.data.copy_(value)


@shape()
def average_swapped_in_at_the_top(run: Run) -> None:
    """An evaluation with averages before the training step, by .data."""
    model = mlp()
    optimizer = adam(model)
    average = Average(model, in_place=True)
    run.checkpoint(model, optimizer, {"average": average})
    for step in run.iterations():
        if step % 3 == 0:
            kept = [p.data for p in model.parameters()]
            for name, parameter in model.named_parameters():
                parameter.data = average.values[name]
            model.eval()
            with torch.no_grad():
                run.note(classify(model, *rows(0, 32)))
            model.train()
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.data = value
        train(run, model, optimizer)
        average.update(model)


class Codebook(nn.Module):
    """VQ-VAE: codes follow the outputs in place, and unused ones are drawn again."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(outputs=CLASSES)
        self.register_buffer("codes", torch.randn(8, CLASSES))
        self.register_buffer("uses", torch.zeros(8))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs = self.net(inputs)
        nearest = torch.cdist(outputs, self.codes).argmin(1)
        goal = self.codes[nearest].clone()
        if self.training:
            self.move_codes(outputs.detach(), nearest)
        return (outputs - goal).square().mean() + functional.cross_entropy(outputs, labels)

    @torch.no_grad()
    def move_codes(self, outputs: torch.Tensor, nearest: torch.Tensor) -> None:
        for number in range(len(self.codes)):
            mine = outputs[nearest == number]
            if len(mine):
                self.codes[number].lerp_(mine.mean(0), 0.1)
                self.uses[number] += 1
            else:
                self.codes[number] = outputs[torch.randint(0, len(outputs), ())]


@shape(Hooks.SILENT)
def codebook_in_the_forward(run: Run) -> None:
    model = Codebook()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(model(*numbered(run))).backward()
        optimizer.step()


@shape()
def codebook_in_a_method(run: Run) -> None:
    model = Codebook()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(model.forward(*batch())).backward()
        optimizer.step()


@shape()
def codebook_after_the_step(run: Run) -> None:
    model = Codebook()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        inputs, labels = batch()
        outputs = model.net(inputs)
        nearest = torch.cdist(outputs, model.codes).argmin(1)
        goal = model.codes[nearest]
        optimizer.zero_grad()
        run.loss(
            (outputs - goal).square().mean() + functional.cross_entropy(outputs, labels)
        ).backward()
        optimizer.step()
        model.move_codes(outputs.detach(), nearest)


@shape(Hooks.SILENT)
def buffer_replaced_in_the_forward(run: Run) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.register_buffer("shift", torch.zeros(CLASSES))

        def forward(self, inputs: torch.Tensor) -> Any:
            outputs = self.net(inputs) + self.shift
            self.shift = self.shift * 0.9 + outputs.detach().mean(0) * 0.1
            return outputs

    model = Shifted()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)


@shape()
def memory_carried_between_iterations(run: Run) -> None:
    """A recurrent state that lives in a buffer, and is written after the step."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
            self.register_buffer("memory", torch.zeros(16, WIDTH))

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.cell(inputs, self.memory)

    model = Recurrent()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        inputs, labels = batch()
        hidden = model(inputs)
        optimizer.zero_grad()
        run.loss(functional.cross_entropy(model.head(hidden), labels)).backward()
        optimizer.step()
        model.memory = hidden.detach()


@shape()
def statistics_gathered_at_the_top(run: Run) -> None:
    """A forward without gradients refreshes BatchNorm's statistics before the training forward."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        if step % 3 == 0:
            with torch.no_grad():
                model(rows(step, 16)[0])
        train(run, model, optimizer)


@shape()
def statistics_gathered_at_the_bottom(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 3 == 2:
            with torch.no_grad():
                model(rows(step, 16)[0])
