"""What a pipeline tells whoever watches it.

Promises: a watcher is told and never asked; what it does with it changes nothing.
"""

from typing import Protocol

from windrow.types import Value

GETTING_READY = "getting ready"
"""What a run does before its first step, which has stages of its own."""
VALIDATION = "validation/"
"""How the names of metrics of validations begin; these have lines of their own."""


class Evaluation(Value, frozen=True, kw_only=True, gc=True):
    """Success on held-out tasks under one version of the weights."""

    step: int
    """Updates before it."""
    tasks: int
    """All of them, those that failed as well."""
    success: float
    """Share of tasks, sampled as in training; with several domains the mean over them."""
    greedy: float | None
    """The same with the likeliest token each time; None if that was not tried."""
    score: float
    """Mean score, sampled, of the tasks that did not fail."""
    domains: dict[str, float] = {}
    greedy_domains: dict[str, float] = {}
    seconds: float = 0.0
    failed: int = 0
    """Tasks that gave no trajectory, in the pass in which most did; they count as not solved."""

    @property
    def metrics(self) -> dict[str, float]:
        """The same under the names that metrics have."""
        found = {"success": self.success, "score": self.score, "failed": float(self.failed)}
        if self.greedy is not None:
            found["greedy"] = self.greedy
        found |= {f"success/{name}": value for name, value in self.domains.items()}
        return {f"{VALIDATION}{name}": value for name, value in found.items()}


class StepReport(Value, frozen=True, kw_only=True, gc=True):
    """One update of the policy."""

    step: int
    """It is the n-th, counted from 1."""
    steps: int
    success: float
    """Share of the batch's episodes."""
    reward: float
    lag: float
    """Mean age of the batch's groups, in versions."""
    tokens_per_s: float
    """Sampled, over the whole step."""
    utilisation: float
    """Share of the time since the last step in which the engines computed."""
    seconds: float
    seconds_left: float
    metrics: dict[str, float]


class Glance(Value, frozen=True, kw_only=True):
    """What goes on right now."""

    doing: str
    step: int
    """Updates made."""
    steps: int
    in_flight: int
    """Trajectories in play, of training or, while that goes on, of validation."""
    ready: int
    """Trajectories of complete groups among them that wait for a batch."""
    wanted: int
    """How many there are to be."""


class Watcher(Protocol):
    """Somebody who looks on."""

    def say(self, text: str) -> None:
        """Something worth a line."""
        ...

    def stage(self, name: str, done: float, total: float, note: str = "") -> None:
        """A piece of work that is not a step of reinforcement learning gets on."""
        ...

    def stepped(self, report: StepReport) -> None: ...

    def evaluated(self, evaluation: Evaluation) -> None: ...


class Nobody:
    """Looks away."""

    def say(self, text: str) -> None: ...

    def stage(self, name: str, done: float, total: float, note: str = "") -> None: ...

    def stepped(self, report: StepReport) -> None: ...

    def evaluated(self, evaluation: Evaluation) -> None: ...
