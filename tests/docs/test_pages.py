"""Every page tells the truth: its outputs are what its commands print, its Python runs, its
``deepvm`` commands exist.

What the fences of a block promise: ``console``: the command prints exactly this; ``sh``: the
commands run, in an empty folder, in the order of the page; ``sh node``, ``sh aws``, ``sh traces``,
``sh lab``, ``sh audit``: they need what a test has not, or time, but have these options;
``python``: it runs.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, commands, options_of, pages_with, printed, text_of

from deepvm.lab.certify.attempt import AttemptLog
from deepvm.lab.certify.certifier import failure_hint

CONSOLE = re.compile(r"```console\n\$ (deepvm [^\n]*)\n(.*?)```", re.DOTALL)
NOT_HERE = ("sh node", "sh aws", "sh traces", "sh lab", "sh audit")


def settled(text: str) -> str:
    return re.sub(r"\d+(\.\d+)? (years|days|d) old", "<age> old", text)


@pytest.mark.system  # no process, but all commands of the pages
@pytest.mark.parametrize("page", pages_with("console"))
def test_outputs_are_what_the_commands_print(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``WRITE_GOLDEN=1`` writes the outputs anew."""
    text = text_of(page)
    fresh = CONSOLE.sub(lambda m: f"```console\n$ {m[1]}\n{printed(m[1], capsys)}```", text)
    if os.environ.get("WRITE_GOLDEN"):
        PAGES[page].write_text(fresh)
        text = fresh
    assert settled(fresh) == settled(text)


def test_three_outputs_and_more_are_shown() -> None:
    assert sum(len(CONSOLE.findall(text_of(page))) for page in PAGES) >= 3


@pytest.mark.system
@pytest.mark.parametrize("page", pages_with("sh"))
def test_shell_examples_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in commands(page, "sh"):
        command, _, target = line.partition(" > ")
        out = printed(command, capsys)
        if target and target != "/dev/null":
            (tmp_path / target).write_text(out)
    written = {p.name for p in tmp_path.iterdir()}
    assert WRITTEN.get(page, set()) <= written


WRITTEN = {
    "docs/internals/guide/plan.md": {"sweep.csv", "figure7.svg"},
    "docs/internals/guide/simulate.md": {"bars.png", "sweep.png"},
    "docs/internals/guide/launch.md": {"plan.json", "main.tf.json", "sky", "fleet", "launch"},
    "docs/guide/estimates.md": {"plan.html"},
    "docs/guide/other-engines.md": {"plan.json", "main.tf.json", "sky", "fleet", "launch"},
    "docs/internals/reference/catalog-file.md": {"my.json", "my.csv"},
}


def test_the_pages_that_write_are_there() -> None:
    assert set(WRITTEN) <= set(pages_with("sh"))
    assert sum(len(commands(page, "sh")) for page in PAGES) >= 20


@pytest.mark.parametrize("page", pages_with(*NOT_HERE))
def test_commands_that_need_more_have_these_options(page: str) -> None:
    for line in [line for info in NOT_HERE for line in commands(page, info)]:
        known, given = options_of(line)
        assert set(given) <= known, line


def test_an_audits_options_come_before_the_script() -> None:
    """Behind it they would be the script's."""
    lines = [
        line
        for page in PAGES
        for line in commands(page, "sh audit")
        if line.startswith("deepvm audit ")
    ]
    assert len(lines) >= 2
    for line in lines:
        known, _ = options_of(line)
        words = shlex.split(line.partition(" -- ")[0])
        script = next(number for number, word in enumerate(words) if word.endswith(".py"))
        assert not known & {*words[script:]}, line


def test_what_ends_a_process_at_once_comes_after_the_last_save() -> None:
    """``os._exit`` runs no exit hooks: a checkpoint that is still being written is lost."""
    texts = [text_of(page) for page in PAGES]
    texts += [path.read_text() for path in sorted((ROOT / "docs" / "examples").rglob("*.py"))]
    ends = [
        part
        for text in [*texts, failure_hint("SIGABRT", [], AttemptLog())]
        for part in text.split("\n\n")
        if "os._exit(0)" in part
    ]
    assert len(ends) >= 2
    for part in ends:
        assert "ck.close()" in part.partition("os._exit(0)")[0], part


def test_a_wrong_option_is_seen() -> None:
    known, given = options_of("deepvm ckpt gc /mnt/ckpt --keep 2 --evry 1000")
    assert "--keep" in known and set(given) - known == {"--evry"}
    assert sum(len(commands(page, info)) for page in PAGES for info in NOT_HERE) >= 25


def test_make_targets_exist() -> None:
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", text_of(page), re.MULTILINE)
    }
    assert len(named) >= 4
    assert named <= targets


def test_ci_runs_the_test_command_of_the_readme() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert command == "make test-all"
    assert re.search(rf"^{command} ", text_of("README.md"), re.MULTILINE)
