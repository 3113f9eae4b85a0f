"""The engines, taken in turn.

Promises: an engine takes work when it is warm and has had the weights that were current when it joined; the
weights that come later reach all engines together, while they are held.
"""

from windrow.core.commands import AnyCommand, LoadWeights, ResumeEngine, SuspendEngine
from windrow.core.events import (
    AnyEvent,
    EngineJoined,
    EngineLost,
    EngineReady,
    ResumeWanted,
    SuspendWanted,
    VersionPublished,
    WeightsLoaded,
)


class Engines:
    """Who serves, and whose turn it is."""

    def __init__(self) -> None:
        self.version = 0
        self.behind: dict[
            str, None
        ] = {}  # all and only the engines that joined with old weights and have no newer ones
        self.warm: dict[str, None] = {}  # all and only the engines that are ready
        self.serving: list[str] = []  # all and only the warm ones that are not behind
        self.turns = 0

    def hear(self, event: AnyEvent) -> list[AnyCommand]:
        """Learn what happened to an engine, and say what engines must do about it."""
        match event:
            case EngineJoined(engine, version):
                return self._join(engine, version)
            case EngineReady(engine) if engine not in self.warm:
                self.warm[engine] = None
                self._consider(engine)
            case WeightsLoaded(engine) if engine in self.behind:
                del self.behind[engine]
                self._consider(engine)
            case EngineLost(engine):
                self.warm.pop(engine, None)
                self.behind.pop(engine, None)
                self.serving = [other for other in self.serving if other != engine]
            case VersionPublished(version):
                self.version = version
            case SuspendWanted(_, how, engines):
                return [SuspendEngine(engine, how) for engine in engines or self.warm]
            case ResumeWanted():
                return [ResumeEngine(engine) for engine in self.warm]
            case _:
                pass
        return []

    def next(self) -> str:
        """The engine whose turn it is, of those that serve; there must be one."""
        self.turns += 1
        return self.serving[(self.turns - 1) % len(self.serving)]

    def _join(self, engine: str, version: int) -> list[AnyCommand]:
        if version >= self.version:
            return []
        self.behind[engine] = None
        return [LoadWeights(engine, self.version)]

    def _consider(self, engine: str) -> None:
        """Let an engine serve as soon as nothing speaks against it."""
        if engine in self.warm and engine not in self.behind:
            self.serving.append(engine)
