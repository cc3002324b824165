"""Commands that print documents, and the files that they read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import support.lab.toy_training as toy
from deepvm.catalog.measured.tables import encode_tables, load_tables, own_folder, save_entries
from deepvm.cli.app import COMMANDS, load
from deepvm.jobs.history.history import History
from deepvm.jobs.jobfile import changed, read_job_file
from deepvm.jobs.storage.output_store import MachineOutputs, OutputFile, OutputStore, open_objects
from deepvm.jobs.submission import jobs_folder, submit
from support.checkpoint.memory_nodes import TOKEN
from support.checkpoint.version_files import put
from support.jobs.worlds import many, store
from support.lab.made_folder import make, publish
from support.lab.small_matrix import MATRIX
from support.profiling.measurements import eflops, saturation, scaling

JOB = (
    "name: calm\nsteps: 1000\nstep_s: 2\nmttp_s: 3600\nspot_usd_per_hour:"
    " 1\non_demand_usd_per_hour: 3\n"
)
JOB_TO_RUN = "name: once\ntrain: 'true'\nmachines: {type: g4dn.xlarge}\n"
POINTS = "n,speedup\n1,1\n2,1.9\n4,3.4\n8,5.5\n16,7.5\n"
STEPS = "nodes,gpus,local_batch,step_time_s\n" + "".join(
    f"{n},{n * g},{b},{0.1 + 0.01 * b + 0.02 * (n > 1) + 0.001 * n * g}\n"
    for n in (1, 2, 4)
    for g in (1, 4)
    for b in (8, 32)
)
TRACE = {
    "metadata": {"gap_seconds": 600},
    "data": [i // 3 % 2 for i in range(120)],
    "prices": [1.5],
}
TRAIN = "--model resnet18 --device cpu --batch 2 --windows 3"
PUSH = "--launcher local --receiver m --senders a,b --checkpoint-size 2MB --repeats 1"
LLAMA = "--model llama-8b --method fsdp --catalog aws-us-east-1 --offline"


class Case(NamedTuple):
    """Words of a command, the document it prints, its exit code; ``measures``: run once, as figures
    differ.
    """

    words: str
    name: str
    code: int = 0
    measures: bool = False


CASES = {
    "recommend": [
        Case("--pw 3 --catalog paper --explain g5.xlarge", "recommend"),
        Case("--pw 0.3 --catalog paper", "recommend", 3),
        Case("--pw 3 --catalog paper --work 100 --deadline 90h --simulate 5", "recommend"),
        Case(f"--pw 30 {LLAMA} --tokens 2B", "recommend"),
        Case(
            "--pw 3 --tables tables.json -r us-east-1 -r us-west-2 --prices snapshot", "recommend"
        ),
    ],
    "explain": [
        Case("g5.xlarge --pw 3 --catalog paper", "explain"),
        Case("p2.xlarge --pw 3 --catalog paper", "explain"),
    ],
    "gpus": [Case("--catalog aws-us-east-1 --offline", "gpus")],
    "sweep": [
        Case("--pw 0:3:1 --catalog paper", "sweep"),
        Case("--pw 0:3:1 --catalog paper --work 100 --simulate 5", "sweep"),
    ],
    "catalog diff": [Case("paper simulated", "diff"), Case("paper paper", "diff")],
    "catalog list": [Case("", "catalogs")],
    "catalog show": [Case("paper", "catalog")],
    "catalog status": [Case("", "catalog-status", measures=True)],  # prices grow older
    "simulate": [
        Case("--job job.yaml --runs 5", "simulate"),
        Case("--job job.yaml --runs 5 --deadline 2h --sweep grace=0:60:30", "simulate-comparison"),
    ],
    "survive": [
        Case("--instance-type g4dn.xlarge --count 4 --for 4h -r us-east-1 --offline", "survive")
    ],
    "profile all": [
        Case(f"{TRAIN} --instance-type x.large --seconds 0.01", "tables", measures=True)
    ],
    "profile eflops": [Case(f"{TRAIN} --seconds 0.01", "eflops", measures=True)],
    "profile fit": [
        Case("points.csv", "fit"),
        Case("steps.csv --law step-time", "steptime"),
        Case("steps.csv --law step-time --predict nodes=8,gpus=32,batch=200", "steptime"),
    ],
    "profile saturation": [Case(PUSH, "saturation", measures=True)],
    "profile scaling": [
        Case(f"{TRAIN} --local 2 --warmup 0 --steps 1 --repeats 1", "scaling", measures=True)
    ],
    "performance check": [Case("", "performance-check")],
    "performance models": [Case("", "models")],
    "performance predict": [
        Case("--model llama-8b --method fsdp --gpu H100 --gpus 64", "performance"),
        Case("--model llama-70b --gpu T4", "performance", 3),
    ],
    "tables diff": [Case("", "tables-diff"), Case("--catalog paper", "diff")],
    "tables list": [Case("", "tables-list")],
    "tables show": [Case("*", "tables")],
    "memory-node status": [Case("--node NODE --token-file token", "memory-node", measures=True)],
    "lab check": [Case("lab", "lab"), Case("lab-bad", "lab", 1)],
    "lab report": [Case("lab", "lab-report")],
    "lab list": [Case("", "lab-list")],
    "lab run": [Case("matrix.yaml --out lab-new", "lab-report", measures=True)],
    "lab selftest": [Case("", "lab-selftest", measures=True)],
    "ckpt bench": [
        Case("--reps 1 --methods deepvm-file --steps 1", "ckpt-bench", measures=True),
        Case("--reps 1 --trainers 2 --state 2MB", "ckpt-bench-node", measures=True),
    ],
    "ckpt ls": [Case("versions", "ckpt-ls"), Case("empty", "ckpt-ls")],
    "ckpt verify": [
        Case("versions", "ckpt-verify", 1),
        Case("versions/job-000000000002.pt", "ckpt-verify"),
    ],
    "traces deadline": [Case("traces --work 2h --starts 3 --foresight", "traces-deadline")],
    "traces fit": [Case("traces --each", "traces-fit")],
    "traces replay": [Case("traces --policies thesis,best-fixed --save 20", "traces-replay")],
    "traces show": [Case("traces", "traces")],
    "reproduce": [Case("thesis", "reproduce"), Case("deepvm --only differs", "reproduce")],
    "config show": [Case("", "config")],
    "doctor": [Case("", "doctor", 5, measures=True)],
    "run": [Case("train.yaml", "run", measures=True), Case("train.yaml --dry-run", "run-plan")],
    "jobs ls": [Case("", "jobs")],
    "jobs show": [Case("resnet-7", "run")],
    "jobs resume": [Case("waits", "run", measures=True)],
    "jobs fetch": [Case("waits --to results", "fetch", measures=True)],  # twice, nothing is new
    "jobs orphans": [Case("", "orphans")],
    "history pools": [Case("", "pools", measures=True)],  # machines that live grow older
    "audit": [Case(f"--kills 1 --final final.safetensors {toy.__file__}", "audit", measures=True)],
    "history export": [Case("", "history")],
}
"""By command: all that print JSON must be here."""
LONG = (
    "profile all",
    "profile scaling",
    "profile eflops",
    "ckpt bench",
    "lab run",
    "lab selftest",
    "audit",
)
"""Commands that measure for seconds."""
STARTS_PROCESSES = ("doctor", "profile saturation", "run", "jobs resume")


def commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """The command and those below it, each with what the user types."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{words} {name}")


