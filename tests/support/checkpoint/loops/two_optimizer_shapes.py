"""Several optimizers: adversarial networks, critics, actors, and one optimizer for each kind of
parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler

from support.checkpoint.loops.parts import INPUTS, Fields, adam, batch, classify, mlp, numbered
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import Hooks, shape

NOISE = 8


def generator() -> Any:
    return nn.Sequential(nn.Linear(NOISE, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, INPUTS))


def critic(wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> Any:
    return nn.Sequential(
        wrap(nn.Linear(INPUTS, 32)), nn.LeakyReLU(0.2), nn.Dropout(0.1), wrap(nn.Linear(32, 1))
    )


class Adversaries:
    """A generator and a discriminator, and their two kinds of iteration."""

    def __init__(
        self, run: Run, wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer
    ) -> None:
        self.run, self.maker, self.judge = run, generator(), critic(wrap)
        self.both = nn.ModuleDict({"maker": self.maker, "judge": self.judge})
        self.maker_optimizer = torch.optim.Adam(self.maker.parameters(), 1e-3, betas=(0.5, 0.9))
        self.judge_optimizer = torch.optim.RMSprop(self.judge.parameters(), 1e-3)

    def judge_once(self) -> None:
        real, noise = torch.randn(16, INPUTS), torch.randn(16, NOISE)
        self.judge_optimizer.zero_grad()
        self.run.loss(
            self.judge(self.maker(noise).detach()).mean() - self.judge(real).mean()
        ).backward()
        self.judge_optimizer.step()

    def make_once(self) -> None:
        self.maker_optimizer.zero_grad()
        self.run.loss(-self.judge(self.maker(torch.randn(16, NOISE))).mean()).backward()
        self.maker_optimizer.step()

    def checkpoint(self, **more: Any) -> None:
        """One container model; the generator's optimizer steps last."""
        self.run.checkpoint(
            self.both, self.maker_optimizer, {"judge_optimizer": self.judge_optimizer, **more}
        )


@shape()
def gan(run: Run) -> None:
    both = Adversaries(run)
    both.checkpoint()
    for _ in run.iterations():
        both.judge_once()
        both.make_once()


@shape()
def gan_with_spectral_norm(run: Run) -> None:
    both = Adversaries(run, parametrizations.spectral_norm)
    both.checkpoint()
    for _ in run.iterations():
        both.judge_once()
        both.make_once()


@shape()
def gan_with_schedulers(run: Run) -> None:
    both = Adversaries(run, parametrizations.spectral_norm)
    schedulers = [
        lr_scheduler.ExponentialLR(o, 0.97) for o in (both.judge_optimizer, both.maker_optimizer)
    ]
    both.checkpoint(first=schedulers[0], second=schedulers[1])
    for _ in run.iterations():
        both.judge_once()
        schedulers[0].step()
        both.make_once()
        schedulers[1].step()


@shape()
def gan_with_three_critics(run: Run) -> None:
    both = Adversaries(run, parametrizations.spectral_norm)
    both.checkpoint()
    for _ in run.iterations():
        for _critic in range(3):
            both.judge_once()
        both.make_once()


@shape()
def gan_whose_first_optimizer_steps_first(run: Run) -> None:
    """The optimizer that the checkpointer was given steps before the other."""
    both = Adversaries(run)
    run.checkpoint(both.both, both.judge_optimizer, {"maker_optimizer": both.maker_optimizer})
    for _ in run.iterations():
        both.judge_once()
        both.make_once()


@shape()
def gan_of_two_models(run: Run) -> None:
    """The discriminator is not part of the model, but an extra."""
    both = Adversaries(run)
    extra = {"judge": both.judge, "judge_optimizer": both.judge_optimizer}
    run.checkpoint(both.maker, both.maker_optimizer, extra)
    for _ in run.iterations():
        both.judge_once()
        both.make_once()


@shape()
def gan_whose_critic_is_trained_after(run: Run) -> None:
    both = Adversaries(run, parametrizations.spectral_norm)
    both.checkpoint()
    for _ in run.iterations():
        both.make_once()
        both.judge_once()


