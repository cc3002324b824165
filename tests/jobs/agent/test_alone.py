"""``deepvm agent -- COMMAND``: exit codes, signals, notices.

Several machines whose ranks save the same step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.effort import sampled
from support.jobs.metadata_services import Imds
from support.jobs.runs import until
from support.pages import blocks

TRAINS = """
import os, signal, sys, time
import deepvm.training as dt

here, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
latest = dt.latest()
step = int(latest.read_text()) if latest else 0
open(f"{here}/starts", "a").write(f"{step} ")
while step < steps:
    with dt.step_context():
        time.sleep(pause)
    step += 1
    if dt.check_save():
        open(f"{here}/mine-{step}", "w").write(str(step))
        dt.backup(f"{here}/mine-{step}")
        open(f"{here}/saved", "a").write(f"{step} ")
    open(f"{here}/reached", "w").write(str(step))
"""


@pytest.fixture
def imds() -> Iterator[Imds]:
    found = Imds()
    yield found
    found.close()


def environ(folder: Path, **more: str) -> dict[str, str]:
    """Without saves by the policy, unless a test is about them."""
    own = {
        "DEEPVM_TIERS": f"file://{folder}/kept",
        "OMP_NUM_THREADS": "1",
        "DEEPVM_SAVE_POLICY": "none",
    }
    return {**os.environ, **own, **more}


def start(
    folder: Path, *words: str, metadata: str = "http://127.0.0.1:9", **more: str
) -> subprocess.Popen[str]:
    options = [
        "--metadata",
        metadata,
        "--grace",
        more.pop("grace", "20s"),
        *more.pop("options", "").split(),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "deepvm.cli.main", "agent", *options, "--", *words],
        env=environ(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def train(folder: Path, steps: int = 10_000, pause: float = 0.02) -> list[str]:
    (folder / "train.py").write_text(TRAINS)
    return [sys.executable, str(folder / "train.py"), str(folder), str(steps), str(pause)]


def ended(agent: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = agent.communicate(timeout=60)
    return agent.returncode, said


def reached(folder: Path, least: int = 1) -> int:
    def now() -> int:
        try:
            text = (folder / "reached").read_text()
        except OSError:
            return 0
        return int(text) if text and int(text) >= least else 0

    return int(until(now))


# --- exit codes and signals -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -6 $$", 134),
    ],
)
def test_exit_codes_are_passed_through(script: str, code: int, tmp_path: Path) -> None:
    assert ended(start(tmp_path, "sh", "-c", script))[0] == code


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    code, said = ended(start(tmp_path, "/no/such/command"))
    assert code == 2 and "COMMAND" in said and "No such file" in said
    (tmp_path / "text").write_text("x")
    code, said = ended(start(tmp_path, str(tmp_path / "text")))
    assert code == 2 and "Permission denied" in said


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]
)
def test_signals_reach_all_that_the_command_started(number: signal.Signals, tmp_path: Path) -> None:
    """A shell passes nothing on to what it waits for.

    None of it has trained, so SIGTERM need not wait either.
    """
    inner = (
        "import os, signal, sys, time\n"
        "def hear(number, _):\n"
        "    open(sys.argv[1], 'w').write(str(number)); sys.exit(3)\n"
        "signal.signal(int(sys.argv[2]), hear)\n"
        "open(sys.argv[1] + '-ready', 'w')\n"
        "time.sleep(60)"
    )
    (tmp_path / "inner.py").write_text(inner)
    inside = f"{sys.executable} {tmp_path}/inner.py {tmp_path}/heard {number.value}"
    script = f"trap 'wait; exit 5' {number.value}; {inside} & wait"
    agent = start(tmp_path, "sh", "-c", script)
    until(lambda: (tmp_path / "heard-ready").exists())
    began = time.monotonic()
    agent.send_signal(number)
    assert ended(agent)[0] == 5 and time.monotonic() - began < 10
    assert (tmp_path / "heard").read_text() == str(number.value)


def test_under_nohup_a_hangup_stays_ignored(tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [
            "nohup",
            sys.executable,
            "-m",
            "deepvm.cli.main",
            "agent",
            "--metadata",
            "http://127.0.0.1:9",
            "--",
        ]
        + ["sh", "-c", f"touch {tmp_path}/ready; sleep 1; exit 4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until(lambda: (tmp_path / "ready").exists())
    agent.send_signal(signal.SIGHUP)
    agent.communicate(timeout=30)
    assert agent.returncode == 4


def test_sigterm_saves_first_and_the_next_start_goes_on(tmp_path: Path) -> None:
    agent = start(tmp_path, *train(tmp_path))
    reached(tmp_path, 5)
    began = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    code, said = ended(agent)
    assert code == 143 and "SIGTERM: trainers save first" in said
    # As soon as the version is safe, not after the grace of 20 s
    assert time.monotonic() - began < 10
    saved = int((tmp_path / "saved").read_text())
    assert saved == int((tmp_path / "reached").read_text())  # no step that would be lost was begun
    code, _ = ended(start(tmp_path, *train(tmp_path, saved + 3)))
    assert code == 0 and (tmp_path / "starts").read_text() == f"0 {saved} "


@pytest.mark.skipif(shutil.which("pkill") is None, reason="there is no pkill here")
def test_the_hook_that_the_guide_has_for_skypilot_saves_first(tmp_path: Path) -> None:
    """Run as SkyPilot runs it, ``bash -c``.

    In a session of its own, of which pkill is kept from leaving.
    """
    (block,) = blocks("docs/internals/guide/run.md", "yaml\nconfig:")
    (hook,) = yaml.safe_load(f"hooks:{block.partition('hooks:')[2]}")["hooks"]
    assert hook["events"] == ["preemption"]
    tools = {
        "deepvm": f"#!{sys.executable}\nfrom deepvm.cli.main import main\nmain()\n",
        **{
            name: f'#!/bin/sh\nexec {shutil.which(name)} -s 0 "$@"\n' for name in ("pkill", "pgrep")
        },
        "all.sh": (
            "deepvm agent --metadata http://127.0.0.1:9 --grace 20s -- $TRAIN &\nuntil [ -s reached"
            ' ]; do sleep 0.1; done\nbash -c "$HOOK"\necho "hook $?"\nwait $!\necho "agent $?"\n'
        ),
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    variables = environ(
        tmp_path,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        HOOK=hook["run"],
        TRAIN=" ".join(train(tmp_path)),
    )
    words: list[str] = ["bash", str(tmp_path / "all.sh")]
    whole = subprocess.Popen(
        words,
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = whole.communicate(timeout=hook["timeout"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(whole.pid, signal.SIGKILL)
    assert said == "hook 0\nagent 143\n"
    assert (tmp_path / "saved").read_text().strip() == (tmp_path / "reached").read_text()


FOURTH = "the newest checkpoint that is safe yet is of step 4; not saved so far: 1 step after it"
HANDLED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit()); time.sleep(60)"
UNSAVED = [
    ("static:2", "time.sleep(60)", 1, 143, f"SIGTERM is passed on now: {FOURTH}"),
    (
        "none",
        "time.sleep(60)",
        1,
        143,
        "SIGTERM is passed on now: no checkpoint is safe yet; not saved so far: 5 steps",
    ),
    ("static:2", HANDLED, 1, 1, FOURTH),
    ("static:2", "time.sleep(2); os._exit(9)", 20, 9, f"the command has ended: {FOURTH}"),
]


@pytest.mark.parametrize(("policy", "end", "grace", "code", "line"), sampled(UNSAVED, every=4))
def test_unsaved_steps_are_named_after_sigterm(
    policy: str, end: str, grace: int, code: int, line: str, tmp_path: Path
) -> None:
    words = train(tmp_path)
    script = TRAINS.replace("time.sleep(pause)", f"time.sleep(0.1)\n        if step == 5: {end}")
    (tmp_path / "train.py").write_text(script)
    agent = start(tmp_path, *words, grace=f"{grace}s", DEEPVM_SAVE_POLICY=policy)
    reached(tmp_path, 5)
    began = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    returned, output = ended(agent)
    assert returned == code and 0.9 < time.monotonic() - began < 10
    assert line in output and output.count("not saved") == 1, output


def test_a_second_sigterm_is_passed_on_at_once(tmp_path: Path) -> None:
    slow = train(tmp_path)
    script = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(
        script.replace("time.sleep(pause)", "time.sleep(pause if step < 3 else 60)")
    )
    agent = start(tmp_path, *slow, grace="1h")
    reached(tmp_path, 3)
    agent.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert agent.poll() is None
    agent.send_signal(signal.SIGTERM)
    assert ended(agent)[0] == 143


def test_a_script_with_a_handler_of_its_own_ends_in_order(tmp_path: Path) -> None:
    words = train(tmp_path)
    script = (tmp_path / "train.py").read_text()
    ends = "stop = []\nsignal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
    script = script.replace("latest = ", ends + "latest = ").replace(
        "while step < steps:", "while step < steps and not stop:"
    )
    (tmp_path / "train.py").write_text(script)
    agent = start(tmp_path, *words)
    reached(tmp_path, 3)
    agent.send_signal(signal.SIGTERM)
    assert ended(agent)[0] == 0
    assert int((tmp_path / "saved").read_text()) <= int((tmp_path / "reached").read_text())


# --- notices --------------------------------------------------------------------------------------


def test_a_notice_saves_and_the_training_holds(tmp_path: Path, imds: Imds) -> None:
    agent = start(tmp_path, *train(tmp_path), metadata=imds.url)
    reached(tmp_path, 5)
    imds.notice(time.time() + 60)
    saved = int(until(lambda: (tmp_path / "saved").exists() and (tmp_path / "saved").read_text()))
    time.sleep(0.3)
    assert reached(tmp_path) == saved
    began = time.monotonic()
    agent.send_signal(signal.SIGTERM)  # the engine ends it: all is safe
    code, said = ended(agent)
    assert code == 143 and time.monotonic() - began < 5
    assert "takes this machine back in" in said and "terminate" in said and "SIGTERM" not in said
    assert (tmp_path / "saved").read_text() == f"{saved} "


def test_a_rebalance_recommendation_saves_once_and_training_goes_on(
    tmp_path: Path, imds: Imds
) -> None:
    agent = start(tmp_path, *train(tmp_path, 200), metadata=imds.url)
    reached(tmp_path, 5)
    imds.recommend_rebalance()
    code, said = ended(agent)
    assert code == 0 and said.count("may preempt this machine sooner") == 1
    assert len((tmp_path / "saved").read_text().split()) == 1 and reached(tmp_path) == 200


def test_without_a_metadata_service_it_says_so_once(tmp_path: Path) -> None:
    code, said = ended(start(tmp_path, "sleep", "6"))
    assert code == 0 and said.count("preemptions come unannounced") == 1


def test_an_unknown_service_and_a_bad_grace(tmp_path: Path) -> None:
    code, said = ended(start(tmp_path, "true", metadata="oracle"))
    assert code == 2 and "--metadata" in said and "aws" in said
    code, said = ended(start(tmp_path, "true", grace="soon"))
    assert code == 2 and "--grace" in said


EVALUATES = """
import sys, time
import torch
from deepvm.checkpoint import Checkpointer

