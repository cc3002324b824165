"""Figure 7 of the paper, and what all pictures share: styles, settings, frame, legend, file."""
# matplotlib is the `plot` extra: it is imported inside functions, with its Agg and SVG backends
# only: no window, no state that outlives a call. The same data gives the same bytes.

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepvm.errors import MissingExtraError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.planner.request import PolicyName
from deepvm.planner.sweep import SweepRow
from deepvm.records import dataclass

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any

Format = Literal["png", "svg"]
_SETTINGS = Path(__file__).parent / "templates" / "pictures.mplstyle"
MARK_ALL = 24  # Up to this many budgets every point has a marker; beyond, about one in twelve


@dataclass(frozen=True)
class Style:
    """A line that differs from the others in color, dashes and marker, each of which is enough."""

    color: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str
    width: float = 1.7
    size: float = 5.5

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.color, "linestyle": self.dashes, "linewidth": self.width}

    @property
    def thin(self) -> dict[str, Any]:
        return self.line | {"linewidth": min(self.width, 2.0)}

    @property
    def marked(self) -> dict[str, Any]:
        return self.line | {"marker": self.marker, "markersize": self.size}


# The palette of Okabe and Ito, which stays apart under every common color-blindness. The first
# line is the widest and lies below the others, so that a baseline with the same values is seen on
# top of it.
STYLES = (
    Style("#0072B2", "-", "o", 3.4, 9.0),
    Style("#E69F00", (0, (5.0, 2.0)), "s"),
    Style("#009E73", (0, (6.0, 1.5, 1.2, 1.5)), "^"),
    Style("#A8336F", (0, (1.4, 1.4)), "D"),
)
# Style of measured points
MEASURED: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "color": "black",
    "markersize": 4.5,
    "zorder": 5,
}
POLICY_LABELS = {
    PolicyName.DEEPVM: "DeepVM",
    PolicyName.NOSCALE: "DeepVM-NoScale",
    PolicyName.COST_FIRST: "Cost-First",
    PolicyName.PERFORMANCE_FIRST: "Performance-First",
}


def _picture_format(path: Path) -> Format:
    suffix = path.suffix.lower()
    if suffix == ".png":
        return "png"
    if suffix == ".svg":
        return "svg"
    raise RequestError("plot", str(path), "a file name that ends in .png or .svg")


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn, before the work starts."""
    _picture_format(path)
    if not path.absolute().parent.is_dir():
        raise RequestError("plot", str(path), "a file in a folder that exists")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("plot", "matplotlib", "plot")


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all; an existing file is replaced."""
    write_bytes(path, render(figure, _picture_format(path)))


def render(figure: Figure, form: Format = "png") -> bytes:
    """A figure as the bytes of a PNG (160 dpi) or SVG file, without a date in it."""
    buffer = io.BytesIO()
    if form == "svg":
        metadata = {"Date": None, "Creator": "deepvm"}
    else:
        metadata = {"Software": "deepvm"}
    with _own_settings(), warnings.catch_warnings():
        # A name in a script that the font lacks becomes boxes; nothing that the user could act on.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=form, dpi=160, metadata=metadata)
    return buffer.getvalue()


@contextlib.contextmanager
def drawing(
    width: float, height: float, rows: int = 1, **more: Any
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure of ``width`` x ``height`` inches and its axes, an array if several."""
    with _own_settings():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, **more)


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Matplotlib's own settings and these, not the user's matplotlibrc; restored afterwards."""
    try:
        from matplotlib import style
    except ImportError:
        raise MissingExtraError("plot", "matplotlib", "plot") from None
    with style.context(["default", _SETTINGS]):
        yield


def mark_guess(axes: Axes, limit: float, highest: float) -> None:
    """Mark where an axis up to ``highest`` goes beyond what can be known."""
    if highest > limit:
        axes.axvline(limit, color="0.4", linewidth=0.8)
        axes.text(limit, 0.02, " beyond: a guess", transform=axes.get_xaxis_transform())


def legend(figure: Figure, columns: int, **more: Any) -> None:
    """Put a legend of all axes below them."""
    figure.legend(loc="outside lower center", ncols=columns, fontsize="medium", **more)


def policies_of(rows: Sequence[SweepRow]) -> list[PolicyName]:
    """The policies of a sweep, in the order of their styles."""
    return [p for p in PolicyName if any(r.policy is p for r in rows)]


def step_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], policy: PolicyName, index: int, count: int
) -> Style:
    """Draw the step line of a policy, the ``index``-th of ``count`` lines; its style."""
    style = STYLES[list(PolicyName).index(policy)]
    # Lines have their markers at different budgets, so that none hides another.
    every = 1
    if len(x) > MARK_ALL:
        every = max(count, len(x) // 12)
    axes.plot(
        x,
        y,
        label=POLICY_LABELS[policy],
        drawstyle="steps-post",
        markeredgecolor="white",
        markeredgewidth=0.6,
        markevery=(index * every // count, every),
        **style.marked,
    )
    return style


def show_budgets(axes: Axes, rows: Sequence[SweepRow]) -> None:
    """Make the x axis span all budgets of a sweep, those with nothing feasible too."""
    if rows:
        low, high = (float(f(r.budget for r in rows)) for f in (min, max))
        margin = 0.02 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)


def sweep_figure(
    rows: Sequence[SweepRow], *, catalog_name: str, eflops_unit: str, units: str = ""
) -> Figure:
    """Figure 7: performance against pricing willingness, one step line for each policy."""
    # Throughput over DeepVM's highest, or, without DeepVM's rows, over the highest of all. A budget
    # without a feasible cluster is a gap.
    policies = policies_of(rows)
    reference = [r for r in rows if r.policy is PolicyName.DEEPVM] or rows
    speeds = [r.recommendation.throughput for r in reference if r.recommendation]
    highest = max(speeds, default=math.nan)
    whose = "the highest"
    if PolicyName.DEEPVM in policies:
        whose = "DeepVM's highest"
    with drawing(8.0, 4.9) as (figure, axes):
        for index, policy in enumerate(policies):
            own = sorted((r for r in rows if r.policy is policy), key=lambda r: r.budget)
            values = [
                r.recommendation.throughput / highest if r.recommendation else math.nan for r in own
            ]
            step_line(axes, [float(r.budget) for r in own], values, policy, index, len(policies))
        figure.suptitle("Performance of the best cluster that each policy buys")
        of_eflops = f"(eFLOPS x n x K; eFLOPS in {short(eflops_unit)})"
        scale = f"1.0 = {highest:,.6g} {units or of_eflops}"
        top = None
        if math.isnan(highest):
            scale = "no policy has a feasible cluster at any of these budgets"
            top = 1
        axes.set(
            title=f"catalog {short(catalog_name)}\n{scale}",
            xlabel="pricing willingness PW ($/h)",
            ylabel=f"normalised performance\n(throughput / {whose}, no unit)",
            ylim=(0, top),
        )
        show_budgets(axes, rows)
        if policies:
            legend(figure, len(policies))
    return figure


def short(text: str, limit: int = 40) -> str:
    """One line of at most ``limit`` characters; undecodable bytes of a file name are escaped."""
    line = " ".join(text.encode(errors="backslashreplace").decode().split())
    if len(line) <= limit:
        return line
    return line[: limit - 3] + "..."
