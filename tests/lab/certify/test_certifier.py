"""Audits of a training that starts quickly: each mistake fails its own gate and no other."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import support.lab.toy_training as toy
from support.lab.audit_logs import Row, attempt, logged, start, train
from support.processes import marked

from deepvm.documents.build import document_of
from deepvm.errors import DataError, RequestError
from deepvm.lab.certify import certifier
from deepvm.lab.certify.attempt import Attempt, Subject, Trigger
from deepvm.lab.certify.certifier import (
    Certificate,
    PlannedKill,
    certify,
    earlier_checkpoints,
    failure_hint,
    plan_of,
    trigger_of,
)
from deepvm.lab.certify.history import History

pytest.importorskip("torch")
SCRIPT = Path(toy.__file__)
FINAL = "final.safetensors"


def audit(
    mistake: str = "", kills: int = 2, out: Path | None = None, **more: object
) -> Certificate:
    words = ["--out", "{out}", "--mistake", mistake]
    return certify(Subject(SCRIPT, words, final=FINAL, **more), kills=kills, out=out)  # type: ignore[arg-type]


def failed(found: Certificate) -> list[str]:
    return [gate.name for gate in found.gates if gate.state == "failed"]


def reason(found: Certificate, name: str) -> str:
    return next(gate.reason for gate in found.gates if gate.name == name)


@pytest.mark.system
def test_a_right_one_passes_all_gates(tmp_path: Path) -> None:
    found = audit(kills=1, out=tmp_path / "out")
    assert [gate.state for gate in found.gates] == ["passed"] * 7
    assert found.certified and found.steps == toy.STEPS and found.compared == "file"
    assert len(found.kills) == found.planned == 1
    assert all(one.resumed is not None and one.resumed % toy.EVERY == 0 for one in found.kills)
    assert not marked(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "gates"),
    [
        ("unseeded", ["repeats"]),
        ("crash", ["ends"]),
        ("anew", ["resumed"]),
        ("momentum", ["parameters"]),
        ("samples", ["samples"]),
        ("loss", ["replays"]),
    ],
)
def test_a_mistake_fails_its_gate_only(mistake: str, gates: list[str]) -> None:
    found = audit(mistake)
    assert failed(found) == gates and not found.certified


@pytest.mark.slow
def test_the_last_lines_of_a_crash_are_shown() -> None:
    assert "failed with exit code 1:\nKeyError: 'optimizer'" in reason(
        audit("crash", kills=1), "ends"
    )


@pytest.mark.slow
def test_a_hanging_one_does_not_end() -> None:
    found = audit("hang", kills=1, timeout_s=4)
    assert failed(found) == ["ends"] and "did not end within 4 s" in reason(found, "ends")


@pytest.mark.slow
def test_a_script_may_want_to_be_told_that_it_resumes() -> None:
    assert failed(audit("untold", kills=1)) == ["ends"]
    assert audit("untold", kills=1, resume_arguments=["--resume"]).certified


@pytest.mark.system
def test_one_that_fails_by_itself_is_no_answer() -> None:
    with pytest.raises(DataError, match="it has never worked"):
        audit("fails")


@pytest.mark.system
def test_one_that_shows_nothing_is_told_what_to_add() -> None:
    with pytest.raises(DataError, match=r"deepvm\.lab\.SampleLog"):
        audit("silent")
    with pytest.raises(DataError, match="--final"):
        certify(Subject(SCRIPT, ["--out", "{out}"]))
    with pytest.raises(DataError, match=r"other\.pt: the script has not written"):
        certify(Subject(SCRIPT, ["--out", "{out}"], final="other.pt"))


@pytest.mark.slow
def test_without_a_word_it_runs_in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "here" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text().replace('os.environ.get("DEEPVM_AUDIT_DIR", ".")', '"."'))
    monkeypatch.chdir(script.parent)
    found = certify(Subject(Path("train.py"), final=FINAL), kills=1, out=tmp_path / "out")
    assert found.certified and "a copy of the current folder" in found.notes[0]
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]
    assert (tmp_path / "out" / "killed-1" / "out" / "checkpoint.json").is_file()


EARLIER = """
import json, pathlib, sys, time
import numpy as np
from safetensors.numpy import save_file
from deepvm.lab import SampleLog
log = SampleLog()
file = pathlib.Path("ckpt/last.pt")
step = json.loads(file.read_text()) if file.exists() else 0
if step >= 60:
    sys.exit("IndexError: nothing to train")
while step < 60:
    time.sleep(0.004)
    log.step(step, [step])
    step += 1
    if step % 8 == 0:
        file.parent.mkdir(exist_ok=True)
        file.with_suffix(".new").write_text(str(step))
        file.with_suffix(".new").replace(file)
