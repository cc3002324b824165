"""The verdict of ``deepvm audit`` on the terminal."""

from __future__ import annotations

from deepvm.lab.certify.certifier import Certificate, Kill
from deepvm.reports.tables import Column, print_lines, print_table

_COMPARED = {
    "optimizers": "optimizer states after the last step, and the buffers of their modules",
    "file": "the tensors of the file of --final",
    "both": "optimizer states after the last step, their modules' buffers, the file of --final",
}


def print_certificate(certificate: Certificate) -> None:
    """Each kill, each gate, and the verdict."""
    if certificate.kills:
        print_table(
            [Column("killed", wrap=False), Column("at step"), Column("resumed from")],
            [[_moment(k), _step(k.reached), _step(k.resumed)] for k in certificate.kills],
        )
        print_lines([""])
    gates = certificate.gates
    rows = [[gate.name, gate.state, gate.reason.partition("\n")[0]] for gate in gates]
    print_table([Column("gate"), Column("verdict"), Column("reason")], rows)
    for gate in gates:
        _, separator, output = gate.reason.partition("\n")
        if separator:
            print_lines(["", *(f"  {line}" for line in output.splitlines())])
    failed = ", ".join(gate.name for gate in gates if gate.state == "failed")
    verdict = f"not certified: {failed}" if failed else "certified: it resumes correctly"
    compared = _COMPARED[certificate.compared]
    print_lines(["", f"{certificate.steps} steps; compared: {compared}", verdict])


def _moment(kill: Kill) -> str:
    if kill.file:
        return f"writing {kill.file}"
    return "training" if kill.hit else "no training"


def _step(step: int | None) -> str:
    return "unknown" if step is None else str(step)
