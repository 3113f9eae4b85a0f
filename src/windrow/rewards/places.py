"""Where a reward runs: on the event loop, in threads, or in processes that can be killed.

Promises: whoever asks does not see the difference; a wait that is cancelled ends at once everywhere. A thread that does
not come back is left behind and replaced, a process is killed.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from windrow.envs.protocol import DEADLINE, Isolation
from windrow.errors import RewardError
from windrow.isolation.hosts import Hosts
from windrow.isolation.pools import Pool
from windrow.isolation.settings import HostSettings
from windrow.isolation.threads import Threads, ThreadSettings
from windrow.rewards.protocol import AnyReward, GroupReward, Placed

Ask = Callable[[str, object], Awaitable[object]]
"""Calls a method of the reward, wherever it lives, with one argument."""


def way_to(reward: AnyReward, wanted: Isolation | None, name: str, stack: AsyncExitStack) -> Ask:
    """How a reward is called; `stack` closes whatever is opened for it."""
    isolation = wanted or _suits(reward)
    if isolation == "inline":
        return partial(_call, reward)
    if isolation == "thread":
        threads = Pool(Threads(lambda: _Guest(reward), ThreadSettings(name=name, error=RewardError)))
        stack.push_async_callback(threads.close)
        return partial(_call_in, threads)
    preload = reward.preload if isinstance(reward, Placed) else ()
    settings = HostSettings(name=name, reuse="object", ahead=1, error=RewardError, preload=preload)
    hosts = Hosts(lambda: _Guest(reward), settings)
    stack.push_async_callback(hosts.close)
    hosts.open()
    return partial(_call_through, hosts)


def _suits(reward: AnyReward) -> Isolation:
    """Where a reward belongs by itself."""
    if isinstance(reward, Placed):
        return reward.isolation
    method = reward.score_group if isinstance(reward, GroupReward) else reward.score
    return "inline" if inspect.iscoroutinefunction(method) else "thread"


class _Guest:
    """A reward where it lives: each call comes with its deadline."""

    def __init__(self, reward: AnyReward) -> None:
        self._reward = reward

    async def ask(self, due: float | None, name: str, what: object) -> object:
        DEADLINE.set(due)
        return await _call(self._reward, name, what)


async def _call(reward: AnyReward, name: str, what: object) -> object:
    method: Callable[[Any], Any] = getattr(reward, name)
    said = method(what)
    return await said if inspect.isawaitable(said) else said


async def _call_in(threads: Pool, name: str, what: object) -> object:
    said: object = await threads.call("ask", DEADLINE.get(), name, what)
    return said


async def _call_through(hosts: Hosts, name: str, what: object) -> object:
    async with hosts.borrow() as host:
        said: object = await host.call("ask", DEADLINE.get(), name, what)
        return said
