"""The recovery lab: did a failed training see the right samples and reach the right state?

Failures are injected into real trainings, and what they leave behind is audited (ECRL, and beyond
its limits).
"""

from __future__ import annotations

from deepvm.lab.certify.sample_log import SampleLog
from deepvm.lab.geometry import ResumableSampler

__all__ = ["ResumableSampler", "SampleLog"]
