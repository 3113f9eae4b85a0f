"""The check itself: who plays which tasks, and what is compared afterwards.

Every step of it is a method that notes what it finds; `examine` calls them in order. Nothing here guards against an
environment that never lets go of its thread: `parent` does.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from windrow.checking.asking import Asker, GaveUp, Where
from windrow.checking.games import Game, play
from windrow.checking.leftovers import drawn_from, holding, shared_chance, surroundings
from windrow.checking.loading import Subject
from windrow.checking.meter import Meter, MeteredSelector
from windrow.checking.played import Played, first_difference
from windrow.checking.policies import STRANGE, Player, Repeater, Solver, Stranger, Wanderer
from windrow.checking.rules import Finding, Notes
from windrow.checking.scoring import Scorer
from windrow.checking.settings import CheckSettings, Report
from windrow.envs.protocol import Env, Solvable
from windrow.errors import RewardError
from windrow.isolation.pickles import Unsendable, dump, load
from windrow.loading.words import said
from windrow.trajectory import Split, Task
from windrow.types import Value

T = TypeVar("T")

STRANGERS = len(STRANGE)
"""Episodes of strange words: each of them comes first once."""
IN_TRAINING = 100
"""Tasks for training that are compared with those that are held out; more would rarely show more."""
AGAIN = 4
"""Episodes that are played again."""
WARM_UP, LEAKY = 2, 4
"""Episodes before what is held is counted, and between the two counts."""
HOPELESS = 5
"""So many episodes that never end, and no more of them are played."""
HANGING = 2
"""So many calls that never return, and nothing more is played."""
CALLS = 10
"""An episode may take as long as so many of the longest calls."""
CLOSE_TO = 1e-6
"""Scores are sums of floats."""

Tell = Callable[[str, Where], None]


class Script(Value, frozen=True, kw_only=True):
    """An episode that can be played again: what was said, and what came of it."""

    task: Task
    actions: tuple[str, ...]
    trace: tuple[str, ...]


class Hopeless(Exception):
    """There is no point in playing on; the notes say why."""


class Listener:
    """Hears what is going on; this one does not listen."""

    def calling(self, call: str, where: Where) -> None:
        """An environment is about to be asked."""

    def overheard(self) -> str:
        """What was written past Python's own standard output since the last time."""
        return ""

    def played(self, episodes: int, tasks: int) -> None:
        """So many episodes have been played, of so many held-out tasks."""

    def found(self, finding: Finding) -> None:
        """Something new is wrong."""

    def finished(self, report: Report, scripts: tuple[Script, ...]) -> None:
        """All has been played."""


