"""The world as JSON, so that a controller can be killed at any time and another continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.savepolicy import SaveFacts, parse_policy
from deepvm.jobs.decisions.pool_record import PoolRecord
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import (
    Counts,
    FailedSaves,
    GenerationProgress,
    Head,
    JobLimits,
    JobState,
    MachineRecord,
    Pool,
    Reason,
    Role,
    Save,
    StartupFailures,
    StepGap,
    StepRate,
)

_PLAIN = (
    "now_s",
    "generation",
    "formed",
    "suspected_s",
    "crashed_at",
    "crashes",
    "version",
    "lasts",
    "lasting_s",
    "pending",
    "alone",
    "reached",
    "reached_s",
    "peak",
    "unsaved_s",
    "idle_s",
    "idled_s",
    "ending",
    "ending_s",
    "failure",
    "no_data",
    "requests",
    "saving_s",
    "on_demand",
    "losses",
    "reports",
    "unplaced",
)


_POOLS = ("anchor", "steady", "bought")


def _pools_of(found: Any) -> tuple[Pool, ...]:
    """Of a document; an older deepvm wrote one pool, or None."""
    return tuple(Pool(**pool) for pool in ([found] if isinstance(found, Mapping) else found or ()))


def to_document(world: JobState) -> JsonDict:
    """All of it but the machines, which have rows of their own."""
    terms = world.terms
    save = world.save
    return {
        **{name: getattr(world, name) for name in _PLAIN},
        "terms": {
            **{f.name: getattr(terms, f.name) for f in fields(terms)},
            "policy": terms.policy.name,
            **{name: [asdict(pool) for pool in getattr(terms, name)] for name in _POOLS},
        },
        "job": world.job.value,
        "members": list(world.members),
        "anchors": list(world.anchors),
        "started": sorted(world.started),
        "exits": dict(world.exits),
        "preparing": {machine: list(known) for machine, known in world.preparing.items()},
        "unready": {role.value: asdict(known) for role, known in world.unready.items()},
        "save": None if save is None else {**asdict(save), "reason": save.reason.value},
        "given_up": sorted(reason.value for reason in world.given_up),
        "pools": [asdict(pool) for pool in world.pools],
        "priors": [[asdict(pool), asdict(record)] for pool, record in world.priors.items()],
        "blocked": [[asdict(pool), *times] for pool, times in world.blocked.items()],
        "facts": asdict(world.facts),
        "pace": asdict(world.pace),
        "pulse": asdict(world.pulse),
        "between": asdict(world.between),
        "heads": [asdict(head) for head in world.heads],
        "lost_steps": world.counts.lost_steps,
        "saves": {reason.value: count for reason, count in world.counts.saves.items()},
        "failed_saves": asdict(world.counts.failed),
    }


def from_document(found: JsonObject, machines: Mapping[str, MachineRecord]) -> JobState:
    """The world of a document; what an older deepvm did not know of is as at the start.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    save = found["save"]
    terms = {
        **found["terms"],
        "policy": parse_policy(found["terms"]["policy"]),
        **{name: _pools_of(found["terms"].get(name)) for name in _POOLS},
    }
    return JobState(
        **{"lasts": found["version"], **{name: found[name] for name in _PLAIN if name in found}},
        terms=JobLimits(**terms),
        job=Job(found["job"]),
        machines=machines,
        members=tuple(found["members"]),
        anchors=tuple(found["anchors"]),
        started=frozenset(found["started"]),
        exits=found["exits"],
        preparing={
            machine: (what, since_s)
            for machine, (what, since_s) in found.get("preparing", {}).items()
        },
        save=None if save is None else _save_of(save),
        given_up=frozenset(map(Reason, found.get("given_up", ()))),
        unready={
            Role(role): StartupFailures(**known) for role, known in found.get("unready", {}).items()
        },
        pools=tuple(Pool(**pool) for pool in found["pools"]),
        priors={Pool(**pool): PoolRecord(**record) for pool, record in found.get("priors", ())},
        blocked={Pool(**pool): (until_s, times) for pool, until_s, times in found["blocked"]},
        facts=SaveFacts(**found["facts"]),
        pace=StepRate(**found.get("pace", {})),
        pulse=GenerationProgress(**found.get("pulse", {})),
        between=StepGap(**found.get("between", {})),
        heads=tuple(Head(**head) for head in found.get("heads", ())),
        counts=Counts(
            found["lost_steps"],
            {Reason(name): count for name, count in found["saves"].items()},
            FailedSaves(**found.get("failed_saves", {})),
        ),
    )


def _save_of(found: JsonObject) -> Save:
    return Save(
        Reason(found["reason"]), found["asked_s"], found["limit_s"], found.get("safe", False)
    )


def to_row(machine: MachineRecord) -> JsonDict:
    """A machine as the columns of a table."""
    row = {**asdict(machine), "state": machine.state.value, "role": machine.role.value}
    pool = row.pop("pool")
    return {**row, **pool}


def from_row(row: JsonObject) -> MachineRecord:
    """A machine of the columns of a table."""
    pool = Pool(**{f.name: row[f.name] for f in fields(Pool)})
    plain = {
        f.name: row[f.name]
        for f in fields(MachineRecord)
        if f.name not in ("pool", "state", "role")
    }
    return MachineRecord(**plain, pool=pool, state=Machine(row["state"]), role=Role(row["role"]))
