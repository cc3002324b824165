"""The pages that a user reads: short, in the site's contents, and every block of them is tested.

What kinds of blocks there are, and which test runs each, is in ``TESTED``.
"""

from __future__ import annotations

import html
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.jobs.runs import Home
from support.pages import PAGES, ROOT, blocks, commands, options_of, printed, text_of

from deepvm.jobs.jobfile import read_job_file

GUIDE = "docs/guide/"
USER_PAGES = ["README.md", *sorted(page for page in PAGES if page.startswith(GUIDE))]
MOST_WORDS = 12_000
MOST_README_WORDS = 500
CONCEPTS = {
    "plan",
    "machine",
    "job",
    "checkpoint",
    "preemption",
    "budget",
    "quota",
    "cloud",
    "spot",
    "estimate",
}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TESTED = {
    "console": "test_pages",
    "sh": "test_pages",
    "sh node": "test_pages: its options",
    "sh aws": "test_pages: its options; test_aws_guide runs the setup",
    "sh audit": "test_pages: its options",
    "sh docker": "here",
    "text": "output of a command that is run elsewhere",
    "text check": "here",
    "text hosts": "here",
    "json": "here",
    "yaml": "test_aws_guide",
    "yaml job": "here",
    "yaml hosts": "here",
    "yaml gpu": "here",
    "yaml ci": "here",
    "yaml pod": "here",
    "python": "test_examples",
    "python training": "test_examples",
    "python loop": "test_examples",
    "python huggingface": "test_examples",
    "python lightning": "test_examples",
    "python fetched": "shows a file that a job wrote",
    "python sharded-model": "here",
    "python example": "here",
}


def prose(page: str) -> str:
    """A page without its blocks."""
    return FENCE.sub("", text_of(page))


def test_user_pages_are_short() -> None:
    words = {page: len(prose(page).split()) for page in USER_PAGES}
    assert len(words) >= 14
    assert sum(words.values()) <= MOST_WORDS, words
    assert len(text_of("README.md").split()) <= MOST_README_WORDS


