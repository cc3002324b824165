"""The user's side of a remote controller: rent it, read its mirror, send it commands."""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from deepvm.core.json_types import JsonDict
from deepvm.core.progress import Say
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
from deepvm.jobs.head import mirror
from deepvm.jobs.head.mirror import MIRROR, HeadState
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.wire import USER, Sender, WireError, secret_of
from deepvm.records import dataclass, replace

LOCK = "head.lock"  # In a job's folder: one process at a time reads the mirror, or rents a head
_BUSY_S = 60.0
_ANSWER_S = 45.0
_LOOK_S = 0.5
_TRIES = 5


def needs_head(cloud: Cloud) -> bool:
    """Whether a controller of this cloud's machines cannot run here, and a head can."""
    return isinstance(cloud, HostsController) and not cloud.controls_here()


def has_head(row: JobRow) -> bool:
    """Whether a job's controller runs on a remote machine, known here by the mirror."""
    state = HeadState.load(row.folder)
    return state is not None and not state.here


def is_to_be_read(row: JobRow) -> bool:
    """Whether a remote controller may have news of a job, or its bucket is not emptied yet."""
    state = HeadState.load(row.folder)
    if state is None or state.here:
        return False
    return row.result is None or not state.emptied


def is_head(row: JobRow) -> bool:
    """Whether this computer is the head of a job."""
    state = HeadState.load(row.folder)
    return state is not None and state.here


# Is called once the history here, and the job's folder, have all of a job that is over
AtEnd = Callable[[JobRow, History], object]


