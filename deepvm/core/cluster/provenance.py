"""Where the figures of a catalog come from."""

from datetime import date, datetime

from deepvm.records import dataclass

# Here, not where speeds are predicted: reports need them also where no speed is
UNPUBLISHED = "no published run of "
# First words of warnings about a speed that reports group, show once or leave out
PLAIN = "plain PyTorch is counted"


@dataclass(frozen=True)
class Origin:
    """Where one kind of figure, such as ``specs``, ``on-demand`` or ``spot``, comes from."""

    signal: str
    kind: str  # live, cache, expired or embedded
    observed_at: datetime
    source: str = ""
    refused: tuple[tuple[str, int], ...] = ()  # rows by reason
    dated: bool = True  # else observed_at is the earliest that it can be


@dataclass(frozen=True)
class Measurement:
    """A figure of a catalog that was measured on the user's own machines."""

    kind: str  # eflops, scaling, saturation or steps
    subject: str  # the type, or ``sender to receiver``
    workload: str
    measured_at: datetime
    value: str
    runs: int = 0  # training runs with times of their steps

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
    """Where a catalog's figures come from."""

    kind: str = "file"  # embedded, file, live, cache; mixed where prices come from several
    prices_as_of: date | None = None  # the day the oldest prices were true
    source: str = ""
    origins: tuple[Origin, ...] = ()  # by kind of figure, where they differ
    basis: str = ""  # which spot price is meant, such as ``p95 of 30 days``
    notes: tuple[str, ...] = ()  # what went wrong in fetching
    usual: tuple[str, ...] = ()  # those notes in which nothing did
    not_asked: str = ""  # why the cloud was not asked
    measured: tuple[Measurement, ...] = ()  # on the user's own machines
    measured_file: str = ""  # empty for the user's own tables
    doubts: tuple[str, ...] = ()  # limits of the figures, one sentence each

    def origin(self, signal: str) -> Origin | None:
        return next((o for o in self.origins if o.signal == signal), None)
