"""Where a reward runs: on the event loop, in threads, or in processes that can be killed.

Promises: whoever asks does not see the difference; a wait that is cancelled ends at once everywhere. A thread that does
not come back is left behind and replaced, a process is killed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from windrow.envs.protocol import Isolation
from windrow.errors import RewardError
from windrow.isolation.hosts import Hosts
from windrow.isolation.settings import HostSettings
from windrow.isolation.threads import ThreadHost, Threads, ThreadSettings
from windrow.rewards.protocol import GroupReward, Placed
from windrow.rollout.env_config import AnyReward

Ask = Callable[[str, object], Awaitable[object]]
"""Calls a method of the reward, wherever it lives, with one argument."""


def way_to(reward: AnyReward, wanted: Isolation | None, kind: str, stack: AsyncExitStack) -> Ask:
    """How a reward is called; `stack` closes whatever is opened for it."""
    isolation = wanted or _suits(reward)
    name = f"reward of {kind}"
    if isolation == "inline":
        return partial(_call, reward)
    if isolation == "thread":
        threads = _Pool(Threads(lambda: reward, ThreadSettings(name=name, error=RewardError)))
        stack.push_async_callback(threads.close)
        return threads.call
    preload = reward.preload if isinstance(reward, Placed) else ()
    settings = HostSettings(name=name, reuse="object", ahead=1, error=RewardError, preload=preload)
    hosts = Hosts(lambda: reward, settings)
    stack.push_async_callback(hosts.close)
    hosts.open()
    return partial(_call_through, hosts)


def _suits(reward: AnyReward) -> Isolation:
    """Where a reward belongs by itself."""
    if isinstance(reward, Placed):
        return reward.isolation
    method = reward.score_group if isinstance(reward, GroupReward) else reward.score
    return "inline" if inspect.iscoroutinefunction(method) else "thread"


async def _call(reward: AnyReward, name: str, what: object) -> object:
    method: Callable[[Any], Any] = getattr(reward, name)
    said = method(what)
    return await said if inspect.isawaitable(said) else said


async def _call_through(hosts: Hosts, name: str, what: object) -> object:
    async with hosts.borrow() as host:
        said: object = await host.call(name, what)
        return said


class _Pool:
    """Threads that are used again as long as they come back."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._idle: list[ThreadHost] = []  # all and only those that nobody uses

    async def call(self, name: str, what: object) -> object:
        host = self._idle.pop() if self._idle else self._threads.take()
        try:
            said: object = await host.call(name, what)
        except asyncio.CancelledError:
            self._threads.give_back(host)
            raise
        except BaseException:
            self._idle.append(host)
            raise
        self._idle.append(host)
        return said

    async def close(self) -> None:
        await self._threads.close()
