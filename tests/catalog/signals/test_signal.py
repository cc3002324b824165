"""What a signal holds, and how old it is."""

from support.catalog_signals import DATA, NOW, REGION, after, signal

from deepvm.catalog.signals.signal import Signal, age


def test_ages():
    cases = {
        0: "0 s",
        119: "119 s",
        120: "2 min",
        7200: "2 h",
        172799: "47 h",
        172800: "2 d",
        -9: "0 s",
    }
    assert {s: age(NOW, after(seconds=s)) for s in cases} == cases


def test_rows():
    rows = {k: Signal(k, REGION, NOW, "", d).rows for k, d in DATA.items()}
    assert rows == dict.fromkeys(DATA, 1) | {"history:30": 2}
    assert signal("spot", data={"a": {"x": [], "y": []}, "b": {"x": []}}).rows == 3
