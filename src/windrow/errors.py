"""Everything that Windrow raises, in one tree, split by whose fault it is.

WindrowError
├── ConfigError      the user's: a setting, a file or a command line that cannot work
├── EnvError         the environment's: it raised, hung or answered nonsense
├── EngineError      the inference engine's: one request failed
│   ├── EngineLost       the whole engine is gone
│   └── PromptTooLong    the request cannot fit into the model's context
├── RewardError      the reward's
│   ├── JudgeError       a model that judges failed, or said nothing that is a verdict
│   └── SandboxError     programs cannot be run just now; says nothing about the program
├── TrainError       the trainer's
├── DataError        the data's: tensors and arrays that do not fit together (a ValueError as well)
├── HostLost         the machine's: a process on Ray is gone, or its whole node
│   └── HostOutOfReach   it cannot be reached just now; what was asked of it may have been done or not
├── Refused          nobody's: a request that would break a promise; nothing was changed
└── InternalError    ours: a broken promise or an event that cannot have happened
    └── IllegalEvent

A message has the thing, the value and the way out, in lower case, without a full stop. Foreign exceptions are filed by
`blame`.
"""

from traceback import format_exception

LONGEST_TRACE = 4000
"""Characters of a traceback that are kept."""


class WindrowError(Exception):
    """The root of the tree; catch it to catch all of ours and nothing else."""


class ConfigError(WindrowError):
    """A setting, a file or an argument that cannot work."""


class EnvError(WindrowError):
    """An environment raised, hung or answered nonsense."""


class EngineError(WindrowError):
    """An inference engine failed one request."""


class EngineLost(EngineError):
    """An inference engine is gone; its requests can go on elsewhere."""


class PromptTooLong(EngineError):
    """A prompt that leaves no room for a response in the model's context."""


class RewardError(WindrowError):
    """A reward could not be computed."""


class JudgeError(RewardError):
    """A model that judges could not be asked, or gave no verdict."""


class SandboxError(RewardError):
    """The sandbox failed, not the program in it."""


class TrainError(WindrowError):
    """A training step failed."""


class DataError(WindrowError, ValueError):
    """Tensors and arrays that do not fit together; nothing was changed."""


class HostLost(WindrowError):
    """A process that held something of ours is gone, or the node that it was on."""


class HostOutOfReach(HostLost):
    """A process cannot be reached just now; whoever cannot ask again takes it for lost."""


class Refused(WindrowError):
    """A request that would break a promise; nothing was changed."""


class InternalError(WindrowError):
    """One of our own promises is broken; the message tells the story that led there."""


class IllegalEvent(InternalError):
    """An event that cannot have happened; the machine is as it was before."""


class blame:  # noqa: N801 -- it is used as a statement
    """File whatever is raised inside as `kind`, with what was being done; what has its place already keeps it.

    The words are put together only when they are needed, because most of what is tried works.
    """

    __slots__ = ("_kind", "_words")

    def __init__(self, kind: type[WindrowError], *words: object) -> None:
        self._kind = kind
        self._words = words

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, WindrowError) or not isinstance(error, Exception):
            return
        what = " ".join(map(str, self._words))
        if isinstance(error, TimeoutError):
            raise self._kind(f"{what}: {_said(error) or 'it took too long'}") from error
        raise self._kind(f"{what}: {type(error).__name__}: {_said(error)}") from error


def trace_of(error: BaseException) -> str:
    """The end of the traceback of whatever led to an error; empty if nothing else did."""
    cause = error.__cause__
    return "" if cause is None else "".join(format_exception(cause))[-LONGEST_TRACE:]


def _said(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- somebody else's exception, which breaks when it is looked at
        return "it cannot say why"
