"""A training script that a test starts with torchrun: ``train_layers.py TIER OUT``."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from deepvm.checkpoint import Checkpointer
from deepvm.checkpoint.snapshot.copying import LayerSlot
from deepvm.errors import RequestError

STEPS = 14


def make(**options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    # Small buckets, so that layers are updated while others are still in backward.
    layers = [
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)) for _ in range(6)
    ]
    ddp = DistributedDataParallel(
        torch.nn.Sequential(*layers), broadcast_buffers=True, bucket_cap_mb=0.02, **options
    )
    return ddp, torch.optim.Adam(ddp.parameters(), lr=0.01)


def numbers(ddp: Any, optimizer: Any) -> list[float]:
    tensors = [t for t in ddp.module.state_dict().values() if t.is_floating_point()]
    return [
        float(t.double().sum())
        for t in [*tensors, *(s["exp_avg"] for s in optimizer.state_dict()["state"].values())]
    ]


def refusals(tier: str) -> dict[str, str]:
    """What is said to those who want what cannot be; all ranks take part."""
    found = {}

    def attempt(name: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except (RequestError, RuntimeError) as error:
            found[name] = str(error)

    def saver(ddp: Any, optimizer: Any) -> Any:
        return Checkpointer(
            model=ddp, optimizer=optimizer, tiers=[tier], strategy="layerwise", job="refused"
        )

    def step(ddp: Any) -> None:
        ddp(torch.ones(4, 64)).square().mean().backward()

    ddp, optimizer = make()
    clipping = saver(ddp, optimizer)
    step(ddp)
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
    attempt("clip", optimizer.step)
    clipping.close()
    ddp, optimizer = make()
    accumulating = saver(ddp, optimizer)
    with ddp.no_sync():
        step(ddp)
    attempt("accumulate", lambda: step(ddp))
    accumulating.close()
    attempt("unused", lambda: saver(*make(find_unused_parameters=True)))
    ddp, optimizer = make()
    ddp.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    attempt("hook", lambda: saver(ddp, optimizer))
    ddp, optimizer = make()
    attempt("bare", lambda: saver(ddp.module, optimizer))
    return found


def train(saved_in: str | None) -> dict[str, Any]:
    """A training, alone or with versions that are copied layer by layer."""
    ddp, optimizer = make()
    saver = None
    if saved_in is not None:
        saver = Checkpointer(
            model=ddp,
            optimizer=optimizer,
            tiers=[saved_in],
            every=2,
            keep=100,
            strategy="layerwise",
        )
    sums = {}
    torch.manual_seed(torch.distributed.get_rank() + 1)
    found: dict[str, Any] = {}
    for number in range(1, STEPS + 3):
        # The hook in DistributedDataParallel stays, and averages only
        if saver is not None and number == STEPS + 1:
            saver.save(block=True)
            found["disagreements"] = saver.metrics["disagreements"]
            saver.close()
        optimizer.zero_grad()
        ddp(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        sums[number] = numbers(ddp, optimizer)
    digest = hashlib.sha256()
    for tensor in [
        *ddp.parameters(),
        *(s["exp_avg_sq"] for s in optimizer.state_dict()["state"].values()),
    ]:
        digest.update(tensor.detach().numpy().tobytes())
    return {**found, "bits": digest.hexdigest(), "sums": sums}


def main() -> None:
    tier, out = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    ahead = 0
    done = LayerSlot.done

    def counted(self: LayerSlot, storages: Any) -> set[int]:
        nonlocal ahead
        found = done(self, storages)
        ahead += len(found)
        return found

    LayerSlot.done = counted  # type: ignore[method-assign]
    found = {
        "plain": train(None),
        "layerwise": train(tier),
        "ahead": ahead,
        "refused": refusals(tier),
    }
    with open(f"{out}.{torch.distributed.get_rank()}", "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()
    # Gloo's threads outlive the group, and may abort the interpreter's own end (torch 2.13)
    os._exit(0)


if __name__ == "__main__":
    main()
