"""What is seen of a job's command and its files, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepvm.jobs import python_sources
from deepvm.jobs.python_sources import PythonSources
from deepvm.jobs.training_script import script_facts

FILES = {
    "plain.py": "import torch\nraise SystemExit('it was run')\n",
    "saves.py": "from deepvm.checkpoint import Checkpointer\n",
    "far.py": "from net.models import Net\n",
    "net/__init__.py": "",
    "net/models.py": "from .deep import parts\n",
    "net/deep/__init__.py": "",
    "net/deep/parts.py": "import deepvm.checkpoint.integrations.lightning\n",
    "net/__main__.py": "from net import models\n",
    "src/inside/__init__.py": "from deepvm import checkpoint\n",
    "layout.py": "import inside\n",
    "other/place.py": "from deepvm.checkpoint import training_run\n",
    "elsewhere.py": "import place\n",
    "reports.py": "import deepvm.training as dt\nwith dt.step_context(): pass\n",
    "backs_up.py": "from deepvm import training as dt\ndt.latest()\n",
    "mentions.py": "'''deepvm.checkpoint'''  # import deepvm.checkpoint\nimport deepvm\n",
    "by_name.py": "import importlib, sys\nimportlib.import_module(sys.argv[1])\n",
    "deepvm/__init__.py": "import deepvm.checkpoint\n",
    "lazy.py": "def main():\n    try:\n        import saves\n    finally:\n        pass\n",
    "old.py": "print 'Python 2'\n",
    "ddp.py": "import torch.distributed as dist\ndist.init_process_group('nccl')\n",
    "trainer.py": "from transformers import Trainer\nTrainer().train()\n",
    "bolt.py": "import lightning as L\n",
    "asks.py": "import torch.distributed as dist\ndist.is_initialized()\n",
    "go.sh": '#!/bin/sh\n# it\'s a comment\nset -e\nexport X=1\npython \\\n  saves.py "$@"\n',
    "start": "#!/usr/bin/env python3\nimport saves\n",
    "loop.sh": "sh loop.sh\n",
    "quoted.sh": "echo 'two\nlines'\npython $SCRIPT\n",
    "program": "\x7fELF",
    "starts.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'saves.py', str(1)])\n",
    "shell.py": "import os\nlr = 1\nos.system(f'python saves.py --lr {lr}')\n",
    "named.py": (
        "from subprocess import check_call\nimport sys\n"
        "def main():\n    cmd = ['torchrun', '--standalone', 'starts.py'] + sys.argv[1:]\n"
        "    check_call(cmd, check=True)\n"
    ),
    "becomes.py": "import os\nos.execvp('bash', ['bash', 'go.sh'])\n",
    "starts_plain.py": "import subprocess\nsubprocess.Popen('python plain.py', shell=True)\n",
    "commit.py": "import subprocess as sp\nsp.check_output(['git', 'rev-parse', 'HEAD'])\n",
    "given.py": "import subprocess, sys\nsubprocess.run(sys.argv[1:])\n",
    "built.py": "import subprocess, sys\nsubprocess.run([sys.executable, sys.argv[1]])\n",
    "itself.py": "import os\nos.system('python itself.py')\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def facts(folder: Path, train: str, **env: str) -> PythonSources:
    return script_facts(train, folder, env)


@pytest.mark.parametrize(
    "train",
    [
        "python saves.py --epochs 90",
        "python3.11 -u -X dev saves.py",
        "exec python saves.py 5 0.1;",
        "OMP_NUM_THREADS=1 nohup python saves.py > log 2>&1",
        "test -e ready || exit 3; python saves.py",
        "pip install -q -r requirements.txt && python saves.py",
        "cd net && python ../saves.py",
        "torchrun --standalone --nproc-per-node 8 saves.py --x 1",
        "python -m torch.distributed.run --nproc-per-node=2 saves.py",
        "python -m torch.distributed.run -m net.models",
        "accelerate launch --config_file a.yaml saves.py",
        "accelerate launch --module net.models",
        "deepvm agent --metadata aws -- torchrun --nproc-per-node 8 saves.py",
        "mpirun -np 4 python saves.py",
        "uv run saves.py",
        "bash go.sh --lr 1",
        "./go.sh",
        "./start",
        "sh -c 'cd /tmp; python saves.py'",
        "python -c 'from deepvm.checkpoint import Checkpointer'",
        "python -m saves",
        "python -m net",
        "python far.py",
        "python layout.py",
        "python backs_up.py",
        "python lazy.py",
        "python starts.py",
        "python shell.py",
        "python named.py --lr 1",
        "python becomes.py",
    ],
)
def test_commands_whose_script_resumes(folder: Path, train: str) -> None:
    if "cd /tmp" in train:
        train = train.replace("/tmp", str(folder))
    found = facts(folder, train)
    assert found.resumes and not found.forms_group, found


def test_a_module_of_another_folder(folder: Path) -> None:
    assert facts(folder, "python elsewhere.py", PYTHONPATH="other").resumes
    assert not facts(folder, "python elsewhere.py").resumes


@pytest.mark.parametrize(
    "train",
    [
        "python plain.py",
        "python mentions.py",
        "python reports.py",
        "python commit.py",
        "python itself.py",
    ],
)
def test_scripts_that_cannot_resume(folder: Path, train: str) -> None:
    """A comment, or steps alone, save nothing. None of them is run."""
    found = facts(folder, train)
    assert not found.resumes and not found.unknown and len(found.files) == 1


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ("python gone.py", "gone.py is not in the code folder"),
        ("python -m trl.scripts.sft", "the module trl.scripts.sft is not in the code folder"),
        ("./program --x", "./program --x names no script that is known here"),
        ("./gone", "./gone names no script that is known here"),
        ("tune run recipe", "'tune run recipe' names no script that is known here"),
        ("$PYTHON $SCRIPT", "names no script"),
        ("python old.py", "old.py is not Python that can be read here"),
        ("python by_name.py net", "modules are imported by names that are not seen here"),
        ("sh loop.sh", "loop.sh names no script that is known here"),
        ("sh quoted.sh", "a quote of a shell has no end"),
        ("python 'saves.py", "a quote of a shell has no end"),
        ("cat plan | python -", "names no script"),
        ("python given.py", "subprocess.run() starts a program whose name is not seen here"),
        ("python built.py", "names no script that is known here"),
    ],
)
def test_what_cannot_be_followed_is_unknown(folder: Path, train: str, reason: str) -> None:
    found = facts(folder, train)
    assert not found.resumes and reason in found.unknown, found


def test_code_that_is_not_here_is_unknown() -> None:
    found = script_facts("python train.py", None, {})
    assert found.unknown == "the code is not on this computer" and not found.resumes


def test_files_that_cannot_be_read_are_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "folder.py").mkdir()
    assert "folder.py cannot be read" in facts(folder, "python folder.py").unknown
    monkeypatch.setattr(python_sources, "MOST_FILES", 2)
    assert "more than 2 files are imported" in facts(folder, "python far.py").unknown
    (folder / "nul.py").write_bytes(b"x = 1\0")
    assert "nul.py is not Python" in facts(folder, "python nul.py").unknown
    deep = "(" * 5000 + ")" * 5000
    (folder / "deep.py").write_text(deep)
    assert "deep.py is not Python" in facts(folder, "python deep.py").unknown


@pytest.mark.parametrize(
    ("train", "forms"),
    [
        ("python ddp.py", True),
        ("python trainer.py", True),
        ("python bolt.py", True),
        ("torchrun --nproc-per-node 4 ddp.py", True),
        ("python asks.py", False),
        ("python plain.py", False),
        ("torchrun --nproc-per-node 4 plain.py", False),
    ],
)
def test_scripts_that_form_a_process_group(folder: Path, train: str, *, forms: bool) -> None:
    assert facts(folder, train).forms_group == forms


def test_what_a_launcher_starts_counts_as_its_script(folder: Path) -> None:
    found = facts(folder, "python starts_plain.py")
    assert not found.resumes and not found.unknown and len(found.files) == 2
    assert found.name == "starts_plain.py and plain.py"


def test_the_digest_is_of_what_the_files_contain(folder: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("moved")
    for name in ("far.py", "net/__init__.py", "net/models.py"):
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_text(FILES[name])
    for name in ("net/deep/__init__.py", "net/deep/parts.py"):
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_text(FILES[name])
    before = facts(folder, "python far.py").digest
    assert facts(other, "python far.py --lr 1").digest == before
    (other / "net" / "deep" / "parts.py").write_text("x = 1\n")
    assert facts(other, "python far.py").digest != before
