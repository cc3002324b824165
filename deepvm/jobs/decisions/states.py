"""The states of machines and jobs, and what takes them from one to the next (thesis 5.1)."""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(record, /, **changes):
        """As that of dataclasses, for records that check nothing, in a tenth of the time."""
        copied = object.__new__(type(record))
        copied.__dict__.update(record.__dict__, **changes)
        return copied


class Machine(Enum):
    """A machine, from the request for one to the end of its bill."""

    INTENT = "intent"  # the request is written down; the cloud may not have known of it
    BOOTING = "booting"  # the cloud has it
    WARMING = "warming"  # its agent sends heartbeats, its trainers load
    MEMBER = "member"  # it can train
    NOTICED = "noticed"  # the cloud will preempt it
    SUSPECT = "suspect"  # its agent is silent
    RELEASING = "releasing"  # the cloud is asked to end it
    LOST = "lost"  # given up without a word from the cloud
    ENDED = "ended"  # it no longer costs anything
    FAILED = "failed"  # the cloud never had it

    @property
    def over(self) -> bool:
        return self in (Machine.ENDED, Machine.FAILED)

    @property
    def costs(self) -> bool:
        return self not in (Machine.INTENT, Machine.ENDED, Machine.FAILED)

    @property
    def coming(self) -> bool:
        return self in (Machine.INTENT, Machine.BOOTING, Machine.WARMING)


class MachineEvent(Enum):
    """What happens to a machine."""

    LAUNCHED = "launched"  # the cloud says that it exists: its reply, or its list
    REFUSED = "refused"  # the cloud says no: capacity, quota, price
    ABSENT = "absent"  # the cloud's list, long after the request, does not have it
    BEAT = "beat"  # its agent sends a heartbeat
    WARM = "warm"  # its agent says that it can train
    NOTICE = "notice"  # the cloud says when it will preempt it
    SILENT = "silent"  # three heartbeats are missing
    OVERDUE = "overdue"  # it has been booting, warming or silent for too long
    RELEASE = "release"  # it is not needed any more
    GONE = "gone"  # the cloud says that it has ended


class Job(Enum):
    """A job; FORMING and what follows belong to a generation."""

    PENDING = "pending"  # nothing has run yet
    FORMING = "forming"  # the generation waits for machines, or for its trainers
    RUNNING = "running"
    SAVING = "saving"  # the next generation, or the end, waits for a checkpoint
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self in (Job.DONE, Job.FAILED, Job.STOPPED)


class JobEvent(Enum):
    """What happens to a job."""

    FORM = "form"  # there are machines for a generation: the first, or the next
    STARTED = "started"  # its trainers run
    SAVE = "save"  # a checkpoint is wanted before something else: a notice, a new machine, the end
    GO_ON = "go-on"  # that checkpoint will not come, or nothing waits for it any more
    BROKEN = "broken"  # its trainers must start again: a member is gone, they have failed, or hang
    TRAINED = "trained"  # all trainers ended well
    CRASHED = "crashed"  # trainers failed, or hang, again and again, and no machine is to blame
    STOP = "stop"  # money, time or the user end it; a checkpoint is safe, or cannot be


_S = TypeVar("_S", bound=Enum)
_E = TypeVar("_E", bound=Enum)


def _table(states: type[_S], events: type[_E], text: str) -> Mapping[_S, Mapping[_E, _S]]:
    """Transitions: a row is a state, a column an event; a dot: it stays as it is."""
    head, *rows = text.strip().splitlines()
    table: dict[_S, Mapping[_E, _S]] = {}
    for row in rows:
        state, *cells = row.split()
        pairs = zip(head.split(), cells, strict=True)
        table[states(state)] = {events(event): states(cell) for event, cell in pairs if cell != "."}
    return table


# An agent may be faster than the cloud's reply: intent, beat. It is unknown whether a machine
# requested long ago exists: intent, overdue. One that ended may have cost something: intent,
# gone. Trainers of a silent machine are of an older generation, so new ones warm up: suspect, beat.
MACHINES = _table(
    Machine,
    MachineEvent,
    """
          launched refused absent beat    warm   notice  silent  overdue   release   gone
intent    booting  failed  failed warming member noticed .       releasing releasing ended
booting   .        .       ended  warming member noticed .       releasing releasing ended
warming   .        .       ended  .       member noticed suspect releasing releasing ended
member    .        .       ended  .       .      noticed suspect .         releasing ended
noticed   .        .       ended  .       .      .       .       .         releasing ended
suspect   .        .       ended  warming member noticed .       lost      releasing ended
releasing .        .       ended  .       .      .       .       .         .         ended
lost      .        .       ended  .       .      .       .       .         .         ended
ended     .        .       .      .       .      .       .       .         .         .
failed    .        .       .      .       .      .       .       .         .         .
""",
)
# A generation may be nearly done, and quick: forming, trained.
JOBS = _table(
    Job,
    JobEvent,
    """
          form     started  save     go-on    broken   trained  crashed  stop
pending   forming  .        .        .        .        .        failed   stopped
forming   forming  running  .        .        .        done     failed   stopped
running   forming  .        saving   .        forming  done     failed   stopped
saving    forming  .        .        running  forming  done     failed   stopped
done      .        .        .        .        .        .        .        .
failed    .        .        .        .        .        .        .        .
stopped   .        .        .        .        .        .        .        .
""",
)


def machine_after(state: Machine, event: MachineEvent) -> Machine:
    """The state of a machine after an event."""
    return MACHINES[state].get(event, state)


def job_after(state: Job, event: JobEvent) -> Job:
    """The state of a job after an event."""
    return JOBS[state].get(event, state)