here, pause = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.rand(16, 4))
with Checkpointer(model=model, optimizer=optimizer) as checkpointer:
    first = checkpointer.restore_latest()
    open(f"{here}/starts", "a").write(f"{first} ")
    for step in range(first, 12):
        optimizer.zero_grad()
        model(torch.rand(8, 4)).square().mean().backward()
        optimizer.step()
        if step + 1 == 8:
            model.eval()
            with torch.no_grad():
                for (batch,) in torch.utils.data.DataLoader(data, shuffle=False):
                    model(batch)
                    open(f"{here}/reached", "a").write("1")
                    time.sleep(pause)
            model.train()
torch.save(model.state_dict(), f"{here}/final.pt")
"""


@pytest.mark.slow
def test_a_notice_in_a_long_evaluation(tmp_path: Path, imds: Imds) -> None:
    """There is a version before the evaluation ends, and training goes on from it bit by bit."""
    torch = pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(EVALUATES)
    words = [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]
    assert (
        ended(start(tmp_path, *words, "0", DEEPVM_TIERS=f"file://{tmp_path}/undisturbed"))[0] == 0
    )
    whole = torch.load(tmp_path / "final.pt")
    for name in ("final.pt", "reached", "starts"):
        (tmp_path / name).unlink()
    agent = start(tmp_path, *words, "10", metadata=imds.url)
    reached(tmp_path)
    imds.notice(time.time() + 20)
    began = time.monotonic()
    until(lambda: kept(tmp_path) == [8])
    agent.send_signal(signal.SIGTERM)  # the engine ends it: all is safe
    code, said = ended(agent)
    assert (
        code == 143
        and time.monotonic() - began < 18
        and "version 8 is saved during an evaluation" in said
    )
    assert len((tmp_path / "reached").read_text()) < 4  # of 16 batches
    assert ended(start(tmp_path, *words, "0"))[0] == 0
    assert (tmp_path / "starts").read_text() == "0 8 "
    final = torch.load(tmp_path / "final.pt")
    assert all(torch.equal(final[name], whole[name]) for name in whole)


# --- the save policy ------------------------------------------------------------------------------

PLAIN = """
import sys, time
import torch
from deepvm.checkpoint import Checkpointer

