"""All runs of a matrix, one after the other or several at once; what is there and passes is not run again."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.lab.audit.gates import Records, judged
from deepvm.lab.faults.registry import find_fault
from deepvm.lab.geometry import Geometry
from deepvm.lab.matrix import MatrixFile, Run, runs_of
from deepvm.lab.records import AUDIT, CONFIG, ORCHESTRATED
from deepvm.lab.running.launcher import Launcher, find_launcher
from deepvm.lab.running.manifest import Manifest, Row, RunState, key_of
from deepvm.lab.running.supervisor import Plan, Supervisor
from deepvm.lab.strategies.registry import find_strategy
from deepvm.lab.training.datasets import load

RUNS = "runs"


@dataclass(frozen=True)
class Progress:
    """How far a matrix is. ``run``: the one that has just ended."""

    done: int
    total: int
    row: Row


def config_of(matrix: MatrixFile, run: Run, dataset_size: int) -> dict[str, Any]:
    """All that makes a run what it is, for ``config.json``."""
    suite = run.suite
    return {
        "schema_version": "deepvm.lab-run/1",
        "matrix": matrix.name,
        "dataset": {"name": suite.dataset.name, "path": suite.dataset.path},
        "dataset_size": dataset_size,
        "model": suite.model.model_dump(),
        "failure": suite.failure,
        "variant": run.variant,
        "strategy": run.strategy,
        "seed": run.seed,
        "world": max(world for _, world in matrix.worlds),
        "worlds": [list(one) for one in matrix.worlds],
        "min_world": matrix.min_world,
        "virtual_shards": matrix.shards,
        "global_batch": matrix.global_batch,
        "accumulate": matrix.accumulate,
        "steps": matrix.steps,
        "checkpoint_every": matrix.checkpoint_every,
        "max_inflight": matrix.max_inflight,
        "keep": matrix.keep,
        "launcher": matrix.launcher,
        "strikes": [{**one.document(), "key": one.key, "ends": find_fault(one.fault).ends} for one in run.strikes],
        "disk": {name: {**vars(when), "target": when.target.value} for name, when in run.disk.items()},
        "controls": [],
    }


class MatrixRunner:
    """Of one matrix, into one folder."""

    def __init__(
        self, matrix: MatrixFile, out: Path, *, only: Callable[[str], bool] = lambda name: True, jobs: int = 1
    ) -> None:
        """Look at the data sets.

        Raises:
            RequestError: a batch is larger than its data set, or nothing is chosen. DataError: no such files.
        """
        self._matrix, self._out, self._jobs = matrix, out, jobs
        self._sizes = {one.name: len(load(one.name, _path(one.path), one.size)) for one in matrix.datasets}
        for size in self._sizes.values():
            Geometry(size, matrix.global_batch)
        every = runs_of(matrix)
        chosen = [run for run in every if only(run.name)]
        if not chosen:
            raise RequestError("only", "", f"a pattern of one of {', '.join(run.name for run in every[:8])}")
        self.runs = _with_references(chosen, every)
        self._local = threading.local()

    def run(self, tell: Callable[[Progress], None] = lambda progress: None) -> list[Row]:
        """Run what is not there yet; undisturbed runs first, which others are compared with."""
        self._out.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(self._out)
        is_job = self._matrix.launcher == ORCHESTRATED
        launcher = None if is_job else find_launcher(self._matrix.launcher)()
        done: list[Row] = []
        try:
            for calm in (True, False):
                runs = [run for run in self.runs if (not run.strikes and not run.disk) is calm]
                with ThreadPoolExecutor(self._jobs) as pool:
                    pending = {pool.submit(self._one, run, launcher) for run in runs}
                    try:
                        while pending:
                            ended, pending = wait(pending, return_when=FIRST_COMPLETED)
                            for future in ended:
                                row = future.result()
                                manifest.add(row)
                                done.append(row)
                                tell(Progress(len(done), len(self.runs), row))
                    except BaseException:
                        for future in pending:
                            future.cancel()
                        raise
        finally:
            if launcher is not None:
                launcher.close()
        return done

    def _one(self, run: Run, launcher: Launcher | None) -> Row:
        folder = self._out / RUNS / run.name
        config = config_of(self._matrix, run, self._sizes[run.suite.dataset.name])
        key = key_of(config)
        if self._stands(folder, config):
            return self._row(run, key, folder, RunState.SKIPPED)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_bytes(folder / CONFIG, json.dumps(config, indent=1).encode())
        in_memory = run.strategy is not None and find_strategy(run.strategy).in_memory
        plan = Plan(folder, config, self._matrix.worlds, run.strikes, run.disk, in_memory=in_memory)
        ended = _supervised(plan, launcher)
        reasons = judged(self._records(folder)) if ended else {}
        if ended:
            write_bytes(folder / AUDIT, json.dumps({"gates": reasons}, indent=1).encode())
        state = RunState.FAILED if not ended else RunState.INVALID if any(reasons.values()) else RunState.COMPLETED
        return self._row(run, key, folder, state)

    def _stands(self, folder: Path, config: Mapping[str, Any]) -> bool:
        """Whether a run is there, as it would be made now, and passes all gates once more."""
        if not (folder / AUDIT).exists():
            return False
        try:
            records = self._records(folder)
            return dict(records.config) == json.loads(json.dumps(config)) and not any(judged(records).values())
        except DataError:
            return False

    def _records(self, folder: Path) -> Records:
        return with_references(Records.read(folder), folder.parent)

    def _row(self, run: Run, key: str, folder: Path, state: RunState) -> Row:
        records = self._records(folder)
        supervisor = records.supervisor
        reasons = judged(records) if state is not RunState.FAILED else {"steps": f"it ended as {supervisor['state']}"}
        reason = next((f"{gate}: {why}" for gate, why in reasons.items() if why), "")
        wall_s = float(supervisor["wall_s"])
        done = 1 + max((step for step, _ in records.owners), default=-1)
        suite = run.suite
        names = (suite.dataset.name, suite.model.name, suite.failure, run.variant)
        goodput = round(done / wall_s, 4) if wall_s else 0.0
        return Row(
            key, run.name, *names, run.seed, state.value, round(wall_s, 3), goodput, int(supervisor["restarts"]), reason
        )


def _supervised(plan: Plan, launcher: Launcher | None) -> bool:
    """Run a plan to its end; without a launcher as a job of ``deepvm run``."""
    if launcher is not None:
        return Supervisor(plan, launcher).run()
    from deepvm.lab.orchestrated.supervisor import JobSupervisor  # loads all of the orchestrator

    return JobSupervisor(plan).run()


def with_references(records: Records, runs: Path) -> Records:
    """With the final parameters of the undisturbed runs of the same training, those beside it."""
    finals = []
    for path in sorted(runs.glob("*/" + CONFIG)):
        other = records if path.parent == records.folder else Records.read(path.parent)
        if other.config["strikes"] or other.config["disk"] or not _same(records.config, other.config):
            continue
        try:
            finals.append(other.final)
        except DataError:
            continue
    return replace(records, references=tuple(finals))


_SAME = ("dataset", "dataset_size", "model", "seed", "global_batch", "accumulate", "steps", "virtual_shards")


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs should end with the same parameters."""
    worlds = one["virtual_shards"] or one["worlds"] == other["worlds"]
    return bool(worlds) and all(one[key] == other[key] for key in _SAME)


def _with_references(chosen: Sequence[Run], every: Sequence[Run]) -> list[Run]:
    """With an undisturbed run for each training, because others are compared with it."""
    found = list(chosen)
    for run in chosen:
        alike = [r for r in found if _trains_alike(r, run) and not r.strikes and not r.disk]
        if not alike:
            calm = [r for r in every if _trains_alike(r, run) and not r.strikes and not r.disk]
            found.append(calm[0] if calm else _undisturbed(run))
    return found


def _trains_alike(one: Run, other: Run) -> bool:
    return (one.suite.dataset, one.suite.model, one.seed) == (other.suite.dataset, other.suite.model, other.seed)


def _undisturbed(run: Run) -> Run:
    from deepvm.lab.matrix import CALM, NONE, Suite

    return Run(Suite(run.suite.dataset, run.suite.model, CALM), NONE, None, run.seed, ())


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
