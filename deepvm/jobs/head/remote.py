"""The user's side of a remote controller: rent it, read its mirror, send it commands."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deepvm.core.json_types import JsonDict
from deepvm.errors import DataError, DeepVMError
from deepvm.io.failpoints import point
from deepvm.io.file_lock import FileLock
from deepvm.jobs.cloud import (
    ChangedError,
    Cloud,
    HostsController,
    Object,
    Objects,
    RefusedError,
    UnknownError,
    head_name,
)
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.head.head_state import BEGINS_S, HeadState
from deepvm.jobs.head.log_pieces import fetch_logs
from deepvm.jobs.head.mirror import ANSWERS, COMMANDS, MIRROR, decoded, encoded, put_folder
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.wire import USER, Sender, WireError, secret_of

LOCK = "head.lock"
"""In a job's folder: one process at a time reads the mirror, or rents a head."""
_BUSY_S = 60.0
_ANSWER_S = 45.0
_LOOK_S = 0.5
_TRIES = 5


def needs_head(cloud: Cloud) -> bool:
    """Whether a controller of this cloud's machines cannot run here, and a head can."""
    return isinstance(cloud, HostsController) and not cloud.controls_here()


def _away(row: JobRow) -> HeadState | None:
    state = HeadState.load(row.folder)
    if state is None or state.here:
        return None
    return state


def has_head(row: JobRow) -> bool:
    """Whether a job's controller runs on a remote machine, known here by the mirror."""
    return _away(row) is not None


def is_to_be_read(row: JobRow) -> bool:
    """Whether a remote controller may have news of a job, or its bucket is not emptied yet."""
    state = _away(row)
    return state is not None and (row.result is None or not state.emptied)


def is_head(row: JobRow) -> bool:
    """Whether this computer is the head of a job."""
    state = HeadState.load(row.folder)
    return state is not None and state.here


@contextmanager
def _locked(row: JobRow) -> Any:
    lock = FileLock(row.folder / LOCK)
    if not lock.take(shared=False, limit_s=_BUSY_S):
        raise DataError(f"another process is busy with the head of {row.name}; try again")
    try:
        yield
    finally:
        lock.release()


# --- rent -----------------------------------------------------------------------------------------


def start(
    row: JobRow,
    history: History,
    cloud: HostsController,
    resumed: Callable[[], JobState] | None = None,
) -> HeadState:
    """Rent a remote controller for a job, and complete an earlier attempt, if any.

    ``resumed``: the world with which it continues, once the history has what the head before has
    written.

    Raises:
        DataError: there is a head that lives. RefusedError: none is to be had. UnknownError: nobody
            knows.
    """
    with _locked(row):
        objects = cloud.objects(row.name)
        lives = cloud.heads(row.name)
        state = HeadState.load(row.folder)
        if state is not None:
            state = _refreshed(row, history, objects, state)
            job = history.job(row.name)
            name = head_name(state.number)
            begins = (
                not state.begun and name in lives.alive and time.time() - state.asked_s < BEGINS_S
            )
            lives_on = name not in lives.ended and (state.alive or begins)
            if lives_on and job is not None and job.result is None:
                raise DataError(f"{name} runs the controller of {row.name}, or is about to")
        if resumed is not None:
            resumed()  # its errors come before anything is done
        numbers = [int(name.rpartition("-")[2]) for name in (*lives.alive, *lives.ended)]
        known = state is None or state.launched or state.refused or state.begun
        if state is not None and not known and state.number > max(numbers, default=0):
            number = state.number  # no matter what became of that request, it is the same one again
        else:
            number = max([0, *numbers, *([state.number] if state else [])]) + 1
        logs = "" if state is None else state.logs
        state = HeadState(number, time.time(), logs=logs)
        state.save(row.folder)
        point("head.intended")
        state = replace(state, tag=_fence(row, history, objects, number, resumed))
        state.save(row.folder)
        point("head.fenced")
        for name in lives.alive:  # they hang, or are not needed any more
            cloud.end_head(row.name, name)
        put_folder(objects, row.folder)
        point("head.packed")
        try:
            cloud.start_head(row.name, number)
        except RefusedError:  # whoever asks again by this name gets the same answer
            replace(state, refused=True).save(row.folder)
            raise
        point("head.started")
        state = replace(state, launched=True)
        state.save(row.folder)
        return state


def _fence(
    row: JobRow,
    history: History,
    objects: Objects,
    number: int,
    resumed: Callable[[], JobState] | None,
) -> str:
    """Write the mirror for this remote controller; older ones are fenced from now on."""
    for _ in range(_TRIES):
        found = objects.get(MIRROR)
        if found is not None:
            copy = decoded(found.data)
            history.put_copy(copy, row.folder)
            if copy["head"] == number and copy["writer"]:
                return found.tag  # it has started
        if resumed is not None:
            history.commit(row.name, history.world(row.name), resumed(), [])
        data = encoded(history.copy(row.name), number, "", 0)
        try:
            return objects.replace(MIRROR, data, None if found is None else found.tag)
        except ChangedError:  # by the head before, a moment ago
            continue
    raise UnknownError(f"the mirror of {row.name} is being written again and again; try again")


