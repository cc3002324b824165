"""The examples of docs/internals/guide/audit.md: the audit finds in each what the page says."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
import support.lab.ddp_training as ddp
from support.effort import THOROUGH
from support.pages import text_of
from support.places import ROOT

from deepvm.io.user_dirs import read_data
from deepvm.lab.certify.attempt import Subject
from deepvm.lab.certify.certifier import Certificate, certify

pytestmark = pytest.mark.slow
PAGE, EXAMPLES = "docs/internals/guide/audit.md", ROOT / "docs" / "examples" / "audit"
pytest.importorskip("torch")
PLAIN = {
    "": [],
    "rng": ["parameters", "replays"],
    "sampler": ["parameters", "samples", "replays"],
    "scheduler": ["parameters"],
    "momentum": ["parameters", "replays"],
    "buffers": ["parameters"],
    "atomic": ["ends"],
    "checkpoint": ["resumed"],
}
"""By what plain_loop.py forgets: the gates that fail."""
CAUSES = {
    "rng": "another random state of torch",
    "sampler": "its gradients are others: other samples",
    "scheduler": "the learning rate is 0.1, not 0.05",
    "momentum": "the optimizer had another state, such as momentum",
    "buffers": "buffers, such as BatchNorm's averages, are others",
}
KILLS = 20 if THOROUGH else 3
TRAINERS = {
    "hf_trainer.py": ("transformers", ["ends"]),
    "hf_trainer.py --newest-whole": ("transformers", []),
    "hf_trainer.py --newest-whole --augment": ("transformers", ["parameters", "replays"]),
    "accelerate_loop.py": ("accelerate", ["parameters", "samples", "replays"]),
    "accelerate_loop.py --seedable": ("accelerate", ["parameters", "replays"]),
    "accelerate_loop.py --seedable --late": ("accelerate", ["parameters"]),
    "lightning_loop.py": ("lightning", ["parameters", "samples", "replays"]),
    "lightning_loop.py --no-shuffle --dropout 0": (
        "lightning",
        ["parameters", "samples", "replays"],
    ),
    "lightning_loop.py --no-shuffle --dropout 0 --every 40": (
        "lightning",
        ["parameters", "samples"],
    ),
}
"""By command: the library that it needs, and the gates that fail."""


CURES = {
    "": [],
    "rng": ["random"],
    "sampler": ["samples"],
    "scheduler": ["settings"],
    "momentum": ["state"],
    "buffers": ["buffers"],
    "atomic": ["ends"],
    "checkpoint": ["resumed"],
}


def failed(found: Certificate) -> list[str]:
    return [gate.name for gate in found.gates if gate.state == "failed"]


def audit(words: str, kills: int = 3) -> Certificate:
    script, *rest = words.split()
    return certify(Subject(EXAMPLES / script, ["--out", "{out}", *rest]), kills=kills)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("what", PLAIN)
def test_a_plain_loop_that_forgets(what: str) -> None:
    found = audit(f"plain_loop.py --forget {what}" if what else "plain_loop.py")
    assert failed(found) == PLAIN[what]
    known = read_data("lab/cures.json")
    assert found.cures == [known[name] for name in CURES[what]]
    reason = next(gate.reason for gate in found.gates if gate.name == "parameters")
    if what in CAUSES:
        assert CAUSES[what] in reason
    if what == "atomic":  # the other kills were done in another run
        assert next(gate.state for gate in found.gates if gate.name == "parameters") == "passed"


UNSAVED = """
from torch import nn
from torch.utils.data import DataLoader
import time
import torch

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 60
{lines}
"""
STEP = """\
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)"""
YOURS = "        ...  # your step"


def test_a_script_that_saves_nothing_passes_with_the_lines_of_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("train.py")
    script.write_text(UNSAVED.format(lines=f"for step in range(steps):\n{STEP}"))
    found = certify(Subject(script))
    assert failed(found) == ["resumed"]
    lines = found.cures[0]["lines"]
    asked = [line.replace("10_000", "steps") for line in lines]
    assert asked == read_data("jobs/resume_lines.json")[""]  # which 'deepvm run' shows
    assert max(map(len, lines)) <= 76
    script.write_text(UNSAVED.format(lines="\n".join(asked).replace(YOURS, STEP)))
    assert certify(Subject(script)).certified


@pytest.mark.parametrize("words", TRAINERS)
def test_a_trainer(words: str) -> None:
    library, gates = TRAINERS[words]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}: pip install 'deepvm[trainers]'")
    found = failed(audit(words, KILLS))
    if (
        library == "accelerate" and "ends" in found
    ):  # a kill hit a checkpoint that was being written, and there is no end
        assert set(found) <= {"ends", *gates}
    else:
        assert found == gates


@pytest.mark.parametrize(("forget", "gates"), [("none", []), ("rng", ["parameters", "replays"])])
def test_two_ranks_under_torchrun(
    forget: str, gates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    found = certify(
        Subject(Path(ddp.__file__), ["--out", "{out}", "--forget", forget], processes=2), kills=2
    )
    # replays are judged if there are any: a kill right after a checkpoint leaves none
    assert found.processes == 2 and failed(found) in (gates, gates[:1])


def test_the_page_says_the_same() -> None:
    """Each row of its two tables: a command or what is forgotten, and the gates that fail."""
    rows = re.findall(r"^\| `([^`]+)` \|.*\| ([^|]+) \|$", text_of(PAGE), re.MULTILINE)
    shown = {
        what: [] if gates == "none" else gates.replace("`", "").split(", ") for what, gates in rows
    }
    assert {what: shown[what] for what in PLAIN if what} == {
        what: gates for what, gates in PLAIN.items() if what
    }
    assert {words: shown[words] for words in TRAINERS} == {
        words: gates for words, (_, gates) in TRAINERS.items()
    }
