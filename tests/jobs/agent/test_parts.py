"""Scripts that save by themselves, with a state of its own on each rank: all parts of a backup, or
an older one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.jobs.real_agents import Commander, running
from support.jobs.runs import until

from deepvm.io.agent_board import SaveReason

pytestmark = pytest.mark.slow  # whole agents

SHARDED = """
import os, socket, sys, time
import deepvm.training as dt

# A process group, as far as the agent can see.
store = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    server = socket.create_server(("", store[1]))
    connection, _ = server.accept()
while os.environ["RANK"] != "0":
    try:
        connection = socket.create_connection(store)
        break
    except OSError:
        time.sleep(0.05)

here, who, world = sys.argv[1], os.environ["RANK"], int(os.environ["WORLD_SIZE"])
epoch, saving = os.environ["DEEPVM_EPOCH"], sys.argv[2].split(",")
latest = dt.latest()
step, state = latest.read_text().split() if latest else ("0", f"of-{who}")
open(f"{here}/starts-{epoch}-{who}", "w").write(f"{step} {state}")
step = int(step)
while True:
    with dt.step_context():
        time.sleep(0.05)
        open(f"{here}/at-{epoch}-{step}-{who}", "w").close()
        while not all(os.path.exists(f"{here}/at-{epoch}-{step}-{other}") for other in range(world)):
            time.sleep(0.01)
    step += 1
    if dt.check_save() and who in saving:
        while who != "0" and not os.path.exists(f"{here}/go"):
            time.sleep(0.01)
        open(f"{here}/mine-{epoch}-{step}-{who}", "w").write(f"{step} {state}")
        dt.backup(f"{here}/mine-{epoch}-{step}-{who}")
    if os.path.exists(f"{here}/end"):
        break
"""  # noqa: E501


class Job:
    """A job of two machines, each with one rank."""

    def __init__(self, commander: Commander, folder: Path, saving: str) -> None:
        self.commander, self.folder = commander, folder
        (folder / "train.py").write_text(SHARDED)
        commander.spec["train"] = f"exec python {folder}/train.py {folder} {saving};"
        commander.spec["tiers"] = [(folder / "tier").as_uri()]
        self._agents = ExitStack()
        for name in ("m1", "m2"):
            self._agents.enter_context(running(commander, folder / name, name))

    def begin(self, generation: int) -> None:
        self.commander.run(generation, "m1", "m2")
        until(
            lambda: (
                {b["machine"] for b in self.commander.beats if b["generation"] == generation}
                == {"m1", "m2"}
            )
        )

    def save(self, generation: int, step: int, reason: SaveReason) -> None:
        """Have both save the same step."""
        for orders in self.commander.orders.values():
            schedule = {
                "generation": generation,
                "step": step,
                "save": [reason, 60_000, 1],
                "number": step,
            }
            orders["schedule"] = schedule
            if reason.holds:
                orders["save"] = {"asked_s": 1.0, "reason": reason, "left_s": 60.0}

    def starts(self, generation: int) -> list[str]:
        places = [self.folder / f"starts-{generation}-{rank}" for rank in (0, 1)]
        until(lambda: all(place.exists() and place.read_text() for place in places))
        return [place.read_text() for place in places]

    def part(self, rank: int) -> bool:
        return bool(
            list((self.folder / "tier" / "job" / "backups").glob(f"0*/rank-{rank}/record.json"))
        )

    def end(self) -> None:
        self._agents.close()


@pytest.fixture
def commander() -> Iterator[Commander]:
    found = Commander()
    yield found
    found.stop()


@pytest.fixture(params=["0,1"])
def job(request: pytest.FixtureRequest, commander: Commander, tmp_path: Path) -> Iterator[Job]:
    found = Job(commander, tmp_path, request.param)
    yield found
    found.end()


def test_a_backup_is_safe_when_all_its_parts_are(job: Job, commander: Commander) -> None:
    """Before a preemption: rank 0's machine must stay while another rank still saves."""
    job.begin(1)
    job.save(1, 30, SaveReason.EMERGENCY)
    until(lambda: job.part(0))
    time.sleep(1.0)
    assert not commander.heard("saved")
    (job.folder / "go").touch()
    (saved,) = until(lambda: commander.heard("saved"))
    assert (saved["version"], saved["reason"], saved["machine"]) == (30, SaveReason.EMERGENCY, "m1")
    assert job.part(1)
    job.begin(2)
    assert job.starts(2) == ["30 of-0", "30 of-1"]


def test_a_backup_without_all_its_parts_is_none(job: Job, commander: Commander) -> None:
    job.begin(1)
    job.save(1, 30, SaveReason.EMERGENCY)
    until(lambda: job.part(0))
    job.begin(2)
    assert job.starts(2) == ["0 of-0", "0 of-1"]


def test_an_insurance_waits_for_slow_ranks_too(job: Job, commander: Commander) -> None:
    job.begin(1)
    job.save(1, 30, SaveReason.INSURANCE)
    until(lambda: job.part(0))
    time.sleep(1.0)
    assert not commander.heard("saved")
    (job.folder / "go").touch()
    until(lambda: commander.heard("saved"))
    assert job.part(1)


@pytest.mark.parametrize("job", ["0"], indirect=True)
@pytest.mark.parametrize("reason", [SaveReason.EMERGENCY, SaveReason.INSURANCE])
def test_where_rank_0_alone_saves_nobody_waits_for_others(
    job: Job, commander: Commander, reason: SaveReason
) -> None:
    job.begin(1)
    job.save(1, 30, reason)
    until(lambda: commander.heard("saved"), 10)
    job.begin(2)
    assert job.starts(2) == ["30 of-0", "30 of-0"]


LAST = """
import sys
import deepvm.training as dt

with dt.step_context():
    pass
with open(sys.argv[1], "wb") as file:
    file.truncate(300_000_000)
dt.backup(sys.argv[1])
"""


@pytest.mark.parametrize("works", [True, False])
def test_the_end_is_reported_when_the_last_backup_is_safe(
    commander: Commander, tmp_path: Path, works: bool
) -> None:
    (tmp_path / "last.py").write_text(LAST)
    commander.spec |= {"train": f"exec python {tmp_path}/last.py {tmp_path}/mine;"}
    commander.spec["tiers"] = [(tmp_path / "tier").as_uri()]
    if not works:
        (tmp_path / "tier").write_text("no folder")
    commander.run(1, "m1")
    with running(commander, tmp_path / "m1"):
        (ended,) = until(lambda: commander.heard("ended"))
        assert ended["code"] == (0 if works else 1) and ended["step"] == 1
        assert works or "its last backup was not made" in ended["lines"][-1]
        found = list((tmp_path / "tier").glob("job/backups/0*/whole.json"))
        assert len(found) == works
