"""Hosts that hang, cannot be reached for a moment, or have something to say that cannot be sent."""

import asyncio
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rollout import kit
from tests.rollout.kit import all_words, later, now, played
from tests.rollout.toys import Answering, Echo, first_time

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, ActorUnavailableError
from tests.rollout.given_trajectories import trajectory
from tests.rollout.ray.next_door import NextDoor
from tests.rollout.ray.test_next_door import busy

from windrow.cluster.ray.hosts import PAUSES_S, Remote, start
from windrow.envs.protocol import Step
from windrow.errors import HostLost, HostOutOfReach
from windrow.rollout.orders import Scored, Unscorable
from windrow.rollout.ray import players
from windrow.rollout.ray.engines import FORGET_S, Switchboard
from windrow.rollout.ray.mail import Mailbox, addressed
from windrow.rollout.ray.players import PlayingGuest, _lost
from windrow.rollout.trays import Job
from windrow.types import but

pytestmark = pytest.mark.parametrize("premises", ["next door"], indirect=True)


def there() -> NextDoor:
    assert isinstance(kit.premises, NextDoor)
    return kit.premises


# hosts that hang


async def hang(*_: object) -> None:
    await asyncio.get_running_loop().create_future()


def test_an_engine_that_hangs_does_not_keep_another_player_from_taking_over(monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        rig, calm = busy(engines=3), busy(engines=3)
        await calm.full(0, 16)
        monkeypatch.setattr(Switchboard, "forget", hang)
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.full(0, 16))
            await later(2)
            there().players(rig.scheduler)[0].kill()
            await later(FORGET_S + 1.5)  # all engines at once, and the pause after the first death
            assert len(there().players(rig.scheduler)) == 2
        assert all_words(rig) == all_words(calm)

    kit.play(scene())


def test_a_host_that_never_becomes_ready_counts_as_dead(monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        monkeypatch.setattr(PlayingGuest, "node", property(lambda _: hang(), lambda *_: None), raising=False)
        rig = busy()
        with pytest.raises(HostLost, match=f"died {players.DEATHS} times in a row: host .* was not ready within 600 s"):
            await rig.full(0, 16)

    kit.play(scene())


# hosts that cannot be reached


class Spotty:
    """Cannot be reached at first."""

    def __init__(self, remote: Remote, times: int) -> None:
        self._remote = remote
        self.left = times

    def remote(self, *given: object) -> Any:
        if self.left == 0:
            return self._remote.handle.control.remote(*given)
        self.left -= 1
        return refused()


async def refused() -> None:
    raise ActorUnavailableError("the network is down", None)


async def spotty(times: int) -> Remote:
    host = start("a host")
    await host.attach("words", lambda: ["a"])
    return Remote(host.name, SimpleNamespace(control=Spotty(host, times)))


@played
async def test_a_host_that_cannot_be_reached_for_a_moment_is_asked_again():
    assert await (await spotty(len(PAUSES_S))).insist("words.copy") == ["a"]
    assert now() == sum(PAUSES_S)
    with pytest.raises(HostOutOfReach, match=r"host a host cannot be reached: .*the network is down"):
        await (await spotty(len(PAUSES_S) + 1)).insist("words.copy")
    with pytest.raises(HostLost):
        await (await spotty(1)).control("words.copy")


@played
async def test_a_host_that_died_is_not_asked_again():
    host = start("a host")
    host.kill()
    with pytest.raises(HostLost, match="host a host is gone"):
        await host.insist("words.copy")
    assert now() == 0.0
    assert not isinstance(host.meant(ActorDiedError()), HostOutOfReach)


# news that cannot be sent


@played
async def test_an_episode_whose_info_cannot_be_sent_has_failed_and_disturbs_no_other(caplog):
    answer = Step(observation="end", reward=1.0, terminated=True, info={"door": Lock()})
    rig = busy(env=partial(Answering, answer=answer, when=first_time, turns=2), config={"retry_after_s": 0.0})
    assert len(await rig.full(0, 16)) == 16
    why = "environment '' ended with info that cannot be sent to another process: TypeError: cannot pickle"
    assert f"attempt failed: g0.a0 {why}" in caplog.text
    assert rig.ledger.attempts.balance == 0


@played
async def test_whatever_can_be_sent_comes_as_it_is():
    info: dict[str, Any] = {"n": 1, "deep": [{"a": (1.5, None)}], "kind": Echo, "do": lambda: 3}
    info["itself"] = info
    answer = Step(observation="end", reward=1.0, terminated=True, info=info)
    rig = busy(env=partial(Answering, answer=answer, turns=2))
    await rig.full(0, 16)
    found = next(iter(rig.kept.values())).info
    assert (found["n"], found["deep"], found["kind"], found["do"]()) == (1, [{"a": (1.5, None)}], Echo, 3)
    assert found["itself"]["n"] == 1


async def scored(info: dict[str, Any]) -> Any:
    """What a queue hears of an episode that somebody scored who was given it with its tokens."""
    mail, given = Mailbox(0.0), but(trajectory(), info=info)
    mail.bring([Job(5, (given,))])
    await mail.fetch_unscored("train/")
    await mail.report([Scored(5, (given,))])
    return (await mail.news())[0].news[0]


@played
async def test_a_reward_that_leaves_what_cannot_be_sent_could_not_score():
    said = await scored({"judge": Lock()})
    assert isinstance(said, Unscorable)
    assert (said.job, "the reward of '' left info that cannot be sent" in said.why) == (5, True)


@played
async def test_scores_whose_tokens_are_lost_with_a_node_were_not_given():
    said = await scored({})
    assert _lost(said, "its node is gone") == Unscorable(5, "its node is gone")
    there = addressed(said, "a body")
    assert _lost(there, "its node is gone") == there
