"""How an environment is checked, and what comes out."""

import math
from typing import Annotated, Any

from windrow.checking.rules import Finding
from windrow.core.settings import Count, Seconds
from windrow.errors import ConfigError
from windrow.types import Meta, Value


class CheckSettings(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=True):
    """How an environment is checked."""

    tasks: Annotated[Count, Meta(description="held-out tasks that each policy plays")] = 50
    seed: Annotated[int, Meta(description="of the first task")] = 0
    max_steps: Annotated[Count, Meta(description="an episode that goes on for longer never ends")] = 500
    timeout_s: Annotated[Seconds, Meta(description="longest time for one call")] = 10.0
    lowest: Annotated[float, Meta(description="worst score of an episode")] = 0.0
    highest: Annotated[float, Meta(description="full marks")] = 1.0
    payload: Annotated[Any, Meta(description="payload of every task")] = None  # whatever the environment understands

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lowest) and math.isfinite(self.highest)):
            raise ConfigError(f"a range of rewards has two ends, got {self.lowest:g} to {self.highest:g}")
        if self.lowest >= self.highest:
            raise ConfigError(f"a range of rewards goes up, got {self.lowest:g} to {self.highest:g}")


class Report(Value, frozen=True, kw_only=True, gc=True):
    """What a check came to."""

    name: str
    ok: bool
    """Nothing worse than a warning was found, and the check came to its end."""
    findings: tuple[Finding, ...]
    solve_score: float | None
    """Mean over the tasks that `solve` played to their end; none if it played none."""
    random_score: float | None
    """The same of the policy without a plan."""
    tasks: int
    """Held-out tasks that were played."""
    episodes: int = 0
    """All episodes that were played, of whatever kind."""
    seconds: float = 0.0
    ended: str = "done"
    """Or why the check stopped before its end."""
