"""Reinforcement learning: an environment, a replay buffer, exploration, and normalizers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional

from support.checkpoint.loops.parts import INPUTS, Fields, adam, mlp
from support.checkpoint.loops.run import Run
from support.checkpoint.loops.shape import shape


class Environment:
    """Its state is a tensor that moves with each action, and now and then starts over."""

    def __init__(self) -> None:
        self.state, self.age = torch.zeros(INPUTS), 0

    def act(self, action: int) -> tuple[torch.Tensor, float]:
        self.age += 1
        self.state = 0.9 * self.state + 0.1 * torch.randn(INPUTS)
        self.state[action] += 0.2
        reward = float(self.state[action])
        if self.age >= 11:
            self.state, self.age = torch.zeros(INPUTS), 0
        return self.state, reward

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "age": self.age}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.age = state["state"], state["age"]


class Replay:
    """A ring of transitions in tensors that are written in place."""

    def __init__(self, size: int = 64) -> None:
        self.states, self.following = torch.zeros(size, INPUTS), torch.zeros(size, INPUTS)
        self.actions, self.rewards = torch.zeros(size, dtype=torch.int64), torch.zeros(size)
        self.count = 0

    def add(self, state: torch.Tensor, action: int, reward: float, following: torch.Tensor) -> None:
        place = self.count % len(self.states)
        self.states[place], self.following[place] = state, following
        self.actions[place], self.rewards[place] = action, reward
        self.count += 1

    def sample(self) -> list[torch.Tensor]:
        index = torch.randint(0, min(self.count, len(self.states)), (16,))
        return [part[index] for part in (self.states, self.actions, self.rewards, self.following)]

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def explore(
    model: Any, environment: Environment, chance: float
) -> tuple[torch.Tensor, int, float, torch.Tensor]:
    """One transition, of a random action or the best."""
    before = environment.state.clone()
    action = int(torch.randint(0, 4, ()))
    if torch.rand(()) > chance:
        with torch.no_grad():
            action = int(model(before[None]).argmax())
    following, reward = environment.act(action)
    return before, action, reward, following


def value_loss(model: Any, target: Any, data: list[torch.Tensor]) -> torch.Tensor:
    states, actions, rewards, following = data
    with torch.no_grad():
        goal = rewards + 0.9 * target(following).max(1).values
    return functional.smooth_l1_loss(model(states).gather(1, actions[:, None])[:, 0], goal)


@shape()
def replay_buffer(run: Run) -> None:
    """The environment moves at the top of each iteration, before the training forward."""
    model = mlp(batch_norm=False, dropout=0.0)
    optimizer = adam(model)
    environment, replay = Environment(), Replay()
    run.checkpoint(model, optimizer, {"environment": environment, "replay": replay})
    for step in run.iterations():
        replay.add(*explore(model, environment, 1 - step / run.total))
        optimizer.zero_grad()
        run.loss(value_loss(model, model, replay.sample())).backward()
        optimizer.step()


@shape()
def replay_buffer_filled_in_eval_mode(run: Run) -> None:
    """The policy acts in eval mode; the training forward follows."""
    model = mlp()
    optimizer = adam(model)
    environment, replay = Environment(), Replay()
    run.checkpoint(model, optimizer, {"environment": environment, "replay": replay})
    for _ in run.iterations():
        model.eval()
        for _act in range(2):
            replay.add(*explore(model, environment, 0.3))
        model.train()
        optimizer.zero_grad()
        run.loss(value_loss(model, model, replay.sample())).backward()
        optimizer.step()


@shape()
def replay_buffer_filled_after_the_step(run: Run) -> None:
    model = mlp(batch_norm=False)
    optimizer = adam(model)
    environment, replay = Environment(), Replay()
    run.checkpoint(model, optimizer, {"environment": environment, "replay": replay})
    for _ in range(8 * (replay.count == 0)):
        replay.add(*explore(model, environment, 1.0))
    for _ in run.iterations():
        optimizer.zero_grad()
        run.loss(value_loss(model, model, replay.sample())).backward()
        optimizer.step()
        replay.add(*explore(model, environment, 0.3))


@shape()
def dqn_with_a_target(run: Run) -> None:
    model, target = mlp(batch_norm=False), mlp(batch_norm=False).requires_grad_(False)
    target.load_state_dict(model.state_dict())
    optimizer = adam(model)
    environment, replay, chance = Environment(), Replay(), Fields(epsilon=1.0)
    extra = {"environment": environment, "replay": replay, "target": target, "chance": chance}
    run.checkpoint(model, optimizer, extra)
    for step in run.iterations():
        chance.epsilon = max(0.1, chance.epsilon * 0.95)
        replay.add(*explore(model, environment, chance.epsilon))
        optimizer.zero_grad()
        run.loss(value_loss(model, target, replay.sample())).backward()
        optimizer.step()
        if step % 5 == 4:
            target.load_state_dict(model.state_dict())


@shape()
def replay_in_a_deque(run: Run) -> None:
    """Transitions in a deque; its state is a list of tensors and numbers."""

    class Memory:
        def __init__(self) -> None:
            self.items: deque[Any] = deque(maxlen=24)

        def state_dict(self) -> dict[str, Any]:
            return {"items": [list(item) for item in self.items]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.items = deque((tuple(item) for item in state["items"]), maxlen=24)

    model = mlp(batch_norm=False)
    optimizer = adam(model)
    environment, memory = Environment(), Memory()
    run.checkpoint(model, optimizer, {"environment": environment, "memory": memory})
    for _ in run.iterations():
        before, action, reward, following = explore(model, environment, 0.3)
        memory.items.append((before, action, reward, following.clone()))
        index = numpy.random.randint(0, len(memory.items), 8)
        chosen = [memory.items[number] for number in index]
        states, next_states = (torch.stack([item[place] for item in chosen]) for place in (0, 3))
        actions = torch.tensor([item[1] for item in chosen])
        rewards = torch.tensor([item[2] for item in chosen])
        optimizer.zero_grad()
        run.loss(value_loss(model, model, [states, actions, rewards, next_states])).backward()
        optimizer.step()


@shape()
def replay_by_priorities(run: Run) -> None:
    """Priorities are written in place after the loss."""
    model = mlp(batch_norm=False)
    optimizer = adam(model)
    environment, replay = Environment(), Replay()
    priorities = Fields(values=torch.zeros(64))
    run.checkpoint(
        model, optimizer, {"environment": environment, "replay": replay, "priorities": priorities}
    )
    for _ in run.iterations():
        place = replay.count % 64
        replay.add(*explore(model, environment, 0.3))
        priorities.values[place] = 1.0
        index = torch.multinomial(priorities.values, 8, replacement=True)
        wrong = (
            model(replay.states[index]).gather(1, replay.actions[index][:, None])[:, 0]
            - replay.rewards[index]
        )
        optimizer.zero_grad()
        run.loss(wrong.square().mean()).backward()
        optimizer.step()
        priorities.values[index] = wrong.detach().abs() + 0.01


@shape()
def rollouts_of_the_newest_policy(run: Run) -> None:
    """REINFORCE: a rollout in training mode, a running normalizer of what is observed, and a
    baseline.
    """
    model = nn.Sequential(mlp(batch_norm=False), nn.LogSoftmax(1))
    optimizer = adam(model, 1e-2)
    environment, normal = Environment(), Fields(mean=torch.zeros(INPUTS), baseline=0.0)
    run.checkpoint(model, optimizer, {"environment": environment, "normal": normal})
    for _ in run.iterations():
        chances, rewards = [], []
        for _act in range(4):
            normal.mean = 0.95 * normal.mean + 0.05 * environment.state
            scores = model((environment.state - normal.mean)[None])[0]
            action = int(torch.multinomial(scores.detach().exp(), 1))
            chances.append(scores[action])
            rewards.append(environment.act(action)[1])
        gain = sum(rewards) - normal.baseline
        normal.baseline += 0.1 * gain
        optimizer.zero_grad()
        run.loss(-gain * torch.stack(chances).sum()).backward()
        optimizer.step()
