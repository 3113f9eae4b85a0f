"""What can be wrong with an environment: one rule per mistake, and what was found.

Promises: every finding belongs to a rule of the table and says what was seen and how to get rid of it; the same mistake
in the same place is one finding with a count, however often it is met.
"""

from collections.abc import Callable
from typing import Literal

from windrow.types import Value, but

Severity = Literal["error", "warning"]
"""An error breaks or falsifies training; a warning is something to think about."""


class Rule(Value, frozen=True, kw_only=True):
    """One mistake."""

    name: str
    severity: Severity = "error"
    strict: Severity = "error"
    """For environments that come with Windrow."""
    why: str
    """What it does to a run."""
    way_out: str
    """What to do about it, unless the finding knows better."""


class Finding(Value, frozen=True, kw_only=True):
    """A mistake that was met."""

    rule: str
    severity: Severity
    message: str
    way_out: str
    place: str = ""
    """File and line, where known."""
    task: int | None = None
    """The seed of the task that first showed it."""
    turn: int | None = None
    """The turn of that episode, from 0."""
    count: int = 1
    """How often it was met."""


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        # it breaks
        Rule(
            name="raises",
            why="an attempt whose environment raises is lost, however good the policy was",
            way_out="catch it, and tell the policy in the next observation what was wrong with its action",
        ),
        Rule(
            name="dies",
            why="an environment that ends its process takes every other episode in it along",
            way_out="find the crash, or give the environment a process of its own (isolation: process)",
        ),
        Rule(
            name="never-returns",
            why="a call without an answer holds its slot until the deadline, and then the attempt is lost",
            way_out="give whatever it waits for a time limit",
        ),
        Rule(
            name="never-ends",
            why="an episode without an end holds its slot for ever",
            way_out="count the turns and return terminated=True or truncated=True after the last one",
        ),
        Rule(
            name="may-not-end",
            severity="warning",
            why="a policy that has not learnt yet holds its slot for ever",
            way_out="count the turns and return truncated=True after the last one",
        ),
        Rule(
            name="reward-fails",
            why="an episode whose reward fails has no score, and is lost",
            way_out="let it give a score to whatever a policy may say, and raise for nothing but faults of its own",
        ),
        # it answers nonsense
        Rule(
            name="not-async",
            why="start, step and close are awaited",
            way_out="write `async def` without `yield`, or name the methods reset and step and let `plain` adapt them",
        ),
        Rule(
            name="not-a-step",
            why="reward and flags are read from a Step",
            way_out="return Step(observation=…, reward=…, terminated=…)",
        ),
        Rule(
            name="observation-type",
            why="only text and messages can be shown to a language model",
            way_out="return text, a Message, a list of them, or Rewritten",
        ),
        Rule(
            name="observation-empty",
            why="a policy that is shown nothing has nothing to answer",
            way_out="say what happened and what is wanted",
        ),
        Rule(
            name="observation-long",
            severity="warning",
            strict="warning",
            why="an observation that does not fit into the context ends the episode",
            way_out="show a part of it, or a summary",
        ),
        Rule(
            name="reward-type",
            why="a reward that is no finite number cannot be trained on",
            way_out="return a finite float",
        ),
        Rule(
            name="reward-range",
            why="scores of another scale drown those of other environments",
            way_out="scale the rewards so that an episode's sum stays in the range, or say --reward-range LOW HIGH",
        ),
        Rule(
            name="flag-type",
            why='whatever is true ends the episode: "False" and NaN too',
            way_out="return True or False",
        ),
        Rule(
            name="both-flags",
            why="an episode that came to its end was not cut off",
            way_out="return terminated=True alone; truncated is for limits that are no part of the task",
        ),
        Rule(
            name="solved-but-cut",
            why="a solved task that counts as cut off is left out or bootstrapped by some estimators",
            way_out="return terminated=True when the task is solved",
        ),
        Rule(
            name="info-type",
            why="info is kept with the trajectory, beside other keys",
            way_out="return a dict with text as keys",
        ),
        Rule(
            name="info-plain",
            severity="warning",
            strict="warning",
            why="what cannot be written down is lost when a trajectory is saved",
            way_out="keep numbers, text, lists and dicts in info",
        ),
        # it disturbs others
        Rule(
            name="blocking",
            why="while it waits, no other episode of its worker moves",
            way_out="await an asynchronous call instead, or isolate the environment in a thread or a process",
        ),
        Rule(
            name="hogs",
            severity="warning",
            strict="warning",
            why="while it computes, no other episode of its worker moves",
            way_out="make it faster, or isolate the environment in a process",
        ),
        Rule(
            name="not-picklable",
            why="an environment is sent to the process that it is isolated in, and its answers are sent back",
            way_out="make locks, connections and the like in start, and keep them out of answers and globals",
        ),
        Rule(
            name="holds-unpicklable",
            why="what the constructor opens is there before its episode is, and cannot follow it to another process",
            way_out="make locks, connections and the like in start instead of in __init__",
        ),
        Rule(
            name="same-object",
            why="an environment is played once; one object cannot play two episodes at a time",
            way_out="make a new object with every call",
        ),
        Rule(
            name="hidden-state",
            why="attempts at one task are compared with each other, so they must be at the same problem",
            way_out="draw everything from random.Random(task.seed) and keep it in self, not in the class or the module",
        ),
        Rule(
            name="global-random",
            severity="warning",
            why="episodes that share one generator change each other's draws",
            way_out="use a generator of your own: random.Random(task.seed), numpy.random.default_rng(task.seed)",
        ),
        Rule(
            name="global-process",
            severity="warning",
            why="episodes of one process share its folder and its variables, and some of them look for files meanwhile",
            way_out="give cwd= and env= to what you start, use absolute paths, or isolate the environment in a process",
        ),
        Rule(
            name="prints",
            severity="warning",
            why="thousands of episodes at once write over each other, and into what a program reads",
            way_out="put it into the observation or into info, or log it",
        ),
        Rule(
            name="leaks",
            why="what every episode leaves behind adds up until the worker fails",
            way_out="close it in close()",
        ),
        Rule(
            name="closes-once",
            severity="warning",
            why="close is called whenever an episode is left, also one that never began",
            way_out="let close do nothing where there is nothing to close",
        ),
        # it teaches little
        Rule(
            name="solve-missing",
            severity="warning",
            why="nothing shows that its tasks can be solved",
            way_out="write solve(self) -> str: what a perfect player says next",
        ),
        Rule(
            name="solve-type",
            why="what a player says is text",
            way_out="write `def solve(self) -> str`, and `def wander(self, rng) -> str`; neither is asynchronous",
        ),
        Rule(
            name="solve-short",
            why="either a task cannot be solved or the score of a solved one is wrong",
            way_out="find out which; --reward-range LOW HIGH says what full marks are",
        ),
        Rule(
            name="too-easy",
            severity="warning",
            why="where anybody gets full marks nothing is learnt",
            way_out="see whether the reward looks at the answer at all",
        ),
        Rule(
            name="ignores-seed",
            severity="warning",
            why="every task is the same problem",
            way_out="draw the problem from task.seed, or read it from task.payload",
        ),
        Rule(
            name="overlap",
            severity="warning",
            why="a score on problems that were trained on says nothing about others",
            way_out="draw the problem with windrow.envs.drawing.draw, which heeds task.split",
        ),
    )
}


