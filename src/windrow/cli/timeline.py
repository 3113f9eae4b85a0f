"""The picture of the last steps of a run: who used which device when."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.pipelines.timeline import Span

COLOURS = {"lent": "#e6c9c7", "playing": "#1f6f54", "training": "#c0504d", "weights": "#4f6d9a"}
"""In the order in which they are drawn: whoever plays on what is lent is seen."""


def draw_timeline(path: Path, spans: "Sequence[Span]", title: str) -> Path | None:
    """Write a PNG file; None if matplotlib is not there or nothing was noted."""
    if find_spec("matplotlib") is None or not spans:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes = sorted({span.lane for span in spans}, reverse=True)
    first = min(span.begin for span in spans)
    figure = Figure(figsize=(10, 1.2 + 0.45 * len(lanes)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, lane in enumerate(lanes):
        for use, colour in COLOURS.items():
            bars = [
                (each.begin - first, each.end - each.begin) for each in spans if (each.lane, each.use) == (lane, use)
            ]
            axes.broken_barh(bars, (place - 0.4, 0.8), color=colour)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_xlabel("seconds")
    uses = [use for use in COLOURS if any(span.use == use for span in spans)]
    handles = [Patch(color=COLOURS[use], label=use) for use in uses]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=len(uses), frameon=False)
    axes.set_title(title)
    figure.savefig(path, dpi=110, format="png", bbox_inches="tight")
    return path
