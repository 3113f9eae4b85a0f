"""The environments that come with Windrow, by the name a configuration gives them."""

from collections.abc import Callable

from windrow.envs.guess import GuessEnv
from windrow.envs.protocol import Env
from windrow.errors import ConfigError
from windrow.nearest import did_you_mean

EnvFactory = Callable[[], Env]
"""Makes one environment for one episode."""

SHIPPED: dict[str, EnvFactory] = {"guess": GuessEnv}


def find(name: str) -> EnvFactory:
    """The shipped environment of a name."""
    if name not in SHIPPED:
        raise ConfigError(f"unknown environment {name!r}{did_you_mean(name, SHIPPED)}")
    return SHIPPED[name]