class Notes:
    """Everything that was found so far; `tell` hears of each when it is new."""

    def __init__(self, *, strict: bool = False, tell: Callable[[Finding], None] = lambda _: None) -> None:
        self._strict = strict
        self._tell = tell
        self._found: dict[tuple[str, str], Finding] = {}

    def add(
        self,
        rule: str,
        message: str,
        *,
        key: str = "",
        place: str = "",
        at: tuple[int | None, int | None] = (None, None),
        mild: bool = False,
    ) -> None:
        """Note a mistake; one with the same rule and place (or key) counts as met again."""
        message = message.encode("utf-8", "backslashreplace").decode()
        known = (rule, key or place or message)
        if known in self._found:
            self._found[known] = but(self._found[known], count=self._found[known].count + 1)
            return
        law = RULES[rule]
        self._found[known] = found = Finding(
            rule=rule,
            severity="warning" if mild else law.strict if self._strict else law.severity,
            message=message,
            way_out=law.way_out,
            place=place,
            task=at[0],
            turn=at[1],
        )
        self._tell(found)

    def count(self, *rules: str) -> int:
        """How often mistakes of these rules were met."""
        return sum(finding.count for finding in self._found.values() if finding.rule in rules)

    def all(self) -> list[Finding]:
        """Errors first, each kind in the order of the table."""
        order = [*RULES]
        return sorted(self._found.values(), key=lambda found: (found.severity != "error", order.index(found.rule)))
