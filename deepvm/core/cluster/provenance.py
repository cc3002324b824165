"""Where the figures of a catalog come from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

# Here, not where speeds are predicted: reports need them also where no speed is
UNPUBLISHED = "no published run of "
PLAIN = "plain PyTorch is counted"
"""First words of warnings about a speed that reports group, show once or leave out."""


@dataclass(frozen=True)
class Origin:
    """Where one kind of figure, such as ``specs``, ``on-demand`` or ``spot``, comes from.

    ``kind``: ``live``, ``cache``, ``expired`` or ``embedded``. ``refused``: implausible rows,
    counted by reason.
    ``dated``: whether the source says when; else ``observed_at`` is the earliest that it can be.
    """

    signal: str
    kind: str
    observed_at: datetime
    source: str = ""
    refused: tuple[tuple[str, int], ...] = ()
    dated: bool = True


@dataclass(frozen=True)
class Measurement:
    """A figure of a catalog that was measured on the user's own machines.

    ``kind``: ``eflops``, ``scaling`` (a speed-up curve), ``saturation`` (n_sat of a bandwidth,
    without a workload) or ``steps`` (how long a step takes). ``subject``: the type, or ``sender to
    receiver``; ``measured_at`` is UTC.
    ``runs``: how many training runs with times of their steps it is from, 0 where it has none.
    """

    kind: str
    subject: str
    workload: str
    measured_at: datetime
    value: str
    runs: int = 0

    def __str__(self) -> str:
        from deepvm.core.units import counted  # help pages need not load it

        text = f"{self.subject} {self.measured_at.date()}"
        if self.workload:
            text += f" with {self.workload}"
        if self.runs:
            text += f" ({counted(self.runs, 'run')})"
        return text


@dataclass(frozen=True)
class Provenance:
    """Where a catalog's figures come from.

    Attributes:
        kind: ``embedded``, ``file``, ``live``, ``cache``; ``mixed`` where prices come from several.
        prices_as_of: the day the oldest prices were true, None when the catalog is invented.
        source: the publication or service, in words. origins: by kind of figure, where they differ.
        basis: which spot price is meant, in words: ``p95 of 30 days``; empty for the current one.
        notes: what went wrong in fetching. usual: those of them in which nothing did, such as the
            default region.
        not_asked: why the cloud was not asked; empty if it was, or everything was known.
        doubts: limits of the figures, and implausible prices. One sentence each.
        measured: figures of the user's own machines that are used. measured_file: empty for the
            user's own tables.
    """

    kind: str = "file"
    prices_as_of: date | None = None
    source: str = ""
    origins: tuple[Origin, ...] = ()
    basis: str = ""
    notes: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    not_asked: str = ""
    measured: tuple[Measurement, ...] = ()
    measured_file: str = ""
    doubts: tuple[str, ...] = ()

    def origin(self, signal: str) -> Origin | None:
        """The origin of one kind of figure, None if the origins are not known by kind."""
        return next((o for o in self.origins if o.signal == signal), None)
