"""One episode of a check: an environment and a player taking turns.

Promises: the environment is closed however the episode ends. What is wrong is noted on the way, and only what cannot be
gone on from ends the episode.
"""

import asyncio
import inspect
import itertools
from collections.abc import Iterable

from windrow.checking.asking import Asker, GaveUp, Where
from windrow.checking.looks import Fault, is_over, of_observation, of_step
from windrow.checking.played import Played
from windrow.checking.policies import Player
from windrow.envs.protocol import Env, EnvFactory, Observation, Step
from windrow.loading.words import shown as in_words
from windrow.trajectory import Task

FATAL = frozenset({"not-a-step", "observation-type", "reward-type"})
"""There is no going on after these."""


class Game:
    """One environment, played turn by turn."""

    def __init__(self, asker: Asker, make: EnvFactory, task: Task, player: str) -> None:
        self.played = Played(task)
        self._asker = asker
        self._make = make
        self._player = player
        self._env: Env | None = None

    async def begin(self) -> None:
        """Make it and start it."""
        played = self.played
        start = Where(self._player, played.task.seed)
        self._env = env = self._asker.now("the constructor", self._make, start)
        shown: Observation = await self._asker.ask("start", lambda: env.start(played.task), start)
        with self._asker.looking("start", start):
            self._judge(of_observation(shown, call="start"))
            played.see(shown)

    async def say(self, player: Player) -> None:
        """One turn."""
        assert self._env is not None
        env, played, where = self._env, self.played, self._where()
        call = "solve" if player.name == "solve" else "wander"
        action = self._asker.now(
            call, lambda: player.next(env, played.shown, len(played.actions)), where, measured=False
        )
        if not isinstance(action, str):
            if inspect.iscoroutine(action):
                action.close()
            self._asker.found("solve-type", f"{call} returned {in_words(action)}", where, key=call)
            raise GaveUp
        step: Step = await self._asker.ask("step", lambda: env.step(action), where)
        with self._asker.looking("step", where):
            self._judge(of_step(step))
            over = is_over(step)
            if over is None:
                raise GaveUp
            self._judge(of_observation(step.observation, call="step", last=over))
            played.take(action, step)

    async def end(self) -> None:
        """Close it, if it was made; one that does not close is broken."""
        if self._env is None:
            return
        env, self._env = self._env, None
        try:
            await self._asker.ask("close", env.close, self._where())
        except GaveUp:
            self.played.ending = "broken"

    def _where(self) -> Where:
        return Where(self._player, self.played.task.seed, len(self.played.actions))

    def _judge(self, faults: Iterable[Fault]) -> None:
        rules = set()
        for fault in faults:
            self._asker.found(fault.rule, fault.message, self._where(), key=f"{fault.message.split()[0]}")
            rules.add(fault.rule)
        if rules & FATAL:
            raise GaveUp


async def play(game: Game, player: Player, max_steps: int, limit_s: float) -> Played:
    """From the beginning to the end, whichever it is."""
    played, now = game.played, asyncio.get_running_loop().time
    until = now() + limit_s
    try:
        await game.begin()
        for turn in itertools.count(1):
            await game.say(player)
            if played.ending is not None:
                break
            if turn == max_steps or now() > until:
                played.ending = "cut"
                break
    except GaveUp:
        played.ending = "broken"
    await game.end()
    return played
