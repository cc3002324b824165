"""torch.distributed.checkpoint (DCP) on durable writes: its API and resharding, whole versions, verified bytes.

::

    dcp.save(state, storage_writer=DeepVMWriter(folder))      # or async_save
    dcp.load(state, storage_reader=DeepVMReader(folder))      # on any number of ranks

In place of a folder, memory nodes (``tcp://host:port``) and buckets (``s3://bucket/run``) keep each save as a version.
"""

from __future__ import annotations

import os

from deepvm.checkpoint.dcp_folder import FolderReader, FolderWriter
from deepvm.checkpoint.dcp_tiers import TierReader, TierWriter
from deepvm.errors import RequestError


class DeepVMWriter(FolderWriter):
    """Writes a checkpoint into a folder that all ranks share, replacing the previous one; or to a tier.

    With a URL of memory nodes or a bucket, ``checkpoint_id`` is the step, and each save a version of its own; without
    it the number is that after the newest version's. A save returns when the version is remote. ``job``: the training
    job's name there; empty: ``DEEPVM_JOB``, else ``job``.
    """

    def __new__(cls, path: str | os.PathLike[str], *, direct: bool = True, job: str = "") -> DeepVMWriter:
        """A writer for this kind of place. Raises RequestError: it is none."""
        return super().__new__(_WriterToTier if "://" in str(path) else cls)

    def __init__(self, path: str | os.PathLike[str], *, direct: bool = True, job: str = "") -> None:
        """See :class:`~deepvm.checkpoint.dcp_folder.FolderWriter`. Raises RequestError: a folder has no jobs."""
        _refuse_job(path, job)
        super().__init__(path, direct=direct)


class DeepVMReader(FolderReader):
    """Reads what :class:`DeepVMWriter` wrote, on any number of ranks; verifies each item before use."""

    def __new__(cls, path: str | os.PathLike[str], *, job: str = "") -> DeepVMReader:
        """A reader for this kind of place. Raises RequestError: it is none."""
        return super().__new__(_ReaderFromTier if "://" in str(path) else cls)

    def __init__(self, path: str | os.PathLike[str], *, job: str = "") -> None:
        """See :class:`~deepvm.checkpoint.dcp_folder.FolderReader`. Raises RequestError: a folder has no jobs."""
        _refuse_job(path, job)
        super().__init__(path)


class _WriterToTier(TierWriter, DeepVMWriter):
    """A :class:`DeepVMWriter` to memory nodes or a bucket."""


class _ReaderFromTier(TierReader, DeepVMReader):
    """A :class:`DeepVMReader` of these."""


def _refuse_job(path: object, job: str) -> None:
    if job:
        raise RequestError("job", job, f"none with a folder, which holds one checkpoint; file://{path} has jobs")
