"""What the controller needs of a cloud, for the clouds of this folder; it stands in :mod:`deepvm.jobs.cloud`."""

from deepvm.jobs.cloud import Cloud, Distant, Launch, Listing, RefusedError, Start, UnknownError

__all__ = ["Cloud", "Distant", "Launch", "Listing", "RefusedError", "Start", "UnknownError"]
