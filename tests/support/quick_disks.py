"""Ring 1 does not wait for disks: what its tests write need not survive a power cut.

A sync takes 10 ms on a virtual disk, and the tests of ring 1 ask for tens of thousands of them.
Which syncs the product makes is still seen: tests that record or fail them replace ``os.fsync``
themselves. Rings 2 and 3, where ring 1's tests run again, sync for real.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def sync_nothing() -> None:
    """From here on, in this process."""
    os.fsync = os.fdatasync = _check_descriptor  # type: ignore[assignment]


def sync_no_databases() -> None:
    """From here on, in this process; where no test has imported SQLAlchemy, it stays so."""
    if "sqlalchemy" in sys.modules:
        import sqlalchemy as sa

        sa.event.listen(sa.pool.Pool, "checkout", _without_syncs)


def _check_descriptor(descriptor: Any) -> None:
    os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())


def _without_syncs(connection: Any, *_: object) -> None:
    # At each use, as the product sets FULL when it connects.
    if type(connection).__module__ == "sqlite3":
        connection.execute("PRAGMA synchronous=OFF")
