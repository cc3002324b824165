"""Whole jobs on local machines: what scripts write comes back, whatever happens to machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home, until

pytestmark = pytest.mark.system

# Writes model.bin (a number, after a NUL) and a log, in the folder in which it starts
PLAIN = """
import os, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
result = os.environ["RESULT"]
open(f"{result}/starts", "a").write("start ")
for step in range(steps):
    time.sleep(0 if os.path.exists(f"{result}/hurry") else pause)
    with open("new.tmp", "wb") as file:
        file.write(b"\\0%d" % step)
    os.replace("new.tmp", "model.bin")
    with open("log.txt", "a") as file:
        file.write(f"{step}\\n")
    print("step", step)
if len(sys.argv) > 3:
    raise ValueError(sys.argv[3])
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "plain.py").write_text(PLAIN)
    yield found
    found.end()


def job(home: Home, name: str, words: str, **more: Any) -> Path:
    outputs = more.pop("outputs", ["*.bin", "log.txt"])
    return home.job(name, f"exec python plain.py {words};", outputs=outputs, **more)


def fetch(home: Home, name: str, *words: str, code: int = 0) -> dict[str, Any]:
    done = home.run("jobs", "fetch", name, "--to", str(home.folder / "got"), "-o", "json", *words)
    assert done.returncode == code, done
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def brought(home: Home) -> dict[str, bytes]:
    top = home.folder / "got"
    files = (p for p in top.rglob("*") if p.is_file() and ".deepvm-fetch" not in p.parts)
    return {str(p.relative_to(top)): p.read_bytes() for p in files}


def kept_step(home: Home, name: str, machine: str = "m1") -> int:
    """What the storage has of a machine's model, -1 for nothing."""
    root = home.jobs / name / "versions" / name / "outputs"
    try:
        files = json.loads((root / f"{machine}.json").read_bytes())["files"]
        return int((root / machine / files["model.bin"]["sha256"]).read_bytes()[1:])
    except (OSError, KeyError):
        return -1


def test_a_plain_script_gets_its_model_back(home: Home) -> None:
    done = home.run("run", str(job(home, "plain", "5 0.05", outputs=["*.bin", "*.nope"])))
    assert done.returncode == 1, done
    assert "plain is done, but outputs: nothing matched *.nope" in done.stderr
    assert "outputs: 1 file (2 B), kept " in done.stdout
    assert "deepvm jobs fetch plain brings it" in done.stdout
    assert "outputs: nothing matched *.nope" in done.stdout
    assert "written and not kept: log.txt; outputs: in the job file" in done.stdout
    assert done.stderr.count("m1/0 | step ") == 5
    page = (home.jobs / "plain" / "run.html").read_text()
    assert "Outputs: 1 file (2 B), kept " in page and "Outputs: nothing matched *.nope." in page
    shown = home.document("jobs", "show", "plain")["outputs"]
    assert (shown["files"], shown["unmatched"], shown["problem"]) == (1, ["*.nope"], "")
    assert [f["state"] for f in fetch(home, "plain")["files"]] == ["new"]
    assert brought(home) == {"model.bin": b"\0004"}
    assert [f["state"] for f in fetch(home, "plain")["files"]] == ["same"]


def test_json_on_stdout_is_pure(home: Home) -> None:
    done = home.run("run", str(job(home, "pure", "3 0")), "-o", "json")
    assert json.loads(done.stdout)["outputs"]["files"] == 2 and "m1/0 | step 2" in done.stderr


def test_the_default_folder_and_a_hint(home: Home) -> None:
    path = job(home, "default", "1 0")
    path.write_text(
        "".join(
            line
            for line in path.read_text().splitlines(True)
            if not line.startswith(("outputs:", "- "))
        )
    )
    done = home.run("run", str(path))
    assert done.returncode == 0
    assert "written and not kept: log.txt, model.bin" in done.stdout, done
    nothing = home.run("jobs", "fetch", "default", "--to", str(home.folder / "got"))
    assert nothing.returncode == 4 and "has kept no outputs and no checkpoint yet" in nothing.stderr
    assert not (home.folder / "got").exists()


def test_after_a_failure(home: Home) -> None:
    done = home.run("run", str(job(home, "fails", "3 0 wrong")))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    first = lines.index("ValueError: wrong")
    assert (
        lines[first + 1].startswith("  plain.py, line ") and "raise ValueError" in lines[first + 2]
    )
    assert f"deepvm jobs logs fails ({home.jobs / 'fails' / 'logs'})" in done.stderr
    fetch(home, "fails")
    assert brought(home) == {"model.bin": b"\0002", "log.txt": b"0\n1\n2\n"}


