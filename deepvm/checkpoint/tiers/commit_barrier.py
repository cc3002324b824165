"""Keep puts to several memory nodes in step: no node completes its part before all of them have theirs."""

from __future__ import annotations

import threading
import time

from deepvm.errors import CheckpointError, TierBusyError


class CommitBarrier:
    """One version that is being sent to several nodes.

    Attributes:
        hold: the oldest version that must stay in the nodes' folders; None: they decide.
    """

    def __init__(self, count: int, hold: int | None, limit_s: float) -> None:
        """Start with nobody at any stage.

        Args:
            count: how many go in step.
            hold: see above.
            limit_s: how long one waits for the others, in all.
        """
        self.hold = hold
        self._count = count
        self._deadline = time.monotonic() + limit_s
        self._reached: dict[str, set[int]] = {}
        self._change = threading.Condition()
        self.error: BaseException | None = None

    def wait(self, stage: str) -> None:
        """Wait until all senders have reached a stage; each calls from its own thread, perhaps twice.

        Raises:
            CheckpointError: another one failed, or is too late. TierBusyError: another one has no room.
        """
        with self._change:
            here = self._reached.setdefault(stage, set())
            here.add(threading.get_ident())
            self._change.notify_all()
            while len(here) < self._count and self.error is None:
                if not self._change.wait(self._deadline - time.monotonic()):
                    raise CheckpointError("another memory node was too slow")
            if isinstance(self.error, TierBusyError):
                raise TierBusyError("another memory node has no room")
            if self.error is not None:
                raise CheckpointError("another memory node failed")

    def fail(self, error: BaseException) -> None:
        """Fail all other senders too; the first error counts."""
        with self._change:
            self.error = self.error or error
            self._change.notify_all()
