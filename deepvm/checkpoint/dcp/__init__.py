"""torch.distributed.checkpoint (DCP) on durable writes."""

from __future__ import annotations

from deepvm.checkpoint.dcp.storage import DeepVMReader, DeepVMWriter

__all__ = ["DeepVMReader", "DeepVMWriter"]
