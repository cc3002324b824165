"""Kinds of signals, and words for them."""

from __future__ import annotations

from support.catalog_signals import DATA, NOW, REGION, after, signal

from deepvm.catalog.signals.signal import KINDS, Signal, age, form_problem


def test_every_kind_has_a_form():
    for kind in KINDS:
        assert form_problem(kind, None) and not form_problem(
            kind, DATA.get(kind, DATA["history:30"])
        )


def test_ages():
    cases = {
        0: "0 s",
        119: "119 s",
        120: "2 min",
        7199: "119 min",
        7200: "2 h",
        172799: "47 h",
        172800: "2 d",
        -9: "0 s",
    }
    assert {s: age(NOW, after(seconds=s)) for s in cases} == cases


def test_rows():
    assert {k: Signal(k, REGION, NOW, "", d).rows for k, d in DATA.items()} == dict.fromkeys(
        DATA, 1
    ) | {"history:30": 2}
    assert signal("spot", data={"a": {"x": [], "y": []}, "b": {"x": []}}).rows == 3
