"""Optimizers: closures, wrappers, weights that are switched, and states that are no tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from support.checkpoint.loops.parts import adam, batch, classify, mlp, momentum_sgd, numbered, rows
from support.checkpoint.loops.plain_shapes import train
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import Hooks, shape


def with_optimizer(name: str, make: Callable[[Iterable[Any]], torch.optim.Optimizer]) -> None:
    """Register the plain loop with this optimizer."""

    def loop(run: Run) -> None:
        model = mlp()
        optimizer = make(model.parameters())
        run.checkpoint(model, optimizer)
        for _ in run.iterations():
            train(run, model, optimizer)

    loop.__name__ = name
    shape(Hooks.SILENT)(loop)


with_optimizer("fused_adam", lambda parameters: torch.optim.AdamW(parameters, 1e-3, fused=True))
with_optimizer(
    "foreach_adam",
    lambda parameters: torch.optim.Adam(parameters, 1e-3, foreach=True, amsgrad=True),
)
with_optimizer("adafactor", lambda parameters: torch.optim.Adafactor(parameters, 1e-2))
with_optimizer("plain_sgd", lambda parameters: torch.optim.SGD(parameters, 0.05))
with_optimizer("averaged_sgd", lambda parameters: torch.optim.ASGD(parameters, 1e-2))


class Remembering(torch.optim.Optimizer):
    """Its state has lists, text, flags and numbers, and its groups change in each step."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "note": "a", "none": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.99
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(norms=[], count=0, flag=True, momentum=torch.zeros_like(parameter))
                state["norms"] = [*state["norms"], float(parameter.grad.norm())][-5:]
                state["count"] += 1
                state["flag"] = state["count"] % 2 == 0
                state["momentum"].lerp_(parameter.grad, 0.1 + 0.01 * len(state["norms"]))
                parameter.sub_(state["momentum"] * group["lr"] * (1 + state["flag"]))


with_optimizer(
    "state_beyond_tensors_of_an_optimizer", lambda parameters: Remembering(parameters, 0.05)
)


class CountingSteps(torch.optim.Optimizer):
    """Keeps a count as an attribute, with its own state_dict."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / self.count**0.5)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]
        super().load_state_dict(
            {name: value for name, value in state_dict.items() if name != "count"}
        )


with_optimizer("count_in_an_attribute", CountingSteps)


class Orthogonal(torch.optim.Optimizer):
    """As Muon: updates of matrices are made orthogonal."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02, "momentum": 0.9})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(group["momentum"]).add_(parameter.grad)
                update = momentum
                if update.ndim == 2:
                    update = update / (update.norm() + 1e-7)
                    for _ in range(3):
                        update = 1.5 * update - 0.5 * update @ update.T @ update
                parameter.sub_(update, alpha=group["lr"])


with_optimizer("orthogonal_updates", Orthogonal)


@shape(Hooks.SILENT)
def lbfgs(run: Run) -> None:
    model = mlp(dropout=0.0)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.1, max_iter=4, history_size=4, line_search_fn="strong_wolfe"
    )
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        data = numbered(run)

        def closure(data: Any = data) -> torch.Tensor:
            optimizer.zero_grad()
            loss = run.loss(classify(model, *data))
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]


@shape()
def lbfgs_that_fetches_in_its_closure(run: Run) -> None:
    """Each evaluation has dropout: random numbers are drawn inside the step."""
    model = mlp(dropout=0.2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3, history_size=3)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = run.loss(classify(model, *batch()))
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]


@shape()
def sharpness_aware(run: Run) -> None:
    """SAM: the weights are moved uphill for a second forward and backward, and back before the
    step.
    """
    model = mlp()
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        data = batch()
        optimizer.zero_grad()
        run.loss(classify(model, *data)).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        run.loss(classify(model, *data)).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()


