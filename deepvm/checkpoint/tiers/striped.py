"""``tcp://host:port,host:port``: memory nodes that share each checkpoint (ACUTE's Check-Trans).

A checkpoint counts when each node has its part; there is no redundancy. One that is sent again with
other bytes is replaced on one node after the other; if a node's memory is lost meanwhile, the run's
last checkpoint of another number that all nodes have on disk stays (``hold``), if there is one.
"""

import contextlib
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from deepvm.checkpoint.files import stripe
from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import MOST_PARTS, part_job, part_of
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import (
    Acknowledge,
    CommitRecord,
    Damage,
    JoinedRecord,
    Level,
    Shard,
)
from deepvm.checkpoint.network.client import token_from_environment
from deepvm.checkpoint.network.endpoint import endpoint_of
from deepvm.checkpoint.network.protocol import RequestRefused
from deepvm.checkpoint.tiers.base import Tier, all_settled, fulfil, log
from deepvm.checkpoint.tiers.replicated import NodeGroup, ReplicatedTier, at_once
from deepvm.checkpoint.tiers.tcp import CommitBarrier, TcpTier, refuse_parts
from deepvm.errors import CheckpointError, DamagedError, RequestError, VersionGoneError

_PUT_S = 60.0
_REPLICAS = re.compile(r"replicas=([0-9]{1,3})", re.ASCII)
_A = TypeVar("_A")
_T = TypeVar("_T")


class StripedTier(NodeGroup):
    """Memory nodes that each keep one part of every checkpoint."""

    form = "tcp://host:port, tcps://host:port"

    def __init__(self, nodes: Sequence[TcpTier]) -> None:
        super().__init__(nodes, MOST_PARTS)
        # Of each job the last checkpoint that all nodes have on disk: none may delete it yet
        self._holds: dict[str, int] = {}

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        scheme, _, rest = url.partition("://")
        rest, _, wish = rest.partition("?")
        replicas = _REPLICAS.fullmatch(wish)
        if wish and replicas is None:
            raise RequestError(
                option, url, "?replicas=2, or another number of nodes that keep each checkpoint"
            )
        token = token_from_environment()
        endpoints = [endpoint_of(f"{scheme}://{place}", option) for place in rest.split(",")]
        nodes = [TcpTier(endpoint, session, token) for endpoint in endpoints]
        try:
            if replicas is not None:
                return ReplicatedTier(nodes, int(replicas[1]))
            if len(nodes) > 1:
                return cls(nodes)
            return nodes[0]
        except RequestError as error:
            raise RequestError(option, url, error.allowed) from None

    def put(self, shard: Shard, acknowledged: Acknowledge) -> None:
        """No node completes its part before all have received theirs."""
        shard.check()
        plans = stripe.plan_parts(shard.layout, len(self._nodes))
        mark: Future[bytes] = Future()
        parts = [plan.shard(shard, mark.result) for plan in plans]
        if shard.job not in self._holds:
            # Which checkpoints of earlier runs are on all disks is unknown; the oldest was there
            # first
            rows = self.versions(shard.job)
            self._holds.setdefault(shard.job, min((m.version for m in rows), default=0))
        barrier = CommitBarrier(len(parts), self._holds[shard.job], _PUT_S + shard.moving_s)
        counting = threading.Lock()
        left = dict.fromkeys(Level, len(parts))
        last: list[CheckpointError] = []
        gone: list[CheckpointError] = []

        def reached(level: Level) -> None:
            with counting:  # also while it is acknowledged, or the next level might overtake it
                left[level] -= 1
                if not left[level] and not gone:
                    if level is Level.DURABLE:
                        self._holds[shard.job] = shard.version
                    acknowledged(level)
                    if level is Level.REMOTE:
                        for reason in last:
                            shard.lost(reason)

        def send(node: TcpTier, part: Shard) -> None:
            seen: list[Level] = []

            def own(level: Level) -> None:
                seen.append(level)
                reached(level)

            def lost(reason: CheckpointError) -> None:
                with counting:
                    if isinstance(reason, VersionGoneError):
                        gone.append(reason)
                    elif seen and left[Level.REMOTE]:  # it is never durable, but may become remote
                        last.append(reason)
                        return
                shard.lost(reason)

            try:
                node.put(replace(part, lost=lost), own, barrier)
            except BaseException as error:
                barrier.fail(error)

        # The mark is made while the parts are sent, and goes last, see TcpTier.
        sends = [partial(send, *each) for each in zip(self._nodes, parts, strict=True)]
        at_once(lambda work: work(), [partial(fulfil, mark, stripe.mark_of, shard), *sends])
        if barrier.error is not None:
            raise barrier.error

    def begin(self, job: str, epoch: int) -> None:
        self._ask(lambda node, name: node.begin(name, epoch), self._jobs(job))

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """Those with all parts, sent together; their ``crcs`` are empty."""
        rows = self._ask(
            lambda node, name: {m.version: m for m in node.versions(name)}, self._jobs(job)
        )
        if not any(rows):
            self._refuse_wholes(job)
        found = []
        for number in sorted(set.intersection(*map(set, rows)), reverse=True):
            manifests = tuple(row[number] for row in rows)
            try:
                parts = self._ask(_head, manifests)
                problem = stripe.belong_together(parts)
            except DamagedError as error:
                problem = str(error)
            except RequestRefused as error:
                if error.code != "gone":
                    raise
                problem = str(error)  # a node removes old checkpoints when it likes
            if problem:
                log.warning("version %d of %s on %s is skipped: %s", number, job, self.url, problem)
                continue
            whole = parts[0].whole
            created = max(m.created for m in manifests)
            record = JoinedRecord(job, number, whole.world, whole.size, (), parts=manifests)
            found.append(replace(record, layout=whole.digest, created=created))
        return tuple(found)

    def _refuse_wholes(self, job: str) -> None:
        """Raise CheckpointError if nodes have the job in another layout: it would restart at 0."""
        count = len(self._nodes)
        having = []
        for number, (rows, parts, _) in enumerate(self._ask(TcpTier.look, [job] * count)):
            refuse_parts(job, self.url, parts - {(number + 1, count)})
            if rows:
                having.append(self._nodes[number].url)
        if having:
            others = having[0]
            if len(having) > 1:
                others = f"{self.url}?replicas={len(having)}"
            raise CheckpointError(
                f"there are whole checkpoints of {job} on {', '.join(having)}, and here nodes share"
                f" them: continue with {others}, or name another job"
            )

    def _ask(self, question: Callable[[TcpTier, _A], _T], each: Sequence[_A]) -> list[_T]:
        return [future.result() for future in at_once(question, self._nodes, each)]

    def _jobs(self, job: str) -> list[str]:
        count = len(self._nodes)
        return [part_job(job, number, count) for number in range(1, count + 1)]

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """Also those of which some nodes lack their part, or never got it from a killed trainer."""
        whole = {m.version for m in self.versions(job)}

        def states(node: TcpTier, name: str) -> dict[int, Damage | None]:
            complete: dict[int, Damage | None] = {m.version: None for m in node.versions(name)}
            return complete | {d.version: d for d in node.damaged(name)}

        rows = self._ask(states, self._jobs(job))
        found = []
        for number in sorted(set().union(*rows) - whole, reverse=True):
            lacking = []
            problems = []
            size = 0
            for node, row in zip(self._nodes, rows, strict=True):
                damage = row.get(number)
                if damage is not None:
                    problems.append(f"{node.url}: {damage.problem}")
                    size += damage.size
                elif number not in row:
                    lacking.append(node.url)
            problem = "; ".join(problems) or "its parts were not sent together"
            if lacking:
                problem = f"a part of it is not on {', '.join(lacking)}"
            found.append(Damage(number, problem, size))
        return tuple(found)

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        self._ask(lambda node, name: node.set_aside(name, versions), self._jobs(job))

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        name = f"{self.url}: version {manifest.version} of {manifest.job}"
        parts = manifest.parts if isinstance(manifest, JoinedRecord) else ()
        if len(parts) != len(self._nodes):
            raise CheckpointError(f"{name} is not here")
        path = VersionFolder(folder).file(manifest.job, manifest.version)
        with failing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            place = tempfile.TemporaryDirectory(prefix=".deepvm-parts-", dir=folder)
        with place:
            paths = self._ask(lambda node, part: node.fetch(part, Path(place.name)), parts)
            joined = Path(place.name) / path.name
            if stripe.join(paths, joined, Path.unlink).digest != manifest.layout:
                raise CheckpointError(f"{name} is another one by now")
            joined.replace(path)
        return path

    def settle(self, limit_s: float) -> bool:
        return all_settled([node.settle for node in self._nodes], limit_s)