@shape()
def gan_with_a_penalty_on_gradients(run: Run) -> None:
    both = Adversaries(run)
    both.checkpoint()
    for step in run.iterations():
        both.judge_once()
        if step % 2 == 0:
            real = torch.randn(16, INPUTS, requires_grad=True)
            (slope,) = torch.autograd.grad(both.judge(real).sum(), real, create_graph=True)
            both.judge_optimizer.zero_grad()
            (slope.norm(dim=1) - 1).square().mean().backward()
            both.judge_optimizer.step()
        both.make_once()


def wasserstein(run: Run, clamp: Callable[[torch.Tensor], None], *, last: bool = False) -> None:
    """Weights of the critic are clamped after its step.

    With ``last`` that is the end of the iteration.
    """
    both = Adversaries(run)
    if last:
        run.checkpoint(both.both, both.judge_optimizer, {"maker_optimizer": both.maker_optimizer})
    else:
        both.checkpoint()
    for _ in run.iterations():
        if last:
            both.make_once()
        both.judge_once()
        for parameter in both.judge.parameters():
            clamp(parameter)
        if not last:
            both.make_once()


def by_data(parameter: torch.Tensor) -> None:
    parameter.data.clamp_(-0.03, 0.03)


@torch.no_grad()
def in_place(parameter: torch.Tensor) -> None:
    parameter.clamp_(-0.03, 0.03)


@shape()
def wgan_clamped_by_data(run: Run) -> None:
    wasserstein(run, by_data)


@shape()
def wgan_clamped_in_place(run: Run) -> None:
    wasserstein(run, in_place)


@shape()
def wgan_clamped_by_data_at_the_bottom(run: Run) -> None:
    wasserstein(run, by_data, last=True)


@shape()
def wgan_clamped_in_place_at_the_bottom(run: Run) -> None:
    wasserstein(run, in_place, last=True)


@shape()
def wgan_clamped_after_wait(run: Run) -> None:
    """The change is announced by wait(), as the guide advises."""

    def announced(parameter: torch.Tensor) -> None:
        run.announce()
        by_data(parameter)

    wasserstein(run, announced, last=True)


@shape()
def clamped_by_data_with_one_optimizer(run: Run) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)


@shape()
def data_replaced_after_the_step(run: Run) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    run.checkpoint(model, optimizer)
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.data = parameter.data.clamp(-0.1, 0.1)


@shape(Hooks.SILENT)
def two_optimizers_for_one_model(run: Run) -> None:
    """Matrices and the rest, as with Muon; both step at the end."""
    model = mlp()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    first = torch.optim.SGD(matrices, 0.05, momentum=0.9, nesterov=True)
    last = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], 1e-3)
    run.checkpoint(model, last, {"first": first})
    for _ in run.iterations():
        first.zero_grad()
        last.zero_grad()
        run.loss(classify(model, *numbered(run))).backward()
        first.step()
        last.step()


@shape(Hooks.SILENT)
def sparse_and_dense(run: Run) -> None:
    model = nn.ModuleDict({"words": nn.Embedding(100, 8, sparse=True), "head": nn.Linear(8, 4)})
    sparse = torch.optim.SparseAdam(list(model["words"].parameters()), 1e-2)
    dense = adam(model["head"])
    run.checkpoint(model, dense, {"sparse": sparse})
    for _ in run.iterations():
        words = (torch.arange(8) * 13 + run.step) % 100
        sparse.zero_grad()
        dense.zero_grad()
        run.loss(
            functional.cross_entropy(model["head"](model["words"](words)), words % 4)
        ).backward()
        sparse.step()
        dense.step()


@shape()
def turn_by_turn(run: Run) -> None:
    """Even iterations train one part, odd ones the other."""
    first, last = mlp(), mlp()
    model = nn.ModuleList([first, last])
    optimizers = [adam(first), adam(last)]
    turn = Fields(number=0)
    run.checkpoint(model, optimizers[1], {"other": optimizers[0], "turn": turn})
    for _ in run.iterations():
        optimizer = optimizers[turn.number % 2]
        optimizer.zero_grad()
        run.loss(classify(model[turn.number % 2], *batch())).backward()
        optimizer.step()
        turn.number += 1