def test_user_pages_are_first_in_the_contents() -> None:
    contents = yaml.safe_load((ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    named = {title: pages for entry in contents for title, pages in entry.items()}
    assert sorted(f"docs/{page}" for page in named["User guide"]) == USER_PAGES[1:]
    assert list(named)[:2] == ["Home", "User guide"]


def test_every_block_has_a_test() -> None:
    kinds = {
        " ".join(kind.split()[:2]) if kind.startswith("python example") else kind
        for page in USER_PAGES
        for kind, _ in FENCE.findall(text_of(page))
    }
    assert kinds <= set(TESTED), kinds - set(TESTED)


def test_the_quickstart_explains_ten_words_at_most() -> None:
    text = prose(f"{GUIDE}quickstart.md")
    explained = re.findall(r"\*\*(\w+)\*\*", text)
    assert sorted(explained) == sorted(CONCEPTS) and len(CONCEPTS) == 10
    in_code = re.findall(r"\b[Aa]n? `(\w+)`", text)
    assert not in_code, "a word that is explained is in bold, so that it counts"


@pytest.mark.parametrize("page", USER_PAGES)
def test_lines_of_examples_are_in_the_examples(page: str) -> None:
    for kind, block in FENCE.findall(text_of(page)):
        if kind.startswith("python example "):
            script = ROOT / "docs" / "examples" / kind.split()[2] / "train.py"
            assert block in script.read_text(), kind


@pytest.mark.parametrize("page, kind", [("where-is-my-model", "job"), ("aws", "gpu")])
def test_job_files_are_valid(page: str, kind: str, tmp_path: Path) -> None:
    (block,) = blocks(f"{GUIDE}{page}.md", f"yaml {kind}")
    (tmp_path / "job.yaml").write_text(block)
    assert read_job_file(tmp_path / "job.yaml").train.startswith("python train.py")


def test_the_job_on_own_hosts_is_valid(tmp_path: Path) -> None:
    page = f"{GUIDE}own-hosts.md"
    (tmp_path / "job.yaml").write_text(blocks(page, "yaml hosts")[0])
    (tmp_path / "hosts.txt").write_text(blocks(page, "text hosts")[0])
    job = read_job_file(tmp_path / "job.yaml")
    assert job.cloud == "ssh"
    assert job.machines.hosts is not None


def test_the_quota_file_is_that_of_the_long_guide() -> None:
    assert (
        blocks(f"{GUIDE}accounts.md", "json") == blocks("docs/internals/guide/plan.md", "json")[:1]
    )


def test_what_an_audit_says_is_that_of_the_long_guide() -> None:
    (shown,) = blocks(f"{GUIDE}survive.md", "text")
    whole = "\n".join(blocks("docs/internals/guide/audit.md", "text")).splitlines()
    assert not set(shown.splitlines()) - set(whole)


def audits(text: str) -> list[str]:
    return [line for line in re.findall(r"deepvm audit .*", text)]


def test_ci_examples_audit_with_options_that_exist() -> None:
    folder = ROOT / "docs" / "examples" / "ci"
    github = (folder / "github-actions.yml").read_text()
    assert blocks(f"{GUIDE}teams.md", "yaml ci") == [github.partition("\n")[2]]
    steps = yaml.safe_load(github)["jobs"]["audit"]["steps"]
    script = yaml.safe_load((folder / "gitlab-ci.yml").read_text())["resume"]["script"]
    assert [step["run"] for step in steps if "run" in step] == script
    (line,) = audits(github)
    known, given = options_of(line)
    assert set(given) <= known


@pytest.mark.slow  # seven starts of a training
def test_the_command_of_the_ci_examples_certifies_a_script(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (line,) = audits((ROOT / "docs" / "examples" / "ci" / "gitlab-ci.yml").read_text())
    code = (ROOT / "docs" / "examples" / "trainers" / "plain_loop.py").read_text()
    (tmp_path / "train.py").write_text(code)
    words = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pod_runs_an_agent_with_options_that_exist() -> None:
    pod = yaml.safe_load(blocks(f"{GUIDE}other-engines.md", "yaml pod")[0])
    (container,) = pod["spec"]["containers"]
    known, given = options_of(shlex.join(container["command"]))
    assert set(given) <= known
    grace = int(container["command"][3].rstrip("s"))
    assert grace < pod["spec"]["terminationGracePeriodSeconds"]
    (batch,) = [b for b in blocks(f"{GUIDE}other-engines.md", "sh node") if "srun" in b]
    assert subprocess.run(["bash", "-n"], input=batch, text=True).returncode == 0
    known, given = options_of(
        "deepvm agent" + batch.partition("deepvm agent")[2].partition("\n")[0]
    )
    assert given and set(given) <= known


def test_the_dockerfile_copies_what_exists_and_runs_a_command() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [
        line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line
    ]
    assert copied and all((ROOT / name).exists() for names in copied for name in names)
    plan, audit = blocks(f"{GUIDE}teams.md", "sh docker")
    known, given = options_of(plan.partition("--rm ")[2].strip())
    assert set(given) <= known
    assert {f"#   {line}" for line in audit.splitlines()} <= set(lines)
    assert lines.count("USER 10001") == 1
    stages = "\n".join(lines).split("\nFROM ")
    names = [stage.partition("\n")[0] for stage in stages]
    # Without --target the last stage is built
    assert names[-1] == "base" and 'ENTRYPOINT ["deepvm"]' in stages[-1]
    built, audits = (
        stages[names.index(name)] for name in ("build AS build-audit", "base AS audit")
    )
    assert 'ENTRYPOINT ["deepvm", "audit"]' in audits and "--from=build-audit" in audits
    torch, train = [line for line in built.splitlines() if line.startswith("RUN")]
    assert "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu" in torch
    assert "'.[train]'" in train
    kept = {n[1:] for n in (ROOT / ".dockerignore").read_text().split() if n.startswith("!")}
    assert kept == {name for names in copied for name in names}


def test_the_sharded_model_is_that_of_the_long_guide() -> None:
    (short,) = blocks(f"{GUIDE}large-models.md", "python sharded-model")
    (whole,) = blocks("docs/internals/guide/checkpoint.md", "python fully-sharded")
    assert whole.startswith(short)


def test_figures_of_errors_are_those_of_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = blocks(f"{GUIDE}estimates.md", "text check")
    out = printed("deepvm performance check", capsys)
    assert shown.split() in [line.split() for line in out.splitlines()]
    _, _, unseen = out.partition("unseen model ")
    for model, error in (("llama-8b", 13), ("resnet50", 43), ("stable-diffusion-2", 217)):
        (row,) = [line.split() for line in unseen.splitlines() if line.startswith(model)]
        assert round(float(row[2].rstrip("%"))) == error
        assert f"{error} %" in text_of(f"{GUIDE}estimates.md")


def test_the_citation_names_the_five_papers() -> None:
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert len({reference["title"] for reference in citation["references"]}) == 5
    assert all(reference["authors"] for reference in citation["references"])


@pytest.fixture
def home(tmp_path: Path) -> Any:
    found = Home(tmp_path)
    found.env["DEEPVM_DATA_DIR"] = str(tmp_path / "data" / "deepvm")
    yield found
    found.end()


@pytest.mark.system
def test_the_quickstart_rehearses_and_brings_the_model(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    rehearsal, fetch, plan, run, _ = commands(f"{GUIDE}quickstart.md", "sh node")
    words = shlex.split(rehearsal.replace("docs/", f"{ROOT}/docs/"))[1:]
    done = home.run(*words, limit_s=600)
    assert done.returncode == 0, done.stderr
    events = done.stderr + done.stdout
    for line in blocks(f"{GUIDE}quickstart.md", "text")[0].splitlines():
        pattern = re.sub(r"[\d.]+(?= s left)|\d+(?= (?:is|steps))", "@", line)
        assert re.search(re.escape(pattern).replace("@", r"[\d.]+"), events), line
    words = shlex.split(fetch)[1:]
    words[-1] = str(tmp_path / "results")
    assert home.run(*words).returncode == 0
    weights = torch.load(tmp_path / "results" / "outputs" / "model.pt", weights_only=True)
    assert set(weights) == {"weight", "bias"}

    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "docs" / "examples" / "checkpointer" / "train.py", tmp_path)
    plan, _, file = plan.partition(" > ")
    done = home.run(*shlex.split(plan)[1:], "--offline")
    (tmp_path / file).write_text(done.stdout)
    done = home.run(*shlex.split(run)[1:], limit_s=600)
    assert done.returncode == 0 and "1000 steps" in done.stdout, done.stderr
    assert "1 preemption, 1 with a notice; 0 steps lost" in done.stdout


@pytest.mark.system
def test_the_picture_of_the_answer_is_what_the_command_prints() -> None:
    """``WRITE_GOLDEN=1`` draws it; ``make images`` also the page of a run."""

    def words(svg: str) -> str:
        text = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)))
        return re.sub(r"\d+ days old", "<age>", " ".join(text.split()))

    file = ROOT / "docs" / "images" / "answer.svg"
    svg = runpy.run_path(str(ROOT / "scripts" / "page_images.py"))["answer"]()
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(svg)
    assert words(file.read_text()) == words(svg)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert set(sizes) == {"answer.svg", "run.png"}
    assert max(sizes.values()) <= 150_000