save_file({"weights": np.array([step])}, "final.safetensors")
"""


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint beside a script that is told nothing: each run gets a copy of both."""
    folder = tmp_path / "here"
    (folder / "ckpt").mkdir(parents=True)
    (folder / "train.py").write_text(EARLIER)
    monkeypatch.chdir(folder)
    return folder / "ckpt" / "last.pt"


@pytest.mark.slow
@pytest.mark.parametrize("step", [30, None])
def test_a_checkpoint_that_was_there_is_told(earlier: Path, step: int | None) -> None:
    """If the undisturbed run began with it, which its samples show."""
    earlier.with_name("pretrained.pt").touch()
    if step is not None:
        earlier.write_text(str(step))
    found = certify(Subject(Path("train.py"), final=FINAL), kills=1)
    assert found.certified
    told = [note for note in found.notes if "earlier" in note]
    text = (
        "the undisturbed run found files of earlier trainings and started at step 30: ckpt/last.pt,"
        " ckpt/pretrained.pt"
    )
    assert told == ([text] if step else [])


@pytest.mark.system
def test_a_finished_checkpoint_that_was_there_is_told(earlier: Path) -> None:
    earlier.write_text("60")
    with pytest.raises(DataError) as raised:
        certify(Subject(Path("train.py"), final=FINAL))
    assert str(raised.value).startswith(
        "the script fails without a kill, with exit code 1:\nIndexError: nothing to train\n"
    )
    assert "ckpt/last.pt" in str(raised.value) and "earlier training" in str(raised.value)
    (earlier.parents[1] / "train.py").write_text("print('all is done')")
    with pytest.raises(DataError, match=r"no step of a torch optimizer .*\n.*ckpt/last\.pt"):
        certify(Subject(Path("train.py"), final=FINAL))


def test_without_samples_a_checkpoint_that_was_there_may_be_one() -> None:
    told = earlier_checkpoints([Path("ckpt/last.pt")], logged(train(3)))
    assert told.startswith(
        "files that lay in the current folder may be checkpoints of an earlier training:"
        " ckpt/last.pt. If"
    )
    assert not earlier_checkpoints([], logged(train(3)))


def test_an_abort_at_the_end_is_told_to_be_one() -> None:
    lines = (
        "  exitcode  : -6 (pid: 12)  (SIGABRT)\n  traceback : Signal 6 (SIGABRT) received by PID 12"
    )
    assert "os._exit(0)" in failure_hint(lines, [], logged(train(3)))
    assert failure_hint("ValueError: no such file", [], logged(train(3))) == ""


@pytest.mark.system
def test_a_module_that_is_missing_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        'import sys\n# DEEPVM_AUDIT_DIR\nsys.exit("ModuleNotFoundError: No module named'
        " 'lightning.x'\")"
    )
    with pytest.raises(DataError) as raised:
        certify(Subject(script))
    assert str(raised.value).endswith(
        f"the script runs in deepvm's own Python; install lightning there: {sys.executable} -m pip"
        " install lightning"
    )


@pytest.mark.system
def test_a_large_folder_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    with (tmp_path / "data").open("wb") as file:
        file.truncate(300 * 10**6)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=r"\{out\}"):
        certify(Subject(script))


@pytest.mark.slow
def test_a_script_that_reads_the_variable_stays_where_it_is() -> None:
    assert Subject(SCRIPT).in_place  # DEEPVM_AUDIT_DIR is in its text
    assert certify(Subject(SCRIPT, final=FINAL), kills=1).certified


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(
        RequestError, match="a new or empty folder; .* to use this one, delete it first"
    ):
        audit(out=tmp_path)
    with pytest.raises(RequestError, match="a Python file; there is none"):
        Subject(tmp_path / "nothing.py")
    with pytest.raises(RequestError, match="a Python file; this is a folder"):
        Subject(tmp_path)
    with pytest.raises(RequestError, match="a whole number from 1"):
        audit(kills=0)


def test_kills_are_drawn_from_the_seed(tmp_path: Path) -> None:
    """One in each of equal parts of the steps, and none after the last step."""
    rows = train(100)
    rows += [{"kind": "write", "file": "a", "n": n, "time": n} for n in (20, 20, 20, 40)]

    def plan(seed: int, write_kills: int = 1, text: list[Row] = rows) -> list[PlannedKill]:
        return plan_of(logged(text), 3, write_kills, random.Random(seed))

    assert plan(1) == plan(1) != plan(2)
    for seed in range(20):
        kills = plan(seed)
        assert [kill.kind for kill in kills].count("write") == 1 and kills[0].kind == "step"
        assert all(
            1 + 89 * part / 4 - 1 <= kill.step <= 1 + 89 * (part + 1) / 4
            for part, kill in enumerate(kills)
        )
        assert all(0 <= kill.skip < 3 for kill in kills)
    assert (
        {kill.kind for kill in plan(1, text=train(100))}
        == {kill.kind for kill in plan(1, 0)}
        == {"step"}
    )


