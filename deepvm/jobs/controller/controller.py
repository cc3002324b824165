"""The controller of one job: records incoming events and carries out what follows from them."""

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepvm.core.json_types import JsonObject
from deepvm.core.spelling import joined
from deepvm.errors import DataError, DeepVMError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.failpoints import point
from deepvm.jobs.agent.controller_client import LEFT, LINE
from deepvm.jobs.agent.process_group import StopSignals
from deepvm.jobs.cloud import Cloud, NetworkFaults, RemoteCloud, Start
from deepvm.jobs.clouds.registry import clouds_that_cut, clouds_that_preempt
from deepvm.jobs.controller import messages
from deepvm.jobs.controller.api import BusyError, ChangeSignal, listening, server_of
from deepvm.jobs.controller.changes import Sampler, changed_states, has_changed, rows_of
from deepvm.jobs.controller.cloud_calls import CloudCalls
from deepvm.jobs.controller.injector import FaultKind, InjectedFault, Injector
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.apply_events import heard, why_not_saved
from deepvm.jobs.decisions.hangs import adopted, forgiven
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.markets import most_usd_per_hour
from deepvm.jobs.decisions.reconcile import Decisions, orders_of, react, with_generation_broken
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import UNREADY, JobState
from deepvm.jobs.history.history import MACHINE, EventRow, History
from deepvm.jobs.history.log_files import add_line
from deepvm.jobs.history.timeline import LEAST_S, caught_up, last_seen_s
from deepvm.jobs.loggers import jobs_log as log
from deepvm.jobs.steady_clock import clock_of
from deepvm.jobs.wire import USER, Receiver, secret_of, token_of
from deepvm.records import asdict, dataclass, field, replace

_TICK_S = 0.2
_ACK_S = 8.0
# Grace period after a broken connection: a new one takes several round trips, some slow
_GONE_NEAR_S, _GONE_S = 0.3, 3.0
_PIECE = 300_000
_LONGEST_LINE = 1000
_STALL_S = 1.0
_AGAIN_S = 1.0
_UNWRITTEN_S = 300.0
_LOCKED_S = 0.3
_KEPT_S = 1800.0  # How long the last outputs of a machine may delay its release
RELEASE_LIMIT_S = 15.0  # How long releasing machines may take after a second interruption
# Events of which only what follows is written down
_QUIET = (d.Tick, d.Heartbeat, d.InstancesListed, d.Silent, d.OutputsLooked)


@dataclass(frozen=True)
class ControlledJob:
    """A job as its controller runs it."""

    name: str
    folder: Path
    secret: str = field(repr=False)  # its machines' secrets follow from it
    spec: JsonObject  # what agents get
    code: Path | None = None  # an archive
    injection: Injection | None = None
    list_s: float = 1.0  # between looks at the cloud's list


