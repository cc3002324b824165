"""From a URL to a tier: each kind of place has one line here."""

from __future__ import annotations

from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.storage_url import Bucket, parse_place
from deepvm.errors import RequestError


def open_tier(url: str, session: str, keep: int = 2, every: int = 0, option: str = "tiers") -> Tier:
    """The tier that a URL means.

    Args:
        url: ``file:///folder``, ``tcp://host:port``, ``tcps://host:port`` (several nodes that share the
            versions: ``tcp://host:port,host:port``), ``mpi://rank`` or ``s3://bucket/prefix``.
        session: one random text for all tiers and ranks of this run.
        keep: how many versions a place keeps where the trainer decides that.
        every: also one for each so many steps; 0 for none.
        option: what errors call the URL.

    Raises:
        RequestError: no such kind of place.
        CheckpointError: the token of a memory node cannot be read.
    """
    scheme, _, rest = url.partition("://")
    if scheme in ("tcp", "tcps", "mpi"):
        from deepvm.checkpoint.network.client import Address
        from deepvm.checkpoint.network.token import token_from_environment
        from deepvm.checkpoint.tiers.mpi import MpiPlace
        from deepvm.checkpoint.tiers.tcp import TcpTier

        token = token_from_environment()
        urls = [f"{scheme}://{place}" for place in rest.split(",")]
        nodes = [
            TcpTier(MpiPlace.parse(u) if scheme == "mpi" else Address.parse(u, option), session, token) for u in urls
        ]
        if len(nodes) == 1:
            return nodes[0]
        from deepvm.checkpoint.tiers.striped import SplitTier

        try:
            return SplitTier(nodes)
        except RequestError as error:
            raise RequestError(option, url, error.allowed) from None
    if not url.lower().startswith(("file:", "s3:")):
        raise RequestError(
            option, url, "file:///folder, tcp://host:port, tcps://host:port, mpi://rank or s3://bucket/prefix"
        )
    place = parse_place(url, option)
    if isinstance(place, Bucket):
        from deepvm.checkpoint.tiers.s3 import S3Tier

        return S3Tier(place.name, place.prefix, keep=keep, every=every)
    from deepvm.checkpoint.tiers.file import FileTier

    return FileTier(place, keep=keep, every=every, session=session)
