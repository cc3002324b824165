"""``deepvm run --detach`` from a computer that machines do not reach: the controller runs on an
instance of its own.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs.fake_ec2 import BUCKET, CREDENTIALS, FakeEc2
from support.jobs.fake_machines import HEADS, TRAIN, Machine, Machines, step_of
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # whole jobs


def submit(home: Home, machines: Machines, steps: int = 300, name: str = "one") -> None:
    tiers = [(home.folder / "versions").as_uri()]
    done = home.run(
        "run", str(home.job(name, TRAIN.format(steps=steps), cloud="aws", tiers=tiers)), "--detach"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name}\n" and "head-1 will run" in done.stderr


def head_of(machines: Machines, number: int = 1) -> Machine:
    return until(
        lambda: next((m for m in list(machines.all.values()) if m.name == f"head-{number}"), None),
        90,
    )


def state_of(home: Home, name: str = "one") -> str:
    return str(home.document("jobs", "show", name)["state"])


def ended(home: Home) -> str:
    """The state of a job whose final document has come, else nothing."""
    (row,) = home.document("jobs", "ls")["jobs"]
    return str(row["state"]) if row["controller"] == "over" else ""


def console(machines: Machines) -> str:
    return "\n".join(
        f"--- {m.name}\n{(m.place / 'console').read_text()}" for m in machines.all.values()
    )


def test_a_job_runs_without_the_computer_that_started_it(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    submit(home, machines, steps=10_000)
    until(lambda: step_of(home.result) == 1, 270)
    until(lambda: state_of(home) == "running", 90)
    (row,) = home.document("jobs", "ls")["jobs"]
    assert (row["controller"], row["machines"]) == ("alive", 1)
    assert not home.document("jobs", "orphans")["orphans"]
    home.hurry()
    until(lambda: ended(home) == "done", 270)
    found = home.document("jobs", "show", "one")
    assert (found["steps"], found["preemptions"], found["generations"]) == (10_000, 0, 1), console(
        machines
    )
    assert 0 < found["head_usd"] < found["cost_usd"] < 0.1
    until(lambda: ec2.alive() == [], 90)
    assert not [key for key in ec2.objects() if "/versions" not in key], ec2.objects()
    assert json.dumps(found).count("head-1") == 0  # no machine of the job


def arm(home: Home, *labels: str) -> Path:
    """Let each of these points kill a controller of a head once."""
    folder = home.folder / "points"
    folder.mkdir(exist_ok=True)
    for label in labels:
        (folder / label).touch()
    HEADS["DEEPVM_KILL_POINTS"] = str(folder)
    return folder


def lose(machines: Machines, number: int) -> None:
    """The instance of a head is gone, with its disk."""
    head = head_of(machines, number)
    head.instance.terminate()
    until(lambda: head.process.poll() is not None)


def epochs(home: Home) -> list[int]:
    """The generations that have saved, in the order of the time."""
    files = sorted(home.result.glob("mine-0-*"), key=lambda p: p.stat().st_mtime_ns)
    return [int(p.name.split("-")[2]) for p in files]


def made(home: Home, ec2: FakeEc2) -> list[str]:
    """The names of all machines that there ever were for this user."""
    owner = (home.jobs / ".aws-owner").read_text()
    rows = [{t["key"]: t["value"] for t in i.get_tags()} for i in ec2.instances()]
    return [row["deepvm:machine"] for row in rows if row.get("deepvm:owner") == owner]


def paid_once(home: Home, ec2: FakeEc2, found: dict[str, Any]) -> None:
    """Each machine was made once, and its life paid once."""
    names = made(home, ec2)
    assert len(names) == len(set(names)), names
    assert {m["id"] for m in found["machines"] if m["usd"]} == {
        name for name in names if not name.startswith("head")
    }
    assert found["cost_usd"] == pytest.approx(
        sum(m["usd"] for m in found["machines"]) + found["head_usd"], abs=1e-7
    )


def test_controllers_that_are_killed_on_the_head_are_followed_by_others(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    labels = [
        "head.taken",
        "machine.intent.written",
        "cloud.after-request",
        "job.running.unwritten",
    ]
    folder = arm(home, *labels, "controller.before-orders", "cloud.before-release", "job.finished")
    submit(home, machines)
    until(lambda: ended(home) == "done", 720)
    assert not list(folder.iterdir()), console(machines)
    found = home.document("jobs", "show", "one")
    assert found["steps"] == 300 and (home.result / "starts-0").read_text().split()[0] == "0"
    assert epochs(home) == sorted(epochs(home))
    until(lambda: ec2.alive() == [], 90)
    paid_once(home, ec2, found)


def test_heads_are_lost_at_any_step_and_others_go_on_from_the_mirror(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    """With its disk each head loses what it had written down and not yet sent.

    Then nothing has followed from it.
    """
    number = 1
    folder = arm(home, "machine.intent.written")
    submit(home, machines, steps=2000)

    def lost_at(label: str, following: str = "") -> None:
        nonlocal number
        until(lambda: not (folder / label).exists(), 360)
        lose(machines, number)
        if following:
            (folder / following).touch()
        done = home.run("jobs", "resume", "one")
        assert done.returncode == 0 and f"head-{number + 1} will run" in done.stderr, done.stderr
        number += 1

    lost_at("machine.intent.written", "cloud.after-request")
    assert "m1" not in ec2.alive()
    lost_at("cloud.after-request", "job.running.unwritten")
    lost_at("job.running.unwritten")
    until(lambda: state_of(home) == "running", 270)
    assert sum(m.name == "m1" for m in machines.all.values()) == 1
    (folder / "machine.noticed.written").touch()
    (first,) = [m for m in machines.all.values() if m.name == "m1"]
    machines.interrupt(first, 90.0)
    lost_at("machine.noticed.written")
    until(lambda: epochs(home), 180)
    (folder / "job.finished").touch()
    home.hurry()  # m2 lives for a second or two, and is paid for them
    until(
        lambda: [
            m
            for m in home.document("jobs", "show", "one")["machines"]
            if m["id"] == "m2" and m["ready"]
        ],
        270,
    )
    lost_at("job.finished")
    until(lambda: ended(home) == "done", 270)
    found = home.document("jobs", "show", "one")
    said = home.run("jobs", "show", "one", "-o", "table").stdout
    assert (found["steps"], found["notices"]) == (2000, 1), said + console(machines)
    # The generation begins anew whose start was not written down when its head was lost; nothing
    # else is done twice.
    assert found["lost_steps"] < 500 and found["generations"] <= 4, said
    assert epochs(home) == sorted(epochs(home))
    until(lambda: ec2.alive() == [], 90)
    paid_once(home, ec2, found)
    assert sum(name.startswith("head") for name in made(home, ec2)) == number == 6
    assert not [key for key in ec2.objects() if "/versions" not in key]


def test_its_user_commands_a_head_from_afar(home: Home, ec2: FakeEc2, machines: Machines) -> None:
    submit(home, machines, steps=5000)
    early = home.run("jobs", "stop", "one")
    assert early.returncode == 4 and "has not started yet" in early.stderr
    until(lambda: step_of(home.result) == 1 and state_of(home) == "running", 270)
    again = home.run("jobs", "resume", "one")
    assert again.returncode == 4 and "head-1 runs the controller of one" in again.stderr
    saved = home.run("jobs", "save", "one")
    assert saved.returncode == 0, saved.stderr
    until(lambda: epochs(home), 90)
    stopped = home.run("jobs", "stop", "one")
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: ended(home) == "stopped", 180)
    until(lambda: ec2.alive() == [], 90)
    first = home.document("jobs", "show", "one")
    poor = home.run("jobs", "resume", "one", "--total-usd", "0.0000001")
    assert poor.returncode == 2 and "--total-usd" in poor.stderr and not ec2.alive()
    home.hurry()
    assert home.run("jobs", "resume", "one", "--total-usd", "5").returncode == 0
    until(lambda: ended(home) == "done", 360)
    found = home.document("jobs", "show", "one")
    assert found["steps"] == 5000 and found["lost_steps"] == 0
    assert found["head_usd"] > first["head_usd"] and len(found["machines"]) == 2
    until(lambda: ec2.alive() == [], 90)
    paid_once(home, ec2, found)


def test_a_job_that_was_stopped_stays_so_whatever_is_killed(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    """The head starts its controller again, which must rent nothing again."""
    folder = arm(home)
    submit(home, machines, steps=10_000)
    until(lambda: step_of(home.result) == 1 and state_of(home) == "running", 270)
    (folder / "job.stopped.written").touch()
    home.run("jobs", "stop", "one")  # the answer may be lost with the controller
    until(lambda: ended(home) == "stopped", 180)
    assert not list(folder.iterdir()), console(machines)
    found = home.document("jobs", "show", "one")
    assert [m["end_reason"] for m in found["machines"]] == ["released"] and found[
        "generations"
    ] == 1
    until(lambda: ec2.alive() == [], 90)
    paid_once(home, ec2, found)


def test_logs_and_pages_come_by_the_bucket(home: Home, ec2: FakeEc2, machines: Machines) -> None:
    train = "echo hello; " + TRAIN.format(steps=100)
    tiers = [(home.folder / "versions").as_uri()]
    done = home.run("run", str(home.job("one", train, cloud="aws", tiers=tiers)), "--detach")
    assert done.returncode == 0, done.stderr
    said = home.run("jobs", "logs", "one", "-f", limit_s=200)
    assert said.returncode == 0 and said.stdout.count("m1/0 | hello") == 1, (
        said,
        console(machines),
    )
    assert home.run("jobs", "logs", "one").stdout == said.stdout
    page = home.run("jobs", "show", "one", "-o", "html")
    assert "<html" in page.stdout and "m1" in page.stdout


def test_secrets_of_a_head_are_in_the_bucket_alone(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    submit(home, machines, steps=20)
    (place,) = [p for p in home.folder.rglob("one/secret") if "instances" not in p.parts]
    job = place.read_text().strip()
    keys = [CREDENTIALS["AWS_SECRET_ACCESS_KEY"], CREDENTIALS["AWS_ACCESS_KEY_ID"]]
    planted = [job, *keys]
    until(lambda: ended(home) == "done", 360)
    until(lambda: ec2.alive() == [], 90)
    sent = [
        json.dumps({k: str(v) for k, v in given.items()})
        for service, _, given in ec2.calls
        if service == "ec2"
    ]
    scripts = [
        g["LaunchTemplateData.UserData"] for _, a, g in ec2.calls if a == "CreateLaunchTemplate"
    ]
    assert len(scripts) == 2
    sent += [base64.b64decode(script).decode() for script in scripts]
    sent += [console(machines)]
    assert not [secret for secret in planted for text in sent if secret in text]
    put = [g for _, a, g in ec2.calls if a == "PutObject"]
    assert not [g["path"] for g in put for key in keys if key.encode() in g["body"]]
    # The job's own secret, of which the next controller needs a copy, in one object until the end
    (with_secret,) = {g["path"] for g in put if job.encode() in g["body"]}
    assert re.search(r"/deepvm/[0-9a-f]{12}/one/head/folder/secret/0000$", with_secret)
    assert not [key for key in ec2.objects() if "/versions" not in key]


def test_machines_without_a_head_are_orphans(home: Home, ec2: FakeEc2, machines: Machines) -> None:
    submit(home, machines, steps=100_000)
    until(lambda: step_of(home.result) == 1, 270)
    until(lambda: state_of(home) == "running", 90)
    assert not home.document("jobs", "orphans")["orphans"]
    lose(machines, 1)
    place = next(home.jobs.rglob("one/head.json"))
    # What is known here says that it lives, for 90 s: its machines are not touched before that.
    assert not home.document("jobs", "orphans")["orphans"]
    mirror = next(key for key in ec2.objects() if key.endswith("history.json.gz"))
    from moto.s3.models import s3_backends

    stored = s3_backends["123456789012"]["aws"].get_object(BUCKET, mirror)
    stored.last_modified = stored.last_modified.replace(year=2020)
    (row,) = home.document("jobs", "orphans", "--release")["orphans"]
    assert row["machine"] == "m1" and ec2.alive() == []
    assert json.loads(place.read_text())["begun"]


def test_a_head_that_cannot_begin_ends_itself(home: Home, ec2: FakeEc2, machines: Machines) -> None:
    home.env["DEEPVM_AWS_PYTHON"] = "no-such-python"
    submit(home, machines)
    head = head_of(machines)
    until(lambda: not head.alive, 90)
    assert (head.place / "shutdowns").read_text().splitlines() == ["-h +20", "-h now"]
    home.env["DEEPVM_AWS_PYTHON"] = sys.executable
    done = home.run("jobs", "resume", "one")
    assert done.returncode == 0 and "head-2 will run" in done.stderr, done.stderr
    until(lambda: ended(home) == "done", 360)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("DEEPVM_AWS_HEAD_PROFILE", "nobody", "there is no instance profile nobody"),
        (
            "DEEPVM_AWS_HEAD_TYPE",
            "t3.nano",
            "DEEPVM_AWS_HEAD_TYPE: the price of t3.nano is not known",
        ),
        ("DEEPVM_AWS_BUCKET", "", "DEEPVM_AWS_BUCKET is not set"),
    ],
)
def test_what_a_head_lacks_is_said_before_anything_is_written_down(
    home: Home, ec2: FakeEc2, variable: str, value: str, said: str
) -> None:
    home.env[variable] = value
    done = home.run("run", str(home.job("one", TRAIN.format(steps=5), cloud="aws")), "--detach")
    assert done.returncode == 5 and said in done.stderr, done.stderr
    assert "CreateFleet" not in ec2.asked() and "one" not in home.run("jobs", "ls").stdout


def test_no_capacity_for_a_head_can_be_tried_again(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    ec2.full["t3.small", "*"] = "InsufficientInstanceCapacity"
    done = home.run("run", str(home.job("one", TRAIN.format(steps=5), cloud="aws")), "--detach")
    assert (
        done.returncode == 5
        and "no capacity now" in done.stderr
        and "jobs resume one" in done.stderr
    )
    (row,) = home.document("jobs", "ls")["jobs"]
    assert row["controller"] == "gone"
    ec2.full = {}
    assert home.run("jobs", "resume", "one").returncode == 0
    until(lambda: ended(home) == "done", 360)
