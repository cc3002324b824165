"""The recovery lab: did a training that failed see the samples, and reach the state, that it should have?

Failures are injected into real trainings, and what they leave behind is audited (ECRL, and beyond
its limits).
"""

from __future__ import annotations

from deepvm.lab.certify.sample_log import SampleLog
from deepvm.lab.geometry import ResumableSampler

__all__ = ["ResumableSampler", "SampleLog"]
