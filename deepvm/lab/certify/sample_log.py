"""How a script logs for ``deepvm audit`` which samples a step had."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from deepvm.lab.certify.probe import LOG, Killer, Log


class SampleLog:
    """Logs samples and losses of a training for ``deepvm audit``; else does nothing.

    Call :meth:`step` on each rank after ``optimizer.step()``, and before a checkpoint that holds
    the step::

        log = SampleLog()
        for ids, inputs, targets in loader:
            ...
            optimizer.step()
            log.step(global_step, ids, loss, epoch=epoch)
            global_step += 1
    """

    def __init__(self) -> None:
        folder = os.environ.get(LOG, "")
        self._log = Log(folder, "samples") if folder else None
        self._killer = Killer(folder, "samples")
        self._steps = 0

    def step(self, global_step: int, ids: Iterable[Any], loss: Any = None, epoch: int = 0) -> None:
        """A step was trained.

        Args:
            global_step: its number, counted over all epochs and restarts.
            ids: of this rank's samples of the step: numbers or texts, as a list, an array or a
                tensor.
            loss: a number or a tensor of one; compared to the last bit when the step is done again.
            epoch: in which each sample belongs once; without it, all steps count as one.
        """
        if self._log is None:
            return
        if hasattr(ids, "tolist"):
            listed = ids.tolist()
        else:
            listed = list(ids)
        # Float() of a tensor with a gradient warns
        value = loss.item() if hasattr(loss, "item") else loss
        loss_hex = None if value is None else float(value).hex()
        row = {
            "kind": "samples",
            "global_step": int(global_step),
            "epoch": int(epoch),
            "sample_ids": [str(one) for one in listed],
            "loss_hex": loss_hex,
        }
        self._log.add(row)
        self._steps += 1
        self._killer.begin(row)
        self._killer.check(self._steps)
