"""News of attempts, turned into events; what was played is put where it can be found.

Promises: trajectories lie on a tray or a shelf before the machine hears of them, and are taken away again if it does
not want them. News that come late, twice or of a job that was called back change nothing.
"""

import logging
from collections.abc import Callable, Mapping
from typing import assert_never

from windrow.core.events import AnyEvent, AttemptEnded, AttemptProgressed, EpisodeEnded
from windrow.observe.metrics import Meter
from windrow.rollout.dispatch import Dispatch
from windrow.rollout.orders import (
    Broken,
    EngineGone,
    News,
    Played,
    PlayedOut,
    Progressed,
    Scored,
    Unscorable,
    played,
)
from windrow.types import Failed, Mode

log = logging.getLogger(__name__)

LAST_LINES = 3
"""Tracebacks that end alike are the same mistake."""
MOST_TRACES = 100
"""Different ones that are told; more would tell nothing."""


class Intake:
    """Where news arrive."""

    def __init__(
        self,
        dispatch: Dispatch,
        tell: Callable[[AnyEvent], object],
        lose_engine: Callable[[str, str], None],
        meters: Mapping[Mode, Meter],
    ) -> None:
        self._dispatch = dispatch
        self._tell = tell
        self._lose_engine = lose_engine
        self._meters = meters
        self._told: set[str] = set()  # all and only the tracebacks that were logged, by their ends

    def take(self, news: News) -> None:
        """Let the machine know."""
        match news:
            case Progressed(attempt=attempt, tokens=tokens, oldest_version=version):
                self._tell(AttemptProgressed(attempt, tokens, version))
            case PlayedOut():
                self._played_out(news)
            case Played():
                self._played(news)
            case Scored() | Unscorable():
                self._scored(news)
            case Broken():
                self._broken(news)
            case EngineGone(engine=engine, why=why):
                self._lose_engine(engine, why)
            case _:
                assert_never(news)

    def _played_out(self, news: PlayedOut) -> None:
        trajectory, trays = news.trajectory, self._dispatch.trays
        late = self._dispatch.machine.late
        is_new = trays.put(news.kind, trajectory)
        self._tell(EpisodeEnded(trajectory.attempt, trajectory.policy_tokens, trajectory.oldest_version))
        if is_new and self._dispatch.machine.late > late:
            trays.remove(trajectory.attempt)

    def _scored(self, news: Scored | Unscorable) -> None:
        trays = self._dispatch.trays
        if isinstance(news, Scored):
            for trajectory in news.trajectories if trays.done(news.job) else ():
                self._played(played(trajectory))
            return
        given_up = trays.failed(news.job)
        if given_up is not None:
            self._broken(Broken(given_up.attempt, Failed("reward", news.why, given_up.policy_tokens, news.trace)))

    def _played(self, news: Played) -> None:
        shelf, attempt = self._dispatch.shelf, news.attempt
        late = self._dispatch.machine.late
        is_new = shelf.put(attempt, news.trajectory)
        members = shelf.members(attempt.group)  # before the machine throws them away
        self._tell(AttemptEnded(attempt, news.outcome))
        if is_new and self._dispatch.machine.late > late:
            shelf.discard(attempt)
        elif is_new:
            self._dispatch.note_scores(members)

    def _broken(self, news: Broken) -> None:
        failed = news.outcome
        facts = {"attempt": str(news.attempt), "blame": failed.blame, "why": failed.why}
        log.warning("attempt failed: %s%s", failed.why, self._new_trace(failed), extra=facts)
        mode = self._dispatch.shelf.mode(news.attempt.group)
        if mode is not None:
            self._meters[mode].count("attempt/failed_total", part=failed.blame)
        self._tell(AttemptEnded(news.attempt, failed))

    def _new_trace(self, failed: Failed) -> str:
        """Where it came from, unless that was told before."""
        end = "\n".join(failed.trace.rstrip().splitlines()[-LAST_LINES:])
        if not end or end in self._told or len(self._told) >= MOST_TRACES:
            return ""
        self._told.add(end)
        return f"\n{failed.trace.rstrip()}"
