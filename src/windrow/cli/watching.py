"""What a person sees of a run: bars on a terminal, a line now and then elsewhere.

Promises: what is shown is what goes on. The bars of a piece of work go when the next one begins, and those of the steps
are there from the first one's beginning.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from windrow.cli.output import Output
from windrow.pipelines.watching import GETTING_READY

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from windrow.pipelines.watching import Evaluation, Glance, StepReport

LINE_EVERY_S = 5.0
"""Between lines about steps where there is no terminal."""


def minutes(seconds: float) -> str:
    """A time as people say it."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


class Spectator:
    """Tells what goes on in a run; use it as `with Spectator(out) as watcher`."""

    def __init__(self, out: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._spoke_at = 0.0
        self._bars: Progress | None = None
        self._overall: TaskID | None = None
        self._within: TaskID | None = None

    def __enter__(self) -> Self:
        console = self._out.live_console()
        if console is not None:
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.fields[note]}"))
            self._bars = Progress(*columns, console=console, transient=True, refresh_per_second=8)
            self._bars.start()
            self._out.live = self._bars.console
        return self

    def __exit__(self, *_: object) -> None:
        self._out.live = None
        if self._bars is not None:
            self._bars.stop()

    # what a pipeline tells

    def say(self, text: str) -> None:
        self._print(text)

    def stage(self, name: str, done: float, total: float, note: str = "") -> None:
        if self._bars is not None:
            self._show(name, done, total, note)
        elif done >= total or self._may_speak():
            self._print(f"{name}: {done:g} of {total:g}{f', {note}' if note else ''}")

    def stepped(self, report: "StepReport") -> None:
        note = (
            f"success {percent(report.success)}  reward {report.reward:.3f}  lag {report.lag:.2f}  "
            f"{report.tokens_per_s:,.0f} tok/s  engines {percent(report.utilisation)} busy  "
            f"{report.seconds:.1f} s/step  {minutes(report.seconds_left)} left"
        )
        if self._bars is None:
            if report.step == report.steps or self._may_speak():
                self._print(f"step {report.step} of {report.steps}: {note}")
            return
        overall, _ = self._steps(report.steps)
        self._bars.update(overall, completed=report.step, note=f"{report.step}/{report.steps}  {note}")

    def evaluated(self, evaluation: "Evaluation") -> None:
        greedy = "" if evaluation.greedy is None else f", greedy {percent(evaluation.greedy)}"
        parts = ", ".join(f"{name} {percent(value)}" for name, value in evaluation.domains.items())
        failed = f", of which {evaluation.failed} failed" if evaluation.failed else ""
        self._print(
            f"after {evaluation.step} updates: success {percent(evaluation.success)} sampled{greedy} "
            f"on {evaluation.tasks} held-out tasks{f' ({parts})' if parts else ''}{failed}"
        )

    def glimpsed(self, glance: "Glance") -> None:
        """What goes on right now, several times a second."""
        if self._bars is None or glance.doing == GETTING_READY:
            return  # its stages tell how far that is
        if self._overall is None:
            overall, _ = self._steps(glance.steps)
            self._bars.update(overall, completed=glance.step, note=f"{glance.step}/{glance.steps}")
        _, within = self._steps(glance.steps)
        note = f"{glance.doing}: {glance.in_flight} trajectories in flight, {glance.ready} of {glance.wanted} ready"
        self._bars.update(within, total=glance.wanted, completed=min(glance.ready, glance.wanted), note=note)

    # inside

    def _steps(self, steps: int) -> "tuple[TaskID, TaskID]":
        """The bars of all steps and of the one that goes on, instead of whatever was shown before."""
        assert self._bars is not None
        if self._overall is None or self._within is None:
            self._clear()
            self._overall = self._bars.add_task("steps", total=steps, note="")
            self._within = self._bars.add_task("this step", total=1, note="")
        return self._overall, self._within

    def _print(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, markup=False)
        else:
            self._out.say(text)

    def _may_speak(self) -> bool:
        now = self._clock()
        if now - self._spoke_at < LINE_EVERY_S:
            return False
        self._spoke_at = now
        return True

    def _show(self, name: str, done: float, total: float, note: str) -> None:
        assert self._bars is not None
        if not self._bars.tasks or self._bars.tasks[-1].description != name:
            self._clear()
            self._bars.add_task(name, total=total, note="")
        self._bars.update(self._bars.tasks[-1].id, completed=done, total=total, note=f"{done:g}/{total:g}  {note}")

    def _clear(self) -> None:
        assert self._bars is not None
        for task in [*self._bars.tasks]:
            self._bars.remove_task(task.id)
        self._overall = self._within = None
