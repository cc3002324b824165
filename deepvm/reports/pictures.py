"""Pictures of the paper's figures: budgets against performance (Figure 7), curves against measurements (Figures 4, 5).

matplotlib is the `plot` extra: it is imported inside the functions, with its object-oriented Agg and SVG backends only,
so no window, no pyplot and no state that outlives a call. The same data gives the same bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from deepvm.core.cluster.speedup import SpeedupCurve
from deepvm.errors import MissingExtraError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.planner.request import PolicyName
from deepvm.planner.sweep import SweepRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deepvm.profiling.checkpoint.bench import Bench

Format = Literal["png", "svg"]

_DPI = 160
MARK_ALL = 24
"""Up to this many budgets every point has a marker; beyond, about one in twelve."""


@dataclass(frozen=True)
class Style:
    """A line that can be told from the others by colour, by dashes and by marker alone."""

    color: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str
    width: float = 1.7
    size: float = 5.5


# The palette of Okabe and Ito, which stays apart under every common colour-blindness. The first line is the widest and
# lies below the others, so that a baseline with the same values is seen on top of it.
STYLES = (
    Style("#0072B2", "-", "o", 3.4, 9.0),
    Style("#E69F00", (0, (5.0, 2.0)), "s"),
    Style("#009E73", (0, (6.0, 1.5, 1.2, 1.5)), "^"),
    Style("#A8336F", (0, (1.4, 1.4)), "D"),
)
"""Of up to four lines, in order."""
POLICY_LABELS = {
    PolicyName.DEEPVM: "DeepVM",
    PolicyName.NOSCALE: "DeepVM-NoScale",
    PolicyName.COST_FIRST: "Cost-First",
    PolicyName.PERFORMANCE_FIRST: "Performance-First",
}


@dataclass(frozen=True)
class SpeedupPanel:
    """One frame of a figure of speed-ups.

    Attributes:
        title: what was run where.
        curves: label to curve; the same label has the same line in every panel.
        points: measured (n, S(n)) pairs, n in VMs; empty when there are none.
    """

    title: str
    curves: Mapping[str, SpeedupCurve] = field(default_factory=dict)
    points: tuple[tuple[float, float], ...] = ()


def picture_format(path: Path) -> Format:
    """The format that a file's ending asks for.

    Raises:
        RequestError: neither .png nor .svg.
    """
    match path.suffix.lower():
        case ".png":
            return "png"
        case ".svg":
            return "svg"
    raise RequestError("plot", str(path), "a file name that ends in .png or .svg")


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn, before the work starts.

    Raises:
        RequestError: neither .png nor .svg, or no such folder. MissingExtraError: matplotlib is not installed.
    """
    picture_format(path)
    if not path.absolute().parent.is_dir():
        raise RequestError("plot", str(path), "a file in a folder that exists")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("plot", "matplotlib", "plot")


