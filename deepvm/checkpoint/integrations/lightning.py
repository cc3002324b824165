"""Checkpoints for Lightning's Trainer: :class:`DeepVMCallback`."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader

from deepvm.checkpoint.format.flatten import State, StateDict
from deepvm.checkpoint.integrations.session import PackedState, SessionCallback, iterate_through
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.state import Stateful
from deepvm.errors import CheckpointError, RequestError

_LOOP = "loop"


class DeepVMCallback(SessionCallback, Callback):  # type: ignore[misc]
    """Saves a Trainer's run, and resumes it in the middle of an epoch, bit for bit.

    Example::

        callback = DeepVMCallback(tiers=["tcp://10.0.0.7:7070"], every=100)
        Trainer(..., callbacks=[callback]).fit(module, loader)

    A version is taken before the next batch is fetched: validation and callbacks after the step are
    in it. ``fit()`` continues from the newest version; Lightning's own checkpoints are not needed
    (``enable_checkpointing=False``), and ``ckpt_path`` is refused. After SIGTERM the state after
    the batch, with accumulated gradients after the optimizer's step, is saved, and Lightning ends.
    Means over an epoch that the module logs are of the batches since the start of the process.
    """

    def __init__(self, *, extra: Mapping[str, Stateful] | None = None, **options: Any) -> None:
        """``options``: those of :class:`deepvm.checkpoint.Checkpointer`, such as ``tiers``."""
        super().__init__(extra, True, options)
        self._ends = False  # SIGTERM has come, and the optimizer's step is still to come

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        _refuse(trainer)
        self._close()  # another fit with this callback has failed
        loader = _loader_of(trainer)
        *others, optimizer = trainer.optimizers
        own: dict[str, Any] = {f"optimizer.{number}": other for number, other in enumerate(others)}
        own |= {
            f"scheduler.{n}": config.scheduler
            for n, config in enumerate(trainer.lr_scheduler_configs)
        }
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            own["scaler"] = scaler
        own["lightning"] = PackedState(
            "the state of Lightning's callbacks and modules",
            lambda: self._saved(trainer),
            lambda found: self._restore(trainer, found),
        )
        if self._open(loader, own, pl_module, optimizer):
            iter(trainer.fit_loop._data_fetcher)  # the one that there is started at the start

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        session = self._session
        if session is not None:
            self._between_epochs(trainer)
            session.finish()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Hide SIGTERM from Lightning while gradients accumulate: no checkpoint has them."""
        signals = trainer._signal_connector
        if signals.received_sigterm or self._ends:
            self._ends = trainer.fit_loop.epoch_loop._should_accumulate()
            signals.received_sigterm = not self._ends

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save before Lightning ends on SIGTERM; other errors do not call ``teardown``."""
        session = self._session
        try:
            if session is None or not isinstance(exception, SIGTERMException):
                return
            if trainer.fit_loop.epoch_loop._should_accumulate():
                log.warning(
                    "SIGTERM came while gradients were added up, and they are not saved: the"
                    " newest checkpoint counts"
                )
                return
            self._between_epochs(trainer)
            session.finish()
        finally:
            try:
                self._close()
            except CheckpointError as problem:
                # Lightning is to raise the error that ends the training
                log.error("%s", problem)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def _between_epochs(self, trainer: Any) -> None:
        """Lightning counts batches and leaves a pass without asking for its end."""
        progress = trainer.fit_loop.epoch_progress.current
        if (
            self._session is not None
            and progress.processed == progress.started
            and self._session.loader.batch
        ):
            self._session.loader.leave()

    def _saved(self, trainer: Any) -> StateDict:
        module = trainer.lightning_module
        data = trainer.datamodule
        loop = trainer.fit_loop.state_dict()
        loop["state_dict"] = {}  # of the loaders, whose position is saved with random states
        found: StateDict = {_LOOP: loop}
        others = [callback for callback in trainer.callbacks if callback is not self]
        found["callbacks"] = {other.state_key: other.state_dict() for other in others}
        found["data"] = {} if data is None else data.state_dict()
        if is_overridden("on_save_checkpoint", module):
            own = {"state_dict": module.state_dict()}
            module.on_save_checkpoint(own)
            found["module"] = {name: value for name, value in own.items() if name != "state_dict"}
        return found

    def _restore(self, trainer: Any, found: State) -> None:
        trainer.fit_loop.load_state_dict(found[_LOOP])
        for callback in trainer.callbacks:
            state = found["callbacks"].get(callback.state_key)
            if state:
                callback.load_state_dict(state)
            if isinstance(callback, EarlyStopping) and callback.wait_count >= callback.patience:
                # Other callbacks may have stopped it for now, such as Timer
                trainer.should_stop = True
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(found["data"])
        if "module" in found:
            module = trainer.lightning_module
            module.on_load_checkpoint({**found["module"], "state_dict": module.state_dict()})


def _refuse(trainer: Any) -> None:
    if not isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy)):
        allowed = "a single device, or DDP: ranks that hold the whole model"
        raise RequestError("strategy", type(trainer.strategy).__name__, allowed)
    if trainer.ckpt_path is not None:
        raise RequestError("ckpt_path", trainer.ckpt_path, "None: the callback resumes without it")
    asked = trainer.reload_dataloaders_every_n_epochs
    if asked:
        allowed = "0: the position is that of one loader"
        raise RequestError("reload_dataloaders_every_n_epochs", asked, allowed)
    if not trainer.optimizers:
        raise RequestError("configure_optimizers", "none", "an optimizer")


def _loader_of(trainer: Any) -> ResumableLoader:
    """The training's loader, set up as Lightning does it; raises RequestError if several."""
    strategy = trainer.strategy
    found = list[ResumableLoader]()
    process = strategy.process_dataloader

    def with_position(loader: Any) -> Any:
        made = process(loader)
        if isinstance(made, DataLoader):
            # Without a length, a batch is fetched ahead to know which is the last.
            found.append(iterate_through(made, ahead=0 if _has_length(made) else 1, stateful=True))
        return made

    strategy.process_dataloader = with_position
    try:
        trainer.fit_loop.setup_data()
    finally:
        del strategy.process_dataloader
    loaders = trainer.fit_loop._combined_loader
    number = 0
    if loaders is not None:
        number = len(loaders.flattened)
    if number != 1 or not found:
        allowed = "one torch.utils.data.DataLoader"
        raise RequestError("train_dataloader", f"{number} loaders", allowed)
    return found[0]


def _has_length(loader: DataLoader[Any]) -> bool:
    try:
        return len(loader) >= 0
    except (TypeError, NotImplementedError):
        return False
