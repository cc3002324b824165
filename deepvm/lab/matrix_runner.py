"""All runs of a matrix, in turn or in parallel; existing runs that pass are kept."""

import fnmatch
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CheckpointError, DataError, RequestError
from deepvm.io.processes import open_files, processes
from deepvm.lab.audit.gates import verdicts
from deepvm.lab.geometry import Geometry
from deepvm.lab.launchers.launcher_registry import find_launcher
from deepvm.lab.matrix import MatrixFile, Run, reference_of, runs_of
from deepvm.lab.records import (
    AUDIT,
    CONFIG,
    ENVIRONMENT,
    RUNS,
    Records,
    read_document,
    write_document,
)
from deepvm.lab.registry import strike_document
from deepvm.lab.running.launcher import Launcher, Plan, StoppedError
from deepvm.lab.running.manifest import (
    Manifest,
    Row,
    RunState,
    environment,
    key_of,
    read_planned,
    write_planned,
)
from deepvm.lab.training.datasets import load
from deepvm.records import dataclass

_LEAST_FREE = 1 << 20  # Bytes: with less, a run that failed may have failed for that


@dataclass(frozen=True)
class Progress:
    """How far a matrix is."""

    done: int
    total: int
    row: Row  # of the run that has just ended


def config_of(matrix: MatrixFile, run: Run, dataset_size: int) -> JsonDict:
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
        "world": max(world for _, world in run.worlds),
        "worlds": [list(one) for one in run.worlds],
        "min_world": matrix.min_world,
        "virtual_shards": matrix.shards,
        "global_batch": matrix.global_batch,
        "accumulate": matrix.accumulate,
        "steps": matrix.steps,
        "checkpoint_every": matrix.checkpoint_every,
        "max_inflight": matrix.max_inflight,
        "keep": matrix.keep,
        "launcher": matrix.launcher,
        "strikes": [strike_document(one) for one in run.strikes],
        "disk": {name: when.model_dump() for name, when in run.disk.items()},
        "controls": [],
    }


class MatrixRunner:
    """Of one matrix, into one folder."""

    def __init__(
        self, matrix: MatrixFile, out: Path, *, only: str = "*", jobs: int = 1, fresh: bool = False
    ) -> None:
        """``fresh``: the folder's runs will have been removed. Raises RequestError, DataError."""
        self._matrix = matrix
        self._out = out
        self._jobs = jobs
        self._sizes = {one.name: len(load(one.name, one.path, one.size)) for one in matrix.datasets}
        for size in self._sizes.values():
            Geometry(size, matrix.global_batch)
        every = runs_of(matrix)
        chosen = [run for run in every if fnmatch.fnmatchcase(run.name, only)]
        if not chosen:
            names = ", ".join(run.name for run in every[:8])
            raise RequestError(
                "only",
                only,
                f"a pattern that one of the {len(every)} runs matches, such as {names}",
            )
        # Also each training's run without failures and checkpoints: a save may change training
        wanted = {run.name: run for run in (*chosen, *map(reference_of, chosen))}
        known = {run.name: run for run in every}
        self.runs = [known.get(name, run) for name, run in wanted.items()]
        self._every = [run.name for run in every]
        if not fresh:
            self._refuse_others([run for run in every if run not in self.runs])
        self._stopping = threading.Event()

    def _refuse_others(self, left: Sequence[Run]) -> None:
        """Refuse kept runs made with another matrix: they would be compared with this one's."""
        for run in left:
            try:
                kept = read_document(self._out / RUNS / run.name / CONFIG)
            except DataError:  # not there, or made again by a start that chooses it
                continue
            now = json.loads(
                json.dumps(config_of(self._matrix, run, self._sizes[run.suite.dataset.name]))
            )
            key = next((key for key in now if kept.get(key) != now[key]), None)
            if key is not None:
                raise RequestError(
                    "out",
                    str(self._out),
                    f"a new folder, or --fresh: {run.name} there has {key} {kept.get(key)}, now"
                    f" {now[key]}",
                )

    def run(self, tell: Callable[[Progress], None] = lambda progress: None) -> list[Row]:
        self._out.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(self._out)
        write_planned(
            self._out,
            read_planned(self._out).and_also(self._every, (run.name for run in self.runs)),
        )
        launcher = find_launcher(self._matrix.launcher)()
        done: list[Row] = []
        try:
            for runs in side_by_side(self.runs):
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
                        self._stopping.set()
                        for future in pending:
                            future.cancel()
                        raise
        finally:
            launcher.close()
        return done

    def _one(self, run: Run, launcher: Launcher) -> Row:
        folder = self._out / RUNS / run.name
        config = config_of(self._matrix, run, self._sizes[run.suite.dataset.name])
        machine = environment(self._out)
        key = key_of(config, machine)
        if (records := _standing(folder, config, key)) is not None:
            return _row(run, key, records, RunState.SKIPPED)
        records = None
        try:
            wait_for_writers(folder, self._stopping)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_document(folder / CONFIG, config)
            write_document(folder / ENVIRONMENT, machine)
            ended = launcher.run(Plan(folder, config), self._stopping)
            records = Records.read(folder)
            if ended:
                reason = _judged(records, key)
                state = RunState.INVALID if reason else RunState.COMPLETED
            else:
                reason = f"steps: it ended as {records.supervisor['state']}"
                state = RunState.FAILED
        except (CheckpointError, DataError) as error:
            state = RunState.FAILED
            reason = str(error)
        if reason:
            _refuse_full_disk(self._out)
        return _row(run, key, records, state, reason)


