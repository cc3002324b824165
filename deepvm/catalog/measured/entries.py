"""Entries of measured tables: documents of ``deepvm profile``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from deepvm.core.cluster.provenance import Measurement
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.units import counted, format_time, parse_time
from deepvm.records import dataclass, field, replace

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog, InstanceType

TABLES_VERSION = "deepvm.tables/1"  # ``schema_version`` of measured tables
# The kinds of entries, and ``schema_version`` of the document of each
DOCUMENT_VERSIONS = {
    kind: f"deepvm.{kind}/1" for kind in ("eflops", "scaling", "saturation", "steptime")
}

TYPES: dict[str, tuple[str, ...]] = dict.fromkeys(DOCUMENT_VERSIONS, ("instance_type",))
# The keys that name the types of an entry, by its kind
TYPES["saturation"] = ("sender_type", "receiver_type")

# A measurement dated further ahead comes from a wrong clock. Time zones and small clock errors stay
# below
FUTURE = timedelta(days=1)

_WORKLOAD = {"model": "{}", "resolution": "{}px", "sequence": "{}tok", "batch": "b{}"}
_WORKLOAD |= dict.fromkeys(("dtype", "precision", "optimizer", "method", "software"), "{}")
# Default values, which the name of a workload leaves out
_USUAL = {"method": "ddp", "software": "eager"}


@dataclass(frozen=True)
class Entry:
    """One measurement. ``types``: of ``saturation`` the sender's and the receiver's, else one."""

    kind: str
    measured_at: datetime
    document: JsonObject = field(hash=False)
    types: tuple[str, ...]

    @property
    def workload(self) -> str:
        """The trained workload, ``resnet50/224px/b64/float32/adam``; empty for ``saturation``."""
        # Figures are comparable only if all of it is the same: eFLOPS differ seven-fold.
        words = []
        trained = self.document.get("workload", {})
        for name, form in _WORKLOAD.items():
            value = trained.get(name)
            if isinstance(value, float):
                value = f"{value:g}"
            if value not in (None, "", _USUAL.get(name)):
                words.append(form.format(value))
        return "/".join(words)

    @property
    def subject(self) -> str:
        return " to ".join(self.types)

    @property
    def name(self) -> str:
        if self.kind == "saturation":
            return ":".join([self.kind, *self.types, self.document["transport"]])
        # A run on the processors of a GPU type must never replace one on its GPUs.
        return f"{self.kind}:{self.subject}:{self.workload}{':cpu' if self.on_cpu else ''}"

    @property
    def value(self) -> str:
        if self.kind == "eflops":
            known = self.document.get("spread") is not None
            return f"{self.eflops:.4g} FLOP/s" + (f" (spread {self.spread:.1%})" if known else "")
        if self.kind == "steptime":
            error = self.document["fit"]["error"]
            return f"{counted(len(self.steps), 'step')}, half of them within {error:.1%} of the law"
        if self.kind == "saturation":
            senders, seen = self.senders
            return f"n_sat {senders}" if seen else f"n_sat at least {senders} (no saturation seen)"
        if not self.sizes:
            batches = counted(len({batch for *_, batch, _ in self.steps}), "batch", "batches")
            return f"{counted(len(self.steps), 'run')} of {batches} on single VMs"
        n, speedup = self.points[-1]
        local = ", on one machine" if self.local else ""
        return f"S({n:g}) = {speedup:.4g} ({counted(len(self.points), 'size')}{local})"

    def misfit(self, instance: InstanceType | None) -> str:
        """Why the measurement is not of the type's GPUs; empty if it is."""
        gpu = instance and instance.gpu
        if instance is not None and gpu is None:
            if self.gpus:
                return f"{self.subject} has no GPU, but this was measured on {self.gpus[0]}"
            return f"{self.subject} has no GPU, and only types with GPUs train"
        if self.on_cpu:
            return f"measured on the processors of {self.subject}, not on its GPUs"
        took_part = self.document.get("processes") or len(self.gpus)
        whole = gpu.count if gpu and self.kind == "eflops" else 0
        if isinstance(took_part, int) and 0 < took_part < whole:
            return f"measured on {took_part} of its {whole} GPUs: measure all, without --processes"
        return ""

    def doubt(self, instance: InstanceType | None) -> str:
        if instance is None or instance.gpu is None or not self.gpus:
            return ""
        gpu = instance.gpu.name
        # Providers' drivers add words to names.
        model = re.compile(rf"\b{re.escape(gpu)}\b", re.IGNORECASE)
        if any(map(model.search, self.gpus)):
            return ""
        return (
            f"{self.subject} has {gpu} GPUs, but this was measured on {self.gpus[0]}: if"
            f" that was another type, 'deepvm tables remove {self.name}' and save it under its name"
        )

    @property
    def local(self) -> bool:
        return self.document.get("local") is True

    @property
    def on_cpu(self) -> bool:
        workload = self.document["workload"]
        machine = self.document.get("machine") or {}
        device = self.document.get("device", workload.get("device", machine.get("device")))
        return device == "cpu" or (device is None and machine.get("gpus") == [])

    @property
    def gpus(self) -> tuple[str, ...]:
        """What the machine called its GPUs, empty where the document does not say."""
        names = (self.document.get("machine") or {}).get("gpus")
        if isinstance(names, list):
            return tuple(g for g in names if isinstance(g, str))
        return ()

    @property
    def eflops(self) -> float:
        return float(self.document["eflops"])

    @property
    def spread(self) -> float:
        """Of the windows of an ``eflops`` entry, over their median; 0 where it is not known."""
        if self.kind == "eflops":
            return float(self.document.get("spread") or 0)
        return 0.0

    @property
    def day(self) -> date:
        return self.measured_at.date()

    @property
    def described(self) -> str:
        return f"{self.value}, {self.day}"

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        return tuple(sorted((float(p["n"]), float(p["speedup"])) for p in self.document["points"]))

    @property
    def sizes(self) -> int:
        return sum(1 for n, _ in self.points if n > 1)

    @property
    def steps(self) -> tuple[tuple[int, int, float, float], ...]:
        """VMs, GPUs of all of them, samples on each GPU and seconds of a step, for each run."""
        if self.kind == "steptime":
            return tuple(
                (s["nodes"], s["gpus"], s["batch"], s["step_s"]) for s in self.document["steps"]
            )
        if self.kind == "scaling":
            return steps_of_runs(self.document)
        return ()

    @property
    def senders(self) -> tuple[int, bool]:
        """n_sat of a ``saturation`` entry, and whether saturation was seen."""
        knee = self.document.get("n_sat_knee")  # on a plateau, noise decides eq. 14
        if knee is not None:
            return int(knee), True
        return max(int(row["n"]) for row in self.document["times"]), False

    def as_document(self) -> JsonDict:
        return {
            "kind": self.kind,
            **dict(zip(TYPES[self.kind], self.types, strict=True)),
            "measured_at": format_time(self.measured_at),
            "document": dict(self.document),
        }


