"""torch.distributed.checkpoint (DCP) on durable writes: atomic checkpoints, verified bytes.

::

    dcp.save(state, storage_writer=DeepVMWriter(folder))      # or async_save
    dcp.load(state, storage_reader=DeepVMReader(folder))      # on any number of ranks

In place of a folder, memory nodes (``tcp://host:port``) and buckets (``s3://bucket/run``) keep each
save as a version.
"""

from __future__ import annotations

import os

from deepvm.checkpoint.dcp_folder import FolderReader, FolderWriter
from deepvm.checkpoint.dcp_tiers import TierReader, TierWriter
from deepvm.errors import RequestError


class DeepVMWriter(FolderWriter):
    """Writes a checkpoint to a shared folder, replacing the previous one, or to a tier.

    With a URL of memory nodes or a bucket, ``checkpoint_id`` is the step, and each save a version
    of its own; without it the number is that after the newest version's. A save returns when the
    version is remote. ``job``: the training job's name there; empty: ``DEEPVM_JOB``, else ``job``.
    A subclass writes to folders only.
    """

    def __new__(
        cls, path: str | os.PathLike[str] = "", *, direct: bool = True, job: str = ""
    ) -> DeepVMWriter:
        """A writer for this kind of target; without one, let :mod:`pickle` fill in the state."""
        return super().__new__(_WriterToTier if cls is DeepVMWriter and "://" in str(path) else cls)

    def __init__(self, path: str | os.PathLike[str], *, direct: bool = True, job: str = "") -> None:
        """See :class:`~deepvm.checkpoint.dcp_folder.FolderWriter`.

        Raises RequestError: for tiers only.
        """
        _refuse_options_of_tiers(type(self), path, job)
        super().__init__(path, direct=direct)


class DeepVMReader(FolderReader):
    """Reads what :class:`DeepVMWriter` wrote, on any number of ranks; verifies each item.

    A subclass reads from folders only.
    """

    def __new__(cls, path: str | os.PathLike[str] = "", *, job: str = "") -> DeepVMReader:
        """A reader for this kind of source; without one, let :mod:`pickle` fill in the state."""
        return super().__new__(
            _ReaderFromTier if cls is DeepVMReader and "://" in str(path) else cls
        )

    def __init__(self, path: str | os.PathLike[str], *, job: str = "") -> None:
        """See :class:`~deepvm.checkpoint.dcp_folder.FolderReader`.

        Raises RequestError: for tiers only.
        """
        _refuse_options_of_tiers(type(self), path, job)
        super().__init__(path)


class _WriterToTier(TierWriter, DeepVMWriter):
    """A :class:`DeepVMWriter` to memory nodes or a bucket."""


class _ReaderFromTier(TierReader, DeepVMReader):
    """A :class:`DeepVMReader` of these."""


def _refuse_options_of_tiers(kind: type, path: object, job: str) -> None:
    if "://" in str(path):
        raise RequestError(
            "path", path, f"a folder: {kind.__name__} is a subclass, which takes no URL"
        )
    if job:
        raise RequestError(
            "job", job, f"none with a folder, which holds one checkpoint; file://{path} has jobs"
        )
