"""The agent's loop: it applies the controller's desired state and reports local events.

Orders come as answers to heartbeats, and say what should be so now, not what has changed: an answer
that is lost is made good by the next. Without the controller the trainers continue, and have
versions saved by themselves; after ``orphan_after_s`` the agent has them save, and ends its
machine.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import traceback
from dataclasses import replace
from functools import partial

from deepvm.core.json_types import JsonObject
from deepvm.core.preemption.savepolicy import Never, SaveFacts, parse_policy
from deepvm.io.agent_board import BOARD, Board, Flag, RankFlag, SaveReason, ScheduledSave
from deepvm.io.agent_link import EPOCH
from deepvm.io.failpoints import point
from deepvm.io.free_port import free_port
from deepvm.jobs.agent.backups import LAST_S, Backups, TrainerRequests
from deepvm.jobs.agent.controller_client import (
    LINE,
    ControllerClient,
    ControllerUnreachable,
    DesiredState,
    Reporter,
)
from deepvm.jobs.agent.group_watch import LATE_S, GroupWatch, explanation
from deepvm.jobs.agent.liveness import ControllerLiveness, Progress
from deepvm.jobs.agent.notices import Notice, NoticeSource, watch
from deepvm.jobs.agent.planned_saves import PendingSave, PlannedSaves
from deepvm.jobs.agent.preparation import (
    ORPHAN_SAVE_S,
    AgentEnvironment,
    OrphanedError,
    Preparation,
)
from deepvm.jobs.agent.trainer_socket import TrainerSocket
from deepvm.jobs.agent.trainers import TORCHRUN, Command, ProcessLayout, Trainers
from deepvm.jobs.wire import WireError

_TICK_S = 0.01
_RETRY_S = 0.1
_SCHEDULED_S, _SCHEDULED_ALONE_S = 10.0, 3.0
"""Time limits for the controller to schedule a step; the second if ranks can do so."""
_PREPARING_S = 1.0
_WARM_AGAIN_S = 0.5
_BEFORE_END_S = 1.0
"""Time before the end of its machine when the agent logs the steps that are not saved."""
_UNHEARD_S = 1.5
"""For how long a notice waits for the controller before the ranks save by themselves."""
_NO_BACKUP = (
    "of independent processes only the first of each machine keeps backups; a Checkpointer saves"
    " in all"
)

log = logging.getLogger("deepvm.agent")


class Agent(TrainerRequests):
    """The agent of one machine, from its start to the end of the machine."""

    def __init__(self, around: AgentEnvironment, notices: NoticeSource | None) -> None:
        self._around = around
        self._notices = notices
        self._over = threading.Event()
        self._orders = DesiredState()
        self._scheduled = 0
        self._running = 0
        self._request: tuple[float, int] | None = None
        self._board: Board | None = None
        self._trainers: Trainers | None = None
        self._layout = ProcessLayout(1, (), independent=False, job="")
        self._group: GroupWatch | None = None
        """While trainers of a world of several run here, and have formed no process group."""
        self._warmed_s = 0.0
        self._plan = PlannedSaves(Never(), 0.0)
        self._liveness = ControllerLiveness(around.beat_s)
        self._progress = Progress()
        self._safe = self._lasts = 0
        """The newest checkpoints that trainers reported as safe: with the anchors, and without."""
        self._pending_save: PendingSave | None = None
        self._warned_s = 0.0
        """Time of the request whose save has been logged as too late."""
        self._alone, self._there = False, 0
        """Whether trainers may hold without the controller's request, and the one it waits for."""
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
        self._ended_s: float | None = None
        """Since when trainers have ended whose last backups are under way."""

    def run(self) -> None:
        """Run until the controller no longer needs this machine, or is silent for too long."""
        folder = self._around.folder
        folder.mkdir(parents=True, exist_ok=True)
        if self._notices is not None:
            heard = (self._noticed, self._rebalanced, self._unavailable)
            listen = partial(watch, self._notices, self._over, *heard)
            threading.Thread(target=listen, daemon=True, name="notices").start()
        try:
            trainers, orphan_after_s = self._prepare()
        except OrphanedError:
            log.warning(
                "no controller was found for %.0f s: this machine ends",
                self._preparation.orphan_after_s,
            )
            return
        except Exception as error:  # such as a full disk: of this machine, not of the job
            log.exception("this machine cannot train")
            lines = traceback.format_exc().splitlines()
            self._preparation.give_up(
                "unusable", why=f"{type(error).__name__}: {error}", own=True, lines=lines
            )
        sockets = TrainerSocket(folder, self._answer)
        try:
            self._loop(trainers, orphan_after_s)
        finally:
            self._over.set()
            trainers.close()
            sockets.close()

    def _prepare(self) -> tuple[Trainers, float]:
        """Fetch the job and its code, and run its setup.

        Returns after how many seconds without a controller to end.
        """
        preparation = self._preparation
        spec = preparation.job()
        threading.Thread(target=self._beats, daemon=True, name="beats").start()
        code = preparation.have_code(spec)
        environ = preparation.environ(spec)
        self._layout = ProcessLayout.of(spec, {**environ, **spec["env"]})
        command = Command(
            spec["train"], self._layout.processes, spec["env"], code, spec["launcher"]
        )
        self._plan = PlannedSaves(parse_policy(spec["save_policy"]), float(spec["grace_s"]))
        here = self._around.folder / "backups"
        self._backups = Backups.at(spec["tiers"], spec["name"], here, int(spec["keep"]))
        preparation.set_up(
            spec["setup"], code, {**environ, **spec["env"]}, lambda text: self._report_line(0, text)
        )
        preparation.have_data(spec["data"], lambda text: self._report_line(0, text))
        self._trainers = Trainers(command, environ, self._report_line)
        preparation.load(self._trainers.warm_up)
        self._prepared.set()
        return self._trainers, preparation.orphan_after_s

    # --- the controller ---------------------------------------------------------------------------

    def _beats(self) -> None:
        """Heartbeats; each is answered when there is something new to do, or after ``beat_s``."""
        while not self._over.is_set():
            try:
                self._beat()
            except Exception:
                # A silent machine is given up, even if its trainers run
                log.exception("a heartbeat failed")
                self._over.wait(_RETRY_S)
            if (
                not self._prepared.is_set()
                and self._liveness.lasts_s >= self._preparation.orphan_after_s
            ):
                log.warning(
                    "no controller has answered for %.0f s: this machine ends",
                    self._liveness.lasts_s,
                )
                self._preparation.stop()
                # The main thread waits for a setup or for data, and has nothing to save
                os._exit(0)
            self._prepared.wait(_PREPARING_S)

    def _beat(self) -> None:
        client = self._clients["beat"]
        around = self._around
        if self._prepared.is_set():
            doing = ""
        else:
            doing = self._preparation.doing
        trainers = self._trainers
        ready = not doing and trainers is not None and (trainers.warm or bool(trainers.running))
        # In this order: the board is replaced before its generation is, so no step of an older one
        # is said.
        generation = self._running
        base = self._base
        board = self._board

        def flag(name: RankFlag) -> int:
            if board is None:
                return 0
            return board.of_rank(0, name)

        message = {
            "generation": generation,
            "step": base + flag(RankFlag.STEP),
            "step_s": flag(RankFlag.STEP_NS) / 1e9,
            "warm": ready,
            "spare": trainers is not None and trainers.warm,
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
            answer = client.ask("/beat", message, around.beat_s + 10.0)
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
            if (
                schedule is not None
                and board is not None
                and schedule["generation"] == self._running
            ):
                board.schedule(schedule["step"], ScheduledSave.of_others(schedule["save"]))
                point("agent.scheduled")
                self._scheduled = schedule["number"]

    def _noticed(self, notice: Notice) -> None:
        point("agent.notice")
        number = self._reporter.add("notice", taken_s=notice.taken_s, action=notice.action)
        self._save_if_unheard(number, SaveReason.EMERGENCY, notice.taken_s)

    def _rebalanced(self) -> None:
        self._save_if_unheard(self._reporter.add("rebalance"), SaveReason.INSURANCE, 0.0)

    def _save_if_unheard(self, report: int, reason: SaveReason, limit_s: float) -> None:
        self._pending_save = PendingSave(report, reason, limit_s, time.monotonic() + _UNHEARD_S)

    def _unavailable(self, error: Exception) -> None:
        self._reporter.add("deaf", why=str(error))

    # --- trainers ---------------------------------------------------------------------------------

    def _loop(self, trainers: Trainers, orphan_after_s: float) -> None:
        last_save_limit_s = None
        wanted = 0
        while True:
            orders = self._orders
            if orders.shutdown:
                return
            silent_s = self._liveness.lasts_s
            if silent_s >= orphan_after_s:
                if last_save_limit_s is None:
                    log.warning(
                        "no controller has answered for %.0f s: trainers save, and this machine"
                        " ends",
                        silent_s,
                    )
                    last_save_limit_s = time.monotonic() + ORPHAN_SAVE_S
                    if self._board is not None:
                        wanted = self._base + self._board.of_rank(0, RankFlag.STEP)
                        self._board.request(
                            SaveReason.STOP, int((time.time() + ORPHAN_SAVE_S) * 1000)
                        )
                if self._has_saved(wanted):
                    return
                if time.monotonic() > last_save_limit_s:
                    self._warn_of_unsaved("this machine ends")
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
                if board is not None and trainers.running:
                    self._follow(board)
                if board is not None and self._running:
                    self._plan_saves(orders, board)
            self._over.wait(_TICK_S)

    def _warn_of_unsaved(self, when: str) -> None:
        """Log for this machine and for its trainers which steps are not saved."""
        if self._board is None:
            unsaved = ""
        else:
            unsaved = self._plan.unsaved_steps(self._board, self._base)
        if unsaved and self._is_first(self._orders):
            log.warning("%s: %s", when, unsaved)
            self._reporter.add(
                LINE, local_rank=0, text=f"deepvm: {when}: {unsaved}", generation=self._running
            )

    def _has_saved(self, wanted: int) -> bool:
        """Whether this machine's files are durable; only rank 0 reports whole checkpoints."""
        board = self._board
        trainers = self._trainers
        assert trainers is not None
        if board is None or not self._running or not trainers.running:
            return True
        if self._backups.under_way:
            return False
        if self._is_first(self._orders):
            return self._lasts >= wanted
        return all(
            board.of_rank(rank, RankFlag.HELD) for rank in range(trainers.command.per_machine)
        )

    def _is_first(self, orders: DesiredState) -> bool:
        """Whether rank 0 is here."""
        return bool(orders.ranks) and bool(orders.ranks[0]["machine"] == self._around.machine)

    def _change(self, orders: DesiredState) -> None:
        """End the trainers of an older generation, and start those of the newest."""
        trainers = self._trainers
        done = 0
        assert trainers is not None
        if trainers.running:
            point("agent.before-kill")
            trainers.kill()
            if self._board is None:
                done = 0
            else:
                done = self._base + self._board.of_rank(0, RankFlag.STEP)
            point("agent.after-kill")
        self._running = 0
        self._request = None
        self._group = None
        trainers.warm_up()
        if not orders.generation:
            return
        self._reporter.forget(orders.generation)
        self._ended_s = None
        self._backups.forget(orders.generation)
        # The older one is not closed: other threads may be reading it, and it goes with the last of
        # them.
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
        first = sum(r["processes"] for r in orders.ranks[: orders.ranks.index(mine)])
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
            self._reporter.add("ended", generation=self._running, code=127, step=0, lines=[reason])
            return
        self._reporter.add("started", generation=self._running, done=done)

    def _save(self, orders: DesiredState, board: Board) -> None:
        """Pass on that a version is wanted, and that trainers may continue."""
        if orders.save is None:
            # A controller that has just come back may not have heard yet for what they hold.
            if self._request is not None or (self._alone and self._liveness.is_over):
                self._request = None
                self._alone = False
                self._there = 0
                board.resume()
            return
        asked_s = orders.save["asked_s"]
        reason = SaveReason(orders.save["reason"])
        if self._request is None or self._request[0] != asked_s:
            # Given up and asked for again between two heartbeats: those that hold do so for one
            # that has failed.
            again = self._request is not None
            number = 0
            held = board.of_rank(0, RankFlag.HELD)
            if again:
                board.words[Flag.RESUMED] = self._requested(board)
            else:
                board.words[Flag.RESUMED] = 0
            self._there = 0
            if self._is_first(orders) and held and reason.holds and not again:
                self._there = self._base + held  # what they have saved by themselves is as good
            elif self._is_first(orders):
                point("agent.before-request")
                number = board.request(reason, int(orders.save["limit_s"] * 1000))
            self._request = asked_s, number
        late = time.time() >= orders.save["limit_s"] - _BEFORE_END_S
        if late and self._warned_s != asked_s and reason in (SaveReason.EMERGENCY, SaveReason.STOP):
            self._warned_s = asked_s
            self._warn_of_unsaved("the time to save is over")
        if self._there and (self._lasts if reason.ends else self._safe) >= self._there:
            self._report_safe(self._there, reason, 0.0, 0.0)
            self._there = 0

    def _requested(self, board: Board) -> int:
        """Number of the newest request that ranks here may hold for, as rank 0's agent counts."""
        if self._is_first(self._orders):
            return board.words[Flag.REQUEST]
        step = board.of_rank(0, RankFlag.STEP)
        # The next one is marked only when all have done what is marked now.
        marked = [
            save
            for n in (step - 1, step, step + 1)
            if n > 0 and (save := board.scheduled(n)) is not None
        ]
        return max((save.request for save in marked), default=0)

    def _save_unheard(self, board: Board) -> None:
        """While no controller answers, have the ranks save what it would have asked for."""
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
            log.warning("the controller does not get it: the ranks save by themselves")
            board.request(pending.reason, int(pending.limit_s * 1000))

    def _check_group(self, board: Board) -> None:
        """End trainers that are at their first step without a process group."""
        group = self._group
        trainers = self._trainers
        if group is None or trainers is None or not trainers.running:
            return
        steps = any(board.of_rank(rank, RankFlag.STEP) for rank in range(self._layout.processes))
        if not group.has_failed and group.is_formed(now=steps):
            self._group = None
        elif group.has_failed or steps:
            trainers.kill()
            lines = [self._report_no_group("by their first step")]
            self._reporter.add("ended", generation=self._running, code=1, step=0, lines=lines)
        elif group.is_late():
            self._report_no_group(f"within {LATE_S:.0f} s")

    def _report_no_group(self, when: str) -> str:
        text = explanation(
            self._layout.processes, self._around.machine, len(self._orders.ranks), when
        )
        self._report_line(0, text)
        return text

    def _follow(self, board: Board) -> None:
        """See whether trainers make progress, or wait for a version that they have started."""
        save = self._orders.save
        steps = tuple(board.of_rank(rank, RankFlag.STEP) for rank in range(self._layout.processes))
        started = any(
            step and step == board.of_rank(rank, RankFlag.VERSION)
            for rank, step in enumerate(steps)
        )
        waits_for = self._ended_s  # the last backups, behind the end
        if waits_for is None and started and save is not None and SaveReason(save["reason"]).holds:
            waits_for = None
            if time.time() < save["limit_s"]:
                waits_for = save["asked_s"]
        self._progress.look(steps, waits_for)
        if (took_s := self._progress.first_s()) is not None and self._is_first(self._orders):
            self._reporter.add("stepped", generation=self._running, took_s=took_s)

    def _watch(self) -> None:
        """Report how trainers ended; while they train, warm up those of the next generation."""
        trainers = self._trainers
        board = self._board
        assert trainers is not None
        if not self._preparation.over and (trainers.warm or trainers.running):
            self._preparation.end()
        trains = board is not None and board.of_rank(0, RankFlag.STEP) > self._plan.last_step
        if (trains or not trainers.running) and time.monotonic() >= self._warmed_s + _WARM_AGAIN_S:
            self._warmed_s = time.monotonic()
            trainers.warm_up()  # for those that were killed while they waited, too
        code = trainers.ended() if trainers.running else None
        if code is None or board is None:
            return
        last = trainers.last_lines() if code else []
        if not code:
            unsaved = self._unsaved()
            if unsaved is None:
                return
            if not unsaved and self._group is not None and not self._group.is_formed(now=True):
                explained = self._report_no_group("before they ended")
                if trainers.command.launcher == TORCHRUN:
                    unsaved = ""
                else:
                    unsaved = explained
            code, last = (1, [unsaved]) if unsaved else (0, [])
        step = self._base + board.of_rank(0, RankFlag.STEP)
        if code and self._request is not None:
            self._warn_of_unsaved("trainers ended while they were to save")
        trainers.kill()
        point("agent.ended")
        self._reporter.add("ended", generation=self._running, code=code, step=step, lines=last)

    def _unsaved(self) -> str | None:
        """Why the last backup of ended trainers is not safe, empty if it is; None if unknown."""
        backups = self._backups
        now_s = time.monotonic()
        self._ended_s = self._ended_s or now_s
        if backups.under_way and now_s - self._ended_s < LAST_S:
            return None
        if backups.under_way:
            why = f"it takes longer than {LAST_S:.0f} s"
        else:
            why = backups.failure
        if why:
            return f"the training has ended, and its last backup was not made: {why}"
        return ""

    def _plan_saves(self, orders: DesiredState, board: Board) -> None:
        """Say on the board of rank 0 when the save policy wants a version."""
        if not self._is_first(orders):
            return
        cost = {"save_s": orders.save_s, "backup_s": orders.took_s, "emergency_s": orders.took_s}
        if orders.mttp_s is None:
            mttp_s = math.inf
        else:
            mttp_s = orders.mttp_s
        self._plan.look(board, SaveFacts(mttp_s=mttp_s, missed_rate=orders.missed_rate, **cost))

    # --- what trainers say ------------------------------------------------------------------------

    def _report_line(self, local_rank: int, line: str) -> None:
        self._progress.printed()
        self._reporter.add(LINE, local_rank=local_rank, text=line, generation=self._running)

    def _answer(self, message: JsonObject) -> JsonObject:
        kind = message.get("ask") or message.get("tell")
        if message.get("epoch") != self._running:  # of trainers that were killed meanwhile
            return {
                "error": f"generation {message.get('epoch')} is over: {self._running} runs here"
            }
        if kind == "first-step":
            return {"stop": self._group is not None and self._group.first_step()}
        if self._layout.independent and message["local_rank"]:
            if kind != "backup":
                return {}
            return {"error": _NO_BACKUP}
        if kind == "restored":
            self._reporter.add("started", generation=self._running, version=int(message["version"]))
        return super()._answer(message)

    def _durable_reported(self, message: JsonObject) -> None:
        version = int(message["version"])
        generation = self._running
        if "error" in message:
            why = message["error"]
            self._reporter.add("alone", generation=generation, version=version, why=why)
            return
        self._lasts = max(self._lasts, version)
        took_s = float(message["took_s"])
        self._reporter.add("lasts", generation=generation, version=self._lasts, took_s=took_s)

    def _save_reported(self, message: JsonObject) -> None:
        reason = SaveReason(message["save"][0])
        if message.get("error"):
            self._plan.record_failure()
            self._reporter.add(
                "unsaved", generation=self._running, reason=reason, why=message["error"]
            )
            return
        took_s = float(message["took_s"])
        stall_s = float(message["stall_s"])
        self._safe = int(message["version"])
        self._plan.record_save(self._safe - self._base, stall_s, took_s)
        # As backups of scripts do
        if message.get("lasts", True):
            self._lasts = self._safe
        else:
            self._lasts = self._lasts
        point("agent.before-saved")
        self._report_safe(self._safe, reason, stall_s, took_s, pending=bool(message.get("pending")))

    def _report_safe(
        self,
        version: int,
        reason: SaveReason,
        stall_s: float,
        took_s: float,
        *,
        pending: bool = False,
    ) -> None:
        facts = {
            "version": version,
            "reason": reason,
            "stall_s": stall_s,
            "took_s": took_s,
            "pending": pending,
        }
        self._reporter.add("saved", generation=self._running, lasts=self._lasts >= version, **facts)

    def _schedule(self, message: JsonObject) -> JsonObject:
        reason, limit_ms, request = message["save"]
        step = int(message["step"])
        save = ScheduledSave(SaveReason(reason), int(limit_ms), int(request))
        board = self._board
        if board is None:
            return {"error": "no generation runs here"}
        if len(self._orders.ranks) == 1:
            board.schedule(step, save)
            return {}
        peers = bool(message.get("peers"))
        found = self._marked_everywhere(step, save, peers=peers)
        if "error" in found and not peers:  # else rank 0 marks it over the ranks' own store
            self._save_reported(
                {"save": message["save"], "error": f"step {step} is not marked: {found['error']}"}
            )
        return found

    def _marked_everywhere(self, step: int, save: ScheduledSave, *, peers: bool) -> JsonObject:
        """Have the controller mark a step on all machines."""
        if self._liveness.now:
            return {"error": "the controller does not answer"}
        with self._ask_lock:
            try:
                order = {
                    "generation": self._running,
                    "step": step,
                    "save": save.for_others(),
                    "peers": peers,
                }
                limit_s = _SCHEDULED_ALONE_S if peers else _SCHEDULED_S
                return self._clients["ask"].ask("/schedule", order, limit_s)
            except (ControllerUnreachable, WireError) as error:
                return {"error": str(error)}

    def _has_gone_on(self, local_rank: int, step: int) -> bool:
        assert self._board is not None and self._trainers is not None
        return self._board.of_rank(local_rank, RankFlag.STEP) > step or self._trainers.ended() == 0

    def _is_given_up(self) -> bool:
        return not self._alone and self._orders.save is None

    def _latest(self, message: JsonObject) -> JsonObject:
        found = super()._latest(message)
        if not message["rank"]:
            self._reporter.add("started", generation=self._running, version=self._base)
        return found
