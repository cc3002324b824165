"""The training whose speed is measured: forward, backward, optimizer step (DeepVM V-A)."""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deepvm.errors import RequestError
from deepvm.profiling.workload.images import Images
from deepvm.profiling.workload.spec import Workload

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters()),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
}
# Gives images (batch, 3, pixels, pixels) and labels (batch,), on the device
Batches = Callable[[], tuple[Tensor, Tensor]]


class Ranks:
    """The processes that train together."""

    def __init__(
        self, rank: int, world: int, device: torch.device, rendezvous: Path | None, timeout_s: float
    ) -> None:
        """Form a group; ``rendezvous``: a file that does not exist yet, or None under torchrun."""
        self.rank = rank
        self.world = world
        self.grouped = world > 1 or rendezvous is None
        if self.grouped:
            torch.distributed.init_process_group(
                # Times are exchanged over the CPU, gradients by the device.
                "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
                init_method=rendezvous.as_uri() if rendezvous else "env://",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout_s),
            )

    def slowest(self, seconds: float) -> float:
        """The largest number of all processes; a barrier."""
        if not self.grouped:
            return seconds
        told = torch.tensor(seconds, dtype=torch.float64, device="cpu")
        torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
        return float(told)

    def close(self) -> None:
        if self.grouped:
            torch.distributed.destroy_process_group()


class Training:
    """A model on one device, with replicas of it in the other processes."""

    def __init__(
        self,
        model: nn.Module,
        workload: Workload,
        batches: Batches,
        device: torch.device,
        ranks: Ranks,
        shard: Callable[[torch.dtype], None] | None = None,
    ) -> None:
        """Put the model on the device; collective. Raises RequestError: the GPU lacks the dtype.

        ``float32`` is torch's: convolutions use TF32 where the GPU has it. ``shard``: puts the
        model there in shards that compute in this type, instead of whole copies.
        """
        self.model = model
        self._device = device
        self._batches = batches
        self._ranks = ranks
        kind = DTYPES[workload.dtype]
        on_gpu = device.type == "cuda"
        # On other GPUs torch emulates it, many times slower.
        if kind is torch.bfloat16 and on_gpu and not torch.cuda.is_bf16_supported(False):
            name = torch.cuda.get_device_name(device)
            raise RequestError("dtype", workload.dtype, f"float32, float16: {name} has no bfloat16")
        self._mixed: Callable[[], contextlib.AbstractContextManager[object]] = (
            contextlib.nullcontext
        )
        if kind is not torch.float32 and shard is None:
            self._mixed = lambda: torch.autocast(device.type, kind)
        self._scaler = torch.amp.GradScaler(device.type, enabled=kind is torch.float16)
        if shard is not None:
            shard(kind)
        self._forward = model
        if shard is None:
            self._forward = model.to(device, memory_format=memory_format(model, device, kind))  # type: ignore[call-overload]
        self.optimizer = OPTIMIZERS[workload.optimizer](model)
        if ranks.grouped and shard is None:
            self._forward = DistributedDataParallel(
                model, [device.index] if device.type == "cuda" else None
            )
        self._loss = nn.CrossEntropyLoss()

    def run(self, steps: int) -> float:
        """Train; returns the seconds from when all started to when the last device was done."""
        self._wait()
        self._ranks.slowest(0.0)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._wait()
        return self._ranks.slowest(time.perf_counter() - start)

    def step(self) -> None:
        images, labels = self._batches()
        self.optimizer.zero_grad()
        with self._mixed():
            # (batch, classes), or of each token (batch, sequence, vocabulary)
            scores = self._forward(images)
            loss = self._loss(scores.flatten(0, -2).float(), labels.flatten())
        self._scaler.scale(loss).backward()
        self._scaler.step(self.optimizer)
        self._scaler.update()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def synthetic(batch: int, pixels: int, classes: int, device: torch.device) -> Batches:
    """The same random images at every step, so that reading and moving images costs nothing."""
    images = torch.randn(batch, 3, pixels, pixels, device=device)
    labels = torch.randint(classes, (batch,), device=device)
    return lambda: (images, labels)


def real(data: Images, batch: int, pixels: int, device: torch.device, ranks: Ranks) -> Batches:
    """Each process's share of a data set in endless batches; a step includes moving them."""
    mine = torch.arange(ranks.rank, len(data.labels), ranks.world)
    if not len(mine):
        raise RequestError(
            "data", data.name, f"at least {ranks.world} images: each process needs one"
        )
    labels = torch.from_numpy(data.labels.astype("int64"))
    position = 0

    def following() -> tuple[Tensor, Tensor]:
        nonlocal position
        chosen = mine[torch.arange(position, position + batch) % len(mine)]
        position = (position + batch) % len(mine)
        # Indexing copies, so that a view of a file's bytes is good enough.
        images = (
            torch.from_numpy(data.pixels[chosen.numpy()]).to(device).float().div_(127.5).sub_(1)
        )
        if images.shape[-2:] != (pixels, pixels):
            images = nn.functional.interpolate(images, (pixels, pixels), mode="bilinear")
        return images, labels[chosen].to(device)

    return following


def memory_format(model: nn.Module, device: torch.device, kind: torch.dtype) -> torch.memory_format:
    """Channels last for images on tensor cores: ResNet-50 ran 1.8 x as fast on an H100."""
    tensor_cores = device.type == "cuda" and kind is not torch.float32
    flat = all(p.dim() <= 4 for p in model.parameters())  # a model of volumes has none of this form
    if tensor_cores and flat:
        return torch.channels_last
    return torch.preserve_format
