"""``tcp://host:port,host:port``: memory nodes that share each checkpoint (ACUTE's Check-Trans).

Every rank sends to all nodes at once; a version counts when each node has its part. There is no
redundancy: losing one node's memory loses every version that was not on its disk yet; replicated.py
has it.

A version that is sent again under its number is replaced on one node after the other. The same
bytes make the same parts, so that is harmless. With other bytes, a node's memory that is lost
before all nodes have written their new parts costs both; the run's last version of another number
that all nodes have on disk stays (``hold``), if there is one.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import MOST_PARTS, part_job, part_of
from deepvm.checkpoint.files.stripe import (
    Part,
    belong_together,
    join,
    mark_of,
    plan_parts,
    read_part_from,
)
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import CommitRecord, Damage, JoinedRecord
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.network.endpoint import endpoint_of
from deepvm.checkpoint.network.protocol import RequestRefused
from deepvm.checkpoint.network.token import token_from_environment
from deepvm.checkpoint.tiers.base import Tier, all_settled, fulfil
from deepvm.checkpoint.tiers.node_group import NodeGroup, at_once
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.tcp import CommitBarrier, TcpTier, refuse_parts
from deepvm.errors import CheckpointError, DamagedError, RequestError, VersionGoneError

log = logging.getLogger("deepvm.checkpoint")
_PUT_S = 60.0
_REPLICAS = re.compile(r"replicas=([0-9]{1,3})", re.ASCII)
_A = TypeVar("_A")
_T = TypeVar("_T")


class StripedTier(NodeGroup):
    """Memory nodes that each keep one part of every version."""

    form = "tcp://host:port, tcps://host:port"

    def __init__(self, nodes: Sequence[TcpTier]) -> None:
        super().__init__(nodes, MOST_PARTS)
        self._holds: dict[str, int] = {}

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        """See :meth:`Tier.open`. One node, and ``?replicas=``, keep whole checkpoints instead."""
        scheme, _, rest = url.partition("://")
        rest, _, wish = rest.partition("?")
        replicas = _REPLICAS.fullmatch(wish)
        if wish and replicas is None:
            raise RequestError(
                option, url, "?replicas=2, or another number of nodes that keep each version"
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

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """See :meth:`Tier.put`. No node completes its part before all have received theirs."""
        shard.check()
        plans = plan_parts(shard.layout, len(self._nodes))
        mark: Future[bytes] = Future()
        parts = [plan.shard(shard, mark.result) for plan in plans]
        barrier = CommitBarrier(len(parts), self._hold(shard.job), _PUT_S + shard.moving_s)
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

        # Made while the parts are sent: the mark goes last, see TcpTier.
        marking = threading.Thread(
            target=fulfil, args=(mark, mark_of, shard), name="deepvm-mark", daemon=True
        )
        marking.start()
        at_once(send, self._nodes, parts)
        # Until then it reads the shard's memory; the copy into that has its time limit
        marking.join()
        if barrier.error is not None:
            raise barrier.error

    def _hold(self, job: str) -> int:
        """The last version that all nodes have on disk: none of them may delete it yet."""
        if job not in self._holds:
            # Which versions of earlier runs are on all disks is not known; the oldest was there
            # first.
            self._holds.setdefault(job, min((m.version for m in self.versions(job)), default=0))
        return self._holds[job]

    def begin(self, job: str, epoch: int) -> None:
        self._ask(lambda node, name: node.begin(name, epoch), self._jobs(job))

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """See :meth:`Tier.versions`: those with all parts, sent together; ``crcs`` are empty."""
        rows = self._ask(
            lambda node, name: {m.version: m for m in node.versions(name)}, self._jobs(job)
        )
        if not any(rows):
            self._refuse_wholes(job)
        common = set.intersection(*(set(row) for row in rows))
        found = []
        for number in sorted(common, reverse=True):
            manifests = tuple(row[number] for row in rows)
            try:
                parts = self._ask(_head, manifests)
                problem = belong_together(parts)
            except (DamagedError, RequestRefused) as error:
                if isinstance(error, RequestRefused) and error.code != "gone":
                    raise
                problem = str(error)  # a node removes old versions when it likes
            if problem:
                log.warning("version %d of %s on %s is skipped: %s", number, job, self.url, problem)
                continue
            whole = parts[0].whole
            created = max(m.created for m in manifests)
            found.append(
                JoinedRecord(
                    job,
                    number,
                    whole.world,
                    whole.size,
                    (),
                    layout=whole.digest,
                    created=created,
                    parts=manifests,
                )
            )
        return tuple(found)

    def _refuse_wholes(self, job: str) -> None:
        """Raise CheckpointError if nodes have the job in another layout: it would restart at 0."""
        rows = self._ask(lambda node, name: node.look(name), [job] * len(self._nodes))
        having = [node.url for node, (row, _) in zip(self._nodes, rows, strict=True) if row]
        for number, (_, parts) in enumerate(rows, start=1):
            refuse_parts(job, self.url, parts - {(number, len(self._nodes))})
        if having:
            if len(having) > 1:
                others = f"{self.url}?replicas={len(having)}"
            else:
                others = having[0]
            raise CheckpointError(
                f"there are whole versions of {job} on {', '.join(having)}, and here nodes share"
                f" them: go on with {others}, or name another job"
            )

    def _ask(self, question: Callable[[TcpTier, _A], _T], each: Sequence[_A]) -> list[_T]:
        """Ask all nodes at once; raises what the first of them raises."""
        return [future.result() for future in at_once(question, self._nodes, each)]

    def _jobs(self, job: str) -> list[str]:
        return [
            part_job(job, number, len(self._nodes)) for number in range(1, len(self._nodes) + 1)
        ]

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`; also those of which some nodes lack their part.

        A trainer killed between two nodes' commits of its first version leaves one too: it looks as
        if a part was lost.
        """
        whole = {m.version for m in self.versions(job)}

        def states(node: TcpTier, name: str) -> dict[int, Damage | None]:
            complete: dict[int, Damage | None] = {m.version: None for m in node.versions(name)}
            return complete | {d.version: d for d in node.damaged(name)}

        rows = self._ask(states, self._jobs(job))
        found = []
        for number in sorted(set().union(*rows) - whole, reverse=True):
            lacking = [n.url for n, row in zip(self._nodes, rows, strict=True) if number not in row]
            known = [(n.url, row.get(number)) for n, row in zip(self._nodes, rows, strict=True)]
            bad = [(url, damage) for url, damage in known if damage is not None]
            problem = "; ".join(f"{url}: {d.problem}" for url, d in bad)
            if lacking:
                problem = f"a part of it is not on {', '.join(lacking)}"
            size = sum(d.size for _, d in bad)
            found.append(Damage(number, problem or "its parts were not sent together", size))
        return tuple(found)

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        self._ask(lambda node, name: node.set_aside(name, versions), self._jobs(job))

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """See :meth:`Tier.fetch`. Parts are verified one by one, then joined in ``folder``."""
        if isinstance(manifest, JoinedRecord):
            parts = manifest.parts
        else:
            parts = ()
        if len(parts) != len(self._nodes):
            raise CheckpointError(
                f"{self.url}: version {manifest.version} of {manifest.job} is not here"
            )
        path = VersionFolder(folder).file(manifest.job, manifest.version)
        with failing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            place = tempfile.TemporaryDirectory(prefix=".deepvm-parts-", dir=folder)
        with place:
            paths = self._ask(lambda node, part: node.fetch(part, Path(place.name)), parts)
            joined = Path(place.name) / path.name
            if join(paths, joined, Path.unlink).digest != manifest.layout:
                raise CheckpointError(
                    f"{self.url}: version {manifest.version} of {manifest.job} is another one"
                    " by now"
                )
            joined.replace(path)
        return path

    def settle(self, limit_s: float) -> bool:
        return all_settled([node.settle for node in self._nodes], limit_s)