class SharpnessAware(torch.optim.Optimizer):
    """The usual class of SAM: its step calls the step of a base optimizer, and a closure."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05, "momentum": 0.9})
        self.base = torch.optim.SGD(self.param_groups, 0.05, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in parameters]
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.add_(move)
        with torch.enable_grad():
            closure()
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move)
        self.base.step()

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups


@shape()
def sharpness_aware_with_a_closure(run: Run) -> None:
    model = mlp()
    optimizer = SharpnessAware(model.parameters())
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        data = batch()

        def closure(data: Any = data) -> None:
            optimizer.zero_grad()
            run.loss(classify(model, *data)).backward()

        closure()
        optimizer.step(closure)


class ScheduleFree(torch.optim.Optimizer):
    """SGD without a schedule: weights for training and for evaluation are switched in place."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05, "count": 0, "training": True, "beta": 0.9})

    @torch.no_grad()
    def switch(self, training: bool) -> None:
        for group in self.param_groups:
            if group["training"] == training:
                continue
            share = 1 - group["beta"] if training else 1 - 1 / group["beta"]
            for parameter in group["params"]:
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], share)
            group["training"] = training

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            share = 1 / group["count"]
            for parameter in group["params"]:
                z = self.state[parameter].setdefault("z", parameter.clone())
                parameter.lerp_(z, share)
                parameter.add_(
                    parameter.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1)
                )
                z.sub_(parameter.grad, alpha=group["lr"])


@shape()
def schedule_free(run: Run) -> None:
    model = mlp(batch_norm=False)
    optimizer = ScheduleFree(model.parameters())
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        train(run, model, optimizer)
        if step % 3 == 2:
            optimizer.switch(False)
            model.eval()
            with torch.no_grad():
                run.note(classify(model, *rows(0, 32)))
            model.train()
            optimizer.switch(True)


@shape()
def schedule_free_switched_at_the_top(run: Run) -> None:
    """The averaged weights stay in the model between iterations."""
    model = mlp(batch_norm=False)
    optimizer = ScheduleFree(model.parameters())
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.switch(True)
        train(run, model, optimizer)
        optimizer.switch(False)


class Lookahead:
    """Slow weights follow the fast ones every four steps; no optimizer of torch."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0
        self.slow = [
            p.detach().clone() for group in optimizer.param_groups for p in group["params"]
        ]

    def step(self) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count % 4 == 0:
            fast = [p for group in self.optimizer.param_groups for p in group["params"]]
            with torch.no_grad():
                for slow, parameter in zip(self.slow, fast, strict=True):
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "slow": list(self.slow)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.slow = state["count"], list(state["slow"])


@shape()
def lookahead(run: Run) -> None:
    model = mlp()
    optimizer = adam(model)
    wrapper = Lookahead(optimizer)
    run.checkpoint(model, optimizer, {"wrapper": wrapper})
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        wrapper.step()


@shape()
def averaged_gradients_kept_in_extra(run: Run) -> None:
    """Grokfast: gradients are filtered through an average that the loop keeps."""
    model = mlp()
    optimizer = adam(model)

    class Averages:
        def __init__(self) -> None:
            self.values = [torch.zeros_like(p) for p in model.parameters()]

        def state_dict(self) -> dict[str, Any]:
            return {"values": self.values}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.values = list(state["values"])

    averages = Averages()
    run.checkpoint(model, optimizer, {"averages": averages})
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        for parameter, average in zip(model.parameters(), averages.values, strict=True):
            average.lerp_(parameter.grad, 0.1)
            parameter.grad.add_(average)
        optimizer.step()


@shape(Hooks.UNSUITED)
def an_optimizer_inside_backward(run: Run) -> None:
    """Each parameter is updated as soon as its gradient is there, by its own optimizer."""
    model = mlp(batch_norm=False)
    optimizers = {
        name.replace(".", "_"): torch.optim.Adam([p], 1e-3) for name, p in model.named_parameters()
    }
    for parameter, optimizer in zip(model.parameters(), optimizers.values(), strict=True):

        def update(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    names = list(optimizers)
    run.checkpoint(model, optimizers[names[0]], {name: optimizers[name] for name in names[1:]})
    for _ in run.iterations():
        run.loss(classify(model, *batch())).backward()


@shape()
def reset_by_hand(run: Run) -> None:
    """Momentum is forgotten at the top of every fifth iteration."""
    model = mlp()
    optimizer = momentum_sgd(model)
    run.checkpoint(model, optimizer)
    for step in run.iterations():
        if step % 5 == 0:
            for state in optimizer.state.values():
                if state["momentum_buffer"] is not None:
                    state["momentum_buffer"].zero_()
        train(run, model, optimizer)


@shape(Hooks.SILENT)
def groups_of_parameters(run: Run) -> None:
    model = mlp()
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0, "lr": 1e-2},
    ]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *numbered(run))).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