def draw_sweep(rows: Sequence[SweepRow], path: Path, *, catalog_name: str, eflops_unit: str) -> None:
    """Save :func:`sweep_figure` as PNG or SVG, by the ending of the file's name.

    Args:
        rows: see :func:`sweep_figure`.
        path: written whole or not at all; a file that stands there is replaced.
        catalog_name: for the title.
        eflops_unit: the catalog's.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    write_bytes(path, render(sweep_figure(rows, catalog_name=catalog_name, eflops_unit=eflops_unit), form))


def render(figure: Figure, form: Format = "png") -> bytes:
    """A figure as the bytes of a PNG (160 dpi) or SVG file, without a date in it.

    In a notebook: ``IPython.display.Image(render(figure))``.
    """
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": "deepvm"} if form == "svg" else {"Software": "deepvm"}
    with own_settings(), warnings.catch_warnings():
        # A name in a script that the font lacks becomes boxes; nothing that the user could act on.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def sweep_figure(rows: Sequence[SweepRow], *, catalog_name: str, eflops_unit: str) -> Figure:
    """Figure 7: performance against pricing willingness, one step line for each policy.

    Performance is throughput (eFLOPS x n x K(n)) over DeepVM's highest in these rows; without DeepVM rows, over the
    highest of all. A budget without a feasible cluster is a gap.

    Args:
        rows: from :func:`deepvm.planner.sweep.sweep`, in any order.
        catalog_name: for the title.
        eflops_unit: the catalog's, in words.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    policies = [p for p in PolicyName if any(r.policy is p for r in rows)]
    reference = [r for r in rows if r.policy is PolicyName.DEEPVM] or rows
    highest = max((r.recommendation.throughput for r in reference if r.recommendation), default=math.nan)
    whose = "DeepVM's highest" if PolicyName.DEEPVM in policies else "the highest"
    with own_settings():
        figure = new_figure(8.0, 4.9)
        axes = figure.add_subplot()
        for index, policy in enumerate(policies):
            own = sorted((r for r in rows if r.policy is policy), key=lambda r: r.budget)
            values = [r.recommendation.throughput / highest if r.recommendation else math.nan for r in own]
            step_line(
                axes,
                [float(r.budget) for r in own],
                values,
                POLICY_LABELS[policy],
                STYLES[list(PolicyName).index(policy)],
                place=index,
                places=len(policies),
            )
        axes.set_xlabel("pricing willingness PW ($/h)")
        axes.set_ylabel(f"normalised performance\n(throughput / {whose}, no unit)")
        figure.suptitle("Performance of the best cluster that each policy buys")
        scale = f"1.0 = {highest:,.6g} (eFLOPS x n x K; eFLOPS in {short(eflops_unit)})"
        if math.isnan(highest):
            scale = "no policy has a feasible cluster at any of these budgets"
            axes.set_ylim(0, 1)
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(f"catalog {short(catalog_name)}\n{scale}", fontsize="small")
        if rows:
            # Budgets with nothing feasible are part of the picture: the axis starts where the sweep does.
            low, high = (float(f(r.budget for r in rows)) for f in (min, max))
            margin = 0.02 * (high - low) or 0.5
            axes.set_xlim(low - margin, high + margin)
        frame(axes)
        if policies:
            figure.legend(loc="outside lower center", ncols=len(policies), frameon=False, handlelength=4.2)
    return figure


def speedups_figure(panels: Sequence[SpeedupPanel], *, title: str, max_nodes: int = 32) -> Figure:
    """Figures 4 and 5: speed-up curves as lines, measured speed-ups as points, one frame for each panel.

    Args:
        panels: from left to right, three to a row.
        title: what the figure shows.
        max_nodes: the curves are drawn for n = 1 ... max_nodes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    columns = max(1, min(3, len(panels)))
    height = max(1, -(-len(panels) // columns))
    labels = list(dict.fromkeys(label for p in panels for label in p.curves))
    n = np.arange(1, max_nodes + 1, dtype=np.float64)
    with own_settings():
        figure = new_figure(1.2 + 3.1 * columns, 0.9 + 3.2 * height)
        grid = figure.subplots(height, columns, squeeze=False).ravel().tolist()
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid, panels, strict=False):
            for label, curve in panel.curves.items():
                style = STYLES[labels.index(label) % len(STYLES)]
                look = {"color": style.color, "linestyle": style.dashes, "linewidth": style.width}
                handles.setdefault(label, axes.plot(n, curve.speedup(n), **look)[0])
            if panel.points:
                x, y = zip(*panel.points, strict=True)
                dots = axes.plot(x, y, linestyle="none", marker="o", color="black", markersize=4.5, zorder=5)[0]
                handles.setdefault("measured", dots)
            axes.set_title(short(panel.title), fontsize="medium")
            axes.set_xlabel("GPU VMs, n")
            axes.set_xticks([1, *range(8, max_nodes + 1, max(8, max_nodes // 32 * 8))])
            axes.axhline(0, color="0.4", linewidth=0.8)
            frame(axes)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[::columns]:
            axes.set_ylabel("speed-up over one VM, S(n)")
        figure.suptitle(title)
        if handles:
            figure.legend(
                handles.values(),
                handles.keys(),
                loc="outside lower center",
                ncols=len(handles),
                frameon=False,
                handlelength=4.2,
            )
    return figure


def draw_bench(bench: Bench, path: Path) -> None:
    """Save :func:`bench_figure` as PNG or SVG, by the ending of the file's name; see :func:`draw_sweep` for errors."""
    form = picture_format(path)
    write_bytes(path, render(bench_figure(bench), form))