class MpiTier(StripedTier):
    """``mpi://RANK`` (default: the last): memory nodes within the trainer's ``mpirun``.

    The messages are those of ``tcp://``, see :mod:`deepvm.checkpoint.network.mpi_streams`.
    """

    form = "mpi://rank"
    listed = False


class RecoveryTier(Tier):
    """Read-only: folders with whole versions or parts."""

    def __init__(self, folders: Sequence[VersionFolder]) -> None:
        self._folders = tuple(folders)
        self.url = ",".join(f"file://{folder.path}" for folder in folders)

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        raise CheckpointError(f"{self.url}: only for reading")

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """See :meth:`Tier.versions`. A whole checkpoint comes before one in parts."""
        found = [manifest for folder in self._folders for manifest in folder.manifests(job)]
        sets: dict[tuple[int, int], dict[int, CommitRecord]] = defaultdict(dict)
        for row in (row for folder in self._folders for row in folder.found()):
            whole, number, of = part_of(row.job)
            if whole == job != row.job and row.manifest is not None and not row.problem:
                sets[row.version, of][number] = row.manifest
        for (version, of), rows in sets.items():
            if len(rows) == of:
                parts = tuple(rows[number] for number in sorted(rows))
                size = sum(part.size for part in parts)  # a little more than the whole has
                found.append(JoinedRecord(job, version, parts[0].world, size, (), parts=parts))
        return tuple(sorted(found, key=lambda m: -m.version))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`; damaged parts are not included."""
        return tuple(damage for folder in self._folders for damage in folder.damaged(job))

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """See :meth:`Tier.fetch`; parts are joined in ``folder``."""
        if not isinstance(manifest, JoinedRecord):
            return self._verified(manifest)
        target = VersionFolder(folder).file(manifest.job, manifest.version)
        join([self._verified(part) for part in manifest.parts], target)
        return target

    def _verified(self, manifest: CommitRecord) -> Path:
        for folder in self._folders:
            if manifest in folder.manifests(manifest.job):
                path = folder.file(manifest.job, manifest.version)
                verify(path, manifest)
                return path
        raise CheckpointError(f"{self.url}: version {manifest.version} of {manifest.job} is gone")


def jobs_in(folders: Sequence[VersionFolder]) -> list[str]:
    """The jobs in these folders; parts count as their job."""
    return sorted({part_of(row.job)[0] for folder in folders for row in folder.found()})


def _head(node: TcpTier, manifest: CommitRecord) -> Part:
    with contextlib.closing(node.stream(manifest)) as pieces:
        return read_part_from(pieces, f"{node.url}: version {manifest.version} of {manifest.job}")
