"""What a user wants to read at the start: in the log, or on the terminal without one."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime, timezone

from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.tiers.base import Tier
from deepvm.core.units import format_bytes

log = logging.getLogger("deepvm.checkpoint")


def tell_resumed(manifest: Manifest, tier: Tier) -> None:
    """Announce the restored version."""
    size = format_bytes(manifest.size)
    _announce(
        f"resumed from version {manifest.version} of {without_secrets(tier.url)} (job {manifest.job}, saved "
        f"{_day_and_time(manifest.created)}, {size})"
    )


def tell_fresh(job: str, tiers: Sequence[Tier]) -> None:
    """Announce a start at 0."""
    _announce(f"no version at {', '.join(without_secrets(tier.url) for tier in tiers)} (job {job}): starts at 0")


def without_secrets(url: str) -> str:
    """A URL without passwords and tokens."""
    begin = "://" if url.startswith("file:") else "://|,"  # a list of nodes has one for each
    return re.sub(r"([?&][^=&#]*=)[^&#]*", r"\1***", re.sub(rf"({begin})[^/@,]*@", r"\1***@", url))


def _announce(text: str) -> None:
    """Log it; without a handler INFO would be lost, so write to stderr."""
    if log.hasHandlers():
        log.info("%s", text)
    else:
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": f"deepvm: {text}"}))


def _day_and_time(created: str) -> str:
    try:
        when = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return "at a time that is not known"
    return f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
