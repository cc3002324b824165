"""The agent's loop: it applies the controller's desired state and reports local events."""

import math
import os
import threading
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.savepolicy import Never, SaveFacts, parse_policy
from deepvm.io.agent_board import BOARD, Board, Flag, RankFlag, SaveReason, ScheduledSave
from deepvm.io.agent_link import EPOCH
from deepvm.io.failpoints import point
from deepvm.io.host_info import free_port
from deepvm.io.threads import start_thread
from deepvm.jobs.agent.backups import LAST_S, Backups, TrainerRequests, TrainerSocket, open_backups
from deepvm.jobs.agent.controller_client import (
    LEFT,
    LINE,
    ControllerClient,
    ControllerUnreachable,
    DesiredState,
    Reporter,
)
from deepvm.jobs.agent.group_watch import LATE_S, GroupWatch, explanation
from deepvm.jobs.agent.liveness import ControllerLiveness, Progress
from deepvm.jobs.agent.notices import Notice, NoticeSource, watch
from deepvm.jobs.agent.outputs import Outputs
from deepvm.jobs.agent.planned_saves import PendingSave, PlannedSaves
from deepvm.jobs.agent.preparation import (
    ORPHAN_SAVE_S,
    AgentEnvironment,
    OrphanedError,
    Preparation,
)
from deepvm.jobs.agent.trainers import TORCHRUN, Command, ProcessLayout, Trainers
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.wire import WireError

_TICK_S = 0.01
_RETRY_S = 0.1
# Time limits for the controller to schedule a step; the second if ranks can do so
_SCHEDULED_S, _SCHEDULED_ALONE_S = 10.0, 3.0
_PREPARING_S = 1.0
_WARM_AGAIN_S = 0.5
# Time before the end of its machine when the agent logs the steps that are not saved
_BEFORE_END_S = 1.0
# For how long a notice waits for the controller before the ranks save by themselves
_UNHEARD_S = 1.5
# For how long outputs of failed trainers delay their restart, and an end of its reports
_FAILED_S, _LEFT_S = 60.0, 5.0
_NO_BACKUP = (
    "of independent processes only the first of each machine keeps backups; a Checkpointer saves"
    " in all"
)