class Examiner:
    """Plays one environment in every way and notes what is wrong with it."""

    def __init__(self, subject: Subject, settings: CheckSettings, meter: Meter, listener: Listener) -> None:
        self.scripts: list[Script] = []
        self.scores: dict[str, list[float]] = {"solve": [], "random": []}
        self.episodes = 0
        self._subject = subject
        self._settings = settings
        self._listener = listener
        self.notes = Notes(strict=subject.form == "shipped", tell=listener.found)
        self._asker = Asker(
            self.notes,
            meter,
            settings.timeout_s,
            tell=listener.calling,
            overhear=listener.overheard,
            may_block=subject.form == "plain",
        )
        self._mute = Asker(Notes(), meter, settings.timeout_s, tell=listener.calling)  # for what is judged elsewhere
        self._scorer = Scorer(subject.reward, settings.timeout_s)
        self._held_out: dict[str, int] = {}  # what makes each held-out problem what it is, with its seed
        self._draws = settings.payload is None  # or all tasks are meant to be the problem in their payload
        self._has_solve = False
        self._ends = False  # whether solve has reached an end
        self._tasks_played = 0
        self._moved: Counter[str] = Counter()  # episodes that changed what all of the process stands in

    async def examine(self) -> None:
        """Everything."""
        try:
            async with self._scorer:
                await self._look_everywhere()
        except RewardError as error:
            self.notes.add("reward-fails", str(error), key="reward")
            raise Hopeless("stopped by its reward") from None

    async def _look_everywhere(self) -> None:
        for look in (
            self._look_at_making, self._solve, self._wander, self._say_strange_things, self._compare_parts,
            self._play_again, self._count_leftovers, self._close_carelessly,
        ):  # fmt: skip
            await look()

    async def replay(self, scripts: tuple[Script, ...]) -> None:
        """Play episodes that were played in another process."""
        for script in scripts:
            played = await self._play(script.task, Repeater(script.actions), len(script.actions))
            self._compare(script, played, "in a process of its own")

    def let_loose(self, error: BaseException) -> None:
        """The event loop cannot run any more."""
        self._mute.is_over = True
        self._asker.let_loose(error)

    def report(self, seconds: float, ended: str = "done") -> Report:
        """What it came to."""
        findings = tuple(self.notes.all())
        means = {who: sum(scores) / len(scores) if scores else None for who, scores in self.scores.items()}
        return Report(
            name=self._subject.name,
            ok=ended == "done" and not any(finding.severity == "error" for finding in findings),
            findings=findings,
            solve_score=means["solve"],
            random_score=means["random"],
            tasks=self._tasks_played,
            episodes=self.episodes,
            seconds=seconds,
            ended=ended,
        )

    # looks

    async def _look_at_making(self) -> None:
        where = Where("first", self._settings.seed)
        with suppress(GaveUp):
            first = self._asker.now("the constructor", self._subject.make, where)
            second = self._asker.now("the constructor", self._subject.make, where)
            self._has_solve = isinstance(first, Solvable)
            if first is second:
                self.notes.add("same-object", f"{self._subject.name} gives the same object twice")
            with self._asker.looking("the constructor", where):
                self._look_at_pickling(first)
            for env in (first, second):
                await self._mute.ask("close", env.close, where)
        if not self._has_solve:
            self.notes.add("solve-missing", f"{self._subject.name} has no solve()")

    def _look_at_pickling(self, env: Env) -> None:
        name, form, module = self._subject.name, self._subject.form, self._subject.module
        if unsent := unpicklable(self._subject.make):
            self.notes.add("not-picklable", f"{name} cannot be sent to another process: {unsent}")
        elif unsent := unpicklable(self._subject.make, module):
            words = f"{name} cannot be sent to another process from a script or a notebook: {unsent}"
            self.notes.add("not-picklable", words, mild=True)
        if form in ("env", "plain") and (unsent := unpicklable(env)):
            words = f"a new {name} holds what cannot be sent to another process: {unsent}"
            self.notes.add("holds-unpicklable", words, mild=form == "plain")

    async def _solve(self) -> None:
        if not self._has_solve:
            return
        async for played, score in self._all_held_out(lambda _: Solver()):
            self._ends |= played.ending != "cut"
            if played.ending != "cut" and score < self._settings.highest - CLOSE_TO:
                words = f"solve reached {score:g} of {self._settings.highest:g}"
                self.notes.add("solve-short", words, key="solve", at=(played.task.seed, len(played.actions) - 1))
        if self._draws and len(self.scores["solve"]) >= 5 and len(self._held_out) == 1:
            self.notes.add("ignores-seed", f"all of {len(self.scores['solve'])} seeds are the same problem")

    async def _wander(self) -> None:
        async for played, _ in self._all_held_out(lambda task: Wanderer(task.seed)):
            if len(self.scripts) < AGAIN:
                trace = tuple(played.trace())
                self.scripts.append(Script(task=played.task, actions=tuple(played.actions), trace=trace))
        scores = self.scores["random"]
        if scores and min(scores) >= self._settings.highest - CLOSE_TO:
            self.notes.add("too-easy", f"the random policy got full marks on all of {len(scores)} tasks")

    async def _all_held_out(self, player_of: Callable[[Task], Player]) -> AsyncIterator[tuple[Played, float]]:
        """Every held-out task played by one kind of player, with its score; those that broke are left out."""
        for count, task in enumerate(self._tasks("held_out"), start=1):
            player = player_of(task)
            self._tasks_played = max(self._tasks_played, count)
            played = await self._play(task, player, self._settings.max_steps)
            score = await self._scored(played, player.name)
            if score is not None:
                if player.name == "solve" or not self._has_solve:
                    self._held_out.setdefault(self._key(played), task.seed)
                yield played, score
            if self.notes.count("never-ends", "may-not-end") >= HOPELESS:
                break

    def _key(self, played: Played) -> str:
        """What makes it another problem: all of its solution, or how it begins."""
        return played.key() if self._has_solve else repr(played.seen[:1])

    async def _say_strange_things(self) -> None:
        for first, task in zip(range(STRANGERS), self._tasks("held_out", at_least=STRANGERS), strict=False):
            await self._play(task, Stranger(first), min(self._settings.max_steps, 2 * STRANGERS))

    async def _compare_parts(self) -> None:
        """Tasks for training, from the same seeds: none of them may be one that is held out."""
        if not self._draws or len(self._held_out) < 2 or self.notes.count("never-ends"):
            return  # where all look alike nothing can be said
        for task in self._tasks("train", at_most=IN_TRAINING):
            player = Solver() if self._has_solve else Wanderer(task.seed)
            played = await self._play(task, player, self._settings.max_steps)
            key = self._key(played)
            if played.ending != "broken" and key in self._held_out:
                words = f"seed {task.seed} for training is the problem of held-out seed {self._held_out[key]}"
                self.notes.add("overlap", words, key="overlap", at=(task.seed, None))

    async def _play_again(self) -> None:
        """The same actions, two games at a time turn by turn, after all that has been played meanwhile."""
        for script, other in zip(self.scripts, [*self.scripts[1:], *self.scripts[:1]], strict=True):
            played = await self._side_by_side(script, other)
            self._compare(script, played, "when it is played again")

    async def _count_leftovers(self) -> None:
        if not self.scripts:
            return
        script = self.scripts[0]
        before = await holding()
        for episode in range(WARM_UP + LEAKY):
            if episode == WARM_UP:
                before = await holding()
            await self._play(script.task, Repeater(script.actions), len(script.actions))
        for what, more in (await holding()).grown_by(before, LEAKY).items():
            self.notes.add("leaks", f"{LEAKY} episodes left {more} {what} behind", key=what)

    async def _close_carelessly(self) -> None:
        """Before it was started, and twice."""
        where = Where("careless", self._settings.seed)
        asker = self._mute
        with suppress(GaveUp):
            env = asker.now("the constructor", self._subject.make, where)
            await asker.ask("close, before start,", env.close, where)
            env = asker.now("the constructor", self._subject.make, where)
            await asker.ask("start", lambda: env.start(self._task(self._settings.seed, "held_out")), where)
            await asker.ask("close", env.close, where)
            await asker.ask("close, the second time,", env.close, where)
        for found in asker.notes.all():
            if found.message.startswith("close, "):
                self.notes.add("closes-once", found.message, place=found.place)

    # playing

    async def _play(self, task: Task, player: Player, max_steps: int) -> Played:
        before, around = shared_chance(), surroundings()
        limit_s = CALLS * self._settings.timeout_s
        played = await play(Game(self._asker, self._subject.make, task, player.name), player, max_steps, limit_s)
        if drawn_from(before):
            words = "an episode draws from, or seeds, the generator that the whole process shares"
            self.notes.add("global-random", words, key="global", at=(task.seed, None))
        self._note_moves(around, task)
        if played.ending == "cut" and player.name != "repeat":
            self._note_no_end(played, player.name, max_steps)
        self._count()
        return played

    def _note_moves(self, before: dict[str, object], task: Task) -> None:
        """The first time may be a package that settles in while it is loaded."""
        for what, now in surroundings().items():
            self._moved[what] += now != before[what]
            if now != before[what] and self._moved[what] > 1:
                words = f"an episode changes the {what} of the whole process"
                self.notes.add("global-process", words, key=what, at=(task.seed, None))

    def _note_no_end(self, played: Played, player: str, max_steps: int) -> None:
        turns = len(played.actions)
        if turns == max_steps < self._settings.max_steps:
            return
        limit = f"{turns} turns" if turns == max_steps else f"{CALLS * self._settings.timeout_s:g} s"
        ends = player != "solve" and self._ends
        words = f"the {player} policy reached no end in {limit}"
        self.notes.add("may-not-end" if ends else "never-ends", words, key=player, at=(played.task.seed, turns - 1))

    def _count(self) -> None:
        self.episodes += 1
        self._listener.played(self.episodes, self._tasks_played)
        if self.notes.count("never-returns") >= HANGING:
            raise Hopeless("given up after calls that never return")

    async def _side_by_side(self, script: Script, other: Script) -> Played:
        games = [Game(self._asker, self._subject.make, each.task, "repeat") for each in (script, other)]
        players = [Repeater(script.actions), Repeater(other.actions)]
        longest = max(len(script.actions), len(other.actions))
        try:
            for game in games:
                await game.begin()
            for turn in range(longest):
                for game, player, actions in zip(games, players, (script.actions, other.actions), strict=True):
                    if turn < len(actions) and game.played.ending is None:
                        await game.say(player)
        except GaveUp:
            games[0].played.ending = "broken"
        for game in games:
            await game.end()
        self._count()
        return games[0].played

    def _compare(self, script: Script, played: Played, when: str) -> None:
        if played.ending == "broken":
            return  # the notes say why
        difference = first_difference([*script.trace], played.trace())
        if difference:
            words = f"the same task with the same actions goes another way {when}: {difference}"
            self.notes.add("hidden-state", words, key="hidden", at=(script.task.seed, None))

    async def _scored(self, played: Played, who: str) -> float | None:
        """The score of an episode; one that broke has none, as in a run."""
        if played.ending == "broken":
            return None
        try:
            score = await self._scorer.score(played)
        except RewardError as error:
            self.notes.add("reward-fails", str(error), key="reward", at=(played.task.seed, None))
            if self.notes.count("reward-fails") >= HOPELESS:
                raise Hopeless("given up after a reward that fails") from None
            return None
        self.scores[who].append(score)
        settings, at = self._settings, (played.task.seed, len(played.actions) - 1)
        if not settings.lowest - CLOSE_TO <= score <= settings.highest + CLOSE_TO:
            words = f"an episode's score was {score:g}, outside {settings.lowest:g} to {settings.highest:g}"
            self.notes.add("reward-range", words, key="range", at=at)
        elif played.ending == "truncated" and score > settings.highest - CLOSE_TO:
            self.notes.add("solved-but-cut", f"the {who} policy got full marks with truncated=True", key="cut", at=at)
        return score

    def _tasks(self, split: Split, *, at_least: int = 0, at_most: int = 1_000_000_000) -> Iterator[Task]:
        count = min(max(self._settings.tasks, at_least), at_most)
        return (self._task(self._settings.seed + place, split) for place in range(count))

    def _task(self, seed: int, split: Split) -> Task:
        place = seed - self._settings.seed
        return Task(ordinal=place, seed=seed, payload=self._settings.payload, name=f"seed {seed}", split=split)


