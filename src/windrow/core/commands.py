"""What the machine tells the outside world to do: orders, one frozen value each.

Promises: a command is complete in itself; it can be carried out late, and carried out twice without harm. What it
leads to comes back as an event.
"""

from windrow.types import AttemptId, How, Mode, Reason, Value


class Command(Value, frozen=True, tag_field="command", tag=True, gc=False):
    """The base of all commands."""


class FetchTask(Command, frozen=True):
    """Ask a source for `count` more tasks of a tag."""

    mode: Mode
    tag: str
    count: int


class GrantLease(Command, frozen=True):
    """Let a worker play one attempt with one engine until a deadline."""

    attempt: AttemptId
    seat: int
    """Which member of the group it plays; seeds follow from the task and the seat, so a retry samples the same."""
    worker: str
    engine: str
    ordinal: int
    tag: str
    mode: Mode
    version: int
    """Version of the engine's weights when the lease was granted."""
    deadline: float


class CancelAttempt(Command, frozen=True):
    """Stop playing; the attempt is forgotten already."""

    attempt: AttemptId
    worker: str
    why: Reason


class MoveAttempt(Command, frozen=True):
    """Go on with another engine, from the last token; `engine` is empty while there is none."""

    attempt: AttemptId
    worker: str
    engine: str


class JudgeGroup(Command, frozen=True):
    """Ask the user's filter about a finished group."""

    group: int
    attempts: tuple[AttemptId, ...]


class DropGroup(Command, frozen=True):
    """Forget what was collected for a group."""

    group: int
    why: Reason


class ResetGroup(Command, frozen=True):
    """Forget what was collected for a group; it is played again from its beginning, later."""

    group: int
    why: Reason


class DeliverBatch(Command, frozen=True):
    """Hand a batch to a consumer; the same batch may be handed over again until it is acknowledged."""

    batch: int
    consumer: str
    mode: Mode
    step: int
    version: int
    """The version that is current, and will be trained, when it is delivered."""
    groups: tuple[int, ...]
    attempts: tuple[AttemptId, ...]
    """Group after group, `group_size` each."""
    lags: tuple[int, ...]
    """In versions, one per group."""
    last: bool = False
    """The source has ended and nothing is left."""
    short: bool = False
    """Fewer than wanted, because the filter accepted no more in its rounds."""


class RetireBatch(Command, frozen=True):
    """A batch counts as trained; its payload is needed no more."""

    batch: int


class EndBatches(Command, frozen=True):
    """Tell a waiting consumer that nothing more will come."""

    consumer: str
    why: str


class RefuseBatch(Command, frozen=True):
    """Tell a waiting consumer why its batch cannot come."""

    consumer: str
    why: str


class SuspendEngine(Command, frozen=True):
    """Stop generating on an engine."""

    engine: str
    how: How


class ResumeEngine(Command, frozen=True):
    """Generate again."""

    engine: str


class ReleaseEngine(Command, frozen=True):
    """Give an engine's devices back; nothing is routed to it any more."""

    engine: str


class RestoreEngine(Command, frozen=True):
    """Take an engine's devices again."""

    engine: str
    load: bool
    """Load weights too."""


class LoadWeights(Command, frozen=True):
    """Bring an engine up to the current version; it serves nothing new until it confirms."""

    engine: str
    version: int


class Halt(Command, frozen=True):
    """So much fails that something common must be broken: stop the run and say the first cause."""

    cause: str


AnyCommand = (
    FetchTask
    | GrantLease
    | CancelAttempt
    | MoveAttempt
    | JudgeGroup
    | DropGroup
    | ResetGroup
    | DeliverBatch
    | RetireBatch
    | EndBatches
    | RefuseBatch
    | SuspendEngine
    | ResumeEngine
    | ReleaseEngine
    | RestoreEngine
    | LoadWeights
    | Halt
)