def test_while_it_runs_and_after_a_stop(home: Home) -> None:
    done = home.run("run", str(job(home, "long", "100000 0.05")), "--detach")
    assert done.returncode == 0, done
    # The log of the controller has no output of trainers: it would only grow
    until(lambda: kept_step(home, "long") >= 0, 60)
    fetch(home, "long")
    first = int(brought(home)["model.bin"][1:])
    assert home.run("jobs", "stop", "long").returncode == 0
    until(lambda: home.document("jobs", "show", "long")["state"] == "stopped", 60)
    states = {f["name"]: f["state"] for f in fetch(home, "long")["files"]}
    assert states == {"model.bin": "replaced", "log.txt": "replaced"}
    last = int(brought(home)["model.bin"][1:])
    # All that it wrote until its machine was released
    assert last > first and brought(home)["log.txt"].split()[-1] == str(last).encode()
    assert "m1/0 | step" not in (home.jobs / "long" / "controller.log").read_text()
    assert "m1/0 | step 0" in home.run("jobs", "logs", "long").stdout.splitlines()


def test_a_notice_leaves_nothing_behind(home: Home) -> None:
    inject = {"lives": ["2s"], "grace": "2s"}
    done = home.document("run", str(job(home, "noticed", "60 0.1", inject=inject)))
    assert (done["state"], done["preemptions"], done["notices"]) == ("done", 1, 1)
    # m1 had its notice 2 s after its first step: what it had then, and later, was kept
    assert kept_step(home, "noticed") >= 10
    files = fetch(home, "noticed")["files"]
    assert {f["machine"] for f in files} == {"m2"} and brought(home)["model.bin"] == b"\00059"
    fetch(home, "noticed", "--all")
    assert brought(home)["machines/m1/log.txt"].startswith(b"0\n1\n")


def test_a_machine_killed_without_a_notice(home: Home) -> None:
    """The newest outputs that were kept come back, and it is said of when they are."""
    process = home.start("run", str(job(home, "killed", "100000 0.05")))
    until(lambda: kept_step(home, "killed") >= 0, 60)
    # The controller hears of it a heartbeat later
    until(lambda: home.document("jobs", "show", "killed")["outputs"]["files"] == 2, 60)
    step = kept_step(home, "killed")
    os.killpg(process.pid, signal.SIGKILL)  # the controller first, which would replace it
    for pid in home.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=10)
    found = fetch(home, "killed")
    assert int(brought(home)["model.bin"][1:]) >= step
    (model,) = (f for f in found["files"] if f["name"] == "model.bin")
    assert model["kept"].endswith("Z") and found["problems"] == []
    shown = home.run("jobs", "show", "killed")
    assert "outputs: 2 files (" in shown.stdout and ", kept 20" in shown.stdout


def test_a_storage_out_of_reach(home: Home) -> None:
    """Training goes on; report and fetch say since when outputs are not kept."""
    tier = home.folder / "mounted" / "tier"
    tier.parent.mkdir()
    process = home.start("run", str(job(home, "away", "100000 0.05", tiers=[tier.as_uri()])))
    root = tier / "away" / "outputs"
    until(lambda: (root / "m1.json").exists(), 60)
    fetch(home, "away")
    shutil.move(tier.parent, home.folder / "unmounted")
    tier.parent.write_text("no folder")
    until(lambda: home.document("jobs", "show", "away")["outputs"]["problem"], 60)
    assert home.document("jobs", "show", "away")["state"] == "running"
    shown = home.run("jobs", "show", "away").stdout
    assert "outputs are not kept since 20" in shown and "Not a directory" in shown
    page = home.run("jobs", "show", "away", "-o", "html").stdout
    assert '<p class="alarm">Outputs are not kept since 20' in page
    failed = fetch(home, "away", code=1)
    assert any("are not kept since" in problem for problem in failed["problems"])
    assert any("cannot list its outputs" in problem for problem in failed["problems"])
    # It comes back: the newest are kept again
    tier.parent.unlink()
    shutil.move(home.folder / "unmounted", tier.parent)
    until(lambda: not home.document("jobs", "show", "away")["outputs"]["problem"], 60)
    assert home.run("jobs", "stop", "away").returncode == 0
    process.communicate(timeout=60)
    assert fetch(home, "away")["problems"] == []
    assert brought(home)["log.txt"].split()[-1] == brought(home)["model.bin"][1:]


