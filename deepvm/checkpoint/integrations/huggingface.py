"""Checkpoints for the Trainer of Hugging Face's transformers: :class:`DeepVMCallback`."""

import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import transformers
from transformers import TrainerCallback, TrainerState

from deepvm.checkpoint.format.flatten import State, StateDict
from deepvm.checkpoint.integrations.session import PackedState, SessionCallback, prepared
from deepvm.checkpoint.training.hooks import callers
from deepvm.checkpoint.training.state import Stateful
from deepvm.errors import RequestError

_COUNTS = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
)
_EPOCH = (
    "epoch",
    "train_dataloader",
    "resume_from_checkpoint",
    "epochs_trained",
    "steps_trained_in_current_epoch",
)
# Passed as the checkpoint folder: it does not exist, so the Trainer loads nothing
_RESUMED = "deepvm: restored from its own checkpoints"
_OF_THIS_RUN = (
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "is_local_process_zero",
)


class DeepVMCallback(SessionCallback, TrainerCallback):  # type: ignore[misc]
    """Saves a Trainer's run, and resumes it in the middle of an epoch, bit for bit.

    Example::

        Trainer(..., callbacks=[DeepVMCallback(tiers=["tcp://10.0.0.7:7070"], every=100)]).train()

    A checkpoint is taken before the next batch is fetched: evaluations, logs and callbacks after
    the step are in it. ``trainer.train()`` continues from the newest checkpoint; the Trainer's own
    checkpoints are not needed (``save_strategy="no"``), and ``resume_from_checkpoint`` is refused.
    After SIGTERM the state after the next step is saved, then the process exits with code 143.
    """

    def __init__(
        self, *, extra: Mapping[str, Stateful] | None = None, sigterm: bool = True, **options: Any
    ) -> None:
        """``options``: those of :class:`deepvm.checkpoint.Checkpointer`, such as ``tiers``."""
        super().__init__(extra, sigterm, options)
        self._logged_loss = 0.0
        # The Trainer has already added the last losses to its sum and a summary to the log
        self._over = False
        # The checkpoint that was restored is of the end of the training: no step is left
        self._ended = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        trainer = _trainer(self)
        # Another training with this callback, or this one with smaller batches, has failed
        self._close()
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            allowed = "one whose ranks hold the whole model"
            raise RequestError("Trainer", "sharded (FSDP or DeepSpeed)", allowed)
        if state.global_step:
            given = f"a checkpoint of the Trainer's own, of step {state.global_step}"
            allowed = "None: the callback resumes without it"
            raise RequestError("resume_from_checkpoint", given, allowed)
        if not set(_EPOCH) <= inspect.signature(trainer._run_epoch).parameters.keys():
            allowed = "5.3.0 or newer: this Trainer works otherwise"
            raise RequestError("transformers", transformers.__version__, allowed)
        own: dict[str, Any] = {"scheduler": trainer.lr_scheduler}
        scaler = getattr(trainer.accelerator, "scaler", None)
        if scaler is not None:
            own["scaler"] = scaler
        self._over = self._ended = False
        own["trainer"] = PackedState(
            "the Trainer's state",
            lambda: self._saved(trainer),
            lambda found: self._restore(trainer, found),
        )
        loader = prepared(objects["train_dataloader"])
        if self._open(loader, own, objects["model"], objects["optimizer"]):
            if self._ended:
                _end_at_once(trainer)
            else:
                _continue(trainer, loader.epoch, loader.batch)
        self._logged_loss = trainer._total_loss_scalar

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
        if self._session is not None and "loss" in (logs or {}):
            self._logged_loss = _trainer(self)._total_loss_scalar

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._over = True
        try:
            if self._session is not None:
                self._session.finish()
        finally:
            self._close()

    def _saved(self, trainer: Any) -> StateDict:
        found = _state_of(trainer)
        if self._over:
            found["counts"]["_total_loss_scalar"] = self._logged_loss
            history = found["state"]["log_history"]
            found["state"]["log_history"] = [row for row in history if "train_runtime" not in row]
        found["over"] = self._over
        return {"json": json.dumps(found, default=float), "loss": trainer._tr_loss.detach().cpu()}

    def _restore(self, trainer: Any, saved: State) -> None:
        found = json.loads(saved["json"])
        _restore_state(trainer, found)
        trainer._tr_loss = saved["loss"].to(trainer.args.device)
        # Other callbacks may have stopped it for now, such as one that keeps to a time.
        done = trainer.state.global_step >= trainer.state.max_steps
        self._ended = found["over"] and (
            done or any(map(_has_stopped, trainer.callback_handler.callbacks))
        )


