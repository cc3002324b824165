"""Runs of other people's trainers are killed by SIGKILL at random steps, and end as if nothing had
happened.

The oracle is ``deepvm audit``: two undisturbed runs of the same script, compared bit for bit at
every step.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import support.checkpoint.two_rank_loop as two_rank_loop
from support.effort import THOROUGH
from support.pages import text_of
from support.places import ROOT

from deepvm.lab.certify.attempt import Subject
from deepvm.lab.certify.certifier import Certificate, certify

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
EXAMPLES = ROOT / "docs" / "examples" / "trainers"
KILLS = 20 if THOROUGH else 5
RUNS = {
    "plain_loop.py": [],
    "plain_loop.py --loader-workers 2 --accumulate 3 --epochs 4": [],
    "plain_loop.py --loader-workers 2 --stateful": ["torchdata"],
    "hf_trainer.py --augment": ["transformers", "accelerate"],
    "hf_trainer.py --augment --loader-workers 2 --accumulate 3 --epochs 6 --evaluate 7": [
        "transformers",
        "accelerate",
    ],
    "hf_trainer.py --half --accumulate 2": ["transformers", "accelerate"],
    "lightning_loop.py": ["lightning"],
    "lightning_loop.py --loader-workers 2 --accumulate 3 --epochs 5 --validate 9": ["lightning"],
    "lightning_loop.py --half": ["lightning"],
    "accelerate_loop.py": ["accelerate"],
    "accelerate_loop.py --seedable --loader-workers 2 --accumulate 3 --epochs 5": ["accelerate"],
    "accelerate_loop.py --half --accumulate 2": ["accelerate"],
    "accelerate_loop.py --stateful --loader-workers 2": ["accelerate", "torchdata"],
}
"""By command: the libraries that it needs."""


def needs(libraries: list[str]) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"needs {library}: pip install 'deepvm[trainers]'")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def audited(words: str) -> Certificate:
    script, *rest = words.split()
    return certify(Subject(EXAMPLES / script, ["--out", "{out}", *rest]), kills=KILLS)


@pytest.mark.parametrize("words", RUNS)
def test_killed_at_random_steps(words: str) -> None:
    needs(RUNS[words])
    found = audited(words)
    assert [
        (gate.name, gate.state, gate.reason) for gate in found.gates if gate.state != "passed"
    ] == []
    # With every version skipped it would begin at 0 each time, and pass as well.
    assert sum(bool(kill.resumed) for kill in found.kills) > KILLS // 2


@pytest.mark.parametrize(
    ("script", "words", "libraries"),
    [
        (Path(two_rank_loop.__file__), "--loader-workers 1", []),
        (EXAMPLES / "hf_trainer.py", "--augment", ["transformers", "accelerate"]),
        (EXAMPLES / "accelerate_loop.py", "", ["accelerate"]),
        (EXAMPLES / "lightning_loop.py", "--ranks 2", ["lightning"]),
    ],
    ids=["plain", "huggingface", "accelerate", "lightning"],
)
def test_two_ranks(
    script: Path, words: str, libraries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(libraries)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    found = certify(Subject(script, ["--out", "{out}", *words.split()], processes=2), kills=KILLS)
    assert found.processes == 2
    assert [
        (gate.name, gate.state, gate.reason) for gate in found.gates if gate.state != "passed"
    ] == []


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_sharded_model_in_a_training_run(workers: str, tmp_path: Path) -> None:
    """Killed within two epochs, and started again."""

    def run(name: str, *more: str) -> int:
        (tmp_path / name).mkdir(exist_ok=True)
        words = ["--out", str(tmp_path / name), "--sharded", "--loader-workers", workers, *more]
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        return subprocess.run(
            [*launcher, two_rank_loop.__file__, *words], stderr=subprocess.DEVNULL
        ).returncode

    assert run("undisturbed") == 0
    for step in ("7", "18"):
        assert run("killed", "--die-at", step) != 0
    assert run("killed") == 0
    first, again = (torch.load(tmp_path / name / "final.pt") for name in ("undisturbed", "killed"))
    assert all(torch.equal(first[name], again[name]) for name in first) and len(first) > 5


def test_sigterm_of_one_rank_ends_all(tmp_path: Path) -> None:
    """They end with the same version, and none waits for another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    words = [two_rank_loop.__file__, "--out", str(tmp_path), "--sleep", "0.2", "--every", "1000"]
    ranks = [
        subprocess.Popen(
            [sys.executable, *words], env={**env, "RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    assert ranks[0].stderr is not None
    while b"starts at 0" not in (line := ranks[0].stderr.readline()):
        assert line, "it ended"
    time.sleep(1)
    os.kill(ranks[1].pid, signal.SIGTERM)
    for rank in ranks:
        ended(rank, 143)
    assert len([*(tmp_path / "v").glob("*.pt")]) == 1


def started(words: str, out: Path, *before: str) -> subprocess.Popen[bytes]:
    """``before``: what the interpreter is to run, with the script as its argument."""
    script, *rest = words.split()
    out.mkdir(exist_ok=True)
    command = [sys.executable, *before, str(EXAMPLES / script), "--out", str(out), *rest]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes], code: int = 0) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors.decode()[-3000:]


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def await_version(out: Path, version: int) -> None:
    deadline = time.monotonic() + 120
    while not any(
        int(file.stem.split("-")[-1].split(".")[0]) >= version
        for file in out.glob("versions/*.json")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_log_of_a_trainer_is_whole(tmp_path: Path) -> None:
    """Losses averaged over steps before and after a kill, evaluations and the mean loss."""
    needs(["transformers", "accelerate"])
    words = "hf_trainer.py --logs --evaluate 7"
    ended(started(words, tmp_path / "undisturbed"))
    process = started(words, tmp_path / "killed")
    await_version(tmp_path / "killed", 25)
    process.kill()
    process.communicate()
    ended(started(words, tmp_path / "killed"))
    rows = [
        json.loads((tmp_path / name / "log.json").read_text()) for name in ("undisturbed", "killed")
    ]
    assert rows[0] == rows[1] and len(rows[0]) > 25
    ended(started(words, tmp_path / "killed"))  # there is nothing left to do
    assert json.loads((tmp_path / "killed" / "log.json").read_text()) == rows[0]


MIXED_PRECISION = {
    "plain_loop.py": [],
    "hf_trainer.py --half": ["transformers", "accelerate"],
    "lightning_loop.py --half": ["lightning"],
    "accelerate_loop.py --half": ["accelerate"],
}
NOTES_THE_SCALER = """
import os, runpy, sys
from torch.amp import GradScaler
told = open(os.path.join(sys.argv[sys.argv.index("--out") + 1], f"scaler-{os.getpid()}"), "w", buffering=1)
update = GradScaler.update
def noted(self, *words):
    update(self, *words)
    print(self.get_scale(), self._get_growth_tracker(), file=told)
GradScaler.update = noted
"""  # noqa: E501
FORGETS_THE_SCALER = """
from deepvm.checkpoint.integrations.session import Session
init = Session.__init__
def forgetful(self, loader, extra, *words, own=None, **options):
    without = [{name: value for name, value in (given or {}).items() if name != "scaler"} for given in (extra, own)]
    assert len(extra or {}) + len(own or {}) == sum(map(len, without)) + 1
    init(self, loader, without[0], *words, own=without[1], **options)
Session.__init__ = forgetful
"""  # noqa: E501
RUNS_THE_SCRIPT = """
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def check_scaler(words: str, folder: Path, change: str = "") -> None:
    """A run that is killed scales as one that is not: scale and growth tracker after each step."""
    before = ("-c", NOTES_THE_SCALER + change + RUNS_THE_SCRIPT)
    runs = [started(words, folder / name, *before) for name in ("undisturbed", "killed")]
    await_version(folder / "killed", 25)
    runs[1].kill()
    runs[1].communicate()
    assert runs[1].returncode == -signal.SIGKILL
    runs.append(started(words, folder / "killed", *before))
    ended(runs[0])
    ended(runs[2])
    notes = [[*(folder.glob(f"*/scaler-{run.pid}"))][0].read_text().splitlines() for run in runs]
    undisturbed, first, rest = notes
    assert undisturbed[: len(first)] == first and len(first) >= 25
    assert len(rest) <= len(undisturbed) - 25, "it was not resumed"
    assert undisturbed[-len(rest) :] == rest
    scales = [float(line.split()[0]) for line in undisturbed]
    assert scales[0] < 2.0**19 and scales.count(2.0**17) and scales.count(2.0**18), (
        "no step was skipped"
    )


@pytest.mark.parametrize("words", MIXED_PRECISION)
def test_a_scaler_goes_on(words: str, tmp_path: Path) -> None:
    needs(MIXED_PRECISION[words])
    check_scaler(words, tmp_path)


@pytest.mark.parametrize("words", MIXED_PRECISION)
def test_a_scaler_that_is_forgotten_is_seen(words: str, tmp_path: Path) -> None:
    needs(MIXED_PRECISION[words])
    with pytest.raises(AssertionError, match=r"-len\(rest\)|== \["):
        check_scaler(words, tmp_path, FORGETS_THE_SCALER)


@pytest.mark.parametrize(
    ("words", "code", "libraries"),
    [
        ("plain_loop.py --every 1000 --epochs 40", 143, []),
        ("hf_trainer.py --every 1000", 143, ["transformers", "accelerate"]),
        ("lightning_loop.py --every 1000 --epochs 20", 0, ["lightning"]),
        ("lightning_loop.py --every 1000 --epochs 20 --accumulate 4", 0, ["lightning"]),
        ("accelerate_loop.py --every 1000 --epochs 40", 143, ["accelerate"]),
    ],
)
def test_sigterm_saves_and_ends(
    words: str, code: int, libraries: list[str], tmp_path: Path
) -> None:
    needs(libraries)
    process = started(words, tmp_path / "out")
    assert process.stderr is not None
    while b"starts at 0" not in (line := process.stderr.readline()):
        assert line, "it ended"
    start_s = cpu_s(process.pid)
    while cpu_s(process.pid) < start_s + 0.3:  # of its own: on a busy machine it starts late
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    ended(process, code)
    (saved,) = (tmp_path / "out" / "versions").glob("*.pt")
    version = int(saved.stem.split("-")[-1])
    again = started(words, tmp_path / "out")
    assert again.stderr is not None
    while b"deepvm:" not in (line := again.stderr.readline()):
        assert line, "it ended"
    assert f"resumed from version {version} ".encode() in line and version > 0
    ended(again)


@pytest.mark.parametrize(
    ("library", "script", "change"),
    [
        ("transformers", "hf_trainer.py", ("callbacks=[Log(), saves]", "callbacks=[Log()]")),
        ("lightning", "lightning_loop.py", ("callbacks=[Deep", "callbacks=[] and [Deep")),
    ],
)
def test_a_callback_changes_nothing(
    library: str, script: str, change: tuple[str, str], tmp_path: Path
) -> None:
    """The same script without it has the same parameters and random numbers at each step."""
    needs([library])
    text = (EXAMPLES / script).read_text()
    assert change[0] in text
    (tmp_path / "with.py").write_text(text)
    (tmp_path / "without.py").write_text(text.replace(*change))
    rows = []
    for name in ("with", "without"):
        out = tmp_path / name
        certify(
            Subject(tmp_path / f"{name}.py", ["--out", "{out}"]), kills=1, write_kills=0, out=out
        )
        logs = sorted((out / "undisturbed-1" / "log-0").glob("*"))
        rows.append([digests(log) for log in logs])
    assert rows[0] == rows[1] and rows[0]


def digests(log: Path) -> list[object]:
    found = []
    for line in log.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] in ("samples", "step"):
            found.append(
                {name: value for name, value in row.items() if name not in ("time", "key", "n")}
            )
    return found


def test_the_page_says_the_same() -> None:
    """Each command in its table of audits was run here."""
    shown = re.findall(
        r"^\| `(\w+\.py[^`]*)` \|", text_of("docs/internals/guide/trainers.md"), re.MULTILINE
    )
    assert set(shown) >= RUNS.keys()