# --- see ------------------------------------------------------------------------------------------


AtEnd = Callable[[JobRow, History], object]
"""Is called once the history here, and the job's folder, have all of a job that is over."""


def refresh(
    row: JobRow,
    history: History,
    cloud: HostsController,
    *,
    logs: bool = False,
    at_end: AtEnd = lambda row, history: None,
) -> HeadState | None:
    """Update the history from the mirror (``logs``: and the folder); None: no remote controller.

    Raises UnknownError, RefusedError: the mirror cannot be read; DataError.
    """
    if not is_to_be_read(row):
        return HeadState.load(row.folder)
    with _locked(row):
        state = HeadState.load(row.folder)
        assert state is not None
        objects = cloud.objects(row.name)
        try:
            state = _refreshed(row, history, objects, state)
            known = history.job(row.name)
            over = known is not None and known.result is not None
            if logs or over:
                for last in fetch_logs(row.folder, objects, state.logs):
                    state = replace(state, logs=last)
                    state.save(row.folder)
            if over and known is not None:
                at_end(known, history)
                objects.remove(objects.keys(""))
                replace(state, logs="", emptied=True).save(row.folder)
        except (UnknownError, RefusedError):
            replace(state, read=False).save(row.folder)
            raise
        except OSError as error:
            raise DataError(f"{error.filename or row.folder}: {error.strerror or error}") from None
        return state


def _refreshed(row: JobRow, history: History, objects: Objects, state: HeadState) -> HeadState:
    found: Object | None = objects.get(MIRROR, unlike=state.tag)
    state = replace(state, read=True)
    if found is not None:
        if found.tag != state.tag:
            copy = decoded(found.data)
            history.put_copy(copy, row.folder)
            if copy["head"] < state.number:
                begun = state.begun
            else:
                begun = bool(copy["writer"])
            number = max(state.number, copy["head"])
            state = replace(state, number=number, begun=begun, tag=found.tag, nonce=copy["nonce"])
        if state.begun:
            state = replace(state, heard_s=time.time() - found.age_s)
    state.save(row.folder)
    return state


def refresh_all(
    history: History,
    rows: Iterable[JobRow],
    cloud_of: Callable[[str], Cloud],
    report: Callable[[str], None],
    at_end: AtEnd,
    *,
    logs: bool = False,
    tolerated: tuple[type[DeepVMError], ...] = (DeepVMError,),
) -> None:
    """The same for several jobs; ``tolerated`` errors are passed to ``report``."""
    for row in rows:
        if is_to_be_read(row):
            try:
                cloud = cloud_of(row.spec["cloud"])
                assert isinstance(cloud, HostsController)
                refresh(row, history, cloud, logs=logs, at_end=at_end)
            except tolerated as error:
                report(f"{row.name}: what is shown may be old: {error}")


# --- command --------------------------------------------------------------------------------------


def send(
    row: JobRow,
    history: History,
    cloud: HostsController,
    job_secret: str,
    message: JsonDict,
    at_end: AtEnd = lambda row, history: None,
) -> JsonDict:
    """The answer of a head's controller to a command. Raises DataError: there is none."""
    state = HeadState.load(row.folder)
    for _ in range(2):  # a controller that was started again has another nonce
        state = refresh(row, history, cloud, at_end=at_end) or state
        assert state is not None
        if not state.begun or not state.nonce:
            raise DataError(
                f"{head_name(state.number)}, where {row.name} is controlled, has not begun yet; try"
                " again"
            )
        answer = _answer(
            cloud.objects(row.name), Sender(USER, secret_of(job_secret, USER), state.nonce), message
        )
        if answer is not None:
            return answer
    assert state is not None
    raise DataError(
        f"the controller of {row.name} on {head_name(state.number)} does not answer; 'deepvm jobs"
        f" show {row.name}' says whether it lives, and deepvm jobs resume {row.name} starts another"
    )


def _answer(objects: Objects, sender: Sender, message: JsonDict) -> JsonDict | None:
    """What the head answers; None: nothing, or that the message does not count."""
    body, signature = sender.sealed(message)
    key = f"{time.time_ns():020}-{secrets.token_hex(4)}"
    objects.put(
        COMMANDS + key, json.dumps({"body": body.decode(), "signature": signature}).encode()
    )
    end_s = time.monotonic() + _ANSWER_S
    try:
        while time.monotonic() < end_s:
            time.sleep(_LOOK_S)
            found = objects.get(ANSWERS + key)
            if found is None:
                continue
            answer = json.loads(found.data)
            if "refused" in answer:
                return None
            return sender.opened(answer["body"].encode(), answer["signature"])
    except (ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise DataError(f"the answer of the head cannot be read: {error}") from None
    finally:
        objects.remove([COMMANDS + key, ANSWERS + key])
    return None
