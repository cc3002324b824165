"""What a person who starts a training wants to read: on the log, or on the terminal where there is no log."""

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
    """Say from which version a run goes on."""
    size = format_bytes(manifest.size)
    _announce(
        f"resumed from version {manifest.version} of {shown(tier.url)} (job {manifest.job}, saved "
        f"{_day_and_time(manifest.created)}, {size})"
    )


def tell_fresh(job: str, tiers: Sequence[Tier]) -> None:
    """Say that a run goes on from nothing."""
    _announce(f"no version at {', '.join(shown(tier.url) for tier in tiers)} (job {job}): starts at 0")


def shown(url: str) -> str:
    """A URL without the passwords and tokens that somebody may have put into it."""
    begin = "://" if url.startswith("file:") else "://|,"  # a list of nodes has one for each
    return re.sub(r"([?&][^=&#]*=)[^&#]*", r"\1***", re.sub(rf"({begin})[^/@,]*@", r"\1***@", url))


def _announce(text: str) -> None:
    """On the log; where a program has set up none, INFO would be lost, and this must not be."""
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