def forms() -> dict[str, set[str]]:
    """The forms that each command with an option ``--output`` knows."""
    every = dict(found for entry in COMMANDS for found in commands(load(entry), entry.name))
    outputs = {
        words: next((p for p in command.params if "-o" in p.opts), None)
        for words, command in every.items()
    }
    return {
        words: set(getattr(p.type, "choices", ())) for words, p in outputs.items() if p is not None
    }


def make_workshop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all files that the cases read into ``folder``.

    Without an account, and no server answers.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(folder / "data"))
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("DEEPVM_ADVISOR_URL", "http://127.0.0.1:9/advisor.json")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name, text in {
        "job.yaml": JOB,
        "points.csv": POINTS,
        "steps.csv": STEPS,
        "token": TOKEN.decode(),
    }.items():
        Path(name).write_text(text)
    Path("token").chmod(0o600)
    for name in ("traces", "empty"):
        Path(name).mkdir()
    Path("traces", "a.json").write_text(json.dumps(TRACE))
    entries = [eflops("g4dn.xlarge"), scaling("g4dn.xlarge"), saturation()]
    save_entries(own_folder(), entries)
    Path("tables.json").write_bytes(encode_tables(load_tables()))
    save_entries(own_folder(), [eflops("g5.xlarge", 2.4e12)])
    for version in (1, 2):
        put(Path("versions"), version)
    Path("versions", "job-000000000001.pt").write_bytes(b"other bytes")
    Path("train.yaml").write_text(JOB_TO_RUN)
    make(Path("lab"), seeds=(0, 1))
    make(Path("lab-bad"), seeds=(0,), wrong={"tokens-gpt-tiny-late-ovl-s0"})
    for name in ("lab", "lab-bad"):
        publish(Path(name))
    Path("matrix.yaml").write_text(MATRIX)
    with History.open() as history:
        store(history, many(20, cloud="local"), folder / "gone")
        waits = changed(read_job_file(Path("train.yaml")), name="waits")
        submit(waits, Path("train.yaml"), history)
    tier = (jobs_folder() / "waits" / "versions").as_uri()
    outputs = OutputStore(open_objects(tier, "waits"))
    sha256 = hashlib.sha256(b"model").hexdigest()
    outputs.send("m1", sha256, 5, lambda start, end: b"model"[start:end])
    file = OutputFile(5, sha256, 1, 0, 1_700_000_000.0)
    outputs.write(MachineOutputs("m1", {"outputs/model.pt": file}))