class MpiTier(StripedTier):
    """``mpi://RANK`` (default: the last): memory nodes within the trainer's ``mpirun``."""

    form = "mpi://rank"
    listed = False


class RecoveryTier(Tier):
    """Read-only: folders with whole checkpoints or parts."""

    def __init__(self, folders: Sequence[VersionFolder]) -> None:
        self._folders = tuple(folders)
        self.url = ",".join(f"file://{folder.path}" for folder in folders)

    def put(self, shard: Shard, acknowledged: Acknowledge) -> None:
        raise CheckpointError(f"{self.url}: only for reading")

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """A whole checkpoint comes before one in parts."""
        found: list[CommitRecord] = []
        sets: dict[tuple[int, int], dict[int, CommitRecord]] = defaultdict(dict)
        for folder in self._folders:
            found += folder.versions(job)
            for row in folder.found():
                whole, number, of = part_of(row.job)
                if whole == job != row.job and row.manifest is not None and not row.problem:
                    sets[row.version, of][number] = row.manifest
        for (version, of), rows in sets.items():
            if len(rows) == of:
                parts = tuple(rows[number] for number in sorted(rows))
                size = sum(part.size for part in parts)  # a little more than the whole has
                found.append(JoinedRecord(job, version, parts[0].world, size, (), parts=parts))
        return tuple(sorted(found, key=lambda m: m.version, reverse=True))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """Damaged parts are not included."""
        return tuple(damage for folder in self._folders for damage in folder.damaged(job))

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        if not isinstance(manifest, JoinedRecord):
            return self._verified(manifest)
        target = VersionFolder(folder).file(manifest.job, manifest.version)
        stripe.join([self._verified(part) for part in manifest.parts], target)
        return target

    def _verified(self, manifest: CommitRecord) -> Path:
        for folder in self._folders:
            if manifest in folder.versions(manifest.job):
                path = folder.file(manifest.job, manifest.version)
                verify(path, manifest)
                return path
        raise CheckpointError(f"{self.url}: version {manifest.version} of {manifest.job} is gone")


def jobs_in(folders: Sequence[VersionFolder]) -> list[str]:
    """The jobs in these folders; parts count as their job."""
    return sorted({part_of(row.job)[0] for folder in folders for row in folder.found()})


def _head(node: TcpTier, manifest: CommitRecord) -> stripe.Part:
    with contextlib.closing(node.stream(manifest)) as pieces:
        return stripe.read_part_from(
            pieces, f"{node.url}: version {manifest.version} of {manifest.job}"
        )