def killed_run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, first: list[int | None], steps: int = 20
) -> tuple[Certificate, list[int], list[str]]:
    """The verdict on a script whose attempts reach these steps, or end; the steps asked for.

    What was reported.
    """
    asked: list[int] = []
    reached = [None, None, *first]

    def run_attempt(
        subject: Subject, run: Path, number: int, trigger: Trigger | None, limit_s: float
    ) -> Attempt:
        end = reached.pop(0) if reached else None
        if trigger is not None:
            asked.append(trigger.point(start("w0", "")).after)
        if end is not None:
            return attempt(number, train(end), "killed")
        after = 0 if number == 0 else 8
        return attempt(number, train(steps, after=after))

    monkeypatch.setattr(certifier, "run_attempt", run_attempt)
    said: list[str] = []
    found = certify(Subject(SCRIPT), kills=1, write_kills=0, out=folder / "out", report=said.append)
    return found, asked, said


@pytest.mark.system
def test_a_kill_with_the_last_step_is_repeated_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked, said = killed_run(monkeypatch, tmp_path, [20, None, 10, None])
    assert found.certified and [kill.hit for kill in found.kills] == [False, True]
    assert [kill["hit"] for kill in document_of("audits.Audit", found)["kills"]] == [False, True]
    assert asked[1] == max(1, asked[0] // 2)
    assert said[2].startswith("next: 1 kill, in about ")
    assert said[3:5] == [
        "run 1, attempt 0: from step 0, 20 steps, killed at step 20 of 20, which proves nothing",
        "run 1, attempt 1: from step 8, 12 steps, ended",
    ]
    assert said[5] == "1 of 1 kills did not hit the training: again, earlier"


@pytest.mark.system
def test_one_that_ends_before_its_kill_is_repeated_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked, _ = killed_run(monkeypatch, tmp_path, [None, 10, None])
    assert found.certified and asked[1] == max(1, asked[0] // 2)


@pytest.mark.system
def test_after_some_runs_kills_that_prove_nothing_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked, _ = killed_run(monkeypatch, tmp_path, [20, None] * 5)
    assert failed(found) == ["kills"] and len(asked) == 3
    assert "0 of 1 kills hit the training" in reason(found, "kills")


def test_a_kill_in_a_write_counts_from_where_the_attempt_goes_on() -> None:
    rows = [*train(100)]
    history = History(logged(rows), logged(rows))
    trigger = trigger_of(PlannedKill("write", 60, 0.0, 2), 54, history, "step")
    assert trigger.kind == "write"
    for place in (40, 50):
        point = trigger.point(start(f"w{place}", f"s{place}"))
        assert (point.after, point.skip) == (60 - place, 2)
    assert trigger.point(start("nobody knows", "")).after == 6


def test_one_kill_is_in_the_middle_between_two_saves() -> None:
    """So that there are steps to do again, whichever points the seed draws."""

    def saves(every: int) -> list[Row]:
        return [
            {"kind": "write", "file": "a", "n": n, "time": n}
            for n in range(every, 101, every)
            for _ in range(2)
        ]

    for seed in range(50):
        for kills in (1, 3):
            plan = plan_of(logged([*train(100), *saves(10)]), kills, 1, random.Random(seed))
            assert any(
                kill.kind == "step" and kill.step % 10 == 5 and kill.step > 10 for kill in plan
            )
            assert [kill.step for kill in plan] == sorted(kill.step for kill in plan)
    steps = {
        kill.step % 10
        for seed in range(50)
        for kill in plan_of(logged([*train(100), *saves(10)]), 3, 1, random.Random(seed))
    }
    assert steps == set(range(10))  # the others land anywhere
    for every in (2, 60):  # no step in the middle; no second save in the part where kills are
        plan_of(logged([*train(100), *saves(every)]), 3, 1, random.Random(0))


@pytest.mark.parametrize("kills", [3, 30])
def test_no_kill_waits_for_the_last_step(kills: int) -> None:
    """Wherever the attempt goes on."""
    rows = [*train(10)]
    history = History(logged(rows), logged(rows))
    for kill in plan_of(logged(rows), kills, 0, random.Random(0)):
        for place in range(9):
            point = trigger_of(kill, 0, history, "step").point(
                start(f"w{place}", f"s{place}" if place else "")
            )
            assert 1 <= point.after <= point.limit <= 9 - place
