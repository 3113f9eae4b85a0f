"""A hidden number that only tools can find: one compares, the other submits.

Promises: halving the range always finds the number within the budget, and nothing surer does; the score is 1 for the
right number within the budget and 0 otherwise. Every call costs one, and so does saying something that is no call, so
an episode ends whatever a policy says. It is played once, from its start to its end.
"""

from random import Random

from windrow.envs.drawing import draw
from windrow.envs.games import Course, settled
from windrow.envs.protocol import Briefing, Observation, Step
from windrow.envs.tools.calls import Unreadable, find_calls, write_call
from windrow.envs.tools.functions import as_tool
from windrow.envs.tools.toolbox import Toolbox
from windrow.errors import ConfigError
from windrow.text import Message
from windrow.trajectory import Task
from windrow.types import Value, but

FURTHEST = 1_000
"""No range begins beyond this."""


class Sizes(Value, frozen=True):
    """How many numbers a range may have."""

    smallest: int
    largest: int

    def __post_init__(self) -> None:
        if not 2 <= self.smallest <= self.largest:
            raise ConfigError(f"guess_tools needs 2 <= smallest <= largest, got {self.smallest} and {self.largest}")


class Problem(Value, frozen=True):
    """A range, and the number in it."""

    low: int
    high: int
    secret: int

    @property
    def calls(self) -> int:
        """As many as halving needs: a comparison tells three cases apart, and the last call submits."""
        return (self.high - self.low + 1).bit_length()

    def __str__(self) -> str:
        return f"{self.secret} of {self.low} to {self.high}"


class GuessToolsEnv:
    """The policy has to find a number by calling tools."""

    def __init__(self, smallest: int = 8, largest: int = 64) -> None:
        self._sizes = settled(Sizes, "guess_tools", {"smallest": smallest, "largest": largest})
        self._course = Course("guess_tools")
        self._problem = Problem(0, 0, 0)
        self._low, self._high = 0, 0  # what the answers so far leave possible
        self._box = Toolbox([])

    async def start(self, task: Task) -> Observation:
        self._problem = draw(task, self._make, str)
        self._low, self._high = self._problem.low, self._problem.high
        self._course.begin(self._problem.calls)
        self._box = Toolbox([as_tool(self.compare), as_tool(self.submit)])
        asked = (
            f"there is a hidden number from {self._low} to {self._high}. find it with the tools; "
            f"you have {self._problem.calls} calls, the one that submits it included."
        )
        return Briefing((Message("user", asked),), self._box.schemas)

    async def step(self, action: str) -> Step:
        messages: list[Message] = []
        step = Step()
        for found in find_calls(action) or [Unreadable("this calls no tool; call compare or submit")]:
            self._course.take()
            answered = await self._box.answer(found)
            messages.append(answered.message)
            step = answered.step
            if step.terminated or not self._course.left:
                break
        over = step.terminated or not self._course.left
        counted = self._course.step("", {}, reward=step.reward, ended=over)
        return but(counted, observation=tuple(messages), info={"problem": str(self._problem)})

    async def close(self) -> None:
        pass

    def compare(self, number: int) -> str:
        """Say whether the hidden number is higher or lower than a number.

        Args:
            number: what to compare it with

        """
        secret = self._problem.secret
        if secret > number:
            self._low = max(self._low, number + 1)
            return f"higher than {number}"
        if secret < number:
            self._high = min(self._high, number - 1)
            return f"lower than {number}"
        self._low = self._high = number
        return f"equal to {number}"

    def submit(self, number: int) -> Step:
        """Name the hidden number, which ends the game.

        Args:
            number: the hidden number

        """
        right = number == self._problem.secret
        return Step(observation="right" if right else "wrong", reward=float(right), terminated=True)

    def solve(self) -> str:
        """What a perfect player says: it halves what is left."""
        middle = (self._low + self._high) // 2
        return write_call("submit" if self._low == self._high else "compare", number=middle)

    def wander(self, rng: Random) -> str:
        """Any call with any number of the range."""
        number = rng.randint(self._problem.low, self._problem.high)
        return write_call(rng.choice(["compare", "compare", "submit"]), number=number)

    def _make(self, rng: Random) -> Problem:
        low = rng.randrange(FURTHEST)
        high = low + rng.randint(self._sizes.smallest, self._sizes.largest) - 1
        return Problem(low, high, rng.randint(low, high))
