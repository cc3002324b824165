"""Widths, whole commands, color."""

from __future__ import annotations

import io
import os
import pty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.reports.terminal import (
    BEST,
    USUAL_WIDTH,
    fitted,
    paint,
    pieces,
    print_lines,
    width_of,
    without_controls,
    wrapped,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_people_copy_stays_whole() -> None:
    for text, whole in [
        (
            "see 'deepvm catalog refresh --region us-east-1' for today's",
            "'deepvm catalog refresh --region us-east-1'",
        ),
        ("what that needs ('deepvm doctor' says so)", "('deepvm doctor'"),
        ("All of them: '| less -S' or '-o csv'.", "'| less -S'"),
        ("! prices 9 days old  -> deepvm catalog refresh", "-> deepvm catalog refresh"),
        (
            "--gpu: no; did you mean --gpu A100 --gpu-memory-min 80GB?",
            "--gpu A100 --gpu-memory-min 80GB?",
        ),
        ("No such command 'x'. Did you mean 'deepvm help budget'?", "'deepvm help budget'?"),
        ("install it with: pip install -e '.[plot]' (in a checkout)", "pip install -e '.[plot]'"),
        ('such as {"a": 1, "b": [2, 3]}; or none', '{"a": 1, "b": [2, 3]};'),
    ]:
        assert whole in pieces(text)
        for width in (10, 20, 40):
            lines = wrapped(text, width)
            assert sum(whole in line for line in lines) == 1
            assert all(len(line) <= width or line.strip() in pieces(text) for line in lines)
            assert " ".join(line.strip() for line in lines).split() == text.split()


def test_an_address_is_never_torn() -> None:
    url = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/" + "using-spot-limits" * 4 + ".html"
    lines = wrapped(f"0 vCPUs of G and VT, and of P: {url}, read 2026-12-01", 80)
    assert lines[1] == f"  {url}," and len(lines) == 3


def test_an_apostrophe_is_no_quote() -> None:
    assert pieces("AWS's prices and the user's own") == [
        "AWS's",
        "prices",
        "and",
        "the",
        "user's",
        "own",
    ]


def test_spaces_within_a_line_stay_and_those_at_its_end_do_not() -> None:
    assert wrapped("  a   b cc", 8) == ["  a   b", "  cc"]
    assert wrapped("", 10) == [""] and fitted("", Terminal()) == ""


@given(st.text("ab -'/.\n日", max_size=80), st.integers(1, 40))
def test_nothing_is_lost_and_no_line_is_too_wide(text: str, width: int) -> None:
    from rich.cells import cell_len

    for line in text.split("\n"):
        found = wrapped(line, width)
        assert [p for part in found for p in pieces(part)] == pieces(line)
        assert all(cell_len(part) <= width or len(pieces(part)) <= 1 for part in found)


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    parent, child = pty.openpty()
    with open(child, "w") as stream:
        assert width_of(stream) == USUAL_WIDTH, "which does not say its width"
        import fcntl
        import struct
        import termios

        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 123, 0, 0))
        assert width_of(stream) == 123
        for given_width, expected in (("91", 91), ("0", 123), ("wide", 123)):
            monkeypatch.setenv("COLUMNS", given_width)
            assert width_of(stream) == expected
    os.close(parent)
    assert width_of(io.StringIO()) == 0 and width_of(Terminal()) == USUAL_WIDTH


def test_when_there_is_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for environ, terminal, pipe in [
        ({}, True, False),
        ({"NO_COLOR": ""}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ]:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        for stream, expected in ((Terminal(), terminal), (io.StringIO(), pipe)):
            assert paint("a\nb", BEST, stream) == (
                "\x1b[1;32ma\x1b[0m\n\x1b[1;32mb\x1b[0m" if expected else "a\nb"
            )


def test_doubts_are_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    print_lines(["! old prices, months and months", "plain", "Warning: what?"])
    assert (
        stream.getvalue()
        == "\x1b[33m! old prices, months\x1b[0m\n\x1b[33m  and months\x1b[0m\nplain\n"
        "\x1b[33mWarning: what?\x1b[0m\n"
    )


def test_a_terminal_obeys_nothing_that_trainers_print() -> None:
    for text, shown in [
        ("\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1H", "red "),
        ("\x1b]0;title\x07a \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "a link"),
        ("\x9b31mred \x1b(Bb \x1bc", "red b "),
        ("\x1b]0;no end", "\u241b]0;no end"),
        ("\x07 \x08 \x7f \x85 \u202e", "\u2407 \u2408 \u2421 \ufffd \ufffd"),
        ("\r 1 %\r 50 %\r 100 %", " 100 %"),
        ("windows\r\nlines\r", "windows\nlines"),
        ("tab\tand \u65e5\u672c", "tab\tand \u65e5\u672c"),
    ]:
        assert without_controls(text) == shown == fitted(text, io.StringIO())


@given(
    st.text(st.characters(max_codepoint=0x9F) | st.sampled_from("\x1b\x9b[]0;m\x07"), max_size=60)
)
def test_no_control_character_is_left(text: str) -> None:
    assert not [
        c
        for c in without_controls(text)
        if c not in "\t\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)
    ]
