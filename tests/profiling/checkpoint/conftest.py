"""Folders for the benchmark of checkpointing."""

from __future__ import annotations

from support.checkpoint.folders import memory_folder as memory_folder
from support.checkpoint.folders import (
    temporary_folders_count_as_disks as temporary_folders_count_as_disks,
)
