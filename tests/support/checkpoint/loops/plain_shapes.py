"""Ordinary loops: schedulers, mixed precision, clipping, frozen and shared weights, several
forwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils import checkpoint as activation_checkpoint

from support.checkpoint.loops.parts import (
    Fields,
    adam,
    batch,
    classify,
    mlp,
    momentum_sgd,
    numbered,
    rows,
)
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import Hooks, shape


def train(run: Run, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward and step on the batch of this step."""
    optimizer.zero_grad()
    run.loss(classify(model, *numbered(run))).backward()
    optimizer.step()


@shape(Hooks.SILENT)
def plain(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)


@shape()
def batches_drawn_at_the_top(run: Run) -> None:
    """Right with hooks, too, but the random state is another one at the forward than after the
    step.
    """
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        optimizer.step()


@shape(Hooks.SILENT)
def restored_by_hand_first(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer, restore=True)
    for _ in run.iterations():
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def scheduler_at_the_bottom(run: Run) -> None:
    model = mlp()
    optimizer = momentum_sgd(model)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 20)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        train(run, model, optimizer)
        scheduler.step()


@shape()
def scheduler_at_the_top(run: Run) -> None:
    model = mlp()
    optimizer = momentum_sgd(model)
    scheduler = lr_scheduler.StepLR(optimizer, 3, 0.7)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        scheduler.step()
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def scheduler_per_epoch(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.8)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 5 == 4:
            scheduler.step()


@shape()
def scheduler_per_epoch_at_the_top(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.8)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for step in run.iterations():
        if step and step % 3 == 0:
            scheduler.step()
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def reduce_on_plateau(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                scheduler.step(classify(model, *rows(0, 64)))
            model.train()


@shape(Hooks.SILENT)
def one_cycle(run: Run) -> None:
    model = mlp()
    optimizer = momentum_sgd(model)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, run.total + 1)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        train(run, model, optimizer)
        scheduler.step()


@shape(Hooks.SILENT)
def warmup_then_cosine(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    scheduler = lr_scheduler.SequentialLR(
        optimizer, [warmup, lr_scheduler.CosineAnnealingLR(optimizer, 30)], [10]
    )
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        train(run, model, optimizer)
        scheduler.step()


@shape()
def rate_set_at_the_top(run: Run) -> None:
    """nanoGPT: the learning rate is a function of the step number."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / run.total)
        train(run, model, optimizer)


@shape()
def rate_decayed_at_the_top(run: Run) -> None:
    """The learning rate is a function of the one before."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        for group in optimizer.param_groups:
            group["lr"] *= 0.97
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def grad_scaler(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    run.checkpoint(model, optimizer, {"scaler": scaler})
    for _ in run.iterations():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = classify(model, *numbered(run))
        scaler.scale(run.loss(loss)).backward()
        scaler.step(optimizer)
        scaler.update()


@shape()
def grad_scaler_that_skips(run: Run) -> None:
    """Scales that overflow: some iterations have no step of the optimizer."""
    model = mlp()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    run.checkpoint(model, optimizer, {"scaler": scaler})
    for _ in run.iterations():
        optimizer.zero_grad()
        scaler.scale(run.loss(classify(model, *batch()))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()


@shape(Hooks.SILENT)
def gradient_clipping(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *numbered(run))).backward()
        run.note(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        optimizer.step()


@shape()
def clipping_by_a_history_of_norms(run: Run) -> None:
    """The history is appended to between backward and step."""
    model = mlp()
    optimizer = adam(model)
    history = Fields(norms=[1.0])
    run.checkpoint(model, optimizer, {"history": history})
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        limit = sorted(history.norms)[len(history.norms) // 2]
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        history.norms = [*history.norms, float(norm)][-10:]
        optimizer.step()


@shape(Hooks.SILENT)
def gradient_noise(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *numbered(run))).backward()
        for parameter in model.parameters():
            parameter.grad += 0.01 * torch.randn_like(parameter)
        optimizer.step()


@shape(Hooks.SILENT)
def gradients_zeroed_at_the_bottom(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        run.loss(classify(model, *numbered(run))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@shape()
def two_views_of_a_batch(run: Run) -> None:
    """Several forwards in an iteration."""
    model = mlp()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        inputs, _labels = numbered(run)
        first = functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)))
        second = functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)))
        optimizer.zero_grad()
        run.loss(
            functional.cross_entropy(first @ second.T * 5, torch.arange(len(inputs)))
        ).backward()
        optimizer.step()


@shape(Hooks.SILENT)
def recomputed_activations(run: Run) -> None:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = mlp(batch_norm=False, outputs=16), mlp(batch_norm=False)

        def forward(self, inputs: torch.Tensor) -> Any:
            hidden = activation_checkpoint.checkpoint(self.first, inputs, use_reentrant=False)
            return activation_checkpoint.checkpoint(self.last, hidden, use_reentrant=False)

    model = Recomputed()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)