def _trainer(callback: TrainerCallback) -> Any:
    """The Trainer that calls this; callbacks are not given it."""
    for frame in callers():
        found = frame.f_locals.get("self")
        if isinstance(found, transformers.Trainer) and callback in found.callback_handler.callbacks:
            return found
    allowed = "transformers.Trainer(callbacks=[...])"
    raise RequestError("DeepVMCallback", "called by no Trainer", allowed)


def _state_of(trainer: Any) -> StateDict:
    states: dict[str, list[Any]] = {}
    for callback in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(callback, transformers.trainer_callback.ExportableState):
            attributes = callback.state().get("attributes", {})
            states.setdefault(type(callback).__name__, []).append(attributes)
    return {
        "state": {**dataclasses.asdict(trainer.state), "stateful_callbacks": {}},
        "callbacks": states,
        # Releases differ
        "counts": {name: getattr(trainer, name) for name in _COUNTS if hasattr(trainer, name)},
        "flos": trainer.current_flos,
        "step": trainer.accelerator.step,
    }


def _has_stopped(callback: Any) -> bool:
    stops = isinstance(callback, transformers.EarlyStoppingCallback)
    return stops and callback.early_stopping_patience_counter >= callback.early_stopping_patience


def _restore_state(trainer: Any, found: State) -> None:
    state = TrainerState(**found["state"])
    for name in _OF_THIS_RUN:
        setattr(state, name, getattr(trainer.state, name))
    state.stateful_callbacks = trainer.state.stateful_callbacks
    for name, value in vars(state).items():
        setattr(trainer.state, name, value)
    known = dict(found["callbacks"])
    for callback in [*trainer.callback_handler.callbacks, trainer.control]:
        for attribute, value in (known.get(type(callback).__name__) or [{}]).pop(0).items():
            setattr(callback, attribute, value)
    for name, value in found["counts"].items():
        setattr(trainer, name, value)
    trainer.current_flos = found["flos"]
    trainer.accelerator.step = found["step"]


def _end_at_once(trainer: Any) -> None:
    """Make the Trainer skip all epochs: it steps once before it checks for remaining steps."""
    handler = trainer.callback_handler

    def on_epoch_begin(args: Any, state: Any, control: Any) -> Any:
        del handler.on_epoch_begin
        return control

    def run_epoch(**_: Any) -> None:
        del trainer._run_epoch
        trainer.control.should_training_stop = True

    handler.on_epoch_begin = on_epoch_begin
    trainer._run_epoch = run_epoch


def _continue(trainer: Any, first: int, batch: int) -> None:
    """Make the Trainer skip finished epochs and, in the next one, finished batches."""
    run = trainer._run_epoch
    handler = trainer.callback_handler
    started = 0
    begin = handler.on_epoch_begin

    def on_epoch_begin(args: Any, state: Any, control: Any) -> Any:
        nonlocal started
        started += 1
        if started <= first:  # it is over: its callbacks have seen it
            return control
        del handler.on_epoch_begin
        return begin(args, state, control)

    handler.on_epoch_begin = on_epoch_begin

    def run_epoch(**arguments: Any) -> Any:
        if arguments["epoch"] < first:
            return None
        del trainer._run_epoch
        if not batch:
            return run(**arguments)
        arguments |= {
            "resume_from_checkpoint": _RESUMED,
            "epochs_trained": first,
            "steps_trained_in_current_epoch": batch,
        }
        with _nothing_skipped():
            return run(**arguments)

    trainer._run_epoch = run_epoch


@contextmanager
def _nothing_skipped() -> Iterator[None]:
    """Keep the Trainer from skipping batches: the loader already resumes at the right one."""
    module = transformers.trainer
    skip = module.skip_first_batches
    module.skip_first_batches = lambda loader, count: loader
    try:
        yield
    finally:
        module.skip_first_batches = skip
