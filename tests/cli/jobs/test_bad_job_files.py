"""``deepvm run`` refuses bad job files: exit code 2, file, line and key, and what is allowed.

Nothing is begun.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deepvm.cli.main import main

HEAD = "name: x\ntrain: python t.py\nmachines: {type: g4dn.xlarge}\n"


def plus(text: str) -> str:
    return HEAD + text


BOMB = "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
CASES = {
    # what YAML makes of it: key or place, in the message
    "norway": (
        "name: no\ntrain: t\nmachines: {type: a}\n",
        "line 1: name: False cannot be used; allowed: 1 to 40",
    ),
    "yes": (
        plus("anchor: yes\n"),
        "line 4: anchor: True cannot be used; allowed: {type: m7g.large}, or none",
    ),
    "on": (plus("code: on\n"), "line 4: code: True cannot be used; allowed: a folder"),
    "off": (plus("setup: off\n"), "line 4: setup: False cannot be used; allowed: a command"),
    "null-name": ("name:\ntrain: t\nmachines: {type: a}\n", "line 1: name: None cannot be used"),
    "tilde": ("name: ~\ntrain: t\nmachines: {type: a}\n", "line 1: name: None cannot be used"),
    "octal-name": (
        "name: 0o17\ntrain: t\nmachines: {type: a, count: 0}\n",
        "line 3: machines.count: 0 cannot be used",
    ),
    "octal": ("name: 017\ntrain: t\nmachines: {type: a}\n", "line 1: name: 15 cannot be used"),
    "hexadecimal": (
        "name: 0x1F\ntrain: t\nmachines: {type: a}\n",
        "line 1: name: 31 cannot be used",
    ),
    "sexagesimal": (
        plus("budget:\n  deadline: 12:30:00\n"),
        "line 5: budget.deadline: 45000 cannot be used; allowed: a time",
    ),
    "exponent": (
        "name: 1e3\ntrain: t\nmachines: {type: a, count: 1e3}\n",
        "machines.count: '1e3' cannot be used",
    ),
    "date": ("name: 2026-11-26\ntrain: t\nmachines: {type: a}\n", "line 1: name: datetime.date"),
    "date-deadline": (
        plus("budget: {deadline: 2026-11-26}\n"),
        "line 4: budget.deadline: datetime.date",
    ),
    "time": (plus("code: 2026-11-26 10:00:00\n"), "line 4: code: datetime.datetime"),
    "infinite": (
        plus("budget: {total_usd: .inf}\n"),
        "line 4: budget.total_usd: inf cannot be used; allowed: dollars",
    ),
    "nan": (
        plus("budget: {usd_per_hour: .nan}\n"),
        "line 4: budget.usd_per_hour: nan cannot be used; allowed: dollars",
    ),
    "huge": (plus("keep: 1" + "0" * 400 + "\n"), "line 4: keep: 1000"),
    "huger": (plus("keep: 1" + "0" * 5000 + "\n"), "line 4"),
    "huge-dollars": (
        plus("budget: {total_usd: 1.0e+300}\n"),
        "line 4: budget.total_usd: 1e+300 cannot be used",
    ),
    "negative-dollars": (
        plus("budget: {total_usd: -1}\n"),
        "line 4: budget.total_usd: -1 cannot be used",
    ),
    "underscores": (
        plus("keep: 1_0_0_000\n"),
        "line 4: keep: 100000 cannot be used; allowed: a whole number",
    ),
    # syntax
    "tab": ("name: x\n\ttrain: t\n", "line 2: not YAML"),
    "tab-in-block": ("name: x\ntrain: t\nmachines:\n\ttype: a\n", "line 4: not YAML"),
    "open-bracket": (plus("tiers: [a\n"), "not YAML"),
    "open-quote": (plus("setup: 'a\n"), "not YAML"),
    "no-blank": ("name:x\n", "line 1"),
    "colon": ("name: x\ntrain: python t.py: now\nmachines: {type: a}\n", "line 2: not YAML"),
    "percent": (plus("env: {A: %x}\n"), "line 4: not YAML"),
    "at": (plus("code: @here\n"), "line 4: not YAML"),
    "indentation": (plus("budget:\n   total_usd: 1\n  deadline: 2h\n"), "line 6: not YAML"),
    "two-documents": (HEAD + "---\n" + HEAD, "not YAML"),
    "list": ("- name: x\n", "line 1: no keys with values"),
    "text": ("just text\n", "line 1: no keys with values"),
    "number": ("42\n", "line 1: no keys with values"),
    "empty": ("", "empty"),
    "comments": ("# nothing\n", "empty"),
    "nothing": ("---\n...\n", "no keys with values"),
    # what YAML can do beside
    "anchor-loop": ("name: &a [*a]\ntrain: t\n", "line 1: name: too much"),
    "unknown-alias": (plus("code: *nobody\n"), "line 4: not YAML"),
    "alias-bomb": (
        f"{HEAD}a: &a [x, x, x, x, x, x, x, x, x]\n{BOMB}",
        "aliases are written out here",
    ),
    "python-object": (
        plus("setup: !!python/object/apply:os.system [id]\n"),
        "line 4: setup: a list of 1 cannot be used",
    ),
    "own-tag": (plus("code: !mine x\n"), "line 4: code: not YAML"),
    "binary": (plus("code: !!binary aGVsbG8=\n"), "line 4: code: there is no folder 'hello'"),
    "set": (plus("tiers: !!set {a, b}\n"), "line 4: tiers: "),
    "merge-of-text": (plus("budget:\n  <<: text\n"), "line 5: budget.<<: there is no such key"),
    "number-as-key": (plus("7: x\n"), "line 4: 7: there is no such key"),
    "null-as-key": (plus("~: x\n"), "line 4: "),
    "list-as-key": (plus("[a, b]: x\n"), "line 4: "),
    "duplicate": (plus("keep: 1\nkeep: 2\n"), "line 5: keep: occurs twice"),
    "duplicate-below": (
        plus("budget:\n  total_usd: 1\n  total_usd: 2\n"),
        "line 6: budget.total_usd: occurs twice",
    ),
    "duplicate-quoted": (plus('keep: 1\n"keep": 2\n'), "line 5: keep: occurs twice"),
    # nested types
    "machines-text": (
        "name: x\ntrain: t\nmachines: g4dn.xlarge\n",
        "line 3: machines: 'g4dn.xlarge' cannot be used",
    ),
    "machines-null": ("name: x\ntrain: t\nmachines:\n", "line 3: machines: None cannot be used"),
    "count-list": (
        "name: x\ntrain: t\nmachines: {type: a, count: [1, 2]}\n",
        "line 3: machines.count: a list of 2",
    ),
    "count-min-text": (
        "name: x\ntrain: t\nmachines:\n  type: a\n  count:\n    min: one\n    max: 2\n",
        "line 6: machines.count.min: 'one' cannot be used; allowed: a whole number from 1",
    ),
    "range-reversed": (
        "name: x\ntrain: t\nmachines: {type: a, count: {min: 3, max: 2}}\n",
        "line 3: machines.count.max: 2 is less",
    ),
    "budget-list": (plus("budget: [3]\n"), "line 4: budget: a list of 1 cannot be used"),
    "budget-number": (
        plus("budget: 50\n"),
        "line 4: budget: 50 cannot be used; allowed: {total_usd: 50, usd_per_hour: 3",
    ),
    "budget-sign": (
        plus("budget: {total_usd: 50$}\n"),
        (
            "budget.total_usd: '50$' cannot be used; allowed: dollars in all, above 0: a number"
            " such as 50"
        ),
    ),
    "tiers-of-objects": (
        plus("tiers:\n  - s3://a\n  - {url: s3://b}\n"),
        "line 6: tiers[1]: an object cannot be used",
    ),
    "data-of-lists": (plus("data:\n  a: [x]\n"), "line 5: data.a: a list of 1 cannot be used"),
    "env-of-lists": (plus("env:\n  A: [x]\n"), "line 5: env.A: YAML reads this value as a list"),
    "env-true": (
        plus("env: {A: yes}\n"),
        "line 4: env.A: YAML reads this value as true or false, not as text; put it",
    ),
    "inject-number": (plus("inject: 5\n"), "line 4: inject: 5 cannot be used"),
    "inject-missed": (
        plus("inject:\n  mttp: 3s\n  missed: 1.5\n"),
        "line 6: inject.missed: 1.5 cannot be used",
    ),
    "grace-number": (
        plus("inject:\n  mttp: 3s\n  grace: 5\n"),
        "line 6: inject.grace: 5 cannot be used; allowed: a time",
    ),
    # meaning
    "misspelt": (
        plus("bugdet: {total_usd: 1}\n"),
        "line 4: bugdet: there is no such key; did you mean budget?",
    ),
    "misspelt-below": (
        plus("budget:\n  totl_usd: 1\n"),
        "line 5: budget.totl_usd: there is no such key; did you mean total_usd?",
    ),
    "unknown-cloud": (plus("cloud: gcp\n"), "line 4: cloud: 'gcp' cannot be used; allowed: "),
    "unknown-policy": (
        plus("save_policy: often\n"),
        "line 4: save_policy: 'often' cannot be used; allowed: a save policy",
    ),
    "unknown-market": (
        "name: x\ntrain: t\nmachines: {type: a, market: Spot}\n",
        "line 3: machines.market: 'Spot'",
    ),
    "no-code": (plus("code: ./nowhere\n"), "line 4: code: there is no folder './nowhere'"),
    "no-such-type": ("name: x\ntrain: t\nmachines: {type: g4dn.huge}\n", "machines.type"),
    "misspelt-type": (
        "name: x\ntrain: t\nmachines:\n  count: 2\n  type: g4dn.xlagre\n",
        (
            "line 5: machines.type: 'g4dn.xlagre' cannot be used; allowed: an instance type of the"
            " catalog; did you mean g4dn.xlarge?"
        ),
    ),
    "misspelt-anchor": (
        plus("anchor: {type: m7g.larg}\n"),
        "line 4: anchor.type: 'm7g.larg' cannot be used",
    ),
    "too-little-an-hour": (
        "name: x\ntrain: t\nmachines: {type: g4dn.xlarge, count: 4}\nbudget: {usd_per_hour: 1.2}\n",
        (
            "line 4: budget.usd_per_hour: 1.2 cannot be used; allowed: 1.2784 or more, which buys 4"
            " x g4dn.xlarge"
        ),
    ),
    "too-little-for-a-deadline": (
        (
            "name: x\ntrain: t\nsteps: 9\nmachines: {type: g4dn.xlarge}\nbudget: {usd_per_hour:"
            " 0.1, deadline: 1h}\n"
        ),
        "allowed: 0.526 or more, which buys 1 x g4dn.xlarge on demand, which the deadline may need",
    ),
    "half-a-step": (
        plus("steps: 1.5\n"),
        "line 4: steps: 1.5 cannot be used; allowed: how many the training takes",
    ),
    "part-of-a-step": (plus("steps: 1.23e1\n"), "line 4: steps: '1.23e1' cannot be used"),
    "no-steps": (plus("steps: 0e3\n"), "line 4: steps: '0e3' cannot be used"),
    "too-many-steps": (plus("steps: 1e13\n"), "line 4: steps: '1e13' cannot be used"),
    "no-such-plan": (
        "name: x\ntrain: t\nmachines: {plan: nowhere.json}\n",
        "machines.plan: 'nowhere.json' cannot be used",
    ),
    "path-as-name": (
        "name: ../x\ntrain: t\nmachines: {type: a}\n",
        "line 1: name: '../x' cannot be used",
    ),
    "only-name": ("name: x\n", "train: missing; allowed: the command that trains"),
}
BYTES = {
    "latin-1": (HEAD.encode() + b"setup: caf\xe9\n", "UTF-8"),
    "nul": (HEAD.encode() + b"setup: a\0b\n", "line 4"),
    "utf-16": (HEAD.encode("utf-16"), ""),
    "control": (HEAD.encode() + b"setup: a\x07b\n", "line 4"),
    "bom-and-bad": (
        b"\xef\xbb\xbf" + HEAD.encode() + b"keep: -1\n",
        "line 4: keep: -1 cannot be used",
    ),
}
ALL = {name: (text.encode(), said) for name, (text, said) in CASES.items()} | BYTES
NOT_INPUT = {"latin-1": 4, "utf-16": 4, "empty": 4}
"""Files that cannot be read at all are broken data, not a mistake in a key."""
NO_LINE = {*NOT_INPUT, "comments", "only-name"}
"""Nor has a key that lacks a line, nor a file in which there is none."""


def test_enough_cases() -> None:
    assert len(ALL) >= 75 and len({text for text, _ in ALL.values()}) == len(ALL)


@pytest.mark.parametrize("name", ALL)
def test_it_is_refused(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "own"))
    text, said = ALL[name]
    file = tmp_path / "job.yaml"
    file.write_bytes(text)
    with pytest.raises(SystemExit) as end:
        main(["run", str(file)])
    message = capsys.readouterr().err
    assert end.value.code == NOT_INPUT.get(name, 2), message
    assert said in " ".join(message.split()) or said in message, message
    where = f"{re.escape(str(file))}, line \\d+: (not YAML: |no keys with values; |\\S.*: )"
    assert (re.search(where, message) is None) == (name in NO_LINE), message
    assert "job.yaml" in message and "Traceback" not in message and "internal error" not in message
    assert len(message) < 2000
    assert not list((tmp_path / "own").glob("jobs/*"))