here, steps = sys.argv[1], int(sys.argv[2])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Checkpointer(model=model, optimizer=optimizer) as checkpointer:
    first = checkpointer.restore_latest()
    open(f"{here}/starts", "a").write(f"{first} ")
    for step in range(first, steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
        open(f"{here}/reached", "w").write(str(step + 1))
"""


def kept(folder: Path) -> list[int]:
    return sorted(int(p.stem.rpartition("-")[2]) for p in (folder / "kept").glob("*.pt"))


@pytest.mark.parametrize("kind", ["training", pytest.param("plain", marks=pytest.mark.slow)])
def test_by_default_a_training_that_ends_without_a_notice_has_versions(
    kind: str, tmp_path: Path
) -> None:
    """As after a missed notice, a crash or an OOM: nobody has asked for a version."""
    if kind == "plain":
        pytest.importorskip("torch")
        (tmp_path / "train.py").write_text(PLAIN)
        words = [sys.executable, str(tmp_path / "train.py"), str(tmp_path), "10000"]
    else:
        words = train(tmp_path)
    agent = start(tmp_path, *words, DEEPVM_SAVE_POLICY="")
    try:
        reached(tmp_path, 40)
        until(lambda: kept(tmp_path) or list((tmp_path / "kept").glob("*/backups/0*/whole.json")))
    finally:
        end(tmp_path, [agent], [])
    again = start(tmp_path, *words, DEEPVM_SAVE_POLICY="")
    try:
        starts = until(lambda: [int(n) for n in (tmp_path / "starts").read_text().split()][1:])
        assert 0 < starts[0] <= reached(tmp_path)
    finally:
        end(tmp_path, [again], [])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["variable", "option"])
def test_another_policy_may_be_set(how: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(PLAIN)
    words = [sys.executable, str(tmp_path / "train.py"), str(tmp_path), "60"]
    more = {"DEEPVM_SAVE_POLICY": "static:20"}
    if how == "option":
        more = {"DEEPVM_SAVE_POLICY": "no such", "options": "--save-policy static:20"}
    assert ended(start(tmp_path, *words, DEEPVM_KEEP="0", **more))[0] == 0
    assert kept(tmp_path) == [20, 40, 60]


def test_a_policy_that_does_not_exist(tmp_path: Path) -> None:
    code, said = ended(start(tmp_path, "true", DEEPVM_SAVE_POLICY="adaptiv"))
    assert (
        code == 2
        and "DEEPVM_SAVE_POLICY" in said
        and "'adaptiv'" in said
        and "static:STEPS" in said
    )
    code, said = ended(start(tmp_path, "true", options="--save-policy static:0"))
    assert code == 2 and "--save-policy" in said and "'static:0'" in said and "adaptive" in said
    code, said = ended(start(tmp_path, "true", DEEPVM_MTBF="soon", DEEPVM_SAVE_POLICY=""))
    assert code == 2 and "DEEPVM_MTBF" in said and "'soon'" in said


def test_who_cannot_save_is_asked_less_and_less_often(tmp_path: Path) -> None:
    """Its script writes a file each time, and no tier takes it."""
    code, _ = ended(
        start(tmp_path, *train(tmp_path, 150, 0.01), DEEPVM_SAVE_POLICY="", DEEPVM_TIERS="")
    )
    asked = [int(step) for step in (tmp_path / "saved").read_text().split()]
    assert code == 0 and 2 <= len(asked) <= 8


# --- several machines -----------------------------------------------------------------------------

SCRIPTS = {
    "training": (
        """
import os, sys, time
import torch, torch.distributed as dist
import deepvm.training as dt

here, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
state = torch.zeros(1)
for step in range(1, steps + 1):
    with dt.step_context():
        state += 1
        dist.all_reduce(state, op=dist.ReduceOp.MAX)
        time.sleep(0.01)
    if dt.check_save():
        open(f"{here}/mine-{rank}-{step}", "w").write(str(step))
        dt.backup(f"{here}/mine-{rank}-{step}")
        open(f"{here}/saved-{rank}", "a").write(f"{step} ")
    if not rank:
        open(f"{here}/reached", "w").write(str(step))
dist.destroy_process_group()
"""
    ),
    "checkpointer": (
        """
import os, sys, time
import torch, torch.distributed as dist
from deepvm.checkpoint import Checkpointer

here, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ck = Checkpointer(model=model, optimizer=optimizer)
for step in range(ck.restore_latest(), steps):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    with open(f"{here}/saved-{rank}", "w") as file:
        file.write(" ".join(str(h.version) for h in ck.handles) + " ")
    if not rank:
        open(f"{here}/reached", "w").write(str(step + 1))
ck.close()
dist.destroy_process_group()
"""
    ),
}


def machines(
    folder: Path, kind: str, steps: int, services: list[Imds], **more: str
) -> list[subprocess.Popen[str]]:
    """An agent for each machine, each with two ranks started by torchrun."""
    (folder / "train.py").write_text(SCRIPTS[kind])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(services)}",
        "--nproc-per-node=2",
    ]
    run += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    script = [str(folder / "train.py"), str(folder), str(steps)]
    own = {"DEEPVM_JOB": "pair", "GLOO_SOCKET_IFNAME": "lo", **more}
    return [
        start(folder, *run, f"--node-rank={node}", *script, metadata=imds.url, **own)
        for node, imds in enumerate(services)
    ]


def end(folder: Path, agents: list[subprocess.Popen[str]], services: list[Imds]) -> None:
    """End what a test has left: commands have sessions of their own."""
    for agent in agents:
        agent.kill()
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(folder).encode() in (place / "cmdline").read_bytes():
                    os.kill(int(place.name), signal.SIGKILL)
    for agent in agents:
        agent.communicate(timeout=30)
    for imds in services:
        imds.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("noticed", [0, 1])
def test_a_notice_on_one_machine_saves_the_same_step_on_all(
    kind: str, noticed: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    services = [Imds(), Imds()]
    agents = machines(tmp_path, kind, 100_000, services)
    try:
        reached(tmp_path, 5)
        services[noticed].notice(time.time() + 60)
        places = [tmp_path / f"saved-{rank}" for rank in range(4)]

        def saved() -> list[int] | None:
            found = [place.read_text().split() if place.exists() else [] for place in places]
            return [int(steps[-1]) for steps in found] if all(found) else None

        if kind == "training":
            assert len(set(until(saved))) == 1
        else:
            until(lambda: list((tmp_path / "kept").glob("pair-*.pt")))
        time.sleep(0.5)
        held = reached(tmp_path)
        time.sleep(0.5)
        assert reached(tmp_path) == held  # all hold: the next step would be lost
        if kind == "training":
            assert saved() == [held] * 4
        else:
            assert [p.name for p in (tmp_path / "kept").glob("pair-*.pt")] == [
                f"pair-{held:012d}.pt"
            ]
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            assert ended(agent)[0] != 0
    finally:
        end(tmp_path, agents, services)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_rebalance_recommendation_on_one_machine_is_an_insurance_of_all(
    kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    services = [Imds(), Imds()]
    agents = machines(tmp_path, kind, 200, services)
    try:
        reached(tmp_path, 5)
        services[1].recommend_rebalance()
        for agent in agents:
            code, said = ended(agent)
            assert code == 0, said
        found = [(tmp_path / f"saved-{rank}").read_text().split() for rank in range(4)]
        assert reached(tmp_path) == 200 and len(found[0]) == 1 and found.count(found[0]) == 4
    finally:
        end(tmp_path, agents, services)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_policy_has_all_ranks_save_the_same_steps(
    kind: str, count: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    services = [Imds() for _ in range(count)]
    agents = machines(tmp_path, kind, 60, services, DEEPVM_SAVE_POLICY="static:15", DEEPVM_KEEP="0")
    try:
        for agent in agents:
            code, said = ended(agent)
            assert code == 0, said
        found = [(tmp_path / f"saved-{rank}").read_text().split() for rank in range(2 * count)]
        assert len(found[0]) >= 3 and found.count(found[0]) == 2 * count
        assert {int(step) % 15 for step in found[0]} == {0}
    finally:
        end(tmp_path, agents, services)


# --- the end of a training ------------------------------------------------------------------------

LAST = """
import os, sys
import deepvm.training as dt

here = sys.argv[1]
with dt.step_context():
    pass
with open(f"{here}/final", "wb") as file:
    file.truncate(int(sys.argv[2]))
dt.backup(f"{here}/final")
"""


@pytest.mark.slow  # 300 MB
def test_the_backup_at_the_end_of_a_training_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(LAST)
    code, said = ended(
        start(tmp_path, sys.executable, str(tmp_path / "last.py"), str(tmp_path), "300_000_000")
    )
    assert code == 0, said
    (found,) = (tmp_path / "kept").glob("*/backups/0*/rank-0/final")
    assert found.stat().st_size == 300_000_000 and (found.parents[1] / "whole.json").exists()


def test_a_last_backup_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(LAST)
    (tmp_path / "kept").write_text("no folder")
    code, said = ended(
        start(tmp_path, sys.executable, str(tmp_path / "last.py"), str(tmp_path), "1")
    )
    assert code == 1 and "its last backup was not made" in said
