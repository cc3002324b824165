"""Jobs as their history would have them, made by hand: one machine or hundreds, with all that can
happen to them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepvm.core.preemption.savepolicy import SaveFacts
from deepvm.jobs.controller.changes import MOST, thinned
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool, Reason, Role
from deepvm.jobs.history.history import MACHINE, STATE, EventRow, History, JobRow, Sample
from deepvm.jobs.history.job_report import final_document
from deepvm.jobs.standing import ALIVE, OVER, JobStatus

START_S = 1_795_000_000.0
POOL = Pool("g4dn.xlarge", "us-east-1a", "spot", 0.1578)
ANCHOR = Pool("m7g.large", "us-east-1a", "on-demand", 0.0816)
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e'\"&"


def spec(**more: Any) -> dict[str, Any]:
    """A job file as it is stored."""
    return {
        "name": "resnet-7",
        "train": "python train.py --epochs 90",
        "cloud": "aws",
        "env": {"WANDB_API_KEY": "planted-secret"},
        "tiers": ["https://me:planted-secret@bucket.example/run"],
        "machines": {
            "type": "g4dn.xlarge",
            "plan": None,
            "count": 4,
            "market": "spot",
            "zone": None,
        },
        "budget": {"usd_per_hour": None, "total_usd": 0.1, "deadline": None},
        "instance_type": "g4dn.xlarge",
        "steps": None,
        **more,
    }


def machine(number: int, start_s: float, **more: Any) -> MachineRecord:
    """A machine that was asked for at a time after the start of the job."""
    at = START_S + start_s
    return MachineRecord(f"m{number}", more.pop("pool", POOL), at, **more)


def standing(
    machines: list[MachineRecord],
    events: list[EventRow],
    samples: list[Sample],
    *,
    end_s: float,
    job: Job = Job.DONE,
    over: bool = True,
    **more: Any,
) -> JobStatus:
    """A job with these machines, that ended, or is now, so many seconds after its start."""
    now_s = START_S + end_s
    steps = samples[-1].step if samples else 0
    lost = sum(max(a.step - b.step, 0) for a, b in zip(samples, samples[1:], strict=False))
    saves: dict[Reason, int] = {}
    for event in events:
        if event.kind == "safe":
            reason = Reason(event.facts["reason"])
            saves[reason] = saves.get(reason, 0) + 1
    world = JobState(
        JobLimits(4, 4),
        now_s,
        job=job,
        machines={m.id: m for m in machines},
        generation=max([1, *(s.generation for s in samples)]),
        reached=steps,
        pools=(POOL,),
        facts=SaveFacts(step_s=0.25),
        lost_steps=lost,
        saves=saves,
        ending=more.pop("ending", ""),
        failure=more.pop("failure", ""),
        requests=len(machines),
        version=steps,
    )
    found = spec(**more)
    limits = JobLimits(4, 4, total_usd=found["budget"]["total_usd"], steps=found["steps"])
    world = replace(world, terms=limits)
    numbered = [replace(event, number=i) for i, event in enumerate(events, start=1)]
    document = final_document(str(found["name"]), START_S, world, numbered, {"g4dn.xlarge": 0.526})
    row = JobRow(
        str(found["name"]), START_S, job.value, Path("/nowhere"), found, document if over else None
    )
    return JobStatus(row, world, numbered, samples, document, OVER if over else ALIVE, now_s)


def one_machine(**more: Any) -> JobStatus:
    """A short job on one machine that nothing happens to."""
    m = machine(
        1,
        0.0,
        launched_s=START_S + 2,
        ready_s=START_S + 6,
        trained_s=START_S + 7,
        ended_s=START_S + 60,
    )
    m = replace(m, state=Machine.ENDED, end_reason="released")
    events = [
        EventRow(START_S + 2, "launched", "pending", {"id": "m1", "generation": 0}),
        EventRow(START_S + 6, STATE, "forming", {"generation": 1}),
        EventRow(START_S + 7, "started", "running", {"id": "m1", "version": 0, "generation": 1}),
        EventRow(
            START_S + 30, "safe", "running", {"version": 90, "reason": "insurance", "generation": 1}
        ),
        EventRow(
            START_S + 58,
            "ended",
            "done",
            {"id": "m1", "code": 0, "step": 200, "lines": [], "generation": 1},
        ),
    ]
    samples = [Sample(START_S + 7 + i, 1, 4 * i) for i in range(51)]
    return standing([m], events, samples, end_s=60.0, **{"steps": 200, **more})


def many(count: int, seed: int = 1, hours: float = 12.0, **more: Any) -> JobStatus:
    """A long job on so many machines, one after the other on four places, with ten events each."""
    rng = random.Random(seed)
    machines: list[MachineRecord] = [
        machine(
            1,
            0.0,
            pool=ANCHOR,
            role=Role.ANCHOR,
            state=Machine.ENDED,
            launched_s=START_S + 30,
            ready_s=START_S + 90,
            ended_s=START_S + hours * 3600,
            end_reason="released",
        )  # fmt: skip
    ]
    events: list[EventRow] = []
    samples: list[Sample] = []
    places, step, generation, version = [0.0] * 4, 0.0, 1, 0
    last_s, end_s = 0.0, hours * 3600
    mean_s = 4 * end_s / count
    for number in range(2, count + 2):
        place = min(range(4), key=lambda i: places[i])
        asked_s = places[place]
        if asked_s >= end_s * 0.98:
            break
        launched_s, ready_s = asked_s + rng.uniform(20, 60), asked_s + rng.uniform(90, 160)
        gone_s = min(ready_s + rng.expovariate(1 / mean_s), end_s)
        kind = rng.choices(["preempted", "lost", "refused"], [8, 2, 1])[0]
        if gone_s >= end_s:
            kind = "released"
        times = {
            "launched_s": START_S + launched_s,
            "ready_s": START_S + ready_s,
            "trained_s": START_S + ready_s + 3,
        }
        times["ended_s"] = START_S + gone_s
        state = Machine.ENDED
        if kind == "refused":
            times, state, gone_s = {}, Machine.FAILED, asked_s + 20
            events.append(
                EventRow(
                    START_S + asked_s,
                    "refused",
                    "running",
                    {"id": f"m{number}", "why": "no capacity"},
                )
            )
        elif kind == "preempted":
            times["noticed_s"] = START_S + max(gone_s - 120, launched_s)
        elif kind == "lost":
            times["silent_s"] = START_S + max(gone_s - 45, launched_s)
        machines.append(machine(number, asked_s, state=state, end_reason=kind, **times))
        places[place] = gone_s
        if kind == "refused":
            continue
        facts = {"id": f"m{number}", "generation": generation}
        events.append(EventRow(START_S + launched_s, "launched", "running", facts))
        while last_s < gone_s:
            last_s += 40
            step += 160
            samples.append(Sample(START_S + last_s, generation, int(step)))
            if rng.random() < 0.25:
                version = int(step)
                said = {"version": version, "reason": "insurance", "generation": generation}
                events.append(EventRow(START_S + last_s, "safe", "running", said))
        generation += 1
        if kind == "preempted":
            notice = {**facts, "taken_s": START_S + gone_s}
            events.append(EventRow(times["noticed_s"], "noticed", "running", notice))
            version = int(step)
            said = {"version": version, "reason": "emergency", "generation": generation}
            events.append(EventRow(times["noticed_s"] + 2, "safe", "saving", said))
        elif kind == "lost":
            events.append(
                EventRow(
                    times["silent_s"], MACHINE, "forming", {**facts, "state": "suspect", "why": ""}
                )
            )
            step = float(version)
            samples.append(Sample(START_S + last_s + 1, generation, version))
        ends = {**facts, "state": "ended", "why": kind}
        events.append(EventRow(START_S + gone_s, MACHINE, "running", ends))
        began = {"version": version, "generation": generation}
        events.append(EventRow(START_S + gone_s + 1, "started", "running", {"id": "m2", **began}))
    for begun in [e for e in events if e.kind == "started"]:
        others = [m for m in machines if m.ready_s and m.ready_s <= begun.at_s < (m.ended_s or 0.0)]
        facts = {"version": None, "generation": begun.facts["generation"]}
        events += [
            EventRow(begun.at_s, "started", "running", {**facts, "id": m.id}) for m in others
        ]
    events.sort(key=lambda e: e.at_s)
    return standing(machines, events, thinned(samples, 2 * end_s / MOST), end_s=end_s, **more)


def hostile() -> JobStatus:
    """A job all of whose texts try to act."""
    m = machine(
        1,
        0.0,
        pool=Pool(HOSTILE, HOSTILE, "spot", 1.0),
        launched_s=START_S + 1,
        state=Machine.MEMBER,
    )
    events = [
        EventRow(START_S + 1, "refused", "forming", {"id": HOSTILE, "why": HOSTILE}),
        EventRow(START_S + 2, "unsaved", "forming", {"why": HOSTILE}),
        EventRow(
            START_S + 3,
            "ended",
            "failed",
            {"id": HOSTILE, "code": 1, "step": 2, "lines": [HOSTILE, "\ud800"]},
        ),
        EventRow(START_S + 4, "failed", "failed", {"id": HOSTILE, "why": HOSTILE}),
        EventRow(START_S + 4, "stop", "failed", {"why": HOSTILE}),
    ]
    more = {"name": HOSTILE, "train": HOSTILE, "env": {HOSTILE: HOSTILE}, "cloud": HOSTILE}
    return standing([m], events, [], end_s=5.0, job=Job.FAILED, failure=HOSTILE, **more)


def store(history: History, job: JobStatus, folder: Path) -> None:
    """Write a job into a history."""
    before = JobState(JobLimits(4, 4), START_S, pools=(POOL,))
    assert history.add_job(job.row.name, START_S, folder, job.row.spec, before)
    history.commit(job.row.name, before, job.world, job.events)
    history.add_samples(job.row.name, job.samples)
    if job.over:
        history.finish(job.row.name, job.document)
