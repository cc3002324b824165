"""One rank of a training, in a step's strict order (ECRL 4.6), from checkpoint to last step."""

import contextlib
import gc
import os
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from deepvm.errors import RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.lab.certify import probe
from deepvm.lab.faults.disk import Faults, FaultyDisk
from deepvm.lab.faults.fault import DiskFault, FaultSchedule, Moment
from deepvm.lab.geometry import ResumableSampler, ids_hash
from deepvm.lab.records import CHECKPOINTS, FINAL, Events, Lines, steps_of
from deepvm.lab.registry import find_fault, find_strategy
from deepvm.lab.running.launcher import Order
from deepvm.lab.strategies.state import State, seed_all
from deepvm.lab.strategies.strategy import CheckpointRow, Setting, Strategy, due
from deepvm.lab.training.datasets import Batch, load
from deepvm.lab.training.models import build, loss_of


class VirtualShards:
    """A model whose gradients are computed in shards."""

    def __init__(self, module: nn.Module, shards: int, rank: int, world: int, seed: int) -> None:
        if shards % world:
            raise RequestError("world", world, f"a divisor of the {shards} virtual shards")
        self._module = module
        self._shards = shards
        self._seed = seed
        self._mine = shards // world
        self._first = rank * self._mine
        self._world = world
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._buffers = [b for b in module.buffers() if b.is_floating_point()]
        self._counters = [b for b in module.buffers() if not b.is_floating_point()]

    def gradients(
        self, step: int, inputs: Tensor, targets: Tensor, before: Callable[[], None]
    ) -> float:
        """The mean loss of all shards, and its gradients; ``before``: before ranks exchange any."""
        start = [b.clone() for b in self._buffers]
        counted = [b.clone() for b in self._counters]
        rows = []
        for number, (x, y) in enumerate(
            zip(inputs.chunk(self._mine), targets.chunk(self._mine), strict=True)
        ):
            for buffer, value in zip(self._buffers, start, strict=True):
                buffer.copy_(value)
            for counter, value in zip(self._counters, counted, strict=True):
                counter.copy_(value)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(
                    ((self._seed * 1_000_003 + step) * 1009 + self._first + number) % 2**63
                )
                loss = loss_of(self._module, x, y)
                gradients = torch.autograd.grad(loss, self._parameters)
            rows.append(
                torch.cat([t.detach().reshape(-1) for t in (*gradients, *self._buffers, loss)])
            )
        before()
        mean = _tree_sum(self._everyones(torch.stack(rows))) / self._shards
        sizes = [t.numel() for t in (*self._parameters, *self._buffers)]
        *parts, loss = torch.split(mean, [*sizes, 1])
        for parameter, part in zip(self._parameters, parts, strict=False):
            parameter.grad = part.reshape(parameter.shape).clone()
        for buffer, part in zip(self._buffers, parts[len(self._parameters) :], strict=True):
            buffer.copy_(part.reshape(buffer.shape))
        return float(loss)

    def _everyones(self, rows: Tensor) -> Sequence[Tensor]:
        if self._world == 1:
            return list(rows)
        gathered = [torch.empty_like(rows) for _ in range(self._world)]
        dist.all_gather(gathered, rows)
        return list(torch.cat(gathered))


def _tree_sum(rows: Sequence[Tensor]) -> Tensor:
    """The sum of rows by pairs, then pairs of pairs: the same order for any rank count."""
    left = list(rows)
    while len(left) > 1:
        left = [sum(left[i + 1 : i + 2], left[i]) for i in range(0, len(left), 2)]
    return left[0]


_WARM_UPS = 2
_MISTAKEN_STEP = 25
_ORPHAN_S = 0.1
_ERROR = 200  # Characters of an exception that are written down


