"""The states of machines and jobs, and what takes them from one to the next (thesis 5.1).

Each table decides every pair of a state and an event; a pair that is not listed changes nothing,
because it comes too late or is known already: a heartbeat that was under way when its machine was
released, a notice that is told twice.

Agents have none: orders say what should be so now, and an agent makes it so, whatever it did
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Machine(Enum):
    """A machine, from the request for one to the end of its bill."""

    INTENT = "intent"  # the request is written down; the cloud may not have heard of it
    BOOTING = "booting"  # the cloud has it
    WARMING = "warming"  # its agent is heard, its trainers load
    MEMBER = "member"  # it can train
    NOTICED = "noticed"  # the cloud will take it back
    SUSPECT = "suspect"  # its agent is silent
    RELEASING = "releasing"  # the cloud is asked to end it
    LOST = "lost"  # given up without a word from the cloud
    ENDED = "ended"  # it no longer costs anything
    FAILED = "failed"  # the cloud never had it

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self in (Machine.ENDED, Machine.FAILED)

    @property
    def costs(self) -> bool:
        """Whether the cloud may count it on the bill."""
        return self not in (Machine.INTENT, Machine.ENDED, Machine.FAILED)

    @property
    def coming(self) -> bool:
        """Whether it may be able to train soon."""
        return self in (Machine.INTENT, Machine.BOOTING, Machine.WARMING)


class MachineEvent(Enum):
    """What happens to a machine."""

    LAUNCHED = "launched"  # the cloud says that it exists: its reply, or its list
    REFUSED = "refused"  # the cloud says no: capacity, quota, price
    ABSENT = "absent"  # the cloud's list, long after the request, does not have it
    BEAT = "beat"  # its agent is heard
    WARM = "warm"  # its agent says that it can train
    NOTICE = "notice"  # the cloud says when it will take it back
    SILENT = "silent"  # three heartbeats are missing
    OVERDUE = "overdue"  # it has been booting, warming or silent for too long
    RELEASE = "release"  # nobody needs it any more
    GONE = "gone"  # the cloud says that it has ended


class Job(Enum):
    """A job; FORMING and what follows belong to a generation."""

    PENDING = "pending"  # nothing has run yet
    FORMING = "forming"  # the generation waits for machines, or for its trainers
    RUNNING = "running"
    SAVING = "saving"  # the next generation, or the end, waits for a version
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        """Whether nothing more will be trained."""
        return self in (Job.DONE, Job.FAILED, Job.STOPPED)


class JobEvent(Enum):
    """What happens to a job."""

    FORM = "form"  # there are machines for a generation: the first, or the next
    STARTED = "started"  # its trainers run
    SAVE = "save"  # a version is wanted before something else: a notice, a newcomer, the end
    GO_ON = "go-on"  # that version will not come, or nothing waits for it any more
    BROKEN = "broken"  # its trainers must begin anew: a member is gone, they have failed, or hang
    TRAINED = "trained"  # all trainers ended well
    CRASHED = "crashed"  # trainers failed, or hang, again and again, and no machine is to blame
    STOP = "stop"  # money, time or the user end it; a version is safe, or cannot be


_M = Machine
_E = MachineEvent
_END = {_E.RELEASE: _M.RELEASING, _E.GONE: _M.ENDED}
_LIVE = {**_END, _E.NOTICE: _M.NOTICED}

MACHINES: Final[Mapping[Machine, Mapping[MachineEvent, Machine]]] = {
    _M.INTENT: {
        **_LIVE,
        _E.LAUNCHED: _M.BOOTING,
        _E.REFUSED: _M.FAILED,
        _E.ABSENT: _M.FAILED,
        _E.GONE: _M.ENDED,  # it was there, and is not any more: it may have cost something
        _E.BEAT: _M.WARMING,  # the agent was faster than the cloud's reply
        _E.WARM: _M.MEMBER,
        _E.OVERDUE: _M.RELEASING,  # nobody knows whether it exists: it must not
    },
    _M.BOOTING: {
        **_LIVE,
        _E.BEAT: _M.WARMING,
        _E.WARM: _M.MEMBER,
        _E.ABSENT: _M.ENDED,
        _E.OVERDUE: _M.RELEASING,
    },
    _M.WARMING: {
        **_LIVE,
        _E.WARM: _M.MEMBER,
        _E.SILENT: _M.SUSPECT,
        _E.ABSENT: _M.ENDED,
        _E.OVERDUE: _M.RELEASING,
    },
    _M.MEMBER: {**_LIVE, _E.SILENT: _M.SUSPECT, _E.ABSENT: _M.ENDED},
    _M.NOTICED: {**_END, _E.ABSENT: _M.ENDED},  # silent or not, it goes
    _M.SUSPECT: {
        **_LIVE,
        # It was alive: its trainers are of an older generation, new ones are warmed
        _E.BEAT: _M.WARMING,
        _E.WARM: _M.MEMBER,
        _E.ABSENT: _M.ENDED,
        _E.OVERDUE: _M.LOST,
    },
    _M.RELEASING: {_E.GONE: _M.ENDED, _E.ABSENT: _M.ENDED},
    _M.LOST: {_E.GONE: _M.ENDED, _E.ABSENT: _M.ENDED},
    _M.ENDED: {},
    _M.FAILED: {},
}

_J = Job
_JE = JobEvent
_OVER = {_JE.STOP: _J.STOPPED}

JOBS: Final[Mapping[Job, Mapping[JobEvent, Job]]] = {
    _J.PENDING: {**_OVER, _JE.FORM: _J.FORMING, _JE.CRASHED: _J.FAILED},
    _J.FORMING: {
        **_OVER,
        _JE.FORM: _J.FORMING,
        _JE.STARTED: _J.RUNNING,
        _JE.TRAINED: _J.DONE,  # it was nearly done, and quick
        _JE.CRASHED: _J.FAILED,
    },
    _J.RUNNING: {
        **_OVER,
        _JE.FORM: _J.FORMING,
        _JE.SAVE: _J.SAVING,
        _JE.BROKEN: _J.FORMING,
        _JE.TRAINED: _J.DONE,
        _JE.CRASHED: _J.FAILED,
    },
    _J.SAVING: {
        **_OVER,
        _JE.FORM: _J.FORMING,
        _JE.GO_ON: _J.RUNNING,
        _JE.BROKEN: _J.FORMING,
        _JE.TRAINED: _J.DONE,
        _JE.CRASHED: _J.FAILED,
    },
    _J.DONE: {},
    _J.FAILED: {},
    _J.STOPPED: {},
}


def machine_after(state: Machine, event: MachineEvent) -> Machine:
    """The state of a machine after an event."""
    return MACHINES[state].get(event, state)


def job_after(state: Job, event: JobEvent) -> Job:
    """The state of a job after an event."""
    return JOBS[state].get(event, state)
