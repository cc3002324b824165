"""Whether spot VMs can be had and live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepvm.core.lifetimes import BANDS
from deepvm.reports.text import print_text

if TYPE_CHECKING:
    from deepvm.simulator.survival.evidence import Answer


def print_answer(answer: Answer) -> None:
    """The probabilities, and what they rest on."""
    band = None if answer.band is None else BANDS[answer.band]
    print_text("survive", answer=answer, band=band)