class Controller:
    """Runs a job to its end; everything happens in one thread, but for the calls to the cloud."""

    def __init__(self, job: ControlledJob, world: JobState, cloud: Cloud, history: History) -> None:
        self._job = job
        self.world = world
        self._cloud = cloud
        self._history = history
        self._stored = world
        self._clock = clock_of(job.folder, world.now_s)
        self._unwritten_s: float | None = None  # Since when the history cannot be written
        self.on_event: Callable[[EventRow], None] = lambda event: None
        # Is called with the lines of trainers: machine, process on it, text
        self.on_line: Callable[[str, int, str], None] = lambda machine, rank, text: None
        # Returns once all that is written down is safe elsewhere, too; acts wait for it
        self.kept: Callable[[], Awaitable[None]] = _nowhere_else
        self._receiver = Receiver(job.secret)
        self.signals = StopSignals()
        self.keeps = False  # whether signals end only the controller, and machines train on
        self._interrupts = 0
        self._leaves_s = math.inf
        self._responder = messages.HeartbeatResponder(job.spec, self._clock)
        self._change = ChangeSignal()
        self._tasks = set[asyncio.Task[None]]()
        self._explained = set[str]()
        # Machines of which is written down that they get no notices
        self._without_notices = set[str]()
        self._injector = Injector(job.injection, ())
        self._heartbeats: dict[str, tuple[d.Heartbeat, float]] = {}
        self._inbox: list[d.Event] = []
        self._wrong: Exception | None = None
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self.last_lines: list[str] = []
        # Lines of a machine that its log lacks, since one could be written, and the reason
        self._lost_lines: dict[str, tuple[int, str]] = {}
        # Machines that have kept their last outputs, and those that are being released
        self._left, self._leaving = set[str](), set[str]()
        self._stop = ""  # Why the user wants the end; for the loop, which has adopted machines
        self._gone_s = _GONE_NEAR_S if cloud.near else _GONE_S
        self._calls = CloudCalls(cloud, job.name, self.feed)

    @property
    def nonce(self) -> str:
        return self._receiver.nonce

    def feed(self, event: d.Event) -> None:
        """React to an event, with all that have come by then; :meth:`_recorded` waits for it."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._drain)
        self._inbox.append(event)

    async def _recorded(self) -> None:
        """Raises BusyError: what was fed is not written down, and the agent must say it again."""
        await asyncio.sleep(0)  # what was called for before comes first
        if self._unwritten_s is not None or self._wrong is not None:
            raise BusyError("the history cannot be written")

    def _drain(self) -> None:
        try:
            self._act()
        except Exception as error:
            self._wrong = self._wrong or error

    def _act(self) -> None:
        inbox = self._inbox
        self._inbox = []
        before = self.world
        world, acts = react(before, inbox, self._clock.now_s())
        rows = rows_of(before, world, [each for each in inbox if not isinstance(each, _QUIET)])
        if acts or rows or has_changed(before, world):
            changed = changed_states(before, world)
            for label in changed:
                point(f"{label}.unwritten")
            try:
                self._history.commit(self._job.name, self._stored, world, rows)
            except DataError as error:
                self._put_off(inbox, error)
                return
            self._stored = world
            self._unwritten_s = None
            for label in changed:
                point(f"{label}.written")
        self.world = world
        for act in acts:
            self._start(self._do(act))
        if replace(before, now_s=world.now_s) != world:
            self._change.notify()
        for row in rows:
            if row.kind == MACHINE and row.facts["why"] == UNREADY:
                self._start(self._explain(row.facts["id"]))
            try:
                self.on_event(row)
            except Exception as error:  # a terminal that was closed, a pipe without a reader
                log.debug("%s is not shown: %s", row.kind, error)

    def _put_off(self, inbox: list[d.Event], error: DataError) -> None:
        """Do nothing that leaves no record: a full disk or a lock may be gone in a moment."""
        now_s = self._clock.now_s()
        if self._unwritten_s is None:
            self._unwritten_s = now_s
            log.warning("%s; trying again for %.0f s", error, _UNWRITTEN_S)
        # An interruption since then ends the job's records as they are: it must not wait so long
        elif (
            self._interrupts < len(self.signals.numbers)
            or now_s - self._unwritten_s >= _UNWRITTEN_S
        ):
            raise error
        self._inbox = [*inbox, *self._inbox]
        asyncio.get_running_loop().call_later(_AGAIN_S, self._drain)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, act: d.Act) -> None:
        try:
            await self._safe()
        except BusyError:
            return
        if isinstance(act, d.Release):
            await self._release(act.id)
            return
        job = self._job
        place = str(job.folder / "controller")
        record = self.world.machines[act.id]
        most_usd = most_usd_per_hour(self.world, record.pool, record.role)
        start = Start(job.name, act.id, secret_of(job.secret, act.id), self._url, place, most_usd)
        await self._calls.request(record, start)

    async def _release(self, machine: str) -> None:
        """End a machine after its outputs are kept; it is wanted again and again until it ends."""
        if machine in self._leaving:
            return
        self._leaving.add(machine)
        try:
            await self._outputs_kept(machine)
            await self._calls.release(machine)
        finally:
            self._leaving.remove(machine)

    async def _outputs_kept(self, machine: str) -> None:
        """Wait for the last outputs of a machine that has trained, while its agent answers."""
        limit_usd = self.world.terms.total_usd
        until_s = time.monotonic() + _KEPT_S
        while self._job.spec.get("outputs") and machine not in self._left:
            record = self.world.machines.get(machine)
            if record is None or record.trained_s is None or record.heard_s is None:
                return
            silent_s = self._clock.now_s() - record.heard_s
            over = record.state.over or silent_s >= self.world.terms.silent_s
            over |= limit_usd is not None and self.world.usd >= limit_usd
            if over or len(self.signals.numbers) > 1 or time.monotonic() >= until_s:
                return
            await self._change.wait(_TICK_S)

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
        self._without_notices = {event.facts["id"] for event in events if event.kind == "deaf"}
        host = await self._calls.call(self._cloud.host, self._job.name)
        remote = self._cloud if isinstance(self._cloud, RemoteCloud) else None
        bound = listening(*(remote.listen() if remote else (host, 0)))
        server = server_of(self, self._receiver)
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            await asyncio.sleep(0.01)
        self._url = f"http://{host}:{bound.getsockname()[1]}"
        write_bytes(self._job.folder / "controller", self._url.encode())
        if remote:
            await self._calls.call(remote.announce, self._job.name, self._url)
        point(f"job.{self.world.job.value}.begun")
        last_s = self._clock.now_s()
        samples = self._history.samples(self._job.name)
        if self.world.machines:
            self._was_away(last_s - last_seen_s(self.world, samples))
        self.world = adopted(caught_up(self.world, samples), last_s)
        self._responder.take_up(self.world)
        sampler = Sampler(self._history, self._job.name)
        looked = False
        try:
            while True:
                if self._wrong is not None:
                    raise self._wrong
                now_s = self._clock.now_s()
                stalled_s = now_s - last_s - _TICK_S
                last_s = now_s
                if stalled_s >= _STALL_S:  # no heartbeat could be received
                    self._forgive(stalled_s)
                if self._unwritten_s is not None:
                    self._apply_heartbeats()
                    await asyncio.sleep(_TICK_S)
                    continue
                over = self.world.over
                if not over and self._calls.is_list_due(self._job.list_s):
                    self._start(self._calls.list())
                self._take_signals()
                if self._stop:
                    self.feed(d.Stop(self._stop))
                    self._stop = ""
                self._apply_heartbeats()
                self.feed(d.Tick())
                sampler.take(self.world)
                self._inject_faults()
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

    def give_up(self, error: Exception) -> None:
        """End :meth:`run` with this error and keep all machines: another controller has the job."""
        self._wrong = self._wrong or error

    def _apply_heartbeats(self) -> None:
        """Process the members' heartbeats since the last look at once: one by one is too slow."""
        now_s = self._clock.now_s()
        world = self.world
        machines = dict(world.machines)
        own = []
        for machine, (beat, at_s) in self._heartbeats.items():
            record = machines[machine]
            if record.state is not Machine.MEMBER:
                self.feed(beat)
                continue
            machines[machine] = replace(record, heard_s=now_s, silent_s=None)
            world = world.with_spare(machine, spare=beat.spare)
            own.append((beat, at_s))
        self._heartbeats = {}
        self.world = heard(replace(world, machines=machines), own)

    async def _explain(self, machine: str) -> None:
        if machine in self._explained:
            return
        self._explained.add(machine)
        try:
            lines = await self._calls.call(self._cloud.last_lines, self._job.name, machine)
        except (DeepVMError, OSError) as error:
            log.warning("%s", error)
            return
        if lines:
            self.last_lines = [line[:_LONGEST_LINE] for line in lines]
            self.feed(d.Failed(machine, self.last_lines[-1], own=True, lines=self.last_lines))

    def _inject_faults(self) -> None:
        for fault in self._injector.due(self.world, self._clock.now_s()):
            if fault.new and fault.blow is not FaultKind.RECOMMEND:
                self.feed(d.FaultInjected(fault.id, fault.blow.value, fault.grace_s))
            self._start(self._inject(fault))

    async def _inject(self, fault: InjectedFault) -> None:
        """Preempt once it is recorded: the next controller must not preempt another machine."""
        try:
            await self._recorded()
            await self._safe()
        except BusyError:
            self._injector.put_off(fault)
            return
        if not await self._calls.inject(fault):
            again = replace(fault, new=False)  # it is written down already
            asyncio.get_running_loop().call_later(_AGAIN_S, self._injector.put_off, again)

    async def job(self, machine: str, message: JsonObject) -> JsonObject:
        job = self._job
        token = self._receiver.hidden(token_of(job.secret), message)
        return {
            **job.spec,
            "name": job.name,
            "has_code": job.code is not None,
            "sealed_token": token,
        }

    async def code(self, machine: str, message: JsonObject) -> JsonObject:
        code = self._job.code
        assert code is not None
        if "offset" not in message:
            return {"bytes": code.stat().st_size}
        with code.open("rb") as file:
            file.seek(int(message["offset"]))
            return {"data": file.read(_PIECE).hex()}

    async def beat(self, machine: str, message: JsonObject) -> JsonObject:
        beat = messages.beat_of(machine, message)
        record = self.world.machines.get(machine)
        responder = self._responder
        if record is None:
            return responder.response(Decisions(shutdown=True), self.nonce, self.world)
        is_new = responder.receive(beat)
        if (wait := self._waiting.pop(machine, None)) is not None:
            wait.cancel()
        if record.state is Machine.MEMBER:
            self._heartbeats[machine] = beat, self._clock.now_s()
        else:
            self.feed(beat)
            await self._recorded()
        if beat.scheduled or is_new:
            self._change.notify()
        until_s = time.monotonic() + min(beat.wait_s, 60.0)
        while True:
            orders = orders_of(self.world, machine)
            left_s = until_s - time.monotonic()
            is_seen = responder.digest(orders, self.nonce) == beat.seen
            if responder.splits(orders):
                self.world = with_generation_broken(self.world)  # the next look forms another
            elif not is_seen and responder.can_begin(machine, orders, self.world):
                break
            if left_s <= 0:
                return {"same": True}
            await self._change.wait(left_s)
        await self._safe()
        point("controller.before-orders")
        return responder.response(orders, self.nonce, self.world)

    async def _safe(self) -> None:
        """Wait until what follows cannot be forgotten. Raises BusyError."""
        try:
            await self.kept()
        except DeepVMError as error:
            self.give_up(error)
            raise BusyError(str(error)) from None

    def gone(self, machine: str) -> None:
        if machine in self.world.machines and machine not in self._waiting:
            self._waiting[machine] = asyncio.get_running_loop().call_later(
                self._gone_s, self._is_gone, machine
            )

    def _is_gone(self, machine: str) -> None:
        del self._waiting[machine]
        self.feed(d.Silent(machine))

    async def schedule(self, machine: str, message: JsonObject) -> JsonObject:
        generation, step, (reason, left_ms, request) = messages.schedule_of(message)
        world = self.world
        members = world.members
        if generation != world.generation or not world.formed or members[:1] != (machine,):
            return {"error": "an older generation"}
        # No controller before this one has used it: what agents had from that is no answer to this.
        number = 1 + secrets.randbits(48)
        save = [reason, int(self._clock.now_s() * 1000) + left_ms, request]
        self._responder.schedule = {
            "generation": generation,
            "step": step,
            "save": save,
            "number": number,
        }
        until_s = time.monotonic() + _ACK_S
        self._change.notify()
        while missing := self._responder.unscheduled(members, number):
            left_s = until_s - time.monotonic()
            if self.world.generation != generation:
                return {"error": "an older generation"}
            if left_s <= 0:
                # Some will save it and others not: none continues, unless they agree themselves
                for one in () if message.get("peers") else missing:
                    self.feed(d.Silent(one))
                return {"error": "not all machines have it"}
            await self._change.wait(left_s)
        point("controller.before-schedule")
        return {}

    async def command(self, machine: str, message: JsonObject) -> JsonObject:
        if machine != USER:
            return {"error": "only the user may"}
        kind = message["command"]
        if kind == "stop":
            self._stop = "stopped by the user"
        elif kind == "save":
            if why := why_not_saved(self.world):
                return {"error": f"no checkpoint is asked for: {why}"}
            self.feed(d.SaveNow())
        elif kind == "inject":
            if not self._cloud.can_preempt:
                clouds = joined(clouds_that_preempt())
                return {"error": f"its cloud preempts machines itself; allowed with {clouds}"}
            injection = Injection.of(message["inject"], self.world.preemptions)
            if injection.silent and not isinstance(self._cloud, NetworkFaults):
                clouds = joined(clouds_that_cut())
                return {"error": f"no link can be taken away here; allowed with {clouds}"}
            self.feed(d.Injected(**asdict(injection)))
            self._injector.order(injection, self._clock.now_s())
            await self._recorded()
        else:
            return {"error": f"there is no command {kind!r}"}
        return {}

    async def handle(self, body: bytes, signature: str) -> tuple[bytes, str]:
        """Answer a command that came not over HTTP. Raises WireError, or what it lacks."""
        message = self._receiver.opened(body, signature)
        answer = await self.command(str(message["machine"]), message)
        await asyncio.sleep(2 * _TICK_S)  # until it was fed and written down
        await self.kept()
        return self._receiver.sealed(answer, message)

    async def report(self, machine: str, message: JsonObject) -> JsonObject:
        wrong: Exception | None = None
        for event in message["events"]:
            record = self.world.machines.get(machine)
            number = messages.field_of(event, "of")
            if record is None or number <= record.reported:
                continue  # the answer to it was lost
            self.world = self.world.with_machine(replace(record, reported=number))
            try:
                self._reported(machine, event)
            except (KeyError, TypeError, ValueError) as error:
                wrong = error  # later ones count; it does not, nor when it is sent again
        await self._recorded()
        if any(event.get("event") != LINE for event in message["events"]):
            await self._safe()
        if wrong is not None:
            raise wrong
        point("controller.before-heard")
        return {}

    def _reported(self, machine: str, event: JsonObject) -> None:
        if event["event"] == LINE:
            self._line(
                machine,
                messages.field_of({"local_rank": 0, **event}, "local_rank"),
                messages.field_of(event, "text"),
            )
            return
        if event["event"] == LEFT:
            self._left.add(machine)
            self._change.notify()
            return
        happened = messages.event_of(machine, event)
        if happened is None or not messages.can_know(self.world, machine, happened):
            return
        if isinstance(happened, d.Failed) or (isinstance(happened, d.Ended) and happened.code):
            self.last_lines = messages.lines_of(event)
            self._explained.add(machine)
        if isinstance(happened, d.MetadataUnavailable):
            if machine in self._without_notices:
                return
            self._without_notices.add(machine)
        if isinstance(happened, d.Noticed):
            happened = replace(happened, taken_s=self._clock.of_wall_s(happened.taken_s))
        self.feed(happened)

    def _line(self, machine: str, rank: int, line: str) -> None:
        folder = self._job.folder
        self.on_line(machine, rank, line)
        lost, reason = self._lost_lines.get(machine, (0, ""))
        try:
            if lost:
                add_line(folder, machine, f"[{lost} lines are missing here: {reason}]", time.time())
                del self._lost_lines[machine]
            add_line(folder, machine, line, time.time(), rank)
        except OSError as error:  # a full disk stops no training
            log.debug("a line of %s is lost: %s", machine, error)
            self._lost_lines[machine] = lost + 1, error.strerror or str(error)


async def _nowhere_else() -> None:
    """The history alone is what another controller needs."""