def expected(settings: CheckSettings) -> int:
    """Episodes that there will be, more or less."""
    return settings.tasks * 2 + STRANGERS + min(settings.tasks, IN_TRAINING) + AGAIN + WARM_UP + LEAKY


def examine(subject: Subject, settings: CheckSettings, listener: Listener | None = None) -> tuple[Report, list[Script]]:
    """Check an environment in this process; the report, and episodes to be played again in another one."""
    listener = listener or Listener()
    with _session(subject, settings, listener) as (examiner, runner):
        report = _run(examiner, runner, examiner.examine())
        listener.finished(report, tuple(examiner.scripts))  # closing the loop waits for threads, and some never end
    return report, examiner.scripts


def replay(subject: Subject, settings: CheckSettings, scripts: tuple[Script, ...], listener: Listener) -> None:
    """Play these episodes again, in this process."""
    with _session(subject, settings, listener) as (examiner, runner):
        listener.finished(_run(examiner, runner, examiner.replay(scripts)), ())


@contextmanager
def _session(
    subject: Subject, settings: CheckSettings, listener: Listener
) -> Iterator[tuple[Examiner, asyncio.Runner]]:
    meter = Meter()
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(MeteredSelector(meter))) as runner:
            yield Examiner(subject, settings, meter, listener), runner
    finally:
        meter.stop()


def _run(examiner: Examiner, runner: asyncio.Runner, what: Coroutine[None, None, None]) -> Report:
    began, ended = time.perf_counter(), "done"
    try:
        runner.run(what)
    except Hopeless as error:
        ended = str(error)
    except BaseException as error:
        if not _broke_the_loop(error):
            raise
        examiner.let_loose(error)
        ended = "stopped by the end of its event loop"
    return examiner.report(time.perf_counter() - began, ended)


def _broke_the_loop(error: BaseException) -> bool:
    """Whether a task or a callback of the environment did it; an ordinary exception is one of ours."""
    return not isinstance(error, Exception) or "Event loop stopped" in said(error)


def unpicklable(value: object, module: str = "") -> str:
    """Why it cannot be sent to another process, which cannot import this module; empty if it can."""
    try:
        load(dump(value, [sys.modules[module]] if module in sys.modules else []))
    except Unsendable as error:
        return said(error)
    return ""