class Trainer:
    """A rank."""

    def __init__(self, order: Order, rank: int, world: int) -> None:
        self.order = order
        self.rank = rank
        self.world = world
        config = self.config = order.config
        folder = order.folder
        attempt = order.attempt
        self._events = Events(folder, rank, attempt)
        self.note = self._events.note
        self.note("started", pid=os.getpid())
        self.disk = FaultyDisk(folder / "checkpoints", self._disk_faults(), self.note)
        self.disk.install()
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        if world > 1:
            dist.init_process_group("gloo")
        self.note("joined")
        self._samples = load(
            config["dataset"]["name"], config["dataset"].get("path"), config["dataset_size"]
        )
        self._sampler = ResumableSampler(
            len(self._samples),
            global_batch=config["global_batch"],
            rank=rank,
            world=world,
            seed=config["seed"],
        )
        self._strikes = [(strike, find_fault(strike.fault)) for strike in order.strikes]
        self._steps = Lines(folder / steps_of(rank))
        self._rows = Lines(folder / CHECKPOINTS)
        self._shards: VirtualShards | None = None
        self.state = self._made()
        seed_all(config["seed"], rank)
        self._strategy = self._opened()
        # Else a collection, often in a checkpoint, takes 2 ms of the stall
        gc.freeze()

    def _disk_faults(self) -> Faults:
        seed = self.config["seed"] * 10_007 + self.order.attempt * 101 + self.rank
        faults = [
            fault.faults(FaultSchedule.model_validate(when), seed)
            for name, when in self.config["disk"].items()
            if isinstance(fault := find_fault(name), DiskFault)
        ]
        return Faults(**ChainMap(*faults), first=not self.order.attempt)

    def _made(self) -> State:
        config = self.config
        module = build(samples=self._samples, seed=config["seed"], **config["model"])
        trained: nn.Module = module
        if config["virtual_shards"]:
            self._shards = VirtualShards(
                module, config["virtual_shards"], self.rank, self.world, config["seed"]
            )
        elif self.world > 1:
            trained = nn.parallel.DistributedDataParallel(module)
            if "cold-ddp" not in config["controls"]:
                self._warm_up(module, trained)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config["steps"])
        return State(module, trained, optimizer, scheduler, self._sampler, self.rank, self.world)

    def _warm_up(self, module: nn.Module, trained: nn.Module) -> None:
        """Have gradients divided into buckets for good; the weights stay."""
        first = {name: value.clone() for name, value in module.state_dict().items()}
        inputs, targets, _ = self._samples.batch(range(self.config["global_batch"] // self.world))
        for _ in range(_WARM_UPS):
            torch.autograd.backward(loss_of(trained, inputs, targets))
        module.zero_grad(set_to_none=True)
        module.load_state_dict(first)

    def _opened(self) -> Strategy | None:
        config = self.config
        if config["strategy"] is None:
            return None
        setting = Setting(
            folder=self.order.folder / "checkpoints",
            attempt=self.order.attempt,
            every=config["checkpoint_every"],
            most_in_flight=config["max_inflight"],
            record=self._record,
            note=self.note,
            keep=config["keep"],
            tiers=tuple(self.order.tiers),
            controls=frozenset(config["controls"]),
        )
        return find_strategy(config["strategy"])(self.state, setting)

    def _record(self, row: CheckpointRow) -> None:
        self._rows.add({"attempt": self.order.attempt, "time": time.time(), **vars(row)})

    def run(self) -> None:
        began_s = time.perf_counter()
        resumes = self._strategy is not None and "never-restores" not in self.config["controls"]
        done = 0
        if self._strategy is not None and resumes:
            done = self._strategy.restore()
        self.note("restored", step=done, seconds=time.perf_counter() - began_s)
        last = self.order.until or self.config["steps"]
        loader = self._batches()
        for step in range(done, last):
            self._step(step, loader)
        if self._strategy is not None:
            if last < self.config["steps"] and not due(last, self.config["checkpoint_every"]):
                self._strategy.save(last)
            closing_s = time.perf_counter()
            self._strategy.close()
            self.note("closed", seconds=time.perf_counter() - closing_s)
        if last == self.config["steps"] and not self.rank:
            write_bytes(self.order.folder / FINAL, f"{digest(self.state.module)}\n".encode())
        self.note("ended", step=last)
        self.state.barrier()

    def _batches(self) -> Iterator[Batch]:
        # With the process's own generator a training that resumes would draw once more
        own = torch.Generator()
        while True:
            yield from DataLoader(self._samples, batch_sampler=self._sampler, generator=own)

    def _step(self, step: int, loader: Iterator[Batch]) -> None:
        epoch = self._sampler.epoch
        cursor = self._sampler.cursor_step
        self._meet(Moment.LOADING, step + 1)
        inputs, targets, ids = self._mistaken(step, *next(loader))
        began_s = time.perf_counter()
        loss = self._gradients(step, inputs, targets)
        if "orphan" in self.config["controls"]:  # it must live until the next attempt has started
            time.sleep(_ORPHAN_S)
        self._sampler.step()
        self.state.optimizer.step()
        self.state.scheduler.step()
        self.state.optimizer.zero_grad(set_to_none=True)
        row = {
            "attempt": self.order.attempt,
            "global_step": step,
            "epoch": epoch,
            "cursor_step": cursor,
            "sample_ids_hash": ids_hash(ids.tolist()),
            "sample_ids_count": len(ids),
            "world_size": self.world,
            "rank": self.rank,
            "loss": loss,
            "loss_hex": float.hex(loss),
            "seconds": time.perf_counter() - began_s,
            "time": time.time(),
        }
        # Before the checkpoint: one that has step s must not outlive the line of step s
        self._steps.add(row)
        if self._strategy is not None:
            is_due = due(step + 1, self.config["checkpoint_every"])
            (self._strategy.save if is_due else self._strategy.stepped)(step + 1)
        self._meet(Moment.BOUNDARY, step + 1)

    def _mistaken(self, step: int, inputs: Tensor, targets: Tensor, ids: Tensor) -> Batch:
        controls = self.config["controls"]
        if step != _MISTAKEN_STEP or self.rank:
            return inputs, targets, ids
        if "dropped-id" in controls:
            return inputs[1:], targets[1:], ids[1:]
        if "duplicated-id" in controls:
            return self._samples.batch([int(ids[1]), *ids[1:].tolist()])
        return inputs, targets, ids

    def _gradients(self, step: int, inputs: Tensor, targets: Tensor) -> float:
        if self._shards is not None:
            return self._shards.gradients(
                step, inputs, targets, lambda: self._meet(Moment.REDUCING, step + 1)
            )
        parts = self.config["accumulate"]
        trained = self.state.trained
        total = 0.0
        for number, (x, y) in enumerate(
            zip(inputs.chunk(parts), targets.chunk(parts), strict=True), 1
        ):
            last = number == parts
            if last:
                self._meet(Moment.REDUCING, step + 1)
            quiet = isinstance(trained, nn.parallel.DistributedDataParallel) and not last
            with trained.no_sync() if quiet else contextlib.nullcontext():  # type: ignore[operator]
                loss = loss_of(trained, x, y) / parts
                loss.backward()
            total += float(loss.detach())
        return total

    def _meet(self, moment: Moment, step: int) -> None:
        here = [
            (strike, fault)
            for strike, fault in self._strikes
            if strike.step == step and fault.moment_of(strike) is moment
        ]
        if not here:
            return
        if moment is Moment.BOUNDARY:
            self.state.barrier()
        for strike, fault in here:
            if strike.rank == self.rank:
                self.note("armed" if strike.target == "write" else "strike", key=strike.key)
                fault.strike_in_worker(strike, self.disk)


def digest(module: nn.Module) -> str:
    """Hex SHA-256 over all parameters and buffers, in ``state_dict()`` order."""
    return probe.digest(module.state_dict().values())


@contextlib.contextmanager
def exit_record(order: Order, rank: int) -> Iterator[None]:
    """Record that a rank ends by an exception; without this or ``ended`` it was killed."""
    try:
        yield
    except BaseException as error:
        Events(order.folder, rank, order.attempt).note(
            "raised", error=f"{type(error).__name__}: {error}"[:_ERROR]
        )
        raise


def main(order_file: str) -> None:
    """A rank as the environment says, of the attempt in a file."""
    order = Order.read(Path(order_file))
    if order.tiers:
        os.environ["DEEPVM_TOKEN_FILE"] = str(order.folder / "token")
    os.environ["DEEPVM_EPOCH"] = str(order.attempt + 1)
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    with exit_record(order, rank):
        Trainer(order, rank, world).run()