@dataclass(frozen=True)
class RemoteController:
    """The remote controller of a job, as seen from the computer of its user."""

    row: JobRow
    history: History
    cloud: HostsController
    at_end: AtEnd = lambda row, history: None

    @property
    def _objects(self) -> Objects:
        return self.cloud.objects(self.row.name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self.row.folder / LOCK)
        if not lock.take(shared=False, limit_s=_BUSY_S):
            raise DataError(f"another process is busy with the head of {self.row.name}; try again")
        try:
            yield
        finally:
            lock.release()

    def start(self, resumed: Callable[[], JobState] | None = None) -> HeadState:
        """Rent it, and complete an earlier attempt, if any.

        ``resumed``: the world with which it continues, once the history has what the head before
        has written. Raises DataError: a head lives; RefusedError: none is to be had; UnknownError.
        """
        row = self.row
        with self._locked():
            lives = self.cloud.heads(row.name)
            state = HeadState.load(row.folder)
            if state is not None:
                state = self._refreshed(state)
                job = self.history.job(row.name)
                name = head_name(state.number)
                if not state.begun and name in lives.alive:
                    state = replace(state, launched=True)
                lives_on = name not in lives.ended and state.alive
                if lives_on and job is not None and job.result is None:
                    raise DataError(f"{name} runs the controller of {row.name}, or is about to")
            if resumed is not None:
                resumed()  # its errors come before anything is done
            numbers = [int(name.rpartition("-")[2]) for name in (*lives.alive, *lives.ended)]
            newest = max([row.spec.get("earlier_heads", 0), *numbers])
            logs = ""
            if state is not None:
                logs = state.logs
                # No matter what became of a request without an answer, it is the same one again
                taken = state.number
                if not (state.launched or state.refused or state.begun):
                    taken -= 1
                newest = max(newest, taken)
            number = newest + 1
            state = HeadState(number, time.time(), logs=logs)
            state.save(row.folder)
            point("head.intended")
            state = replace(state, tag=self._fence(number, resumed))
            state.save(row.folder)
            point("head.fenced")
            for name in lives.alive:  # they hang, or are not needed any more
                self.cloud.end_head(row.name, name)
            mirror.put_folder(self._objects, row.folder)
            point("head.packed")
            try:
                self.cloud.start_head(row.name, number)
            except RefusedError:  # anyone who asks again by this name gets the same answer
                replace(state, refused=True).save(row.folder)
                raise
            point("head.started")
            state = replace(state, launched=True)
            state.save(row.folder)
            return state

    def _fence(self, number: int, resumed: Callable[[], JobState] | None) -> str:
        """Write the mirror for this remote controller; older ones are fenced from now on."""
        row = self.row
        for _ in range(_TRIES):
            found = self._objects.get(MIRROR)
            if found is not None:
                copy = mirror.decoded(found.data)
                self.history.put_copy(copy, row.folder)
                if copy["head"] == number and copy["writer"]:
                    return found.tag  # it has started
            if resumed is not None:
                self.history.commit(row.name, self.history.world(row.name), resumed(), [])
            data = mirror.encoded(self.history.copy(row.name), number, "", 0)
            try:
                return self._objects.replace(MIRROR, data, None if found is None else found.tag)
            except ChangedError:  # by the head before, a moment ago
                continue
        raise UnknownError(f"the mirror of {row.name} is being written again and again; try again")

    def refresh(self, *, logs: bool = False) -> HeadState | None:
        """Update the history; None: no remote one. Raises UnknownError, RefusedError, DataError."""
        row = self.row
        if not is_to_be_read(row):
            return HeadState.load(row.folder)
        with self._locked():
            state = HeadState.load(row.folder)
            assert state is not None
            try:
                state = self._refreshed(state)
                known = self.history.job(row.name)
                over = known is not None and known.result is not None
                new: Iterable[str] = ()
                if logs or over:
                    new = mirror.fetch_logs(row.folder, self._objects, state.logs)
                for last in new:
                    state = replace(state, logs=last)
                    state.save(row.folder)
                if known is not None and over:
                    self.at_end(known, self.history)
                    self._objects.remove(self._objects.keys(""))
                    replace(state, logs="", emptied=True).save(row.folder)
            except (UnknownError, RefusedError):
                replace(state, read=False).save(row.folder)
                raise
            except OSError as error:
                raise DataError(
                    f"{error.filename or row.folder}: {error.strerror or error}"
                ) from None
            return state

    def _refreshed(self, state: HeadState) -> HeadState:
        found: Object | None = self._objects.get(MIRROR, unlike=state.tag)
        state = replace(state, read=True)
        if found is not None:
            if found.tag != state.tag:
                copy = mirror.decoded(found.data)
                self.history.put_copy(copy, self.row.folder)
                head = copy["head"]
                if head < state.number:
                    begun = state.begun
                else:
                    begun = bool(copy["writer"])
                number = max(state.number, head)
                state = replace(
                    state, number=number, begun=begun, tag=found.tag, nonce=copy["nonce"]
                )
            if state.begun:
                state = replace(state, heard_s=time.time() - found.age_s)
        state.save(self.row.folder)
        return state

    def send(self, job_secret: str, message: JsonDict) -> JsonDict:
        """The answer of a head's controller to a command. Raises DataError: there is none."""
        row = self.row
        state = HeadState.load(row.folder)
        for _ in range(2):  # a controller that was started again has another nonce
            state = self.refresh() or state
            assert state is not None
            head = head_name(state.number)
            if not state.begun or not state.nonce:
                raise DataError(
                    f"{head}, where {row.name} is controlled, has not started yet; try again"
                )
            sender = Sender(USER, secret_of(job_secret, USER), state.nonce)
            answer = self._answer(sender, message)
            if answer is not None:
                return answer
        raise DataError(
            f"the controller of {row.name} on {head} does not answer; 'deepvm jobs show {row.name}'"
            f" says whether it runs, and deepvm jobs resume {row.name} starts another"
        )

    def _answer(self, sender: Sender, message: JsonDict) -> JsonDict | None:
        body, signature = sender.sealed(message)
        key = f"{time.time_ns():020}-{secrets.token_hex(4)}"
        sealed = json.dumps({"body": body.decode(), "signature": signature})
        self._objects.put(mirror.COMMANDS + key, sealed.encode())
        end_s = time.monotonic() + _ANSWER_S
        try:
            while time.monotonic() < end_s:
                time.sleep(_LOOK_S)
                found = self._objects.get(mirror.ANSWERS + key)
                if found is None:
                    continue
                answer = json.loads(found.data)
                if "refused" in answer:
                    return None
                return sender.opened(answer["body"].encode(), answer["signature"])
        except (ValueError, KeyError, TypeError, AttributeError, WireError) as error:
            raise DataError(f"the answer of the head cannot be read: {error}") from None
        finally:
            self._objects.remove([mirror.COMMANDS + key, mirror.ANSWERS + key])
        return None


def refresh_all(
    history: History,
    rows: Iterable[JobRow],
    cloud_of: Callable[[str], Cloud],
    report: Say,
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
                RemoteController(row, history, cloud, at_end).refresh(logs=logs)
            except tolerated as error:
                report(f"{row.name}: what is shown may be old: {error}")
