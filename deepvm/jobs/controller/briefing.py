"""What agents report and what they are sent: the desired state, with rendezvous addresses."""

from __future__ import annotations

import math

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.agent_board import SaveReason
from deepvm.jobs.controller.messages import AgentStatus
from deepvm.jobs.decisions.reconcile import Decisions
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.pools import learnt
from deepvm.jobs.steady_clock import SteadyClock

_UNHEARD = AgentStatus()


class HeartbeatResponder:
    """Of one job, by one controller; for one thread."""

    def __init__(self, spec: JsonObject, clock: SteadyClock) -> None:
        self._spec = spec
        self._clock = clock
        self._agents: dict[str, AgentStatus] = {}
        self._ports: dict[int, int] = {}
        self._doubtful = 0
        self.schedule: JsonObject | None = None
        """The step that all save: ``generation``, ``step``, ``save`` with its limit, ``number``."""

    def take_up(self, world: JobState) -> None:
        """Doubt a generation that an earlier controller may have sent to some machines only."""
        if world.formed and not world.started.issuperset(world.members):
            self._doubtful = world.generation

    def receive(self, machine: str, status: AgentStatus) -> bool:
        """Whether it is the first heartbeat of a machine."""
        is_new = machine not in self._agents
        self._agents[machine] = status
        return is_new

    def unscheduled(self, members: tuple[str, ...], number: int) -> list[str]:
        return [m for m in members if self._agents.get(m, _UNHEARD).scheduled != number]

    def splits(self, orders: Decisions) -> bool:
        """Whether some machines have a rendezvous that others will not get; asked once.

        An earlier controller has sent them, and did not record it.
        """
        generation = orders.generation
        if (
            not generation
            or self._doubtful != generation
            or not all(m in self._agents for m in orders.members)
        ):
            return False
        self._doubtful = 0
        agents = [self._agents[m] for m in orders.members]
        run = [a.generation == generation for a in agents]
        return not all(run) and (
            any(run) or any(a.ordered_generation == generation for a in agents)
        )

    def can_begin(self, machine: str, orders: Decisions, world: JobState) -> bool:
        """Whether all that a machine's trainers need is known: agents report one by one."""
        if not orders.generation or all(
            m in self._agents for m in [*orders.members, *world.anchors]
        ):
            return True
        return machine in world.started and self._doubtful != orders.generation

    def digest(self, orders: Decisions, nonce: str) -> str:
        """Differs where the orders do: the members of a generation do not change."""
        save = orders.save
        schedule = self._schedule_of(orders)
        asked_s = 0.0 if save is None else save.asked_s
        number = 0 if schedule is None else schedule["number"]
        if orders.serve:
            return "serving"
        return f"{nonce[:8]} {orders.shutdown:d} {orders.generation} {asked_s} {number}"

    def response(self, orders: Decisions, nonce: str, world: JobState) -> JsonDict:
        found: JsonDict = {
            "digest": self.digest(orders, nonce),
            "shutdown": orders.shutdown,
            "serve": orders.serve,
            "generation": orders.generation,
            "ranks": [],
            "tiers": [],
            "port": 0,
            "save": None,
            "schedule": self._schedule_of(orders),
            "mttp_s": None,
            "missed_rate": 0.0,
            "save_s": float(world.facts.save_s),
            "took_s": float(world.facts.emergency_s),
        }
        if orders.generation:
            first = self._agents.get(orders.members[0], _UNHEARD)
            found["port"] = self._ports.setdefault(orders.generation, first.port)
            mttp_s, found["missed_rate"] = learnt(world)
            found["mttp_s"] = mttp_s if mttp_s < math.inf else None
            nodes = [self._agents.get(anchor, _UNHEARD) for anchor in world.anchors]
            anchors = ",".join(f"{node.address}:{node.port}" for node in nodes)
            found["tiers"] = [*([f"tcp://{anchors}"] if anchors else []), *self._spec["tiers"]]
            each = int(self._spec["per_machine"])
            found["ranks"] = [
                {"machine": m, "address": self._agents.get(m, _UNHEARD).address, "processes": each}
                for m in orders.members
            ]
            if (save := orders.save) is not None:
                # Periodic saves that the controller wants are the user's: `deepvm jobs save`
                reason = SaveReason.__members__.get(save.reason.name, SaveReason.USER)
                left_s = max(save.limit_s - self._clock.now_s(), 0.0)
                found["save"] = {
                    "reason": int(reason),
                    "asked_s": save.asked_s,
                    "left_s": left_s,
                }
        return found

    def _schedule_of(self, orders: Decisions) -> JsonObject | None:
        found = self.schedule
        if found is None or found["generation"] != orders.generation:
            return None
        # Told as time that is left: clocks of machines may differ
        reason, until_ms, request = found["save"]
        return {
            **found,
            "save": [reason, max(until_ms - int(self._clock.now_s() * 1000), 0), request],
        }
