"""From a URL to a tier: each kind of place has one line here."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.base import Tier
from deepvm.errors import CheckpointError, RequestError

TOKEN_FILE = "DEEPVM_TOKEN_FILE"


def open_tier(url: str, session: str, keep: int = 2) -> Tier:
    """The tier that a URL means.

    Args:
        url: ``file:///folder``, ``tcp://host:port``, ``tcps://host:port`` or ``s3://bucket/prefix``.
        session: one random text for all tiers and ranks of this run.
        keep: how many versions a place keeps where the trainer decides that.

    Raises:
        RequestError: no such kind of place. CheckpointError: the token cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from deepvm.checkpoint.tiers.file import FileTier

        if parts.netloc not in ("", "localhost") or not parts.path:
            raise RequestError("tiers", url, "file:///folder, with three slashes")
        return FileTier(Path(unquote(parts.path)))
    raise RequestError("tiers", url, "file:///folder, tcp://host:port or s3://bucket/prefix")


def read_token(path: str = "") -> str:
    """The secret that trainers and memory nodes share.

    Args:
        path: the file; ``DEEPVM_TOKEN_FILE`` unless given.

    Raises:
        CheckpointError: there is no file, or nothing in it.
    """
    path = path or os.environ.get(TOKEN_FILE, "")
    if not path:
        raise CheckpointError(f"a memory node wants a token: name the file that holds it with {TOKEN_FILE}")
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the token file {path} cannot be read: {error}") from None
    if not token:
        raise CheckpointError(f"the token file {path} is empty")
    return token
