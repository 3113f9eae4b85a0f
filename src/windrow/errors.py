"""Everything that Windrow raises, in one tree, split by whose fault it is.

WindrowError
├── ConfigError      the user's: a setting, a file or a command line that cannot work
├── EnvError         the environment's: it raised, hung or answered nonsense
├── EngineError      the inference engine's: one request failed
│   ├── EngineLost       the whole engine is gone
│   └── PromptTooLong    the request cannot fit into the model's context
├── RewardError      the reward's
├── TrainError       the trainer's
├── Refused          nobody's: a request that would break a promise; nothing was changed
└── InternalError    ours: a broken promise or an event that cannot have happened
    └── IllegalEvent

A message has the thing, the value and the way out, in lower case, without a full stop.
"""


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


class TrainError(WindrowError):
    """A training step failed."""


class Refused(WindrowError):
    """A request that would break a promise; nothing was changed."""


class InternalError(WindrowError):
    """One of our own promises is broken; the message tells the story that led there."""


class IllegalEvent(InternalError):
    """An event that cannot have happened; the machine is as it was before."""