@dataclass
class MeasuredCatalog:
    """A catalog with measured figures. ``reasons``: by entry why it is not used, empty if it is."""

    catalog: Catalog
    types: Mapping[str, InstanceType]
    measured: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def note(self, text: str, *unused: Entry) -> None:
        """Add a note, which is why these entries are not used."""
        self.notes.append(text)
        self.reasons |= {entry.name: text for entry in unused}

    def skip(self, entries: Iterable[Entry], workload: str) -> None:
        """Record that entries of another workload are not used."""
        for entry in entries:
            if entry.workload != workload:
                self.reasons[entry.name] = (
                    f"{workload} counts for {entry.subject}; --workload chooses"
                )

    def use(self, entries: Iterable[Entry], kind: str = "") -> None:
        for entry in entries:
            about = (entry.subject, entry.workload, entry.measured_at, entry.value)
            runs = len(entry.steps) if kind == "steps" else 0
            self.measured.append(Measurement(kind or entry.kind, *about, runs))
            self.reasons[entry.name] = ""
            # A pair of types has no subject of its own, and its GPUs do not matter.
            doubt = entry.doubt(self.types.get(entry.subject))
            if doubt:
                self.doubts.append(doubt)

    def finished(self, before: Catalog) -> MeasuredCatalog:
        if not self.measured and not self.notes:
            return replace(self, catalog=before, doubts=[])
        about = self.catalog.provenance
        doubts = (*about.doubts, *self.doubts)
        notes = (*about.notes, *self.notes)
        about = replace(about, measured=tuple(self.measured), doubts=doubts, notes=notes)
        return replace(self, catalog=replace(self.catalog, provenance=about))


def same_workload(one: str, other: str) -> bool:
    """Whether two workloads agree as far as both say; one may name the model alone."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def steps_of_runs(document: JsonObject) -> tuple[tuple[int, int, float, float], ...]:
    """The steps of a speed-up curve's document, without incomplete runs and VMs on one machine."""
    workload = document["workload"]
    processes = workload.get("processes")
    batch = workload.get("batch")
    if not processes or not isinstance(batch, (int, float)):
        return ()
    most_vms = 1 if document.get("local") is True else math.inf
    good = [
        run
        for run in document.get("runs") or ()
        if run.get("seconds_per_step") and run.get("failed") is None and run["n"] <= most_vms
    ]
    steps = []
    for run in good:
        own_batch = float(run.get("batch") or batch)
        steps.append((run["n"], run["n"] * processes, own_batch, median(run["seconds_per_step"])))
    return tuple(steps)


def build_entry(raw: JsonObject) -> Entry:
    """Make an entry from its valid object."""
    types = tuple(raw[key] for key in TYPES[raw["kind"]])
    return Entry(raw["kind"], parse_time(raw["measured_at"]), raw["document"], types)
