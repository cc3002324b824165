"""The verdict of ``deepvm audit``, for people and programs."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from deepvm.lab.certify.certifier import Certificate
from deepvm.reports.tables import Column, print_lines, print_table

_COMPARED = {
    "optimizers": "what the optimizers hold after the last step, and the buffers of their modules",
    "file": "the tensors of the file that --final names",
    "both": (
        "what the optimizers hold after the last step, their modules' buffers, and the file of"
        " --final"
    ),
}
_LIBRARIES = ("torch", "transformers", "accelerate", "lightning")


def audit_document(found: Certificate) -> dict[str, Any]:
    """Of ``deepvm audit``."""
    subject = found.subject
    return {
        "schema_version": "deepvm.audit/1",
        "certified": found.certified,
        "script": str(subject.script),
        "arguments": list(subject.arguments),
        "resume_arguments": list(subject.resume_arguments),
        "compared": found.compared,
        "steps": found.steps,
        "processes": found.processes,
        "gates": [
            {"gate": gate.name, "state": gate.state, "reason": gate.reason} for gate in found.gates
        ],
        "planned_kills": found.planned,
        "kills": [
            {
                "run": one.run,
                "attempt": one.attempt,
                "kind": one.kind,
                "file": one.file,
                "logged_steps": one.steps,
                "reached_step": one.reached,
                "resumed_step": one.resumed,
                "hit": one.hit,
            }
            for one in found.kills
        ],
        "notes": list(found.notes),
        "wall_s": round(found.wall_s, 3),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of Python, and of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def print_certificate(found: Certificate) -> None:
    """Each kill, each gate, and the verdict."""
    if found.kills:
        head = [
            Column("killed", wrap=False),
            Column("at step", "right"),
            Column("resumed from", "right"),
        ]
        rows = []
        for one in found.kills:
            where = f"writing {one.file}" if one.file else "training" if one.hit else "no training"
            rows.append([where, _step(one.reached), _step(one.resumed)])
        print_table(head, rows)
        print_lines([""])
    rows = [[gate.name, gate.state, gate.reason.partition("\n")[0]] for gate in found.gates]
    print_table([Column("gate"), Column("verdict"), Column("why")], rows)
    for gate in found.gates:
        _, more, lines = gate.reason.partition("\n")
        if more:
            print_lines(["", *(f"  {line}" for line in lines.splitlines())])
    failed = [gate.name for gate in found.gates if gate.state == "failed"]
    verdict = f"not certified: {', '.join(failed)}" if failed else "certified: it resumes correctly"
    print_lines(["", f"{found.steps} steps; compared: {_COMPARED[found.compared]}", verdict])


def _step(step: int | None) -> str:
    return "unknown" if step is None else str(step)
