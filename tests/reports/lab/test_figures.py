"""Figures 2 to 4: what they show is what was measured."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.lab.made_folder import make

from deepvm.lab.checked import check
from deepvm.reports.lab import files as figures
from deepvm.reports.lab.files import LabSummary

pytest.importorskip("matplotlib")
WRONG = "tokens-gpt-tiny-late-ovl-s1"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSummary]:
    out = make(tmp_path_factory.mktemp("lab"), wrong={WRONG})
    yield LabSummary.of(*check(out))


def test_bars_are_goodputs_over_that_of_the_reference(found: LabSummary) -> None:
    (axes,) = figures.goodput_figure(found).axes
    ratios = [suite.over(found.reference) for suite in found.suites]
    assert [one["ovl"].n for one in ratios] == [3, 2]  # the run that does not pass is left out
    heights = sorted(bar.get_height() for bars in axes.containers for bar in bars)
    names = ("ref-ovl", "blk", "ovl", "deepvm")
    assert heights == pytest.approx(sorted(one[name].mean for one in ratios for name in names))
    assert len(axes.collections) == 8  # whiskers
    assert axes.get_ylabel() == "goodput over ref-blk"
    mean, low, high = ratios[0]["blk"].mean, ratios[0]["blk"].low, ratios[0]["blk"].high
    assert low is not None and high is not None and low < mean < high


def test_seven_strategies_look_different(found: LabSummary) -> None:
    looks = {
        (
            figures.STYLES[place % len(figures.STYLES)].color,
            figures._HATCHES[place // len(figures.STYLES) % 3],
        )
        for place in range(7)
    }
    assert len(looks) == 7


def test_gains_are_those_of_the_pairs(found: LabSummary) -> None:
    (axes,) = figures.gain_figure(found).axes
    widths = [bar.get_width() for bar in axes.patches]
    gains = [suite.paired["ovl_over_blk"].mean for suite in found.suites]
    assert widths == pytest.approx([100 * (gain - 1) for gain in reversed(gains)])


def test_stall_against_gain(found: LabSummary) -> None:
    (axes,) = figures.stall_figure(found).axes
    points = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() == "o"
    ]
    gains = [100 * (suite.paired["ovl_over_blk"].mean - 1) for suite in found.suites]
    # 3 checkpoints, 0.3 s less each
    assert points == [pytest.approx((0.9, gain)) for gain in gains]


def test_files_are_pictures(found: LabSummary, tmp_path: Path) -> None:
    names = figures.write_figures(tmp_path, found)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir()) and len(names) == 6
    for name in names:
        data = (tmp_path / name).read_bytes()
        if name.endswith(".png"):
            width, height = struct.unpack(">II", data[16:24])
            assert data.startswith(b"\x89PNG") and width > 600 and height > 300
        else:
            assert ElementTree.fromstring(data).tag.endswith("svg")


def test_nothing_to_draw_is_a_picture_too(tmp_path: Path) -> None:
    out = make(tmp_path / "lab", seeds=(0,), variants=("deepvm",))
    names = figures.write_figures(tmp_path, LabSummary.of(*check(out)))
    assert all((tmp_path / name).stat().st_size for name in names)
