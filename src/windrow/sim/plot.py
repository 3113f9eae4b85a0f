"""The picture of a comparison: how fast, how busy, how old, what was wasted."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.errors import ConfigError
from windrow.sim.compare import Comparison, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "stale": "#c0504d",
    "filtered": "#8064a2",
    "spare": "#4bacc6",
    "failed": "#7f7f7f",
    "lost": "#404040",
    "cancelled": "#bfbfbf",
    "tail": "#f79646",
}
OURS = "#1f6f54"
OTHERS = "#9aa5ab"


def draw(comparison: Comparison, ours: set[str], title: str, path: Path) -> None:
    """Write the picture as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [*comparison.policies]
    rows = [comparison.policies[name] for name in names]
    figure = Figure(figsize=(13, 1.4 + 0.42 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    speed, busy, lag, bias = figure.subplots(1, 4, sharey=True)
    colours = [OURS if name in ours else OTHERS for name in names]
    _speeds(speed, names, rows, colours)
    _busy(busy, rows, colours)
    _bars(lag, [row.staleness_mean for row in rows], colours, "lag in versions: mean, and max (line)")
    lag.hlines(range(len(rows)), 0, [row.staleness_max for row in rows], colors="black", linewidth=1)
    _bars(bias, [100 * row.length_bias for row in rows], colours, "length bias, %")
    bias.axvline(0.0, color="black", linewidth=0.6)
    figure.suptitle(title)
    figure.savefig(path, dpi=110, format="png")


def require_matplotlib() -> None:
    """Raise if no picture can be drawn here."""
    if find_spec("matplotlib") is None:
        raise ConfigError("the picture needs matplotlib; install windrow[plot], or leave it out with --no-png")


def _speeds(axes: "Axes", names: Sequence[str], rows: Sequence[Summary], colours: Sequence[str]) -> None:
    rates = [3600 * row.steps_per_s for row in rows]
    low = [rate - 3600 * row.steps_per_s_range[0] for rate, row in zip(rates, rows, strict=True)]
    high = [3600 * row.steps_per_s_range[1] - rate for rate, row in zip(rates, rows, strict=True)]
    axes.barh(range(len(rows)), rates, color=colours, xerr=[low, high], error_kw={"linewidth": 1})
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel("steps per hour (median, range over seeds)")


def _busy(axes: "Axes", rows: Sequence[Summary], colours: Sequence[str]) -> None:
    """Busy slot-seconds, the wasted part of them by cause."""
    axes.barh(range(len(rows)), [100 * row.slots_busy for row in rows], color=colours)
    left = [100 * (row.slots_busy - sum(row.waste.values())) for row in rows]
    for cause in sorted({cause for row in rows for cause in row.waste}):
        widths = [100 * row.waste.get(cause, 0.0) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, color=COLOURS[cause], label=f"wasted: {cause}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_xlabel("slots busy, %")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="x-small", loc="upper right")


def _bars(axes: "Axes", values: Sequence[float], colours: Sequence[str], label: str) -> None:
    axes.barh(range(len(values)), values, color=colours)
    axes.set_xlabel(label)