class LossMethod(nn.Module):
    """Computes its loss in a method: its forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def compute_loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.net(inputs), labels)


@shape()
def called_by_a_method(run: Run) -> None:
    model = LossMethod()
    optimizer = adam(model)
    scheduler = lr_scheduler.StepLR(optimizer, 7, 0.5)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(model.compute_loss(*batch())).backward()
        optimizer.step()
        scheduler.step()


@shape()
def functional_call(run: Run) -> None:
    model = mlp(batch_norm=False)
    optimizer = adam(model)
    scheduler = lr_scheduler.StepLR(optimizer, 7, 0.5)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        inputs, labels = batch()
        optimizer.zero_grad()
        outputs = torch.func.functional_call(model, dict(model.named_parameters()), (inputs,))
        run.loss(functional.cross_entropy(outputs, labels)).backward()
        optimizer.step()
        scheduler.step()


@shape()
def no_forward_at_all(run: Run) -> None:
    """An image is optimized: its module is never called."""

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pixels = nn.Parameter(torch.zeros(64))

    model = Image()
    optimizer = adam(model, 0.05)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.97)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss((model.pixels - torch.randn(64)).square().mean()).backward()
        optimizer.step()
        scheduler.step()


@shape()
def compiled(run: Run) -> None:
    model = mlp()
    fast: Any = torch.compile(model, backend="eager")
    optimizer = adam(model)
    scheduler = lr_scheduler.StepLR(optimizer, 7, 0.5)
    run.checkpoint(fast, optimizer, {"scheduler": scheduler})
    run.compare(model=model)
    for _ in run.iterations():
        train(run, fast, optimizer)
        scheduler.step()


@shape(Hooks.SILENT)
def shared_weights(run: Run) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.body = mlp(outputs=16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, words: torch.Tensor) -> Any:
            return self.head(self.body(self.embedding(words)))

    model = Tied()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        words = (torch.arange(16) * 7 + run.step) % 50
        optimizer.zero_grad()
        run.loss(functional.cross_entropy(model(words), words)).backward()
        optimizer.step()


@shape(Hooks.SILENT)
def frozen_backbone(run: Run) -> None:
    backbone, head = mlp(outputs=16).eval().requires_grad_(False), mlp(dropout=0.3)
    model = nn.Sequential(backbone, head)
    optimizer = adam(head)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)


@shape()
def unfrozen_later(run: Run) -> None:
    model = mlp(batch_norm=False)
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        model[0].requires_grad_(step >= run.total // 2)
        train(run, model, optimizer)


@shape()
def flipped_back_and_forth(run: Run) -> None:
    """Which layer is trained is chosen at random in each iteration."""
    model = mlp(batch_norm=False)
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        first = bool(torch.rand(()) < 0.5)
        model[0].requires_grad_(first)
        model[4].requires_grad_(not first)
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def parameters_that_join_later(run: Run) -> None:
    """Heads have no gradients, and no state in the optimizer, until their turn."""
    model = nn.ModuleList([mlp(batch_norm=False) for _ in range(3)])
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model[min(2, step // 10)], *numbered(run))).backward()
        optimizer.step()


class LowRank(nn.Module):
    """A linear layer with a low-rank adapter."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(0.01 * torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, inputs: torch.Tensor) -> Any:
        return (
            self.base(inputs)
            + functional.dropout(inputs, 0.1, self.training) @ self.down.T @ self.up.T
        )


@shape(Hooks.SILENT)
def lora(run: Run) -> None:
    model = mlp(batch_norm=False).requires_grad_(False)
    model[0], model[4] = LowRank(model[0]), LowRank(model[4])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    scheduler = lr_scheduler.StepLR(optimizer, 5, 0.7)
    run.checkpoint(model, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        train(run, model, optimizer)
        scheduler.step()


@shape()
def saved_adapters_only(run: Run) -> None:
    """The module that is saved is not the one that is called."""
    model = mlp(batch_norm=False).requires_grad_(False)
    model[0], model[4] = LowRank(model[0]), LowRank(model[4])
    adapters = nn.ParameterDict(
        {name.replace(".", "_"): p for name, p in model.named_parameters() if p.requires_grad}
    )
    optimizer = torch.optim.AdamW(adapters.parameters(), 1e-2)
    scheduler = lr_scheduler.StepLR(optimizer, 5, 0.7)
    run.checkpoint(adapters, optimizer, {"scheduler": scheduler})
    for _ in run.iterations():
        train(run, model, optimizer)
        scheduler.step()


@shape()
def master_weights(run: Run) -> None:
    """A bfloat16 model whose float32 weights the optimizer has."""
    model = mlp(batch_norm=False).to(torch.bfloat16)
    masters = nn.ParameterList([nn.Parameter(p.detach().float()) for p in model.parameters()])
    optimizer = adam(masters)
    run.checkpoint(model, optimizer, {"masters": masters})
    for _ in run.iterations():
        inputs, labels = batch()
        model.zero_grad()
        run.loss(functional.cross_entropy(model(inputs.bfloat16()).float(), labels)).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


@shape(Hooks.SILENT)
def state_beyond_tensors(run: Run) -> None:
    """A module keeps its own counts, by get_extra_state."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls, self.last = mlp(), 0, [0]

        def forward(self, inputs: torch.Tensor) -> Any:
            self.calls += 1
            self.last = [*self.last, self.calls][-4:]
            return self.net(inputs) * (1 + 0.01 * (self.calls % 3) + 0.001 * len(self.last))

        def get_extra_state(self) -> Any:
            return {"calls": self.calls, "last": list(self.last)}

        def set_extra_state(self, state: Any) -> None:
            self.calls, self.last = state["calls"], list(state["last"])

    model = Counting()
    optimizer = adam(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        train(run, model, optimizer)
