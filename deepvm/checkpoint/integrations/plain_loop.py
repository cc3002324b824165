"""Your own training loop, with nothing to remember: :func:`training_run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader

from deepvm.checkpoint.checkpointer import Checkpointer
from deepvm.checkpoint.integrations.session import Session
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.training.state import Stateful
from deepvm.errors import CheckpointError, RequestError


class TrainingRun:
    """A training loop that resumes at the newest checkpoint; see :func:`training_run`.

    Attributes:
        loader: the data; a pass over it is an epoch. checkpointer: whose ``save()`` may be called
            between batches.
    """

    def __init__(self, session: Session, epochs: int | None, loader: Any = None) -> None:
        """Restore the newest version. ``loader``: what users iterate over, if not the session's."""
        if epochs is not None and (
            isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0
        ):
            raise RequestError("epochs", epochs, "a whole number from 0, or None")
        self._session = session
        self._epochs = epochs
        self.loader = session.loader if loader is None else loader
        self.checkpointer: Checkpointer = session.checkpointer
        session.restore()

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0."""
        return self._session.loader.epoch

    @property
    def step(self) -> int:
        """Optimizer steps done, those of the restored version included."""
        return self.checkpointer.version

    def epochs(self) -> Iterator[int]:
        """The remaining epochs, each one pass over ``loader``, for loops with work after each."""
        loader = self._session.loader
        while self._epochs is None or loader.epoch < self._epochs:
            epoch = loader.epoch
            yield epoch
            if loader.epoch == epoch:  # the pass was left before its end, or never begun
                loader.leave()

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left, of all epochs."""
        for _ in self.epochs():
            yield from self.loader

    def __enter__(self) -> TrainingRun:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save the end of the training, unless an error ends it, and close the checkpointer."""
        try:
            if error is None:
                self._session.finish()
        finally:
            try:
                self._session.close()
            except CheckpointError:
                if error is None:
                    raise


def training_run(
    *,
    loader: DataLoader[Any] | ResumableLoader,
    epochs: int | None = None,
    extra: Mapping[str, Stateful] | None = None,
    sigterm: bool = True,
    **options: Any,
) -> TrainingRun:
    """A training loop that resumes without help, in the middle of an epoch too, bit for bit.

    Example::

        with training_run(
            model=model, optimizer=optimizer, loader=loader, epochs=10, tiers=..., every=100
        ) as run:
            for inputs, targets in run:
                ...  # run.epoch, run.step

    or, with something to do after each epoch::

            for epoch in run.epochs():
                for inputs, targets in run.loader:
                    ...
                validate()

    A version is taken between two batches, before the next one is fetched: all that the body of the
    loop did is in it, and nothing of the next batch. One that is due at the last batch of an epoch
    is taken when the next epoch fetches its first: it has what follows the inner loop. What
    precedes the inner loop runs again when an epoch is resumed in the middle; it must not change
    what is saved. Local variables of the loop are not in a version. After SIGTERM the state after
    the next step is saved, and when it is safe the process ends with exit code 143.

    Args:
        loader: a loader of torch or torchdata, see :class:`ResumableLoader`.
        epochs: how often to pass over it; None: until the loop is left.
        extra: what else has a state: schedulers, GradScalers.
        sigterm: whether SIGTERM saves and ends the training; False leaves the signal alone.
        options: those of :class:`deepvm.checkpoint.Checkpointer`: ``model``, ``optimizer``,
            ``tiers``, ``every``, ...

    Raises:
        RequestError: an argument is invalid.
        CheckpointError: a tier cannot be reached, or versions exist but none can be restored.
    """
    if isinstance(loader, ResumableLoader):
        found = loader
    else:
        found = ResumableLoader(loader)
    session = Session(found, extra, sigterm, **options)
    try:
        return TrainingRun(session, epochs)
    except BaseException:
        session.close()
        raise
