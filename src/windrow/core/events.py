"""What the outside world tells the machine: facts, in the past tense, one frozen value each.

Promises: an event carries ids, sizes, versions, scores and reasons, never a payload. Facts about an attempt may come
late, twice or in another order. A `…Wanted` is the fact that somebody asked.
"""

from windrow.types import AttemptId, How, Mode, Outcome, Value


class Event(Value, frozen=True, tag_field="event", tag=True, gc=False):
    """The base of all events; in the journal each carries its own name."""


# tasks


class TaskArrived(Event, frozen=True):
    """A source answered one unit of a `FetchTask`."""

    mode: Mode
    ordinal: int
    """Its position in the source, from which it can be fetched again."""
    tag: str = ""
    """The share it counts towards."""
    kind: str = ""
    """Which workers can host it."""
    task: str = ""
    """A name that stays the same when the task comes again; empty if it never does."""


class SourceEnded(Event, frozen=True):
    """A source has no more tasks of this tag; what was asked for and not answered will not come."""

    mode: Mode
    tag: str = ""


class SourceOpened(Event, frozen=True):
    """A source that had ended has tasks again: a new epoch, or the next validation."""

    mode: Mode
    tag: str = ""


# workers and attempts


class WorkerJoined(Event, frozen=True):
    """A worker offers slots for environments of some kinds."""

    worker: str
    slots: int
    kinds: tuple[str, ...] = ("",)


class WorkerBeat(Event, frozen=True):
    """A worker is alive."""

    worker: str


class WorkerLeft(Event, frozen=True):
    """A worker plays what it has and wants nothing new."""

    worker: str


class WorkerLost(Event, frozen=True):
    """A worker died, and with it whatever it played."""

    worker: str
    why: str = ""


class AttemptProgressed(Event, frozen=True):
    """An episode finished a turn; also a sign of life of its worker."""

    attempt: AttemptId
    tokens: int
    """Policy tokens sampled so far."""
    oldest_version: int = -1
    """Version of its oldest policy token, if it has one."""


class EpisodeEnded(Event, frozen=True):
    """An episode was played to its end and waits for its score; its slot and its engine are free."""

    attempt: AttemptId
    tokens: int
    oldest_version: int = -1


class AttemptEnded(Event, frozen=True):
    """An attempt ended, with a score or without."""

    attempt: AttemptId
    outcome: Outcome


class GroupJudged(Event, frozen=True):
    """The user's filter answered a `JudgeGroup`."""

    group: int
    accepted: bool
    why: str = ""


# engines


class EngineJoined(Event, frozen=True):
    """An engine exists and warms up; its weights are of some version."""

    engine: str
    version: int = 0
    capacity: int = 1
    """Requests it serves well at once; a weight for sharing work, not a limit."""
    devices: tuple[int, ...] = ()


class EngineReady(Event, frozen=True):
    """An engine is warm, after joining or after it took its devices back."""

    engine: str


class EngineReleased(Event, frozen=True):
    """An engine gave its devices back, as a `ReleaseEngine` told it."""

    engine: str


class EngineLost(Event, frozen=True):
    """An engine died; a restarted one joins again."""

    engine: str
    why: str = ""


class EngineAssigned(Event, frozen=True):
    """From now on an engine serves one mode only, or all of them if `mode` is None.

    One that serves validation alone keeps the version it has and still counts as up to date.
    """

    engine: str
    mode: Mode | None = None


class WeightsLoaded(Event, frozen=True):
    """An engine confirmed which weights it serves."""

    engine: str
    version: int


class SuspendWanted(Event, frozen=True):
    """A holder wants some engines (all, if none are named) to stop generating."""

    holder: str
    how: How = "interrupt"
    engines: tuple[str, ...] = ()


class ResumeWanted(Event, frozen=True):
    """A holder lets go of whatever it held."""

    holder: str


class ShrinkWanted(Event, frozen=True):
    """Somebody needs these devices."""

    devices: tuple[int, ...]


class ExpandWanted(Event, frozen=True):
    """These devices are free for generation again."""

    devices: tuple[int, ...]
    skip_load: bool = False
    """The weights are already there."""


# versions and batches


class VersionPublished(Event, frozen=True):
    """New weights exist; engines are stale until they confirm them."""

    version: int
    loaded: bool = False
    """All engines have them already (weights shared in one process)."""


class BatchWanted(Event, frozen=True):
    """A consumer waits for `n` trajectories, or for all of them (-1).

    A larger step than the last acknowledges the batches of this consumer before it; the same step asks for the same
    batch again.
    """

    consumer: str
    mode: Mode
    n: int
    step: int


class WantWithdrawn(Event, frozen=True):
    """A consumer no longer waits."""

    consumer: str


class ConsumerLost(Event, frozen=True):
    """A consumer died: it no longer waits, and what it had not acknowledged may be delivered anew."""

    consumer: str


class BatchTrained(Event, frozen=True):
    """A delivered batch was used; it will not be asked for again.

    It makes room for new groups when the version that it led to is published, or when somebody waits.
    """

    batch: int


# the rest


class TimePassed(Event, frozen=True):
    """Nothing happened but the time; sent when `next_deadline` is reached."""


class TaskPardoned(Event, frozen=True):
    """A quarantined task may be tried again."""

    task: str


class BreakerReset(Event, frozen=True):
    """Somebody mended the fault that stopped the run."""


class ShutdownWanted(Event, frozen=True):
    """Everything ends: what lives is dropped, whoever waits is told."""


AnyEvent = (
    TaskArrived
    | SourceEnded
    | SourceOpened
    | WorkerJoined
    | WorkerBeat
    | WorkerLeft
    | WorkerLost
    | AttemptProgressed
    | EpisodeEnded
    | AttemptEnded
    | GroupJudged
    | EngineJoined
    | EngineReady
    | EngineReleased
    | EngineLost
    | EngineAssigned
    | WeightsLoaded
    | SuspendWanted
    | ResumeWanted
    | ShrinkWanted
    | ExpandWanted
    | VersionPublished
    | BatchWanted
    | WantWithdrawn
    | ConsumerLost
    | BatchTrained
    | TimePassed
    | TaskPardoned
    | BreakerReset
    | ShutdownWanted
)
