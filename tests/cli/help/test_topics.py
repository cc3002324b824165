"""``deepvm help TOPIC``: each fits a screen, its examples run, its options exist."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from support.command import Run
from support.places import ROOT

from deepvm.cli.app import COMMANDS, app
from deepvm.cli.help.topics import find_topic, topics


@pytest.mark.parametrize("name", topics())
def test_a_topic_is_one_screen_and_its_examples_run(name: str, run: Run) -> None:
    code, out, err = run("help", name)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 24, "and the line that the prompt takes"
    assert not [line for line in lines if len(line) > 80 and not line.startswith("$ ")]
    examples = [line.removeprefix("$ deepvm ") for line in lines if line.startswith("$ deepvm ")]
    assert examples
    for example in examples:
        code, out, err = run(*shlex.split(example))
        assert code == 0 and out, (example, err)


@pytest.mark.parametrize("name", topics())
def test_what_a_topic_names_is_there(name: str, run: Run) -> None:
    text = topics()[name].text
    assert "docs/" not in text, "a wheel has no pages"
    root = typer.main.get_command(app)
    known = {"--install-completion", "--show-completion", "--debug", "--help", "--save"}
    for group in ("recommend", "sweep", "catalog", "performance", "simulate", "run", "lab"):
        command = root.get_command(typer.Context(root), group)  # type: ignore[attr-defined]
        for one in (command, *getattr(command, "commands", {}).values()):
            known |= {option for parameter in one.params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w'/])--?[a-z][a-z-]*", text)) <= known
    for words in re.findall(r"'deepvm ((?:[a-z-]+ ?)+)", text):
        assert run(*([] if words.startswith("help ") else ["help"]), *words.split())[0] == 0, words


def test_each_name_means_one_topic_and_no_command() -> None:
    names = [name for topic in topics().values() for name in (topic.name, *topic.aliases)]
    assert len(names) == len(set(names))
    assert not {entry.name for entry in COMMANDS} & set(names)
    assert find_topic("Exit_Codes") is topics()["exit-codes"]
    assert find_topic("nothing") is None


def test_more_options_are_where_the_help_says(run: Run) -> None:
    page = "".join(path.read_text() for path in (ROOT / "docs/reference/cli").glob("*.md"))
    commands = re.findall(r"\d+ more options: deepvm (help .* --all)", page)
    assert len(commands) > 5
    for command in commands:
        code, out, _ = run(*command.split())
        assert code == 0 and "more options" not in out, command


def test_commands_and_topics_are_listed(run: Run) -> None:
    code, out, err = run("help")
    assert (code, err) == (0, "")
    listed = {entry.name: entry.help for entry in COMMANDS}
    listed |= {topic.name: topic.line for topic in topics().values()}
    for name, line in listed.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", out, re.MULTILINE), name
    assert "deepvm help" in run("--help")[1]
    assert run("help", "recommend", "--all")[1] != run("help", "recommend")[1]