def _judged(records: Records, key: str) -> str:
    gates = verdicts(records)
    write_document(records.folder / AUDIT, {"key": key, "gates": gates})
    return next((f"{gate}: {reason}" for gate, reason in gates.items() if reason), "")


def side_by_side(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in order: seed by seed, undisturbed ones first, as others are compared with them."""
    batches = []
    for number, seed in enumerate(dict.fromkeys(run.seed for run in runs)):
        # Reversed, so that a machine that becomes slower favors no variant
        ordered = [run for run in runs if run.seed == seed][:: -1 if number % 2 else 1]
        batches.append([run for run in ordered if run.undisturbed])
        batches.append([run for run in ordered if not run.undisturbed])
    return [batch for batch in batches if batch]


def _refuse_full_disk(out: Path) -> None:
    disk = os.statvfs(out)
    free = disk.f_bavail * disk.f_frsize
    if free < _LEAST_FREE:
        raise DataError(
            f"{out}: the disk is full ({free // 1024} KiB are left), so nothing was proven"
            " about the"
            " run that failed; make space, and run the same command again"
        )


def _standing(folder: Path, config: JsonObject, key: str) -> Records | None:
    try:
        if read_document(folder / AUDIT).get("key") != key:
            return None
        records = Records.read(folder)
        same = dict(records.config) == json.loads(json.dumps(config))
        if same and not any(verdicts(records).values()):
            return records
        return None
    except DataError:
        return None


def _row(run: Run, key: str, records: Records | None, state: RunState, reason: str = "") -> Row:
    wall_s = 0.0
    restarts = 0
    done = 0
    if records is not None:
        wall_s = float(records.supervisor["wall_s"])
        restarts = int(records.supervisor["restarts"])
        done = 1 + max((step for step, _ in records.owners), default=-1)
    suite = run.suite
    return Row(
        key=key,
        run=run.name,
        dataset=suite.dataset.name,
        model=suite.model.name,
        failure=suite.failure,
        variant=run.variant,
        seed=run.seed,
        state=state.value,
        wall_s=round(wall_s, 3),
        goodput=round(done / wall_s, 4) if wall_s else 0.0,
        restarts=restarts,
        reason=reason,
    )


LIMIT_S = 30.0  # Seconds for all to end with their parent; a job's machines may take longer
_LOOK_S = 0.05


def writers_of(folder: Path) -> list[int]:
    """The processes that have a file below a folder open for writing, other users' perhaps not."""
    inside = f"{folder.resolve()}/"
    others = (pid for pid in processes() if pid != os.getpid())
    return [
        pid
        for pid in others
        if any(path.startswith(inside) for path in open_files(pid, for_writing=True))
    ]


def wait_for_writers(folder: Path, stopping: threading.Event) -> None:
    """Wait until no process writes there. Raises DataError (timeout), StoppedError."""
    until = time.monotonic() + LIMIT_S
    while pids := writers_of(folder):
        if time.monotonic() > until:
            raise DataError(
                f"{folder}: process {pids[0]} still writes into it; end it, and run this again"
            )
        if stopping.wait(_LOOK_S):
            raise StoppedError