class Agent(TrainerRequests):
    """The agent of one machine, from its start to the end of the machine."""

    _trainers: Trainers  # once it is prepared

    def __init__(self, around: AgentEnvironment, notices: NoticeSource | None) -> None:
        self._around = around
        self._notices = notices
        self._over = threading.Event()
        self._orders = DesiredState()
        self._scheduled = 0
        self._running = 0
        self._request_s: float | None = None  # The time of the controller's request that is obeyed
        self._board: Board | None = None
        self._layout = ProcessLayout(1, (), independent=False, job="")
        # While trainers of a world of several run here, and have formed no process group
        self._group: GroupWatch | None = None
        self._warmed_s = 0.0
        self._plan = PlannedSaves(Never(), 0.0)
        self._liveness = ControllerLiveness(around.beat_s)
        self._progress = Progress()
        # The newest checkpoints that trainers reported as safe: with the anchors, and without
        self._safe = self._lasts = 0
        self._pending_save: PendingSave | None = None
        self._warned_s = 0.0  # Time of the request whose save has been logged as too late
        # Whether trainers may hold without the controller's request, and the one it waits for
        self._alone, self._there = False, 0
        self._lock = threading.Lock()
        self._clients = {
            name: ControllerClient(around.controller, around.machine, around.secret)
            for name in ("beat", "report", "ask")
        }
        self._reporter = Reporter(self._clients["report"], self._over)
        self._ask_lock = threading.Lock()
        self._preparation = Preparation(
            around, self._clients["ask"], self._reporter, self._liveness
        )
        self._prepared = threading.Event()
        self._backups = Backups(None, around.folder)
        self._outputs = self._outputs_of({}, around.folder)
        # Since when trainers have ended whose last backups and outputs are under way
        self._ended_s: float | None = None
        # The exit code and last lines of trainers that have ended; None once it is reported
        self._verdict: tuple[int, list[str]] | None = None

    def run(self) -> None:
        folder = self._around.folder
        folder.mkdir(parents=True, exist_ok=True)
        if self._notices is not None:
            start_thread(
                watch,
                self._notices,
                self._over,
                self._noticed,
                self._rebalanced,
                self._unavailable,
                name="notices",
            )
        try:
            self._prepare()
        except OrphanedError:
            silent_s = self._preparation.orphan_after_s
            log.warning("no controller was found for %.0f s: this machine ends", silent_s)
            return
        except Exception as error:  # such as a full disk: of this machine, not of the job
            log.exception("this machine cannot train")
            lines = traceback.format_exc().splitlines()
            self._preparation.give_up(
                "unusable", why=f"{type(error).__name__}: {error}", own=True, lines=lines
            )
        sockets = TrainerSocket(folder, self._answer)
        try:
            self._loop()
        finally:
            self._over.set()
            self._trainers.close()
            sockets.close()

    def _prepare(self) -> None:
        preparation = self._preparation
        spec = preparation.job()
        start_thread(self._beats, name="beats")
        code = preparation.have_code(spec)
        environ = preparation.environ(spec)
        both = {**environ, **spec["env"]}
        self._layout = ProcessLayout.of(spec, both)
        self._plan = PlannedSaves(parse_policy(spec["save_policy"]), float(spec["grace_s"]))
        self._backups = Backups(
            open_backups(spec["tiers"], spec["name"]),
            self._around.folder / "backups",
            int(spec["keep"]),
        )
        report = partial(self._report_line, 0)
        preparation.set_up(spec["setup"], code, both, report)
        preparation.have_data(spec["data"], report)
        self._outputs = self._outputs_of(spec, code)
        command = Command(
            spec["train"], self._layout.processes, spec["env"], code, spec["launcher"]
        )
        self._trainers = Trainers(command, environ, self._report_line)
        preparation.loads_s = time.monotonic()
        self._trainers.warm_up()
        self._prepared.set()

    def _outputs_of(self, spec: JsonObject, code: Path) -> Outputs:
        report = partial(self._reporter.add, "outputs")
        return Outputs(self._around.machine, self._around.beat_s, spec, code, report)

    def _beats(self) -> None:
        while not self._over.is_set():
            try:
                self._beat()
            except Exception:
                # A silent machine is given up, even if its trainers run
                log.exception("a heartbeat failed")
                self._over.wait(_RETRY_S)
            silent_s = self._liveness.lasts_s
            if not self._prepared.is_set() and silent_s >= self._preparation.orphan_after_s:
                log.warning("no controller has answered for %.0f s: this machine ends", silent_s)
                self._preparation.stop()
                # The main thread waits for a setup or for data, and has nothing to save
                os._exit(0)
            self._prepared.wait(_PREPARING_S)

    def _beat(self) -> None:
        around = self._around
        warm = False
        ready = False
        doing = self._preparation.doing
        if self._prepared.is_set():
            doing = ""
            warm = self._trainers.warm
            ready = warm or bool(self._trainers.running)
        # The board is replaced before its generation is: no step of an older one is reported
        generation = self._running
        base = self._base
        board = self._board

        def flag(name: RankFlag) -> int:
            if board:
                return board.of_rank(0, name)
            return 0

        message = {
            "generation": generation,
            "step": base + flag(RankFlag.STEP),
            "step_s": flag(RankFlag.STEP_NS) / 1e9,
            "warm": ready,
            "spare": warm,
            "preparing": doing,
            "address": around.address,
            "port": free_port(),
            "idle_s": self._progress.idle_s,
            "printed_s": self._progress.printed_s,
            "longest_s": self._progress.longest_s,
            "between_s": flag(RankFlag.BETWEEN_NS) / 1e9,
            "of_s": flag(RankFlag.OF_NS) / 1e9,
            "seen": self._orders.digest,
            "scheduled": self._scheduled,
            "wait_s": around.beat_s if ready else 0.0 if doing else _RETRY_S,
        }
        try:
            answer = self._clients["beat"].ask("/beat", message, around.beat_s + 10.0)
        except (ControllerUnreachable, WireError) as error:
            log.debug("no answer to a heartbeat: %s", error)
            self._liveness.failed()
            self._over.wait(_RETRY_S)
            return
        self._liveness.answered()
        if not answer.get("same"):
            self._obey(DesiredState.of(answer))

    def _obey(self, orders: DesiredState) -> None:
        # By this machine's clock, which may show another time than the controller's
        if orders.save is not None:
            orders.save["limit_s"] = time.time() + orders.save["left_s"]
        with self._lock:
            self._orders = orders
            schedule = orders.schedule
            board = self._board
            if schedule and board and schedule["generation"] == self._running:
                board.schedule(schedule["step"], ScheduledSave.of_others(schedule["save"]))
                point("agent.scheduled")
                self._scheduled = schedule["number"]

    def _noticed(self, notice: Notice) -> None:
        point("agent.notice")
        self._outputs.look(noticed=True)
        number = self._reporter.add("notice", taken_s=notice.taken_s, action=notice.action)
        self._save_if_unheard(number, SaveReason.EMERGENCY, notice.taken_s)

    def _rebalanced(self) -> None:
        self._save_if_unheard(self._reporter.add("rebalance"), SaveReason.INSURANCE, 0.0)

    def _save_if_unheard(self, report: int, reason: SaveReason, limit_s: float) -> None:
        self._pending_save = PendingSave(report, reason, limit_s, time.monotonic() + _UNHEARD_S)

    def _unavailable(self, error: Exception) -> None:
        self._reporter.add("deaf", why=str(error))

    def _loop(self) -> None:
        last_save_limit_s = None
        wanted = 0
        while True:
            orders = self._orders
            if orders.shutdown:
                self._leave()
                return
            silent_s = self._liveness.lasts_s
            if silent_s >= self._preparation.orphan_after_s:
                if last_save_limit_s is None:
                    log.warning(
                        "no controller has answered for %.0f s: trainers save, and this machine"
                        " ends",
                        silent_s,
                    )
                    last_save_limit_s = time.monotonic() + ORPHAN_SAVE_S
                    if self._board is not None:
                        wanted = self._base + self._board.of_rank(0, RankFlag.STEP)
                        limit_ms = int((time.time() + ORPHAN_SAVE_S) * 1000)
                        self._board.request(SaveReason.STOP, limit_ms)
                late = time.monotonic() > last_save_limit_s
                if late:
                    self._warn_of_unsaved("this machine ends")
                if late or self._has_saved(wanted):
                    self._leave()
                    return
            else:
                last_save_limit_s = None
            with self._lock:
                if orders.generation != self._running:
                    self._change(orders)
                board = self._board
                if board is not None and self._running:
                    self._save(orders, board)
                    self._save_unheard(board)
                    self._check_group(board)
                self._watch()
                if board is not None and (self._trainers.running or self._verdict):
                    self._follow(board)
                if board is not None and self._running:
                    self._plan_saves(orders, board)
            self._over.wait(_TICK_S)

    def _leave(self) -> None:
        """Keep the last outputs; the machine is released once the controller knows."""
        with self._lock:
            self._kill()
        self._outputs.close(LAST_S)
        self._reporter.add(LEFT)
        self._reporter.drain(_LEFT_S)

    def _kill(self) -> None:
        with self._outputs.killing():
            self._trainers.kill()

    def _warn_of_unsaved(self, when: str) -> None:
        if self._board is None or not self._is_first(self._orders):
            return
        if unsaved := self._plan.unsaved_steps(self._board, self._base):
            log.warning("%s: %s", when, unsaved)
            self._report(LINE, local_rank=0, text=f"deepvm: {when}: {unsaved}")

    def _has_saved(self, wanted: int) -> bool:
        """Whether this machine's files are durable; only rank 0 reports whole checkpoints."""
        board = self._board
        trainers = self._trainers
        if board is None or not self._running or not trainers.running:
            return True
        if self._backups.under_way:
            return False
        if self._is_first(self._orders):
            return self._lasts >= wanted
        ranks = range(trainers.command.per_machine)
        return all(board.of_rank(rank, RankFlag.HELD) for rank in ranks)

    def _is_first(self, orders: DesiredState) -> bool:
        return bool(orders.ranks) and bool(orders.ranks[0]["machine"] == self._around.machine)

    def _change(self, orders: DesiredState) -> None:
        trainers = self._trainers
        done = 0
        if trainers.running or self._verdict:
            point("agent.before-kill")
            self._kill()
            if self._board is not None:
                done = self._base + self._board.of_rank(0, RankFlag.STEP)
            point("agent.after-kill")
        self._running = 0
        self._request_s = None
        self._group = None
        self._verdict = None
        trainers.warm_up()
        if not orders.generation:
            return
        self._reporter.forget(orders.generation)
        self._ended_s = None
        self._backups.forget(orders.generation)
        # The older board is not closed: reader threads may still hold it.
        self._base = 0
        self._scheduled = 0
        self._board = Board.create(self._around.folder / BOARD)
        self._progress.begin()
        self._running = orders.generation
        self._alone = False
        self._there = 0
        self._safe = 0
        self._lasts = 0
        self._plan.restored(0)
        self._plan.safe = None
        mine = next(r for r in orders.ranks if r["machine"] == self._around.machine)
        world = sum(r["processes"] for r in orders.ranks)
        common = {
            EPOCH: str(orders.generation),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": orders.ranks[0]["address"],
            "MASTER_PORT": str(orders.port),
            "DEEPVM_TIERS": " ".join(orders.tiers),
        }
        if self._around.interface:
            # A user's own stay
            names = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - trainers.command.env.keys()
            common |= dict.fromkeys(names, self._around.interface)
        rank = orders.ranks.index(mine)
        self._outputs.trains(orders.generation, rank)
        first = sum(r["processes"] for r in orders.ranks[:rank])
        each = [
            common | self._layout.variables(local, first + local)
            for local in range(trainers.command.processes)
        ]
        if world > 1 and not self._layout.independent:
            peers = {r["address"] for r in orders.ranks if r is not mine}
            self._group = GroupWatch(
                lambda: trainers.are_connected(orders.port, peers, orders.tiers)
            )
        point("agent.before-trainers")
        try:
            trainers.start(each)
            point("agent.after-trainers")
        except OSError as error:
            self._report_line(0, reason := trainers.command.start_problem(error))
            self._report("ended", code=127, step=0, lines=[reason])
            return
        self._report("started", done=done)

    def _save(self, orders: DesiredState, board: Board) -> None:
        if orders.save is None:
            # A controller that has just come back may not have heard yet for what they hold.
            if self._request_s is not None or (self._alone and self._liveness.is_over):
                self._request_s = None
                self._alone = False
                self._there = 0
                board.resume()
            return
        asked_s = orders.save["asked_s"]
        reason = SaveReason(orders.save["reason"])
        if self._request_s != asked_s:
            # Given up and requested again between two heartbeats: they hold for one that failed
            again = self._request_s is not None
            held = board.of_rank(0, RankFlag.HELD)
            board.words[Flag.RESUMED] = self._requested(board) if again else 0
            self._there = 0
            if self._is_first(orders) and held and reason.holds and not again:
                self._there = self._base + held  # what they have saved by themselves is as good
            elif self._is_first(orders):
                point("agent.before-request")
                board.request(reason, int(orders.save["limit_s"] * 1000))
            self._request_s = asked_s
        late = time.time() >= orders.save["limit_s"] - _BEFORE_END_S
        if late and self._warned_s != asked_s and reason in (SaveReason.EMERGENCY, SaveReason.STOP):
            self._warned_s = asked_s
            self._warn_of_unsaved("the time to save is over")
        if self._there and (self._lasts if reason.ends else self._safe) >= self._there:
            facts = {"version": self._there, "lasts": self._lasts >= self._there, "pending": False}
            self._report("saved", reason=reason, stall_s=0.0, took_s=0.0, **facts)
            self._there = 0

    def _requested(self, board: Board) -> int:
        """Number of the newest request that ranks here may hold for, as rank 0's agent counts."""
        if self._is_first(self._orders):
            return board.words[Flag.REQUEST]
        step = board.of_rank(0, RankFlag.STEP)
        # The next one is marked only when all have done what is marked now.
        marked = [board.scheduled(n) for n in (step - 1, step, step + 1) if n > 0]
        return max((save.request for save in marked if save is not None), default=0)

    def _save_unheard(self, board: Board) -> None:
        plan = self._plan
        pending = self._pending_save
        silent = self._liveness.now
        board.words[Flag.UNHEARD] = silent
        if silent and not self._alone and self._orders.save is None:
            self._alone = True
            board.words[Flag.RESUMED] = 0
        if pending is None or time.monotonic() < pending.until_s:
            return
        self._pending_save = None
        facts = replace(plan.facts, grace_s=pending.limit_s - time.time())
        if pending.reason.holds:
            wanted = plan.policy.emergency(facts)
        else:
            wanted = plan.policy.saves
        if wanted and not self._reporter.is_heard(pending.report):
            log.warning("the controller does not get it: the ranks save without it")
            board.request(pending.reason, int(pending.limit_s * 1000))

    def _check_group(self, board: Board) -> None:
        group = self._group
        trainers = self._trainers
        if group is None or not trainers.running:
            return
        steps = any(board.of_rank(rank, RankFlag.STEP) for rank in range(self._layout.processes))
        if group.has_failed or (steps and not group.is_formed(now=True)):
            trainers.kill()
            lines = [self._report_no_group("by their first step")]
            self._report("ended", code=1, step=0, lines=lines)
        elif not group.is_formed() and group.is_late():
            self._report_no_group(f"within {LATE_S:.0f} s")

    def _report_no_group(self, when: str) -> str:
        machines = len(self._orders.ranks)
        text = explanation(self._layout.processes, self._around.machine, machines, when)
        self._report_line(0, text)
        return text

    def _follow(self, board: Board) -> None:
        save = self._orders.save
        ranks = range(self._layout.processes)
        steps = tuple(board.of_rank(rank, RankFlag.STEP) for rank in ranks)
        started = any(steps[r] and steps[r] == board.of_rank(r, RankFlag.VERSION) for r in ranks)
        waits_for = self._ended_s  # the last backups, after the end
        if started and save and SaveReason(save["reason"]).holds and time.time() < save["limit_s"]:
            waits_for = waits_for or save["asked_s"]
        self._progress.look(steps, waits_for)
        if (took_s := self._progress.first_s()) is not None and self._is_first(self._orders):
            self._report("stepped", took_s=took_s)

    def _watch(self) -> None:
        trainers = self._trainers
        board = self._board
        if not self._preparation.over and (trainers.warm or trainers.running):
            self._preparation.end()
        trains = board is not None and board.of_rank(0, RankFlag.STEP) > self._plan.last_step
        if (trains or not trainers.running) and time.monotonic() >= self._warmed_s + _WARM_AGAIN_S:
            self._warmed_s = time.monotonic()
            trainers.warm_up()  # for those that were killed while they waited, too
        if self._verdict is None and trainers.running and board is not None:
            self._verdict = self._judged()
        if self._verdict is None or board is None:
            return
        code, lines = self._verdict
        if trainers.running:
            self._kill()
        # What they have written is kept before the controller may release this machine
        limit_s = _FAILED_S if code else LAST_S
        kept = self._outputs.look_last(patient=not code)
        if not kept and time.monotonic() - (self._ended_s or 0.0) < limit_s:
            return
        self._verdict = None
        step = self._base + board.of_rank(0, RankFlag.STEP)
        if code and self._request_s is not None:
            self._warn_of_unsaved("trainers ended while they were to save")
        point("agent.ended")
        self._report("ended", code=code, step=step, lines=lines)

    def _judged(self) -> tuple[int, list[str]] | None:
        """The exit code of ended trainers and their last lines; None while it is not known."""
        trainers = self._trainers
        code = trainers.ended()
        if code is None:
            return None
        self._ended_s = self._ended_s or time.monotonic()
        if code:
            return code, trainers.last_lines()
        unsaved = self._unsaved()
        if unsaved is None:
            return None
        if not unsaved and self._group is not None and not self._group.is_formed(now=True):
            explained = self._report_no_group("before they ended")
            if trainers.command.launcher != TORCHRUN:
                unsaved = explained
        return (1, [unsaved]) if unsaved else (0, [])

    def _unsaved(self) -> str | None:
        """Why the last backup of ended trainers is not safe, empty if it is; None if unknown."""
        backups = self._backups
        assert self._ended_s is not None
        if backups.under_way and time.monotonic() - self._ended_s < LAST_S:
            return None
        if backups.under_way:
            why = f"it takes longer than {LAST_S:.0f} s"
        else:
            why = backups.failure
        if why:
            return f"the training has ended, and its last backup was not made: {why}"
        return ""

    def _plan_saves(self, orders: DesiredState, board: Board) -> None:
        if not self._is_first(orders):
            return
        cost = {"save_s": orders.save_s, "backup_s": orders.took_s, "emergency_s": orders.took_s}
        known = SaveFacts(mttp_s=math.inf, missed_rate=orders.missed_rate, **cost)
        if orders.mttp_s is not None:
            known = replace(known, mttp_s=orders.mttp_s)
        self._plan.look(board, known)

    def _report(self, kind: str, **facts: Any) -> None:
        self._reporter.add(kind, generation=self._running, **facts)

    def _report_line(self, local_rank: int, line: str) -> None:
        self._progress.printed()
        self._report(LINE, local_rank=local_rank, text=line)

    def _answer(self, message: JsonObject) -> JsonObject:
        kind = message.get("ask") or message.get("tell")
        epoch = message.get("epoch")
        if epoch != self._running:  # of trainers that were killed meanwhile
            return {"error": f"generation {epoch} is over: {self._running} runs here"}
        if kind == "first-step":
            return {"stop": self._group is not None and self._group.first_step()}
        # A launcher of the user's own started a group on this machine alone
        if message.get("world") == message.get("local_world", 0) and self._group is not None:
            self._group.has_failed |= len(self._orders.ranks) > 1
        if self._layout.independent and message["local_rank"]:
            if kind != "backup":
                return {}
            return {"error": _NO_BACKUP}
        if kind == "restored":
            self._report("started", version=int(message["version"]))
        return super()._answer(message)

    def _durable_reported(self, message: JsonObject) -> None:
        version = int(message["version"])
        if "error" in message:
            self._report("alone", version=version, why=message["error"])
            return
        self._lasts = max(self._lasts, version)
        self._report("lasts", version=self._lasts, took_s=float(message["took_s"]))

    def _report_unsaved(self, reason: SaveReason, why: str) -> None:
        self._report("unsaved", reason=reason, why=why)

    def _report_safe(self, save: JsonDict) -> None:
        self._safe = save["version"]
        self._outputs.look()
        if save["lasts"]:
            self._lasts = self._safe
        point("agent.before-saved")
        self._report("saved", **save | {"lasts": self._lasts >= self._safe})

    def _schedule(self, step: int, save: ScheduledSave, *, peers: bool) -> JsonObject:
        board = self._board
        if board is None:
            return {"error": "no generation runs here"}
        if len(self._orders.ranks) == 1:
            board.schedule(step, save)
            return {}
        found = self._marked_everywhere(step, save, peers=peers)
        if "error" in found and not peers:  # else rank 0 marks it over the ranks' own store
            self._save_reported(
                {"save": list(save), "error": f"step {step} is not marked: {found['error']}"}
            )
        return found

    def _marked_everywhere(self, step: int, save: ScheduledSave, *, peers: bool) -> JsonObject:
        if self._liveness.now:
            return {"error": "the controller does not answer"}
        order = {"generation": self._running, "step": step, "save": save.for_others()}
        limit_s = _SCHEDULED_ALONE_S if peers else _SCHEDULED_S
        with self._ask_lock:
            try:
                return self._clients["ask"].ask("/schedule", {**order, "peers": peers}, limit_s)
            except (ControllerUnreachable, WireError) as error:
                return {"error": str(error)}

    def _has_gone_on(self, local_rank: int, step: int) -> bool:
        assert self._board is not None
        return self._board.of_rank(local_rank, RankFlag.STEP) > step or self._trainers.ended() == 0

    def _is_given_up(self) -> bool:
        return not self._alone and self._orders.save is None

    def _latest(self, message: JsonObject) -> JsonObject:
        found = super()._latest(message)
        if not message["rank"]:
            self._report("started", version=self._base)
        return found
