"""Control: skipped, repeated and broken iterations, phases, errors, counters, and masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim import lr_scheduler

from support.checkpoint.loops.data_shapes import Corpus
from support.checkpoint.loops.parts import Fields, adam, batch, classify, mlp, momentum_sgd, rows
from support.checkpoint.loops.plain_shapes import train
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import Hooks, shape


@shape()
def skipped_when_not_finite(run: Run) -> None:
    """A guard leaves out the step: the iteration has a forward and a backward only."""
    model = mlp()
    optimizer = adam(model)
    corpus = Corpus()
    skipped = Fields(count=0)
    run.checkpoint(model, optimizer, {"corpus": corpus, "skipped": skipped})
    for _ in run.iterations():
        inputs, labels = corpus.next_batch()
        spoilt = torch.rand(()) < 0.25
        loss = run.loss(classify(model, inputs, labels) * torch.where(spoilt, torch.nan, 1.0))
        optimizer.zero_grad()
        loss.backward()
        if not torch.isfinite(loss):
            skipped.count += 1
            continue
        optimizer.step()


@shape()
def left_out_at_the_top(run: Run) -> None:
    """``continue`` before anything but the data was used."""
    model = mlp()
    optimizer = adam(model)
    corpus = Corpus()
    run.checkpoint(model, optimizer, {"corpus": corpus})
    for _ in run.iterations():
        data = corpus.next_batch()
        if int(data[1][0]) == 0:
            continue
        optimizer.zero_grad()
        run.loss(classify(model, *data)).backward()
        optimizer.step()


@shape()
def accumulated_over_iterations(run: Run) -> None:
    """An iteration is a micro-batch: the optimizer steps in every fourth one, and gradients live in
    between.
    """
    model = mlp()
    optimizer = adam(model)
    micro = Fields(count=0)
    run.checkpoint(model, optimizer, {"micro": micro})
    for _ in run.iterations():
        run.loss(classify(model, *batch()) / 4).backward()
        micro.count += 1
        if micro.count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@shape()
def accumulated_over_iterations_and_zeroed_at_the_top(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    micro = Fields(count=0)
    run.checkpoint(model, optimizer, {"micro": micro})
    for _ in run.iterations():
        if micro.count % 4 == 0:
            optimizer.zero_grad()
        run.loss(classify(model, *batch()) / 4).backward()
        micro.count += 1
        if micro.count % 4 == 0:
            optimizer.step()


@shape(Hooks.UNSUITED)
def two_steps_in_an_iteration(run: Run) -> None:
    """Two tasks in turn, with one optimizer: half an iteration is no place to resume from."""
    model = nn.ModuleList([mlp(), mlp()])
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        for part in model:
            optimizer.zero_grad()
            run.loss(classify(part, *batch())).backward()
            optimizer.step()


@shape(Hooks.UNSUITED)
def as_many_steps_as_chance_has_it(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        for _again in range(int(torch.randint(0, 4, ()))):
            train(run, model, optimizer)


@shape(Hooks.UNSUITED)
def several_epochs_over_each_rollout(run: Run) -> None:
    """PPO: an iteration gathers data once, and makes six steps on it."""
    model = mlp(batch_norm=False)
    optimizer = adam(model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.95)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        inputs, labels = torch.randn(24, 16), torch.randint(0, 4, (24,))
        for _epoch in range(2):
            order = torch.randperm(24)
            for start in (0, 8, 16):
                index = order[start : start + 8]
                optimizer.zero_grad()
                run.loss(classify(model, inputs[index], labels[index])).backward()
                optimizer.step()
        scheduler.step()


@shape()
def broken_and_entered_again(run: Run) -> None:
    """The loop is left in the middle of an iteration, and entered again at that step."""
    model = mlp()
    optimizer = adam(model)
    visits = Fields(count=0)
    run.checkpoint(model, optimizer, {"visits": visits})
    while run.version < run.total:
        for _ in run.iterations():
            visits.count += 1
            if visits.count % 7 == 0:
                run.note(torch.rand(()))
                break
            train(run, model, optimizer)


@shape()
def phases(run: Run) -> None:
    """Two loops, one after the other: the head first, then everything with another rate."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    model[0].requires_grad_(False)
    for _ in run.iterations(run.total // 2):
        train(run, model, optimizer)
    model[0].requires_grad_(True)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    for _ in run.iterations():
        train(run, model, optimizer)


@shape()
def epochs_of_equal_length(run: Run) -> None:
    """A loop for each epoch, with work between them."""
    model = mlp()
    optimizer = momentum_sgd(model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    progress = Fields(validated=0)
    run.checkpoint(model, optimizer, {"scheduler": scheduler, "progress": progress}, restore=True)
    while run.version < run.total:
        end = min(run.total, run.version // 7 * 7 + 7)
        for step in run.iterations(end):
            train(run, model, optimizer)
            if step + 1 == end:
                scheduler.step()
                progress.validated += 1
                run.note(torch.rand(()))


@shape()
def error_caught_inside(run: Run) -> None:
    """An error in the forward is caught, and the batch given up."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        try:
            inputs, labels = batch()
            if torch.rand(()) < 0.2:
                inputs = inputs[:, :3]
            optimizer.zero_grad()
            run.loss(classify(model, inputs, labels)).backward()
            optimizer.step()
        except RuntimeError:
            run.note(-1)


@shape()
def error_caught_outside(run: Run) -> None:
    """An error ends the loop, and it is entered again: that iteration is not counted."""
    model = mlp()
    optimizer = adam(model)
    tries = Fields(count=0)
    run.checkpoint(model, optimizer, {"tries": tries})
    while run.version < run.total:
        try:
            for _ in run.iterations():
                tries.count += 1
                inputs, labels = batch()
                if tries.count % 8 == 0:
                    raise ValueError("a bad batch")
                optimizer.zero_grad()
                run.loss(classify(model, inputs, labels)).backward()
                optimizer.step()
        except ValueError:
            run.note(-1)


@shape()
def early_stopping(run: Run) -> None:
    """Counters decide when it ends; the loop is left for good."""
    model = mlp()
    optimizer = adam(model)
    watch = Fields(best=9.0, bad=0)
    run.checkpoint(model, optimizer, {"watch": watch})
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 2:
            model.eval()
            with torch.no_grad():
                loss = float(classify(model, *rows(0, 64)))
            model.train()
            watch.bad = 0 if loss < watch.best else watch.bad + 1
            watch.best = min(loss, watch.best)
            if step > run.total * 3 // 4 and watch.bad > 1:
                break


@shape()
def counters_at_both_ends(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    counters = Fields(started=0, done=0, samples=0)
    run.checkpoint(model, optimizer, {"counters": counters})
    for _ in run.iterations():
        counters.started += 1
        inputs, labels = rows(counters.started * 8)
        counters.samples += len(inputs)
        optimizer.zero_grad()
        run.loss(classify(model, inputs + counters.done * 0.01, labels)).backward()
        optimizer.step()
        counters.done += 1


@shape(Hooks.SILENT)
def growing_record(run: Run) -> None:
    """An extra whose state grows: a list of numbers, and tensors of other sizes."""
    model = mlp()
    optimizer = adam(model)

    class History:
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.tensors: dict[str, torch.Tensor] = {}

        def state_dict(self) -> dict[str, Any]:
            return {"losses": list(self.losses), "tensors": dict(self.tensors)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.losses, self.tensors = list(state["losses"]), dict(state["tensors"])

    history = History()
    run.checkpoint(model, optimizer, {"history": history})
    for step in run.iterations():
        train(run, model, optimizer)
        history.losses.append(step * 0.5)
        history.tensors[f"key{step % 9}"] = torch.full((step % 5 + 1,), float(step))


@shape()
def pruned_by_masks(run: Run) -> None:
    """torch's pruning: masks are buffers, and are made again now and then from the weights."""
    model = mlp(batch_norm=False)
    for layer in (model[0], model[4]):
        prune.identity(layer, "weight")
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 6 == 5:
            with torch.no_grad():
                for layer in (model[0], model[4]):
                    limit = layer.weight_orig.abs().quantile(min(0.8, step / 50))
                    layer.weight_mask.copy_((layer.weight_orig.abs() > limit).float())


@shape()
def masks_in_extra(run: Run) -> None:
    """Weights are multiplied by masks through .data after each step; masks are an extra."""
    model = mlp(batch_norm=False)
    optimizer = momentum_sgd(model)
    masks = Fields(first=torch.ones_like(model[0].weight), last=torch.ones_like(model[4].weight))
    run.checkpoint(model, optimizer, {"masks": masks})
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 5 == 4:
            masks.first = (model[0].weight.detach().abs() > 0.002 * step).float()
            masks.last = (torch.rand_like(masks.last) > 0.01 * step).float()
        model[0].weight.data.mul_(masks.first)
        model[4].weight.data.mul_(masks.last)


@shape()
def saved_inside_the_body(run: Run) -> None:
    """The loop also asks for checkpoints itself, after the step and before the end of its body."""
    model = mlp()
    optimizer = adam(model)
    place = Fields(position=0)
    run.checkpoint(model, optimizer, {"place": place})
    for step in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *rows(place.position))).backward()
        optimizer.step()
        if step % 4 == 1 and run.checkpointer is not None:
            run.checkpointer.request_save()
        place.position += 8
        run.note(torch.rand(()))


@shape()
def weights_set_by_hand_now_and_then(run: Run) -> None:
    """The model's own weights are loaded again, scaled, at the top: load_state_dict has a hook."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        if step % 6 == 3:
            model.load_state_dict(
                {
                    name: value * 0.9 if value.is_floating_point() else value.clone()
                    for name, value in model.state_dict().items()
                }
            )
        train(run, model, optimizer)
