"""``gs://bucket/prefix``, ``az://container/prefix``: Google or Azure storage, by fsspec.

One writer at a time is assumed for a job; generations of ``deepvm run`` shut each other out, see
:mod:`deepvm.checkpoint.tiers.ledger`. The store's own library authenticates, retries, and encrypts
the way there; of what arrived the size is compared.
"""

from __future__ import annotations

import importlib.util
import re
from functools import partial
from typing import Any

from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.checkpoint_store import CheckpointStore
from deepvm.checkpoint.tiers.cloud_objects import CloudObjects
from deepvm.errors import MissingExtraError, RequestError

_URL = re.compile(
    r"(?P<scheme>gs|az)://(?P<bucket>[^/\0?#@]+)(?P<prefix>/[^\0?#]*)?", re.IGNORECASE
)
_LIBRARIES = {"gs": "gcsfs", "az": "adlfs"}


class CloudTier(CheckpointStore):
    """A bucket or container, or a prefix of one, where several ranks join their parts."""

    form = "gs://bucket/prefix, az://container/prefix"

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        """See :meth:`Tier.open`; credentials are those that gcsfs or adlfs find."""
        found = _URL.fullmatch(url)
        if found is None:
            raise RequestError(option, url, f"{cls.form}, without ? and #")
        scheme = found["scheme"].lower()
        place = found["bucket"] + (found["prefix"] or "").rstrip("/")
        library = _LIBRARIES[scheme]
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(f"{option} with {scheme}://", library, scheme)
        objects = CloudObjects(partial(_file_system, scheme), place, f"{scheme}://{place}")
        return cls(objects, keep=keep, every=every, session=session)


def _file_system(scheme: str) -> Any:
    """The store's file system, private to us and without a listings cache."""
    import fsspec

    return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)
