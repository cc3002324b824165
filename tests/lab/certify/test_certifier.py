"""Audits of a training that starts quickly: each mistake fails its own gate and no other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import support.lab.toy_training as toy
from support.lab.audit_logs import Row, logged, train
from support.processes import marked

from deepvm.errors import DataError, RequestError
from deepvm.lab.certify.certifier import Certificate, Kill, certify, plan_of
from deepvm.lab.certify.subject import Subject

pytest.importorskip("torch")
SCRIPT = Path(toy.__file__)
FINAL = "final.safetensors"


def audit(mistake: str = "", kills: int = 2, out: Path | None = None, **more: object) -> Certificate:
    words = ["--out", "{out}", "--mistake", mistake]
    return certify(Subject(SCRIPT, words, final=FINAL, **more), kills=kills, out=out)  # type: ignore[arg-type]


def failed(found: Certificate) -> list[str]:
    return [gate.name for gate in found.gates if gate.state == "failed"]


def reason(found: Certificate, name: str) -> str:
    return next(gate.reason for gate in found.gates if gate.name == name)


def test_a_right_one_passes_all_gates(tmp_path: Path) -> None:
    found = audit(kills=1, out=tmp_path / "out")
    assert [gate.state for gate in found.gates] == ["passed"] * 7
    assert found.certified and found.steps == toy.STEPS and found.compared == "file"
    assert len(found.struck) == found.planned == 1
    assert all(one.resumed is not None and one.resumed % toy.EVERY == 0 for one in found.struck)
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
def test_what_a_crash_said_is_told() -> None:
    assert "failed with exit code 1:\nKeyError: 'optimizer'" in reason(audit("crash", kills=1), "ends")


@pytest.mark.slow
def test_a_hanging_one_does_not_end() -> None:
    found = audit("hang", kills=1, timeout_s=4)
    assert failed(found) == ["ends"] and "did not end within 4 s" in reason(found, "ends")


@pytest.mark.slow
def test_a_script_may_want_to_be_told_that_it_resumes() -> None:
    assert failed(audit("untold", kills=1)) == ["ends"]
    assert audit("untold", kills=1, resume_arguments=["--resume"]).certified


def test_one_that_fails_by_itself_is_no_answer() -> None:
    with pytest.raises(DataError, match="it has never worked"):
        audit("fails")


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
    assert Subject(SCRIPT).stays  # DEEPVM_AUDIT_DIR is in its text
    assert certify(Subject(SCRIPT, final=FINAL), kills=1).certified


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RequestError, match="a new or empty folder"):
        audit(out=tmp_path)
    with pytest.raises(RequestError, match="a Python file"):
        Subject(tmp_path / "nothing.py")
    with pytest.raises(RequestError, match="at least 1"):
        audit(kills=0)


def test_kills_are_drawn_from_the_seed(tmp_path: Path) -> None:
    """One in each of equal parts of the steps, and none after the last step."""
    rows = train(100)
    rows += [{"kind": "write", "file": "a", "n": n, "time": n} for n in (20, 20, 20, 40)]

    def plan(seed: int, write_kills: int = 1, text: list[Row] = rows) -> list[Kill]:
        return plan_of(logged(text), 3, write_kills, random.Random(seed))

    assert plan(1) == plan(1) != plan(2)
    for seed in range(20):
        kills = plan(seed)
        assert [kill.kind for kill in kills].count("write") == 1 and kills[0].kind == "step"
        assert all(1 + 89 * part / 4 - 1 <= kill.step <= 1 + 89 * (part + 1) / 4 for part, kill in enumerate(kills))
        assert all(0 <= kill.skip < 3 for kill in kills)
    assert {kill.kind for kill in plan(1, text=train(100))} == {kill.kind for kill in plan(1, 0)} == {"step"}
