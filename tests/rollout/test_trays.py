"""Trays: each played episode is given out once, or called back."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.rollout.given_trajectories import trajectory

from windrow.rollout.trays import Forget, Job, Trays
from windrow.types import AttemptId


def done(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


def tray(*members: tuple[int, int], together: int = 1) -> Trays:
    made = Trays()
    made.open("k", together)
    for group, index in members:
        made.put("k", trajectory(group, index))
    return made


def given(orders: list[Job | Forget]) -> list[list[str]]:
    return [[str(t.attempt) for t in order.trajectories] for order in orders if isinstance(order, Job)]


def test_each_is_given_out_once():
    async def body() -> None:
        trays = tray((0, 0), (1, 0))
        assert given(await trays.fetch("k")) == [["g0.a0"], ["g1.a0"]]
        trays.put("k", trajectory(2, 0))
        assert given(await trays.fetch("k")) == [["g2.a0"]]

    done(body())


def test_a_group_is_given_out_when_there_are_enough_of_it():
    async def body() -> None:
        trays = tray((0, 0), (1, 0), (0, 1), (1, 1), (1, 2), together=2)
        assert given(await trays.fetch("k")) == [["g0.a0", "g0.a1"], ["g1.a0", "g1.a1"]]
        trays.put("k", trajectory(1, 3))
        assert given(await trays.fetch("k")) == [["g1.a2", "g1.a3"]]

    done(body())


def test_one_that_was_given_out_is_called_back_and_one_that_was_not_is_just_gone():
    async def body() -> None:
        trays = tray((0, 0))
        await trays.fetch("k")
        trays.put("k", trajectory(1, 0))
        trays.cancel(AttemptId(0, 0))
        trays.cancel(AttemptId(1, 0))
        assert await trays.fetch("k") == [Forget(0)]
        assert trays.unscored() == {}

    done(body())


def test_when_one_of_a_group_is_called_back_the_others_wait_for_another():
    async def body() -> None:
        trays = tray((0, 0), (0, 1), (0, 2), together=3)
        await trays.fetch("k")
        trays.cancel(AttemptId(0, 1))
        trays.put("k", trajectory(0, 3))
        orders = await trays.fetch("k")
        assert orders[0] == Forget(0)
        assert given(orders) == [["g0.a0", "g0.a2", "g0.a3"]]

    done(body())


def test_a_job_that_was_called_back_is_not_done_by_anybody():
    async def body() -> None:
        trays = tray((0, 0), (0, 1), together=2)
        await trays.fetch("k")
        trays.cancel(AttemptId(0, 1))
        assert not trays.done(0)
        assert trays.failed(0) is None
        trays.put("k", trajectory(0, 2))
        assert given(await trays.fetch("k")) == [["g0.a0", "g0.a2"]]
        assert trays.done(1)
        assert not trays.done(1)
        assert trays.unscored() == {}

    done(body())


def test_when_a_job_fails_one_of_its_episodes_is_given_up_and_the_others_wait_for_another():
    async def body() -> None:
        trays = tray((0, 0), (0, 1), (0, 2), together=3)
        await trays.fetch("k")
        given_up = trays.failed(0)
        assert given_up is not None
        assert given_up.attempt == AttemptId(0, 0)
        trays.put("k", trajectory(0, 3))
        assert given(await trays.fetch("k")) == [["g0.a1", "g0.a2", "g0.a3"]]

    done(body())


def test_an_episode_that_lies_here_is_not_put_here_again():
    async def body() -> None:
        trays = tray((0, 0))
        assert not trays.put("k", trajectory(0, 0))
        assert given(await trays.fetch("k")) == [["g0.a0"]]

    done(body())


def test_a_closed_tray_says_which_scores_never_come_and_ends_whoever_waits():
    async def body() -> None:
        trays = tray((0, 0))
        await trays.fetch("k")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(trays.fetch("k"))
            await asyncio.sleep(0)
            assert trays.close("k") == [AttemptId(0, 0)]
        assert waiting.result() == []

    done(body())


def test_what_comes_before_its_reward_is_there_waits_for_it():
    async def body() -> None:
        trays = Trays()
        trays.put("k", trajectory(0, 0))
        assert [*trays.unscored()] == ["k"]
        trays.open("k", 1)
        assert given(await trays.fetch("k")) == [["g0.a0"]]

    done(body())
