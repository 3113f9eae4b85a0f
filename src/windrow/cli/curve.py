"""The picture of a run: success on held-out tasks and in training, update by update."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.pipelines.watching import Evaluation

HELD_OUT, GREEDY, TRAINING = "#1f6f54", "#c0504d", "#9aa5ab"


def draw_curve(
    path: Path, curve: "Sequence[Evaluation]", training: Sequence[tuple[int, float]], title: str
) -> Path | None:
    """Write a PNG file; None if matplotlib is not there. `training` is success by update."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if training:
        steps, success = zip(*training, strict=True)
        axes.plot(steps, [100 * each for each in success], color=TRAINING, linewidth=1, label="training batches")
    points = [(each.step, 100 * each.success) for each in curve]
    axes.plot(*zip(*points, strict=True), "o-", color=HELD_OUT, label="held-out tasks, sampled")
    greedy = [(each.step, 100 * each.greedy) for each in curve if each.greedy is not None]
    if greedy:
        axes.plot(*zip(*greedy, strict=True), "s--", color=GREEDY, label="held-out tasks, greedy")
    axes.set_xlabel("updates of the policy")
    axes.set_ylabel("success, %")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    axes.set_title(title)
    figure.savefig(path, dpi=110, format="png")
    return path
