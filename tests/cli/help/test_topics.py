"""``deepvm help TOPIC``: every topic fits a screen, every example runs, every option and page
exists.
"""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from support.command import Run
from support.places import ROOT

from deepvm.cli.app import COMMANDS, app
from deepvm.cli.help.topics import TOPICS, Topic, find_topic, topic_names


def names(topic: Topic) -> str:
    return topic.names[0]


@pytest.mark.parametrize("topic", TOPICS, ids=names)
def test_a_topic_is_one_screen(topic: Topic, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run("help", topic.names[0])
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 24, "and the line that the prompt takes"
    assert not [line for line in lines if len(line) > 80 and not line.startswith("$ ")]
    assert all(f"$ {example}" in lines for example in topic.examples)
    for other in topic.names:
        assert run("help", other)[1] == out or other in topic_names()


@pytest.mark.parametrize("topic", TOPICS, ids=names)
def test_the_examples_of_a_topic_run(topic: Topic, run: Run) -> None:
    for example in topic.examples:
        command, *words = shlex.split(example)
        code, out, err = run(*words)
        assert command == "deepvm" and code == 0 and out, (example, err)


@pytest.mark.parametrize("topic", TOPICS, ids=names)
def test_what_a_topic_names_is_there(topic: Topic, run: Run) -> None:
    assert (ROOT / topic.page).exists()
    root = typer.main.get_command(app)
    known = {"--install-completion", "--show-completion", "--debug"}
    for name in ("recommend", "sweep", "catalog", "performance", "run", "lab"):
        command = root.get_command(typer.Context(root), name)  # type: ignore[attr-defined]
        for one in (command, *getattr(command, "commands", {}).values()):
            known |= {o for p in one.params for o in p.opts}
    said = " ".join([*topic.idea, *(f"{option} {text}" for option, text in topic.options)])
    assert set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", said)) <= known | {"--save"}  # of profile
    for words in re.findall(r"'deepvm ((?:[a-z-]+ ?)+)", said):
        assert run(*([] if words.startswith("help ") else ["help"]), *words.split())[0] == 0, words


def test_each_name_means_one_topic_and_no_command() -> None:
    all_names = [name for topic in TOPICS for name in topic.names]
    assert len(all_names) == len(set(all_names))
    assert not {e.name for e in COMMANDS} & set(all_names)
    assert find_topic("Exit_Codes") is find_topic("exit-codes") and find_topic("nothing") is None


def test_more_options_are_where_the_help_says(run: Run) -> None:
    commands = re.findall(
        r"\d+ more options: deepvm (help .* --all)", (ROOT / "docs/reference/cli.md").read_text()
    )
    assert len(commands) > 5
    for command in commands:
        code, out, _ = run(*command.split())
        assert code == 0 and "more options" not in out, command


def test_commands_and_topics_are_listed(run: Run) -> None:
    code, out, err = run("help")
    assert (code, err) == (0, "")
    for name, line in (
        *((e.name, e.help) for e in COMMANDS),
        *((t.names[0], t.line) for t in TOPICS),
    ):
        assert re.search(rf"^  {name} +{re.escape(line)}$", out, re.MULTILINE), name
    assert "deepvm help" in run("--help")[1]
    assert run("help", "recommend", "--all")[1] != run("help", "recommend")[1]


def test_an_unknown_topic_gets_a_suggestion(run: Run) -> None:
    for typed, said in (
        ("budgt", "deepvm help budget"),
        ("recomend", "deepvm help recommend"),
        ("xyzzy", ""),
    ):
        code, out, err = run("help", typed)
        assert (code, out) == (2, "")
        assert f"No such command or topic {typed!r}." in err and (
            f"Did you mean '{said}'?" in err
        ) == bool(said)
    code, _, err = run("help", "budget", "more")
    assert code == 2 and "Got unexpected extra argument(s) (more)" in err