BOTH = """
import os, time
rank = os.environ["RANK"]
with open("log.txt", "w") as file:
    file.write(f"rank {rank}")
with open(f"own-{rank}.txt", "w") as file:
    file.write(rank)
"""


def test_two_machines_that_write_one_name(home: Home) -> None:
    (home.code / "both.py").write_text(BOTH)
    more = {"independent_processes": True, "outputs": ["*.txt"]}
    done = home.run("run", str(home.job("both", "exec python both.py;", 2, **more)), "--all-ranks")
    assert done.returncode == 0, done
    fetch(home, "both")
    found = brought(home)
    mine, other = found.pop("log.txt"), found.pop("machines/m2/log.txt", None)
    assert found.pop("own-0.txt") == b"0" and found.pop("own-1.txt") == b"1"
    if other is None:  # m2 was the first of them
        other = found.pop("machines/m1/log.txt")
    assert (mine, other, found) == (b"rank 0", b"rank 1", {})


SAVES = """
import os, time, torch
from deepvm.checkpoint import Checkpointer

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ck = Checkpointer(model=model, optimizer=optimizer, every=5)
for step in ck.steps(20):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
ck.close()
torch.save(model.state_dict(), "model.pt")
"""


def test_the_newest_checkpoint_is_a_plain_file(home: Home) -> None:
    torch = pytest.importorskip("torch")
    (home.code / "saves.py").write_text(SAVES)
    path = home.job("saves", "python saves.py", outputs=["*.pt"])
    assert home.run("run", str(path)).returncode == 0
    files = {f["name"]: f for f in fetch(home, "saves")["files"]}
    assert files.keys() == {"model.pt", "checkpoint.pt"}
    assert (files["checkpoint.pt"]["kind"], files["checkpoint.pt"]["step"]) == ("checkpoint", 20)
    got = home.folder / "got"
    whole = torch.load(got / "checkpoint.pt", weights_only=True)
    mine = torch.load(got / "model.pt", weights_only=True)
    assert all(torch.equal(whole["model"][name], value) for name, value in mine.items())
    states = {f["name"]: f["state"] for f in fetch(home, "saves")["files"]}
    assert set(states.values()) == {"same"}


def test_the_newest_checkpoint_of_all_tiers(home: Home) -> None:
    """One tier has lost its newest, and what is damaged is named."""
    (home.code / "saves.py").write_text(SAVES)
    tiers = [home.folder / "near", home.folder / "far"]
    path = home.job("both", "python saves.py", outputs=[], tiers=[tier.as_uri() for tier in tiers])
    assert home.run("run", str(path)).returncode == 0
    newest, older = sorted(tiers[0].rglob("*.pt"), reverse=True)[:2]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-300] + bytes(100) + whole[-200:])
    found = fetch(home, "both", code=1)
    (file,) = found["files"]
    assert (file["name"], file["step"]) == ("checkpoint.pt", 20) and file["kept"].endswith("Z")
    assert [p for p in found["problems"] if "version 20" in p and newest.name in p], found
    newest.unlink()
    older.unlink()
    assert fetch(home, "both")["files"][0]["state"] == "same"


def test_a_backup_of_a_script_that_saves_by_itself(home: Home) -> None:
    job = home.job("backup", "exec python own.py 30 0.05;", save_policy="static:10")
    assert home.run("run", str(job)).returncode == 0
    (found,) = fetch(home, "backup")["files"]
    assert (found["kind"], found["step"]) == (
        "backup",
        int((home.folder / "got" / found["name"]).read_text()),
    )
    assert found["name"].startswith("backup/mine-0-1-")


def test_a_fetch_that_is_killed(home: Home) -> None:
    """The next one brings all, and nothing half."""
    (home.code / "large.py").write_text(
        "import os\nfor n in range(8):\n    open(f'{n}.bin', 'wb').write(os.urandom(20_000_000))\n"
    )
    path = home.job("large", "exec python large.py;", outputs=["*.bin"])
    assert home.run("run", str(path)).returncode == 0
    got = home.folder / "got"
    process = home.start("jobs", "fetch", "large", "--to", str(got))
    until(lambda: list(got.glob("*.bin")), 30)
    process.kill()
    process.communicate(timeout=10)
    some = brought(home)
    assert some and {len(data) for data in some.values()} == {20_000_000}
    found = fetch(home, "large")
    assert len(found["files"]) == 8 and {f["state"] for f in found["files"]} <= {"same", "new"}
    assert not (got / ".deepvm-fetch" / "parts").exists()
