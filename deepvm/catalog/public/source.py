"""What deepvm asks of a public catalog."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from deepvm.catalog.price_sources import SOURCES, address_variable
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT

if TYPE_CHECKING:
    from deepvm.catalog.public.download import DownloadedFile, PublicFile
    from deepvm.catalog.public.offer import Rows

KINDS = (SPECS, OFFERINGS, ON_DEMAND, SPOT)
"""The kinds of signals that a public catalog can give."""


class PublicSource(ABC):
    """One public catalog. Nothing is loaded, read or sent until a method needs it.

    Attributes:
        name: its key in the registry, what ``--source`` calls it.
        licence: whose the rows are; why they are never part of deepvm.
        address: where it is.
        period_s: how often its publisher renews it: asking more often brings nothing new.
        paths: by cloud, the part of the address that is the cloud's own.
        ended: clouds whose file nobody renews, and since when.
    """

    name: ClassVar[str]
    licence: ClassVar[str]
    address: ClassVar[str]
    period_s: ClassVar[int]
    paths: ClassVar[Mapping[str, str]]
    ended: ClassVar[Mapping[str, datetime]] = {}

    @property
    def title(self) -> str:
        """In messages."""
        return SOURCES[self.name]

    @property
    def variable(self) -> str:
        """The setting that names a copy."""
        return address_variable(self.name)

    def url(self, cloud: str) -> str:
        """Where a cloud's prices are."""
        return f"{(os.environ.get(self.variable) or self.address).rstrip('/')}/{self.paths[cloud]}"

    def fetch(self, cloud: str, total_s: float) -> DownloadedFile:
        """Download a cloud's prices. Raises CloudError."""
        from deepvm.catalog.public.download import download

        return download(self.file(self.url(cloud), total_s))

    def file(self, url: str, total_s: float) -> PublicFile:
        """A file of this source. Raises RequestError: the setting names no web address."""
        # Most commands download nothing
        from deepvm.catalog.public.download import PublicFile, shown

        return PublicFile(url, f"{self.title} at {shown(url)}", self.variable, total_s=total_s)

    @abstractmethod
    def parse(self, body: bytes, cloud: str) -> Rows:
        """Every row of the file.

        Raises DataError: this is no file of the source, or not the whole of it.
        """
