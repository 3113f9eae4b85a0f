"""The episodes that are being played, turn by turn.

Promises: an attempt that was cancelled or lost is forgotten at once and is never heard of again. An episode
keeps the tokens it has when its engine stops, dies or changes. Environments go on while engines are held.

One turn: observe (the environment starts or steps) → read and generate (an engine) → step … and after the
last turn, score; a score that takes time is waited for without a slot.
"""

from collections.abc import Callable

from windrow.core.commands import GrantLease
from windrow.core.events import AttemptEnded, AttemptProgressed, EpisodeEnded
from windrow.sim.clock import Clock
from windrow.sim.engines import Engine, Request
from windrow.sim.fleet import Fleet
from windrow.sim.ledger import Ledger
from windrow.sim.scheduler import Tell
from windrow.sim.workload import EpisodePlan, Workload
from windrow.types import CAUSE_OF, AttemptId, Failed, Finished, Mode, Outcome, Reason, Record

TOKENS_PER_S = 50.0
"""Tokens that a second of an episode without turns stands for."""


class Episode(Record):
    """One attempt being played."""

    grant: GrantLease
    plan: EpisodePlan
    begun_at: float
    engine: str
    oldest_version: int = -1
    turn: int = 0
    """Turns that are over."""
    context: float = 0.0
    """Tokens of its history."""
    sampled: float = 0.0
    """Policy tokens of its history."""
    left: float = 0.0
    """Tokens that the response it waits for still lacks; 0 while the environment works."""
    request: Request | None = None
    server: Engine | None = None
    """Where the request is, or where the last one was."""
    memory: int = -1
    """The server's memory when it read this history; another one means that it has forgotten."""
    works_since: float | None = None
    """Since when its environment works; None while it waits for an engine or a score."""
    played_s: float = -1.0
    """How long it held its slot, once it has given it back; negative before."""
    is_over: bool = False