@shape()
def an_optimizer_for_each_layer(run: Run) -> None:
    model = mlp(batch_norm=False)
    layers = [layer for layer in model if list(layer.parameters())]
    optimizers = [adam(layer) for layer in layers]
    run.checkpoint(model, optimizers[-1], {f"layer{n}": o for n, o in enumerate(optimizers[:-1])})
    for _ in run.iterations():
        for optimizer in optimizers:
            optimizer.zero_grad()
        run.loss(classify(model, *batch())).backward()
        for optimizer in optimizers:
            optimizer.step()


class ActorCritic:
    """An actor and a critic with a target network, in one container."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.actor = mlp(batch_norm=False, outputs=2)
        self.critic, self.target = (
            mlp(batch_norm=False, inputs=INPUTS + 2, outputs=1) for _ in range(2)
        )
        self.target.load_state_dict(self.critic.state_dict())
        self.target.requires_grad_(False)
        self.all = nn.ModuleDict(
            {"actor": self.actor, "critic": self.critic, "target": self.target}
        )
        self.actor_optimizer, self.critic_optimizer = adam(self.actor), adam(self.critic)

    def checkpoint(self) -> None:
        self.run.checkpoint(
            self.all, self.actor_optimizer, {"critic_optimizer": self.critic_optimizer}
        )

    def learn(self) -> None:
        states, following = torch.randn(16, INPUTS), torch.randn(16, INPUTS)
        with torch.no_grad():
            value = states[:, :1] + 0.9 * self.target(
                torch.cat([following, self.actor(following)], 1)
            )
        actions = self.actor(states).detach() + 0.1 * torch.randn(16, 2)
        self.critic_optimizer.zero_grad()
        functional.mse_loss(self.critic(torch.cat([states, actions], 1)), value).backward()
        self.critic_optimizer.step()
        self.actor_optimizer.zero_grad()
        self.run.loss(-self.critic(torch.cat([states, self.actor(states)], 1)).mean()).backward()
        self.actor_optimizer.step()


@shape()
def actor_critic_with_a_target_in_place(run: Run) -> None:
    agent = ActorCritic(run)
    agent.checkpoint()
    for _ in run.iterations():
        agent.learn()
        with torch.no_grad():
            for own, other in zip(
                agent.target.parameters(), agent.critic.parameters(), strict=True
            ):
                own.lerp_(other, 0.1)


@shape()
def actor_critic_with_a_target_by_data(run: Run) -> None:
    agent = ActorCritic(run)
    agent.checkpoint()
    for _ in run.iterations():
        agent.learn()
        for own, other in zip(agent.target.parameters(), agent.critic.parameters(), strict=True):
            own.data.copy_(0.9 * own.data + 0.1 * other.data)


@shape()
def actor_critic_with_a_target_at_the_top(run: Run) -> None:
    agent = ActorCritic(run)
    agent.checkpoint()
    for step in run.iterations():
        if step % 2 == 0:
            with torch.no_grad():
                for own, other in zip(
                    agent.target.parameters(), agent.critic.parameters(), strict=True
                ):
                    own.lerp_(other, 0.3)
        agent.learn()


@shape()
def actor_critic_with_delayed_actors(run: Run) -> None:
    """TD3: the critic learns in each iteration, the actor and the target in every second one."""
    agent = ActorCritic(run)
    clock = Fields(ticks=0)
    run.checkpoint(
        agent.all,
        agent.critic_optimizer,
        {"actor_optimizer": agent.actor_optimizer, "clock": clock},
    )
    for _ in run.iterations():
        states = torch.randn(16, INPUTS)
        with torch.no_grad():
            joint = torch.cat([states, agent.actor(states)], 1)
            value = states[:, :1] + 0.9 * agent.target(joint)
        agent.critic_optimizer.zero_grad()
        run.loss(functional.mse_loss(agent.critic(joint), value)).backward()
        agent.critic_optimizer.step()
        clock.ticks += 1
        if clock.ticks % 2 == 0:
            agent.actor_optimizer.zero_grad()
            run.loss(-agent.critic(torch.cat([states, agent.actor(states)], 1)).mean()).backward()
            agent.actor_optimizer.step()
            with torch.no_grad():
                for own, other in zip(
                    agent.target.parameters(), agent.critic.parameters(), strict=True
                ):
                    own.lerp_(other, 0.1)