def bench_figure(bench: Bench) -> Figure:
    """Bars of what a checkpoint costs with each method, over torch.save with fsync: the stall, and until it is safe.

    Args:
        bench: from :func:`deepvm.profiling.checkpoint.bench.run_bench`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names, own = list(bench.methods), list(bench.methods.values())
    bars = {"training stands still": [f.stall_ratio for f in own], "until it is safe": [f.durable_ratio for f in own]}
    with own_settings():
        figure = new_figure(8.0, 1.7 + 0.55 * len(names))
        axes = figure.add_subplot()
        for index, (label, values) in enumerate(bars.items()):
            places = np.arange(len(names)) + 0.4 * index - 0.2
            drawn = axes.barh(places, values, 0.38, label=label, color=STYLES[index].color)
            axes.bar_label(drawn, [f"{v:.3f}" for v in values], padding=3, fontsize="small")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        # Between the best and the worst lie two orders of magnitude.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="0.4", linewidth=0.8)
        axes.margins(x=0.15)
        axes.set_xlabel("seconds over those of torch.save with fsync (no unit)")
        figure.suptitle(f"What a checkpoint costs: {bench.model}, {bench.bytes / 1e6:.0f} MB of state")
        machine = f"{short(bench.machine['processor'])}, {bench.machine['cores']} cores, {bench.machine['file_system']}"
        axes.set_title(f"{machine}; medians of {bench.reps}", fontsize="small")
        frame(axes)
        figure.legend(loc="outside lower center", ncols=len(bars), frameon=False)
    return figure


def step_line(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    label: str,
    style: Style,
    *,
    place: int,
    places: int,
    drawstyle: Any = "steps-post",
) -> None:
    """One line of several, with its own colour, dashes and marker."""
    # Lines have their markers at different budgets, so that none hides another.
    every = 1 if len(x) <= MARK_ALL else max(places, len(x) // 12)
    axes.plot(
        x,
        y,
        label=label,
        color=style.color,
        linestyle=style.dashes,
        linewidth=style.width,
        drawstyle=drawstyle,
        marker=style.marker,
        markersize=style.size,
        markeredgecolor="white",
        markeredgewidth=0.6,
        markevery=every if every == 1 else (place * every // places, every),
    )


def frame(axes: Axes) -> None:
    """A light grid behind the lines, and no box."""
    axes.grid(color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this many inches; MissingExtraError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plot", "matplotlib", "plot") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Matplotlib's own settings in place of the user's matplotlibrc, put back afterwards."""
    try:
        from matplotlib import style
    except ImportError:
        raise MissingExtraError("plot", "matplotlib", "plot") from None
    # parse_math: a "$" in a name is money, not TeX. hashsalt: without one, ids in an SVG are random.
    settings: dict[str, Any] = {"text.parse_math": False, "svg.hashsalt": "deepvm", "font.size": 10.0}
    with style.context(["default", settings]):
        yield


def short(text: str, most: int = 40) -> str:
    """One line of at most ``most`` characters; bytes of a file name that are no text, which no font has, escaped."""
    line = " ".join(text.encode(errors="backslashreplace").decode().split())
    return line if len(line) <= most else line[: most - 3] + "..."
