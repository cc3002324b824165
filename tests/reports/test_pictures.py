"""Figure 7 as a file: what is drawn, in which format, and that a failure leaves nothing
half-written.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.builders import catalog, cpu_type, gpu_type, paper

from deepvm.errors import DataError, MissingExtraError, RequestError
from deepvm.planner.request import PolicyName
from deepvm.planner.sweep import SweepRow, parse_budgets
from deepvm.reports import pictures
from deepvm.services.recommend import sweep

PNG = b"\x89PNG\r\n\x1a\n"
ABOUT = {"catalog_name": "test", "eflops_unit": "eFLOPS"}


@pytest.fixture(scope="module")
def rows() -> list[SweepRow]:
    return sweep(paper(), parse_budgets("0:3:0.1"))


def draw(rows: Sequence[SweepRow], path: Path, **about: str) -> None:
    pictures.save_picture(pictures.sweep_figure(rows, **{**ABOUT, **about}), path)


@pytest.fixture(scope="module")
def png(rows: list[SweepRow]) -> bytes:
    return pictures.render(pictures.sweep_figure(rows, **ABOUT))


@pytest.fixture
def rendered_before(png: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of files: all pictures are the same one."""
    monkeypatch.setattr(pictures, "render", lambda *_: png)


def lines_of(figure: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def texts_of(figure: Any) -> str:
    axes = figure.axes[0]
    return " | ".join(
        [figure.get_suptitle(), axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    )


def test_png_and_svg_by_the_ending(rows: list[SweepRow], tmp_path: Path) -> None:
    for name in ("a.png", "b.PNG"):
        draw(rows, tmp_path / name)
        data = (tmp_path / name).read_bytes()
        assert data.startswith(PNG)
        width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
        assert width >= 1200 and height >= 700
    draw(rows, tmp_path / "c.svg")
    assert ElementTree.parse(tmp_path / "c.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("form", ["png", "svg"])
def test_same_rows_same_bytes(rows: list[SweepRow], form: Any) -> None:
    first, second = (pictures.render(pictures.sweep_figure(rows, **ABOUT), form) for _ in range(2))
    assert first == second
    assert b"<dc:date>" not in first


def test_one_step_line_for_each_policy_told_apart_without_colour(rows: list[SweepRow]) -> None:
    figure = pictures.sweep_figure(rows, **ABOUT)
    lines = lines_of(figure)
    assert list(lines) == ["DeepVM", "DeepVM-NoScale", "Cost-First", "Performance-First"]
    assert {line.get_drawstyle() for line in lines.values()} == {"steps-post"}
    for looks in ("get_color", "get_marker", "_dash_pattern"):
        found = [getattr(line, looks) for line in lines.values()]
        assert len({str(f() if callable(f) else f) for f in found}) == 4
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(lines)


def test_lines_show_throughput_over_the_highest_of_deepvm(rows: list[SweepRow]) -> None:
    lines = lines_of(pictures.sweep_figure(rows, **ABOUT))
    assert max(y for y in lines["DeepVM"].get_ydata() if not math.isnan(y)) == pytest.approx(1.0)
    at_3 = {r.policy: r.recommendation for r in rows if r.budget == 3}
    best, other = at_3[PolicyName.DEEPVM], at_3[PolicyName.PERFORMANCE_FIRST]
    assert best is not None and other is not None
    assert lines["Performance-First"].get_ydata()[-1] == pytest.approx(
        other.throughput / best.throughput
    )
    assert lines["DeepVM"].get_xdata()[-1] == 3.0


def test_axes_say_units_and_scale(rows: list[SweepRow]) -> None:
    text = texts_of(pictures.sweep_figure(rows, catalog_name="paper", eflops_unit="TFLOPS"))
    for part in ("$/h", "DeepVM's highest", "catalog paper", "1,477.9", "TFLOPS"):
        assert part in text


def test_infeasible_budgets_are_gaps_inside_the_axis(rows: list[SweepRow]) -> None:
    figure = pictures.sweep_figure(rows, **ABOUT)
    for line in lines_of(figure).values():
        values = line.get_ydata()
        assert math.isnan(values[0]) and len(values) == 31
    assert figure.axes[0].get_xlim()[0] <= 0


def test_rows_in_any_order_draw_the_same(rows: list[SweepRow]) -> None:
    turned = pictures.sweep_figure(rows[::-1], **ABOUT)
    assert pictures.render(turned, "svg") == pictures.render(
        pictures.sweep_figure(rows, **ABOUT), "svg"
    )


def test_one_policy_one_budget_has_a_marker() -> None:
    one = sweep(paper(), [Decimal(3)], [PolicyName.COST_FIRST])
    figure = pictures.sweep_figure(one, **ABOUT)
    assert list(lines_of(figure)) == ["Cost-First"]
    assert lines_of(figure)["Cost-First"].get_markevery() == (0, 1)
    assert "the highest" in texts_of(figure) and "DeepVM" not in texts_of(figure)


@pytest.mark.parametrize(
    "few", [[], sweep(catalog(gpu_type(), cpu_type()), parse_budgets("0,0.1"))]
)
def test_nothing_feasible_is_said(few: Sequence[SweepRow], tmp_path: Path) -> None:
    assert "no policy has a feasible cluster" in texts_of(pictures.sweep_figure(few, **ABOUT))
    draw(few, tmp_path / "a.png")


def test_names_are_text_and_stay_inside(rows: list[SweepRow], tmp_path: Path) -> None:
    figure = pictures.sweep_figure(
        rows, catalog_name="W$W_{W}$W^" * 20 + "\n日本", eflops_unit="W" * 300
    )
    figure.canvas.draw()
    title = figure.axes[0].title.get_window_extent()
    assert title.x0 > 0 and title.x1 < figure.bbox.width
    assert "$W_{W}$" in figure.axes[0].get_title()
    draw(rows, tmp_path / "a.svg", catalog_name="日本", eflops_unit="$")


def test_settings_of_the_user_neither_count_nor_change(rows: list[SweepRow]) -> None:
    import matplotlib

    usual = pictures.render(pictures.sweep_figure(rows, **ABOUT), "svg")
    with matplotlib.rc_context({"lines.linewidth": 17, "font.size": 31, "svg.hashsalt": "mine"}):
        before = dict(matplotlib.rcParams)
        assert pictures.render(pictures.sweep_figure(rows, **ABOUT), "svg") == usual
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", ["a.pdf", "a", "png", "a.png.txt", ".png", "a.svgz"])
def test_other_endings_are_refused_and_the_allowed_named(
    rows: list[SweepRow], tmp_path: Path, name: str
) -> None:
    with pytest.raises(RequestError, match="ends in .png or .svg") as caught:
        draw(rows, tmp_path / name)
    assert caught.value.option == "plot" and caught.value.value == str(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("rendered_before")
def test_missing_folder_and_folder_of_that_name(rows: list[SweepRow], tmp_path: Path) -> None:
    (tmp_path / "is-a-folder.png").mkdir()
    for path, why in (
        (tmp_path / "no" / "such" / "a.png", "No such file or directory"),
        (tmp_path / "is-a-folder.png", "a folder or device has this name"),
        (tmp_path / "nul\0.png", "null"),
        (tmp_path / ("x" * 300 + ".png"), "File name too long"),
    ):
        with pytest.raises(DataError, match=why) as caught:
            draw(rows, path)
        assert str(path) in str(caught.value) and "name " in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["is-a-folder.png"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(rows: list[SweepRow], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match="Permission denied"):
            draw(rows, tmp_path / "a.png")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.usefixtures("rendered_before")
def test_permission_denied_by_the_system(
    rows: list[SweepRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match="Permission denied"):
        draw(rows, tmp_path / "a.png")


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow past ``size`` bytes, as a full disk
    would.
    """
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("rendered_before")
@pytest.mark.parametrize("before", [None, b"the old picture"])
def test_disk_that_fills_leaves_the_old_file_or_none(
    rows: list[SweepRow], tmp_path: Path, before: bytes | None
) -> None:
    path = tmp_path / "a.png"
    if before is not None:
        path.write_bytes(before)
    with room_for(4096), pytest.raises(DataError, match="File too large"):
        draw(rows, path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.mark.usefixtures("rendered_before")
def test_interrupt_leaves_nothing_behind(
    rows: list[SweepRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        draw(rows, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("rendered_before")
def test_replaces_a_file_and_follows_a_link(rows: list[SweepRow], tmp_path: Path) -> None:
    target, link = tmp_path / "target.png", tmp_path / "link.png"
    target.write_bytes(b"old")
    link.symlink_to(target)
    draw(rows, link)
    assert link.is_symlink() and target.read_bytes().startswith(PNG)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    assert len(list(tmp_path.iterdir())) == 2


WITHOUT_MATPLOTLIB = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
from deepvm.errors import MissingExtraError
from deepvm.reports import pictures
try:
    pictures.sweep_figure([], catalog_name="x", eflops_unit="x")
except MissingExtraError as error:
    print(error, error.exit_code)
"""


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    said = f"{MissingExtraError('plot', 'matplotlib', 'plot')} 2"
    assert "pip install '.[plot]'" in said
    assert done.stdout.splitlines() == [said]
    assert not list(tmp_path.iterdir())


def test_importing_the_module_does_not_import_matplotlib() -> None:
    code = (
        "import sys, deepvm.reports.pictures; print('matplotlib' in sys.modules, 'pandas' in"
        " sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False False\n"
