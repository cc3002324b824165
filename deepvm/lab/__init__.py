"""The recovery lab: did a failed training see the right samples and reach the right state?"""

from deepvm.lab.certify.probe import SampleLog
from deepvm.lab.geometry import ResumableSampler

__all__ = ["ResumableSampler", "SampleLog"]
