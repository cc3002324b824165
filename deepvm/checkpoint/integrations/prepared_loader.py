"""Loaders prepared by Accelerate: the loader inside is replaced by one that has a position."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.errors import RequestError

_AHEAD = 1
"""Accelerate fetches one batch ahead, to know which is the last."""


def iterate_through(
    loader: DataLoader[Any], *, ahead: int = 0, stateful: bool = False
) -> ResumableLoader:
    """From now on iterating over this very object has a position; what it returns has the state.

    Trainers look at the type of a loader, and keep it in many places, so it stays the same object,
    of a derived class.

    Args:
        loader: any.
        ahead: how many batches are fetched before the training has them.
        stateful: whether it shows its position by ``state_dict``, which trainers look for.
    """
    kind = getattr(type(loader), "_plain", type(loader))  # a second training with the same loader
    inner = _plain(kind, loader.__dict__)
    resumable = ResumableLoader(inner, ahead=ahead)

    class WithPosition(kind):  # type: ignore[valid-type,misc]
        _plain = kind

        def __iter__(self) -> Any:
            # Trainers change a loader after it was made: the way its workers start, for example.
            inner.__dict__.update(self.__dict__)
            return iter(resumable)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _plain, (kind, self.__dict__)

    WithPosition.__name__ = WithPosition.__qualname__ = kind.__name__
    if stateful:
        WithPosition.state_dict = lambda self: resumable.state_dict()
        WithPosition.load_state_dict = lambda self, state: resumable.load_state_dict(state)
    elif hasattr(kind, "state_dict"):  # asked by Accelerate for each batch
        WithPosition.state_dict = lambda self: {}
    loader.__class__ = WithPosition
    return resumable


def _plain(kind: type[Any], state: dict[str, Any]) -> Any:
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


def prepared(loader: Any) -> ResumableLoader:
    """Give a loader that Accelerate has prepared a position.

    Raises:
        RequestError: it is no such loader, or one of which a single process reads the data for all.
    """
    from accelerate.data_loader import DataLoaderDispatcher  # Lightning does without

    base = getattr(loader, "base_dataloader", None)
    if not isinstance(base, DataLoader):
        raise RequestError(
            "loader", type(loader).__name__, "a data loader that accelerator.prepare() has returned"
        )
    if isinstance(loader, DataLoaderDispatcher) and loader.state.num_processes > 1:
        raise RequestError(
            "loader", type(loader).__name__, "one that each process reads: dispatch_batches=False"
        )
    return iterate_through(base, ahead=_AHEAD)
