"""``mpi://RANK``: a memory node that is one of the processes of the trainer's ``mpirun``; ``mpi://``: the last one.

::

    mpirun --with-ft ulfm -n 2 python train.py : -n 1 deepvm memory-node serve --listen mpi ...

The messages are those of ``tcp://``, carried by MPI (:mod:`deepvm.checkpoint.network.mpi_streams`). With ``--with-ft
ulfm`` the node and the other trainers go on when a trainer is killed; without, Open MPI ends them all. The node ends
when every trainer has. A trainer that torchrun has started is in no MPI world; ``torch.distributed`` can be had in one
all the
same: set ``RANK`` to ``OMPI_COMM_WORLD_RANK``, ``WORLD_SIZE`` to the number of trainers, ``MASTER_ADDR`` and
``MASTER_PORT``, and use gloo.
"""

from __future__ import annotations

from deepvm.checkpoint.network.endpoint import Endpoint
from deepvm.checkpoint.network.mpi_endpoint import MpiEndpoint
from deepvm.checkpoint.tiers.striped import StripedTier


class MpiTier(StripedTier):
    """Memory nodes in the trainer's ``mpirun``, which nobody outside it can ask."""

    form = "mpi://rank"
    listed = False

    @classmethod
    def address(cls, url: str, option: str) -> Endpoint:
        """See :class:`StripedTier`."""
        return MpiEndpoint.parse(url)