class Episodes:
    """All episodes that are being played, by attempt."""

    def __init__(
        self,
        workloads: dict[Mode, Workload],
        fleet: Fleet,
        ledger: Ledger,
        hang_s: float | None,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self.workloads = workloads
        self.ledger = ledger
        self.fleet = fleet
        self.hang_s = hang_s
        self.clock = clock
        self.tell = tell
        self.playing: dict[AttemptId, Episode] = {}  # all and only the living ones
        self.env_s = 0.0  # seconds in which environments worked

    def begin(self, grant: GrantLease) -> None:
        """Play an attempt."""
        plan = self.workloads[grant.mode].plan(grant.ordinal, grant.seat, grant.attempt.index)
        episode = Episode(grant, plan, self.clock.now, grant.engine)
        self.playing[grant.attempt] = episode
        self.ledger.granted(grant, plan.length)
        if plan.turns:
            episode.context = plan.prompt_tokens
            self._work(episode, plan.start_s, self._ask)
        else:
            episode.works_since = self.clock.now
            self._stretch(episode)

    def cancel(self, attempt: AttemptId, why: Reason) -> None:
        """Stop playing, if it is not over already."""
        episode = self.playing.get(attempt)
        if episode is not None:
            self._stop(episode)
            self.ledger.stopped(episode.played_s, CAUSE_OF[why])

    def lose_worker(self, worker: str) -> None:
        """Forget whatever a worker played."""
        for episode in [episode for episode in self.playing.values() if episode.grant.worker == worker]:
            if episode.played_s < 0.0:  # else it only waits for its score, elsewhere
                self._stop(episode)
                self.ledger.stopped(episode.played_s, "lost")

    def move(self, attempt: AttemptId, engine: str) -> None:
        """Go on with another engine, from the last token."""
        episode = self.playing.get(attempt)
        if episode is None:
            return
        episode.engine = engine
        if episode.request is not None and episode.server is not None:
            episode.server.withdraw(episode.request)
            self._keep(episode, episode.request)
        if episode.left:
            self._request(episode)

    def answered(self, request: Request) -> None:
        """An engine has generated a response: the environment steps."""
        episode = self.playing[request.attempt]
        request.tokens = 0.0
        self._keep(episode, request)
        self.tell(AttemptProgressed(request.attempt, round(episode.sampled), episode.oldest_version))
        plan = episode.plan
        if plan.fate != "ok" and episode.turn == int(plan.fate_at * plan.turns):
            episode.works_since = self.clock.now
            self._fail(episode, 0.0)
            return
        step_s = self.workloads[episode.grant.mode].steps.at(plan.first, episode.turn)
        self._work(episode, step_s, self._step)

    def _stop(self, episode: Episode) -> None:
        episode.is_over = True
        self._vacate(episode)
        del self.playing[episode.grant.attempt]
        if episode.request is not None and episode.server is not None:
            episode.server.withdraw(episode.request)

    def _stretch(self, episode: Episode) -> None:
        """Play an episode that has no turns."""
        plan = episode.plan
        episode.oldest_version = episode.grant.version
        episode.sampled = plan.seconds * TOKENS_PER_S
        if plan.fate != "ok":
            self._fail(episode, plan.seconds * plan.fate_at)
            return
        self.clock.after(plan.seconds, self._play_out, episode)

    def _work(self, episode: Episode, seconds: float, then: Callable[[Episode], None]) -> None:
        """The environment works for a while."""
        episode.works_since = self.clock.now
        self.clock.after(seconds, then, episode)

    def _rest(self, episode: Episode) -> None:
        """The environment works no more."""
        if episode.works_since is not None:
            self.env_s += self.clock.now - episode.works_since
            episode.works_since = None

    def _step(self, episode: Episode) -> None:
        """The environment has stepped: ask for the next response, or have the episode scored."""
        if episode.is_over:
            return
        self._rest(episode)
        plan = episode.plan
        episode.turn += 1
        if episode.turn >= plan.turns:
            self._play_out(episode)
            return
        self._ask(episode)

    def _play_out(self, episode: Episode) -> None:
        """The episode is over: its slot is free, and its score is on the way if that takes time."""
        if episode.is_over:
            return
        reward_s = episode.plan.reward_s
        if reward_s <= 0.0:
            self._score(episode)
            return
        self._vacate(episode)
        self.tell(EpisodeEnded(episode.grant.attempt, round(episode.sampled), episode.oldest_version))
        self.clock.after(reward_s, self._score, episode)

    def _vacate(self, episode: Episode) -> None:
        """Give the slot back, if that was not done already."""
        self._rest(episode)
        if episode.played_s < 0.0:
            episode.played_s = self.clock.now - episode.begun_at
            self.ledger.vacated()

    def _ask(self, episode: Episode) -> None:
        """Ask for the response to what the environment has shown."""
        if episode.is_over:
            return
        self._rest(episode)
        plan = episode.plan
        workload = self.workloads[episode.grant.mode]
        if episode.turn:
            episode.context += workload.observations.at(plan.first, episode.turn)
        episode.left = max(1.0, round(plan.scale * workload.tokens.at(plan.first, episode.turn)))
        self._request(episode)

    def _request(self, episode: Episode) -> None:
        """Send what is lacking to the engine; without an engine the episode waits to be moved."""
        engine = self.fleet.engines.get(episode.engine)
        if engine is None:
            return
        read = episode.context - self.fleet.config.prefix_reuse * self._known(episode, engine)
        episode.server = engine
        episode.memory = engine.memory
        episode.request = Request(episode.grant.attempt, episode.left, read, episode.context)
        engine.start(episode.request)

    def _known(self, episode: Episode, engine: Engine) -> float:
        """Tokens of the history that the engine has read before."""
        plan = episode.plan
        knows_prompt = engine.remember_prompt(episode.grant.attempt.group)
        if episode.server is not engine or episode.memory != engine.memory:
            return plan.prompt_tokens if knows_prompt else 0.0
        if not episode.turn:
            return plan.prompt_tokens
        return episode.context - self.workloads[episode.grant.mode].observations.at(plan.first, episode.turn)

    def _keep(self, episode: Episode, request: Request) -> None:
        """Add what a request has generated to the history."""
        generated = episode.left - request.tokens
        episode.left = request.tokens
        episode.context += generated
        episode.sampled += generated
        episode.request = None
        if episode.server is not None:
            episode.memory = episode.server.memory  # it has read all of this, under the weights it has now
        if episode.oldest_version < 0 and generated > 0.0:
            episode.oldest_version = request.version

    def _fail(self, episode: Episode, delay: float) -> None:
        """Let an episode meet its fate after a while."""
        if episode.plan.fate == "crash":
            self.clock.after(delay, self._crash, episode)
        elif self.hang_s is not None:
            self.clock.after(delay + self.hang_s, self._crash, episode)

    def _crash(self, episode: Episode) -> None:
        why = "crashed" if episode.plan.fate == "crash" else "hung"
        self._end(episode, Failed("env", why, round(episode.sampled)))

    def _score(self, episode: Episode) -> None:
        self._end(episode, Finished(episode.plan.score, round(episode.sampled), episode.oldest_version))

    def _end(self, episode: Episode, outcome: Outcome) -> None:
        if episode.is_over:
            return
        episode.is_over = True
        self._vacate(episode)
        del self.playing[episode.grant.attempt]
        if isinstance(outcome, Finished):
            self.ledger.finished(episode.grant.attempt, episode.played_s, episode.plan.length)
        else:
            self.ledger.stopped(episode.played_s, "failed")
        self.tell(AttemptEnded(episode.grant.attempt, outcome))
