"""Read what memory nodes left on disk, in one or several folders: whole versions, and parts to join."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.file_names import whole_job
from deepvm.checkpoint.files.stripe import join
from deepvm.checkpoint.files.version_dir import Found, VersionFolder
from deepvm.checkpoint.format.manifest import Damage, JoinedManifest, Manifest
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.tiers.base import Tier
from deepvm.errors import CheckpointError


def jobs_in(folders: Sequence[VersionFolder]) -> list[str]:
    """The jobs in these folders; parts count as their job."""
    names = {row.job for folder in folders for row in folder.found()}
    return sorted({name if (known := whole_job(name)) is None else known[0] for name in names})


class RecoveryTier(Tier):
    """Read-only: folders with whole versions or parts."""

    def __init__(self, folders: Sequence[VersionFolder]) -> None:
        """Remember where."""
        self._folders = tuple(folders)

    @property
    def url(self) -> str:
        """See :class:`Tier`."""
        return ",".join(f"file://{folder.path}" for folder in self._folders)

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """See :class:`Tier`; always refused."""
        raise CheckpointError(f"{self.url}: only for reading")

    def versions(self, job: str) -> tuple[Manifest, ...]:
        """See :meth:`Tier.versions`; of a version that is there as a whole and in parts, the whole comes first."""
        whole = [m for folder in self._folders for m in folder.manifests(job)]
        found = [*whole, *(m for m in self._joinable(job))]
        return tuple(sorted(found, key=lambda m: -m.version))

    def _joinable(self, job: str) -> list[JoinedManifest]:
        sets: dict[tuple[int, int], dict[int, Found]] = defaultdict(dict)
        for row in (row for folder in self._folders for row in folder.found() if not row.problem):
            known = whole_job(row.job)
            if known is not None and known[0] == job:
                sets[row.version, known[2]][known[1]] = row
        found = []
        for (version, of), rows in sets.items():
            manifests = tuple(m for number in sorted(rows) if (m := rows[number].manifest) is not None)
            if sorted(rows) == list(range(1, of + 1)) and len(manifests) == of:
                size = sum(m.size for m in manifests)  # a little more than the whole has
                found.append(JoinedManifest(job, version, manifests[0].world, size, (), parts=manifests))
        return found

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`; of parts nothing is said."""
        return tuple(damage for folder in self._folders for damage in folder.damaged(job))

    def fetch(self, manifest: Manifest, folder: Path) -> Path:
        """See :meth:`Tier.fetch`; parts are joined in ``folder``."""
        if not isinstance(manifest, JoinedManifest):
            path = self._path(manifest)
            verify(path, manifest)
            return path
        paths = [self._path(part) for part in manifest.parts]
        for path, part in zip(paths, manifest.parts, strict=True):
            verify(path, part)
        target = VersionFolder(folder).file(manifest.job, manifest.version)
        join(paths, target)
        return target

    def _path(self, manifest: Manifest) -> Path:
        for folder in self._folders:
            if manifest in folder.manifests(manifest.job):
                return folder.file(manifest.job, manifest.version)
        raise CheckpointError(f"{self.url}: version {manifest.version} of {manifest.job} is gone")
