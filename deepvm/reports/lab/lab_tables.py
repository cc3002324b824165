"""Tables of the lab on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.lab.audit.gates import GATES
from deepvm.lab.certify.certifier import Certificate
from deepvm.lab.checked import CheckedRuns
from deepvm.lab.listing import Entry
from deepvm.lab.selftest import TestedControl
from deepvm.reports.lab.summary import LabSummary
from deepvm.reports.text import print_text


def print_checked(checked: CheckedRuns) -> None:
    """Each gate, and what is wrong."""
    print_text("lab_check", checked=checked, gates=GATES)


def print_run(summary: LabSummary) -> None:
    """What each variant has cost in each suite, and the paired ratios."""
    print_text("lab_run", also="-o csv", summary=summary)


def print_listing(entries: Sequence[Entry]) -> None:
    """What a matrix file can name."""
    print_text("lab_list", also="-o csv", entries=entries)


def print_controls(controls: Sequence[TestedControl]) -> None:
    """Gate x control: where a control has failed, and what is not as it must be."""
    print_text("lab_selftest", controls=controls, gates=GATES)


def print_certificate(certificate: Certificate) -> None:
    """Each kill, each gate, and the verdict of ``deepvm audit``."""
    print_text("certificate", certificate=certificate)
