"""What can be said about runs at a glance.

Promises: looking disturbs nobody, and one run that is damaged does not hide the others.
"""

from pathlib import Path

from windrow.errors import WindrowError
from windrow.store.run import RunFolder, State, runs_in
from windrow.types import Value


class Listed(Value, frozen=True, kw_only=True):
    """One run."""

    run: str
    """Its path."""
    state: State | None = None
    step: int | None = None
    """The last that was measured."""
    score: float | None = None
    """Of the newest checkpoint that has one."""
    best: float | None = None
    """The highest of all checkpoints."""
    checkpoint: int | None = None
    """The step of the newest one."""
    created_at: float | None = None
    """Seconds since 1970."""
    trouble: str = ""
    """Why nothing more is known; empty if all is well."""


def list_runs(root: Path) -> list[Listed]:
    """All runs in a folder, the oldest first; those whose age is not known come last."""
    found = [listed(path) for path in runs_in(root)]
    return sorted(found, key=lambda run: (run.created_at is None, run.created_at or 0.0, run.run))


def listed(path: Path) -> Listed:
    """One run, or why it cannot be read."""
    try:
        run = RunFolder.read(path)
        last = run.metrics.last()
    except (WindrowError, OSError) as error:
        return Listed(run=str(path), trouble=str(error))
    checkpoints = [*run.checkpoints.known()]
    scores = [checkpoint.score for checkpoint in checkpoints if checkpoint.score is not None]
    return Listed(
        run=str(path),
        state=run.state,
        step=None if last is None else last.step,
        score=scores[-1] if scores else None,
        best=max(scores, default=None),
        checkpoint=checkpoints[-1].step if checkpoints else None,
        created_at=run.about.created_at,
    )
