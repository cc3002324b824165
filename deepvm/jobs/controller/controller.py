"""The controller of one job: records incoming events and carries out what follows from them."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.spelling import joined
from deepvm.errors import DataError, DeepVMError
from deepvm.io.failpoints import point
from deepvm.jobs.agent.controller_client import LINE
from deepvm.jobs.cloud import Cloud, NetworkFaults, RemoteCloud, Start
from deepvm.jobs.clouds.registry import clouds_that_cut, clouds_that_preempt
from deepvm.jobs.controller.api import BusyError, application
from deepvm.jobs.controller.briefing import HeartbeatResponder
from deepvm.jobs.controller.change_signal import ChangeSignal
from deepvm.jobs.controller.changes import (
    Reported,
    changed_states,
    has_changed,
    pass_points,
    rows_of,
)
from deepvm.jobs.controller.cloud_calls import CloudCalls
from deepvm.jobs.controller.injector import FaultKind, InjectedFault, Injector
from deepvm.jobs.controller.messages import (
    beat_of,
    can_know,
    event_of,
    field_of,
    lines_of,
    schedule_of,
)
from deepvm.jobs.controller.samples import Sampler
from deepvm.jobs.controller.server import UnauthenticatedConnections, listening, server_of
from deepvm.jobs.controller.stop_signals import StopSignals
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions import hangs
from deepvm.jobs.decisions.apply_events import between_steps, further, why_not_saved
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.price_caps import most_usd_per_hour
from deepvm.jobs.decisions.reconcile import Decisions, orders_of, react, with_generation_broken
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.waiting import adopted, forgiven
from deepvm.jobs.decisions.world import UNREADY, JobState
from deepvm.jobs.history.downtime import LEAST_S, caught_up, last_seen_s
from deepvm.jobs.history.history import MACHINE, EventRow, History
from deepvm.jobs.history.log_files import add_line
from deepvm.jobs.steady_clock import clock_of
from deepvm.jobs.wire import USER, Receiver, secret_of, token_of

_TICK_S = 0.2
_ACK_S = 8.0
_GONE_NEAR_S, _GONE_S = 0.3, 3.0
"""Grace period after a broken connection: a new one takes several round trips, some slow."""
_PIECE = 300_000
_LONGEST_LINE = 1000
_STALL_S = 1.0
_AGAIN_S = 1.0
_UNWRITTEN_S = 300.0
_LOCKED_S = 0.3
RELEASE_LIMIT_S = 15.0
"""How long releasing machines may take after a second interruption."""
_QUIET = (d.Tick, d.Heartbeat, d.InstancesListed, d.Silent)
"""Events of which only what follows is written down."""

log = logging.getLogger("deepvm.jobs")


@dataclass(frozen=True)
class ControlledJob:
    """A job as its controller runs it.

    Attributes:
        name: of the job. folder: its own, with the code and logs. secret: from which its machines'
            secrets follow.
        spec: what agents get. code: an archive, None without any. list_s: between looks at the
            cloud's list.
    """

    name: str
    folder: Path
    secret: str = field(repr=False)
    spec: JsonObject
    code: Path | None = None
    injection: Injection | None = None
    list_s: float = 1.0


class Controller:
    """Runs a job to its end; everything happens in one thread, but for the calls to the cloud."""

    def __init__(self, job: ControlledJob, world: JobState, cloud: Cloud, history: History) -> None:
        """Start nothing yet.

        ``on_event`` is called with each recorded event. ``kept`` returns once all that is
        written down is safe wherever else it must be; nothing follows from it before. ``signals``:
        those that interrupt the job. ``keeps``: they end only the controller; machines train on,
        and another controller adopts them.
        """
        self._job = job
        self.world = world
        self._cloud = cloud
        self._history = history
        self._stored = world
        self._clock = clock_of(job.folder, world.now_s)
        self._unwritten_s: float | None = None
        """Since when the history cannot be written."""
        self.on_event: Callable[[EventRow], None] = lambda event: None
        self.kept: Callable[[], Awaitable[None]] = _nowhere_else
        self._receiver = Receiver(job.secret)
        self.signals = StopSignals()
        self.keeps = False
        self._interrupts = 0
        self._leaves_s = math.inf
        self._briefing = HeartbeatResponder(job.spec, self._clock)
        self._change = ChangeSignal()
        self._tasks = set[asyncio.Task[None]]()
        self._explained = set[str]()
        self._deaf = set[str]()
        """Machines of which is written down that they get no notices."""
        self._injector = Injector(job.injection, ())
        self._heard: dict[str, tuple[d.Heartbeat, float]] = {}
        self._inbox: list[Reported] = []
        self._wrong: Exception | None = None
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self.last_lines: list[str] = []
        self._lost_lines: dict[str, tuple[int, str]] = {}
        """Lines of a machine that its log lacks, since one could be written, and the reason."""
        self._stop = ""
        self._gone_s = _GONE_NEAR_S if cloud.near else _GONE_S
        self._calls = CloudCalls(cloud, job.name, self.feed)

    @property
    def nonce(self) -> str:
        return self._receiver.nonce

    # --- events -----------------------------------------------------------------------------------

    def feed(self, event: d.Event, facts: JsonObject | None = None) -> None:
        """React to an event, with all that have come by then; :meth:`_recorded` waits for it."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._drain)
        self._inbox.append((event, facts or {}))

    async def _recorded(self) -> None:
        """Wait until what was fed is written down.

        Raises BusyError: it is not, and the agent must say it again.
        """
        await asyncio.sleep(0)  # what was called for before comes first
        if self._unwritten_s is not None or self._wrong is not None:
            raise BusyError("the history cannot be written")

    def _drain(self) -> None:
        """Write down what has happened, then act; what goes wrong here ends :meth:`run`."""
        try:
            self._act()
        except Exception as error:
            self._wrong = self._wrong or error

    def _act(self) -> None:
        inbox = self._inbox
        self._inbox = []
        before = self.world
        world, acts = react(before, [event for event, _ in inbox], self._clock.now_s())
        rows = rows_of(before, world, [each for each in inbox if not isinstance(each[0], _QUIET)])
        if acts or rows or has_changed(before, world):
            changed = changed_states(before, world)
            pass_points(changed, "unwritten")
            try:
                self._history.commit(self._job.name, self._stored, world, rows)
            except DataError as error:
                self._put_off(inbox, error)
                return
            self._stored = world
            self._unwritten_s = None
            pass_points(changed, "written")
        self.world = world
        for act in acts:
            self._start(self._do(act))
        if replace(before, now_s=world.now_s) != world:
            self._change.notify()
        for row in rows:
            if (
                row.kind == MACHINE
                and row.facts["why"] == UNREADY
                and row.facts["id"] not in self._explained
            ):
                self._start(self._explain(row.facts["id"]))
            self._tell(row)

    def _tell(self, row: EventRow) -> None:
        """Show an event; nothing else depends on whether it can be displayed."""
        try:
            self.on_event(row)
        except Exception as error:  # a terminal that was closed, a pipe without a reader
            log.debug("%s is not shown: %s", row.kind, error)

    def _put_off(self, inbox: list[Reported], error: DataError) -> None:
        """Do nothing that leaves no record: a full disk or a lock may be gone in a moment."""
        now_s = self._clock.now_s()
        if self._unwritten_s is None:
            self._unwritten_s = now_s
            log.warning("%s; trying again for %.0f s", error, _UNWRITTEN_S)
        if now_s - self._unwritten_s >= _UNWRITTEN_S:
            raise error
        self._inbox = [*inbox, *self._inbox]
        asyncio.get_running_loop().call_later(_AGAIN_S, self._drain)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, act: d.Act) -> None:
        """Call the cloud; the result is an event, or appears in the cloud's list."""
        try:
            await self._safe()
        except BusyError:
            return
        if isinstance(act, d.Release):
            await self._calls.release(act.id)
            return
        name = self._job.name
        place = str(self._job.folder / "controller")
        record = self.world.machines[act.id]
        most_usd = most_usd_per_hour(self.world, record.pool, record.role)
        start = Start(name, act.id, secret_of(self._job.secret, act.id), self._url, place, most_usd)
        await self._calls.request(record, start)

    # --- the loop ---------------------------------------------------------------------------------

    async def run(self) -> JobState:
        """Run until the job is over and all is released, ``RELEASE_LIMIT_S`` after a 2nd signal."""
        with self._history.hurried(_LOCKED_S):  # heartbeats are to be answered meanwhile
            work = asyncio.create_task(self._run())
            try:
                while not work.done() and time.monotonic() < self._leaves_s:
                    await asyncio.wait({work}, timeout=_TICK_S)
                    if len(self.signals.numbers) > 1:
                        self._leaves_s = min(self._leaves_s, time.monotonic() + RELEASE_LIMIT_S)
            finally:
                work.cancel()
                await asyncio.wait({work})
            if work.cancelled():
                return self.world
            return work.result()

    async def _run(self) -> JobState:
        events = self._history.events(self._job.name)
        self._injector = Injector(self._job.injection, events)
        self._deaf = {event.facts["id"] for event in events if event.kind == "deaf"}
        host = await self._calls.call(self._cloud.host, self._job.name)
        if isinstance(self._cloud, RemoteCloud):
            bind, bind_port = self._cloud.listen()
        else:
            bind, bind_port = (host, 0)
        strangers = UnauthenticatedConnections()
        bound = listening(bind, bind_port)
        server = server_of(application(self, self._receiver, strangers.left), strangers)
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            await asyncio.sleep(0.01)
        self._url = f"http://{host}:{bound.getsockname()[1]}"
        place = self._job.folder / "controller"
        place.with_name("controller.new").write_text(self._url)
        place.with_name("controller.new").replace(place)
        if isinstance(self._cloud, RemoteCloud):
            await self._calls.call(self._cloud.announce, self._job.name, self._url)
        point(f"job.{self.world.job.value}.begun")
        last_s = self._clock.now_s()
        samples = self._history.samples(self._job.name)
        if self.world.machines:
            self._was_away(last_s - last_seen_s(self.world, samples))
        self.world = adopted(caught_up(self.world, samples), last_s)
        self._briefing.take_up(self.world)
        sampler = Sampler(self._history, self._job.name)
        looked = False
        try:
            while True:
                if self._wrong is not None:
                    raise self._wrong
                last_s, stalled_s = self._clock.now_s(), self._clock.now_s() - last_s - _TICK_S
                if stalled_s >= _STALL_S:  # no heartbeat could be received
                    self._forgive(stalled_s)
                if self._unwritten_s is not None:
                    self._hear()
                    await asyncio.sleep(_TICK_S)
                    continue
                over = self.world.over
                if not over and self._calls.is_list_due(self._job.list_s):
                    self._start(self._calls.list())
                self._take_signals()
                if self._stop:
                    self.feed(d.Stop(self._stop))
                    self._stop = ""
                self._hear()
                self.feed(d.Tick())
                sampler.take(self.world)
                self._strike()
                if self.signals.numbers and self.keeps and not over:
                    sampler.close()
                    return self.world
                if over and not self._tasks:
                    if not looked:  # a request that was given up may have made a machine since
                        looked = True
                        await self._calls.list()
                        await asyncio.sleep(0)  # what it has shown is released first
                        continue
                    # Who has been followed by another must not end what that one has made
                    await self.kept()
                    await self._calls.finish()
                    sampler.close()
                    point("job.finished")
                    return self.world
                await asyncio.sleep(_TICK_S if not over else 0.01)
        finally:
            server.should_exit = True
            server.force_exit = bool(self.signals.numbers)
            with suppress(asyncio.CancelledError):
                await serving
            self._calls.close()

    def _forgive(self, stalled_s: float) -> None:
        """Silence while this process slept, waited for a lock or had no core counts for nothing."""
        self._was_away(stalled_s)
        self.world = forgiven(self.world, stalled_s)
        for machine, wait in list(self._waiting.items()):
            wait.cancel()
            self._waiting[machine] = asyncio.get_running_loop().call_later(
                self._gone_s, self._is_gone, machine
            )

    def _was_away(self, for_s: float) -> None:
        """Record that the job had no controller until now, unless it is over."""
        if for_s >= LEAST_S and not self.world.job.over:
            self.feed(d.Downtime(self._clock.now_s() - for_s))

    def _take_signals(self) -> None:
        """First signal: save, release, end (unless kept); the second waits for no checkpoint."""
        count = len(self.signals.numbers)
        before = self._interrupts
        self._interrupts = count
        if self.world.job.over or self.keeps:
            return
        if count and not before:
            self.feed(d.Stop(self.signals.reason))
        if count > 1 and before < 2:
            self.feed(d.Stop("interrupted again", at_once=True))

    def stop(self, reason: str) -> None:
        self._stop = reason

    def give_up(self, error: Exception) -> None:
        """End :meth:`run` with this error and keep all machines: another controller has the job."""
        self._wrong = self._wrong or error

    def _hear(self) -> None:
        """Process the members' heartbeats since the last look at once: one by one is too slow."""
        now_s = self._clock.now_s()
        world = self.world
        machines = dict(world.machines)
        own = list[tuple[d.Heartbeat, float]]()
        for machine, (beat, at_s) in self._heard.items():
            record = machines[machine]
            if record.state is not Machine.MEMBER:
                self.feed(beat)
                continue
            machines[machine] = replace(record, heard_s=now_s, silent_s=None)
            world = world.with_spare(machine, spare=beat.spare)
            if beat.generation == world.generation and machine in world.members:
                own.append((beat, at_s))
        self._heard = {}
        world = hangs.heard(world, own)
        for beat, _ in own:
            world = between_steps(world, beat)
        step_s = next((beat.step_s for beat, _ in own if beat.step_s), world.facts.step_s)
        facts = replace(world.facts, step_s=step_s)
        world = replace(world, machines=machines, facts=facts)
        if own:
            world = further(world, *max((beat.step, at_s) for beat, at_s in own))
        self.world = world

    async def _explain(self, machine: str) -> None:
        """Find out why a machine has ended that could not train, and did not say why."""
        self._explained.add(machine)
        try:
            lines = await self._calls.call(self._cloud.last_lines, self._job.name, machine)
        except (DeepVMError, OSError) as error:
            log.warning("%s", error)
            return
        if lines:
            self.last_lines = [line[:_LONGEST_LINE] for line in lines]
            self.feed(d.Failed(machine, self.last_lines[-1], own=True), {"lines": self.last_lines})

    def _strike(self) -> None:
        """Take machines back on purpose, when their lives are over."""
        for strike in self._injector.due(self.world, self._clock.now_s()):
            if strike.new and strike.blow is not FaultKind.RECOMMEND:
                self.feed(d.FaultInjected(strike.id, strike.blow.value, strike.grace_s))
            self._start(self._take_back(strike))

    async def _take_back(self, strike: InjectedFault) -> None:
        """Preempt once it is recorded: the next controller must not preempt another machine."""
        try:
            await self._recorded()
            await self._safe()
        except BusyError:
            self._injector.put_off(strike)
            return
        if not await self._calls.strike(strike):
            again = replace(strike, new=False)  # it is written down already
            asyncio.get_running_loop().call_later(_AGAIN_S, self._injector.put_off, again)

    # --- agents -----------------------------------------------------------------------------------

    async def job(self, machine: str, message: JsonObject) -> JsonObject:
        token = self._receiver.hidden(token_of(self._job.secret), message)
        return {
            **self._job.spec,
            "name": self._job.name,
            "has_code": self._job.code is not None,
            "sealed_token": token,
        }

    async def code(self, machine: str, message: JsonObject) -> JsonObject:
        """A piece of the job's code, or how much there is."""
        assert self._job.code is not None
        if "offset" not in message:
            return {"bytes": self._job.code.stat().st_size}
        with self._job.code.open("rb") as file:
            file.seek(int(message["offset"]))
            return {"data": file.read(_PIECE).hex()}

    async def beat(self, machine: str, message: JsonObject) -> JsonObject:
        """The desired state of a machine, once it differs or the wait is over."""
        (beat, agent), record = beat_of(machine, message), self.world.machines.get(machine)
        if record is None:
            return self._told(Decisions(shutdown=True))
        is_new = self._briefing.receive(machine, agent)
        if (wait := self._waiting.pop(machine, None)) is not None:
            wait.cancel()
        if record.state is Machine.MEMBER:
            # Nothing follows from it at once
            self._heard[machine] = beat, self._clock.now_s()
        else:
            self.feed(beat)
            await self._recorded()
        if agent.scheduled or is_new:
            self._change.notify()
        until_s = time.monotonic() + min(agent.wait_s, 60.0)
        while True:
            orders = orders_of(self.world, machine)
            left_s = until_s - time.monotonic()
            if self._briefing.splits(orders):
                self.world = with_generation_broken(self.world)  # the next look forms another
            elif self._briefing.digest(
                orders, self.nonce
            ) != agent.seen and self._briefing.can_begin(machine, orders, self.world):
                break
            if left_s <= 0:
                return {"same": True}
            await self._change.wait(left_s)
        await self._safe()
        point("controller.before-orders")
        return self._told(orders)

    def _told(self, orders: Decisions) -> JsonDict:
        return self._briefing.response(orders, self.nonce, self.world)

    async def _safe(self) -> None:
        """Wait until what follows cannot be forgotten. Raises BusyError."""
        try:
            await self.kept()
        except DeepVMError as error:
            self.give_up(error)
            raise BusyError(str(error)) from None

    def gone(self, machine: str) -> None:
        if machine in self.world.machines and machine not in self._waiting:
            wait = asyncio.get_running_loop().call_later(self._gone_s, self._is_gone, machine)
            self._waiting[machine] = wait

    def _is_gone(self, machine: str) -> None:
        """A connection broke, and no other came."""
        del self._waiting[machine]
        self.feed(d.Silent(machine))

    async def schedule(self, machine: str, message: JsonObject) -> JsonObject:
        (generation, step, save) = schedule_of(message)
        members = self.world.members
        if (
            generation != self.world.generation
            or not self.world.formed
            or members[:1] != (machine,)
        ):
            return {"error": "an older generation"}
        # No controller before this one has used it: what agents had from that is no answer to this.
        number = 1 + secrets.randbits(48)
        reason, left_ms, request = save
        until_ms = int(self._clock.now_s() * 1000) + left_ms
        order = {
            "generation": generation,
            "step": step,
            "save": [reason, until_ms, request],
            "number": number,
        }
        self._briefing.schedule = order
        until_s = time.monotonic() + _ACK_S
        self._change.notify()
        while missing := self._briefing.unscheduled(members, number):
            left_s = until_s - time.monotonic()
            if self.world.generation != generation:
                return {"error": "an older generation"}
            if left_s <= 0:
                # Some will save it, and the others will not: none continues like that, unless they
                # agree themselves.
                for one in () if message.get("peers") else missing:
                    self.feed(d.Silent(one))
                return {"error": "not all machines have it"}
            await self._change.wait(left_s)
        point("controller.before-schedule")
        return {}

    async def command(self, machine: str, message: JsonObject) -> JsonObject:
        """What the user wants; no machine may ask for it."""
        if machine != USER:
            return {"error": "only the user may"}
        kind = message["command"]
        if kind == "stop":
            self.stop("stopped by the user")
        elif kind == "save":
            if why := why_not_saved(self.world):
                return {"error": f"no version is asked for: {why}"}
            self.feed(d.SaveNow())
        elif kind == "inject":
            if not self._cloud.can_preempt:
                clouds = joined(clouds_that_preempt())
                return {"error": f"its cloud takes machines back itself; allowed with {clouds}"}
            injection = Injection.of(message["inject"], self.world.preemptions)
            if injection.silent and not isinstance(self._cloud, NetworkFaults):
                return {
                    "error": (
                        f"no link can be taken away here; allowed with {joined(clouds_that_cut())}"
                    )
                }
            self.feed(d.Injected(**asdict(injection)))
            self._injector.order(injection, self._clock.now_s())
            await self._recorded()
        else:
            return {"error": f"there is no command {kind!r}"}
        return {}

    async def handle(self, body: bytes, signature: str) -> tuple[bytes, str]:
        """A command that came another way than over HTTP, and its signed answer.

        Raises WireError, or what it lacks.
        """
        message = self._receiver.opened(body, signature)
        answer = await self.command(str(message["machine"]), message)
        await asyncio.sleep(2 * _TICK_S)  # until it was fed and written down
        await self.kept()
        return self._receiver.sealed(answer, message)

    async def report(self, machine: str, message: JsonObject) -> JsonObject:
        wrong: Exception | None = None
        for event in message["events"]:
            record = self.world.machines.get(machine)
            number = field_of(event, "of")
            if record is None or number <= record.reported:
                continue  # the answer to it was lost
            self.world = self.world.with_machine(replace(record, reported=number))
            try:
                self._reported(machine, event)
            except (KeyError, TypeError, ValueError) as error:
                wrong = error  # those behind it count; it does not, nor when it is sent again
        await self._recorded()
        # Nothing follows from lines
        if any(event.get("event") != LINE for event in message["events"]):
            await self._safe()
        if wrong is not None:
            raise wrong
        point("controller.before-heard")
        return {}

    def _reported(self, machine: str, event: JsonObject) -> None:
        if event["event"] == LINE:
            self._line(machine, field_of(event, "text"))
            return
        found = event_of(machine, event)
        if found is None or not can_know(self.world, machine, found[0]):
            return
        if isinstance(found[0], d.Failed) or (isinstance(found[0], d.Ended) and found[0].code):
            self.last_lines = lines_of(event)
            self._explained.add(machine)
        if isinstance(found[0], d.MetadataUnavailable):
            if machine in self._deaf:
                return
            self._deaf.add(machine)
        if isinstance(found[0], d.Noticed):
            found = replace(found[0], taken_s=self._clock.of_wall_s(found[0].taken_s)), found[1]
        self.feed(*found)

    def _line(self, machine: str, line: str) -> None:
        lost, reason = self._lost_lines.get(machine, (0, ""))
        try:
            if lost:
                missing = f"[{lost} lines are missing here: {reason}]"
                add_line(self._job.folder, machine, missing, time.time())
                del self._lost_lines[machine]
            add_line(self._job.folder, machine, line, time.time())
        except OSError as error:  # a full disk stops no training
            log.debug("a line of %s is lost: %s", machine, error)
            self._lost_lines[machine] = lost + 1, error.strerror or str(error)


async def _nowhere_else() -> None:
    """The history alone is what another controller needs."""
