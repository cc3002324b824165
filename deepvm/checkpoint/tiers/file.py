"""``file:///folder``: versions on a local or mounted file system, durable when acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from deepvm.checkpoint.folder import VersionFolder, verify
from deepvm.checkpoint.image import chunk_crcs, finish
from deepvm.checkpoint.manifest import Manifest
from deepvm.checkpoint.tiers.base import Level, Shard, Tier
from deepvm.errors import CheckpointError


class FileTier(Tier):
    """A folder. Only whole versions can be written here: with several ranks use a memory node, or rank 0 gathers."""

    def __init__(self, folder: Path, *, direct: bool = True) -> None:
        """Remember where; nothing is made before the first version."""
        self._folder = VersionFolder(folder, direct=direct)
        self._writing = threading.Lock()

    @property
    def url(self) -> str:
        """See :class:`Tier`."""
        return f"file://{self._folder.path}"

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """See :meth:`Tier.put`."""
        layout = shard.layout
        if layout.world != 1:
            raise CheckpointError(
                f"{self.url}: {layout.world} ranks hold parts of this version; a memory node joins them"
            )
        with self._writing:
            finish(shard.image, layout)
            manifest = Manifest(
                job=shard.job,
                version=shard.version,
                world=layout.world,
                size=layout.size,
                crcs=chunk_crcs(shard.image),
                layout=layout.digest,
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            )
            self._folder.write(shard.image, manifest)
        acknowledged(Level.DURABLE)

    def versions(self, job: str) -> tuple[Manifest, ...]:
        """See :meth:`Tier.versions`."""
        return self._folder.manifests(job)

    def fetch(self, manifest: Manifest, folder: Path) -> Path:
        """See :meth:`Tier.fetch`."""
        path = self._folder.file(manifest.job, manifest.version)
        verify(path, manifest)
        return path
