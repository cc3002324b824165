"""Storage tiers by URL scheme: a tier is one module and one line here."""

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

from deepvm.checkpoint.tiers.base import Store, Tier
from deepvm.core.spelling import joined
from deepvm.errors import RequestError

# Scheme -> ``module:class``, imported when first used
TIERS = {
    "file": "deepvm.checkpoint.tiers.file:FileTier",
    "tcp": "deepvm.checkpoint.tiers.striped:StripedTier",
    "tcps": "deepvm.checkpoint.tiers.striped:StripedTier",
    "mpi": "deepvm.checkpoint.tiers.striped:MpiTier",
    "s3": "deepvm.checkpoint.tiers.s3:S3Tier",
    "gs": "deepvm.checkpoint.tiers.cloud:CloudTier",
    "az": "deepvm.checkpoint.tiers.cloud:CloudTier",
}


def find_tier(url: str) -> type[Tier] | None:
    """The class for a URL's scheme; None when there is none."""
    home = TIERS.get(url.partition(":")[0].lower())
    if home is not None:
        return cast("type[Tier]", pkgutil.resolve_name(home))
    return None


def open_tier(url: str, session: str, keep: int = 2, every: int = 0, option: str = "tiers") -> Tier:
    """The tier of a URL, see :meth:`~deepvm.checkpoint.tiers.base.Tier.open`."""
    kind = find_tier(url)
    if kind is None:
        meant = ""
        if url and ":" not in url:
            meant = f"did you mean {Path(url).absolute().as_uri()}? Else "
        raise RequestError(option, url, meant + forms())
    return kind.open(url, session, keep, every, option)


def open_store(url: str) -> Store | None:
    """The store that ``--persist`` means; None for no text. Raises RequestError."""
    if not url:
        return None
    kind = find_tier(url)
    if kind is None or not issubclass(kind, Store):
        raise RequestError("persist", url, forms(lambda kind: issubclass(kind, Store)))
    return cast(Store, kind.open(url, session="", keep=0, every=0, option="persist"))


def forms(wanted: Callable[[type[Tier]], bool] = lambda kind: True) -> str:
    """What URLs of the ``wanted`` tiers look like."""
    kinds = [pkgutil.resolve_name(home) for home in dict.fromkeys(TIERS.values())]
    return joined((kind.form for kind in kinds if wanted(kind)), "or")
