"""From a URL to a tier: each kind of place has one line here."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.base import Tier
from deepvm.errors import RequestError


def open_tier(url: str, session: str, keep: int = 2, every: int = 0) -> Tier:
    """The tier that a URL means.

    Args:
        url: ``file:///folder``, ``tcp://host:port``, ``tcps://host:port`` (several nodes that share the
            versions: ``tcp://host:port,host:port``), ``mpi://rank`` or ``s3://bucket/prefix``.
        session: one random text for all tiers and ranks of this run.
        keep: how many versions a place keeps where the trainer decides that.
        every: also one for each so many steps; 0 for none.

    Raises:
        RequestError: no such kind of place.
        CheckpointError: the token of a memory node cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from deepvm.checkpoint.tiers.file import FileTier

        if parts.netloc not in ("", "localhost") or not parts.path:
            raise RequestError("tiers", url, "file:///folder, with three slashes")
        return FileTier(Path(unquote(parts.path)), keep=keep, every=every, session=session)
    if parts.scheme in ("tcp", "tcps", "mpi"):
        from deepvm.checkpoint.node.client import token_from_environment
        from deepvm.checkpoint.tiers.mpi import MpiPlace
        from deepvm.checkpoint.tiers.tcp import TcpTier

        token = token_from_environment()
        urls = [f"{parts.scheme}://{place}" for place in url.partition("://")[2].split(",")]
        nodes = [TcpTier(MpiPlace.parse(u) if parts.scheme == "mpi" else u, session, token) for u in urls]
        if len(nodes) == 1:
            return nodes[0]
        from deepvm.checkpoint.tiers.split import SplitTier

        return SplitTier(nodes)
    if parts.scheme == "s3":
        from deepvm.checkpoint.tiers.s3 import S3Tier

        return S3Tier(parts.netloc, parts.path.strip("/"), keep=keep, every=every)
    raise RequestError(
        "tiers", url, "file:///folder, tcp://host:port, tcps://host:port, mpi://rank or s3://bucket/prefix"
    )
