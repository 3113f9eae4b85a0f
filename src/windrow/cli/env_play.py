"""A person plays an environment in the terminal.

Promises: whatever is typed that is no command is said to the environment as it is; the end of the input and Ctrl-C end
the game cleanly, and the environment is closed. Whatever the environment raises, and an answer that is none, is an
`EnvError` of one line.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, TypeVar

from windrow.checking.games import FATAL
from windrow.checking.loading import Subject
from windrow.checking.looks import Fault, is_over, of_observation, of_step
from windrow.checking.played import Played
from windrow.checking.policies import made_up
from windrow.checking.scoring import Scorer
from windrow.cli.output import Output
from windrow.envs.plain import as_messages
from windrow.envs.protocol import Briefing, Env, Observation, Solvable, Wanderable
from windrow.errors import EnvError, WindrowError
from windrow.loading.code import filed
from windrow.trajectory import Task

T = TypeVar("T")

COMMANDS = {
    ":solve": "let the environment's own solution say the next thing",
    ":random": "let a player without a plan say the next thing",
    ":text": "say several lines; a line with a single dot ends them",
    ":help": "list these commands",
    ":quit": "leave",
}
PATIENCE_S = 60.0
"""For a reward's verdict."""


class Quit(Exception):
    """The person has had enough."""


class Session:
    """One game."""

    def __init__(self, subject: Subject, task: Task, runner: asyncio.Runner, out: Output) -> None:
        self._subject = subject
        self._task = task
        self._runner = runner
        self._out = out
        self._rng = Random(task.seed)
        self._played = Played(task)

    def play(self) -> int:
        """To the end, or until the person leaves; an exit code."""
        with filed(EnvError, f"{self._subject.name} could not be made"):
            env = self._subject.make()
        try:
            self._begin(env)
            while self._played.ending is None:
                self._take_turn(env)
        except (Quit, EOFError):
            self._out.say("left before the end")
        finally:
            self._wait("close", env.close)
        self._tell_score()
        return 0

    def _begin(self, env: Env) -> None:
        self._out.say(f"{self._subject.name}, seed {self._task.seed}, {self._task.split}; :help lists the commands")
        first = self._wait("start", lambda: env.start(self._task))
        self._refuse(of_observation(first, call="start"))
        if isinstance(first, Briefing):
            for tool in first.tools:
                self._out.say(f"tool: {json.dumps(tool, ensure_ascii=False)}")
        self._played.see(first)
        self._show(first)

    def _take_turn(self, env: Env) -> None:
        action = self._asked(env)
        step = self._wait("step", lambda: env.step(action))
        self._refuse(of_step(step))
        if is_over(step) is None:
            raise EnvError(f"{self._subject.name}: step returned flags that are neither true nor false")
        self._refuse(of_observation(step.observation, call="step", last=True))
        self._played.take(action, step)
        if step.observation or self._played.ending is None:
            self._show(step.observation)
        ending = ", terminated" if step.terminated else ", truncated" if step.truncated else ""
        self._out.say(f"[reward {step.reward:g}{ending}]")

    def _refuse(self, faults: Iterable[Fault]) -> None:
        """An answer that cannot be shown or counted ends the game."""
        with filed(EnvError, f"{self._subject.name} gave an answer that cannot be looked at"):
            worst = [fault.message for fault in faults if fault.rule in FATAL]
        if worst:
            raise EnvError(f"{self._subject.name}: {worst[0]}; `windrow env check` says more")

    def _asked(self, env: Env) -> str:
        """What the person says, or lets be said."""
        while True:
            typed = self._typed("> ")
            match typed.strip():
                case ":solve" if isinstance(env, Solvable):
                    return self._echoed(env.solve)
                case ":random":
                    return self._echoed(lambda: self._random(env))
                case ":text":
                    return self._several_lines()
                case ":quit":
                    raise Quit
                case ":help":
                    for command, meaning in COMMANDS.items():
                        self._out.say(f"{command:<8} {meaning}")
                case ":solve":
                    self._out.say(f"{self._subject.name} has no solve()")
                case _:
                    return typed

    def _random(self, env: Env) -> str:
        return env.wander(self._rng) if isinstance(env, Wanderable) else made_up(self._played.shown, self._rng)

    def _echoed(self, say: Callable[[], str]) -> str:
        with filed(EnvError, f"{self._subject.name} has no next thing to say"):
            action = say()
        self._out.say(action)
        return action

    def _several_lines(self) -> str:
        lines: list[str] = []
        while (line := self._typed(". ")) != ".":
            lines.append(line)
        return "\n".join(lines)

    def _typed(self, prompt: str) -> str:
        if sys.stdin is None:
            raise EOFError
        if sys.stdin.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
            self._runner.run(_typing())  # Ctrl-C is heard while the loop waits, and never in between
        try:
            line = sys.stdin.readline()
        except OSError:  # it cannot be read, so nobody types
            line = ""
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def _show(self, observation: Observation) -> None:
        for message in as_messages(observation):
            who = "" if message.role == "user" else f"{message.role}{f' {message.name}' if message.name else ''}: "
            self._out.say(f"{who}{message.content}")

    def _wait(self, what: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with filed(EnvError, f"{self._subject.name} {what}"):
            return self._runner.run(call())

    async def _scored(self) -> float:
        async with Scorer(self._subject.reward, PATIENCE_S) as scorer:
            return await scorer.score(self._played)

    def _tell_score(self) -> None:
        played = self._played
        over = played.ending is not None
        try:
            score = self._runner.run(self._scored()) if over else played.score
        except WindrowError as error:
            self._out.warn(str(error))
            score = None
        self._out.say(f"score {'–' if score is None else f'{score:g}'} after {len(played.actions)} turns")
        self._out.result(
            {
                "name": self._subject.name,
                "seed": self._task.seed,
                "score": score,
                "turns": len(played.actions),
                "over": over,
            }
        )


async def _typing() -> None:
    """Wait until a line has been typed."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
