"""The answer of ``deepvm lab check``: every run of a folder against every gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepvm.errors import DataError
from deepvm.lab.audit.gates import GATES, verdicts
from deepvm.lab.audit.references import with_references
from deepvm.lab.records import CONFIG, RUNS, SUPERVISOR, Records
from deepvm.lab.running.manifest import NAME, read_manifest, read_planned


@dataclass(frozen=True)
class Checked:
    """The runs of a folder.

    Attributes:
        runs: by name: what is wrong at each gate, empty where it is passed. left_out: of the same matrices, runs that
            nobody has asked for (``--only``).
    """

    runs: Mapping[str, Mapping[str, str]]
    left_out: Sequence[str] = ()

    @property
    def passed(self) -> int:
        """Runs that pass all gates."""
        return sum(not any(gates.values()) for gates in self.runs.values())

    def of_gate(self, name: str) -> tuple[int, int]:
        """How many runs have passed a gate, and have not."""
        failed = sum(bool(gates[name]) for gates in self.runs.values())
        return len(self.runs) - failed, failed

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """(run, gate, reason) of all that is wrong."""
        return [(run, gate, why) for run, gates in self.runs.items() for gate, why in gates.items() if why]


def check(out: Path) -> tuple[Checked, list[tuple[Records, bool]]]:
    """All runs of a folder, and their records with whether they have passed.

    Raises:
        DataError: there are no runs, some that were asked for are missing, or records are damaged.
    """
    planned = read_planned(out)
    begun = (out / NAME).exists() or not planned.wanted
    names = [row.run for row in read_manifest(out)] if begun else []
    if missing := [name for name in planned.wanted if name not in names]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(f"{out}: {missing[0]}{more} not run yet; 'deepvm lab run' goes on with what is missing")
    if not names:
        raise DataError(f"{out}: its manifest has no run")
    found: dict[str, dict[str, str]] = {}
    records: list[tuple[Records, bool]] = []
    for name in names:
        folder = out / RUNS / name
        for needed in (CONFIG, SUPERVISOR):
            if not (folder / needed).is_file():
                raise DataError(f"{folder / needed}: missing; 'deepvm lab run' makes this run again")
        try:
            one = with_references(Records.read(folder), folder.parent)
            found[name] = verdicts(one)
        except DataError as error:
            raise DataError(f"{error}; 'deepvm lab run' makes this run again") from None
        records.append((one, not any(found[name].values())))
    return Checked(found, [name for name in planned.runs if name not in names]), records


def gate_names() -> tuple[str, ...]:
    """In their order."""
    return tuple(GATES)
