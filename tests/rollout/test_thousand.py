"""A thousand requests in flight: suspended, moved, interrupted; not a token is lost and none is sampled twice."""

import asyncio
from functools import cache, partial
from typing import Any

import pytest
from tests.rollout.kit import Key, Rig, all_words, later, now, play, played
from tests.rollout.toys import Echo, talk

from windrow.types import How

THOUSAND = 1000

every_how = pytest.mark.parametrize("how", ["interrupt", "drain", "freeze"])


def crowd(how: How = "interrupt", engines: int = 4, **more: Any) -> Rig:
    """A thousand attempts that all play at once."""
    return Rig(
        engines=engines,
        env=partial(Echo, turns=2),
        script=talk(20, 60),
        config={"rollout_batch_size": THOUSAND, "staleness": 10.0, "suspend_mode": how},
        tasks=THOUSAND // 4,
        group_size=4,
        num_env_groups=THOUSAND // 4,
        keep=True,
        **more,
    )


@cache
def undisturbed() -> dict[Key, Any]:
    """What the crowd says when nobody disturbs it."""
    found: dict[Key, Any] = {}

    async def scene() -> None:
        rig = crowd()
        assert len(await rig.full(0, THOUSAND)) == THOUSAND
        found.update(all_words(rig))

    play(scene())
    return found


@every_how
def test_a_suspension_loses_no_token_and_nothing_generates_during_it(how: How):
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = crowd(how)
        pauses = []
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.full(0, THOUSAND))
            for version in (1, 2, 3):
                await later(1.77)
                if version == 1:
                    assert rig.in_flight == THOUSAND
                await rig.scheduler.suspend()
                before, began = rig.sampled, now()
                await rig.scheduler.update_weights(version)
                await later(50)
                assert rig.sampled == before
                pauses.append((began, now()))
                await rig.scheduler.resume()
        assert all_words(rig) == expected
        assert rig.sampled == sum(kept.policy_tokens for kept in rig.kept.values())
        assert rig.log.made == THOUSAND
        heard = [when for engine in rig.engines for when, _, chunk in engine.chunks if len(chunk.token_ids)]
        assert not [when for when in heard for began, ended in pauses if began < when <= ended]
        versions = {part.version for kept in rig.kept.values() for part in kept.chains[0].segments}
        assert versions >= ({-1, 0, 1} if how == "drain" else {-1, 0, 1, 2, 3})  # draining ends a turn at a time

    scene()


def test_a_shrink_moves_everything_from_its_last_token_and_survivors_never_pause():
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = crowd()
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.full(0, THOUSAND))
            await later(1.77)
            began = now()
            report = await rig.scheduler.shrink_sampler([1, 2])
            assert now() == began
            assert rig.in_flight <= THOUSAND
        assert all_words(rig) == expected
        assert report["aborted"] == report["remapped"] == THOUSAND // 2
        assert rig.sampled == sum(kept.policy_tokens for kept in rig.kept.values())
        moved = [request for place in (0, 3) for request in rig.engines[place].requests if request.sampled]
        assert {request.sampled for request in moved} == {17}
        assert len(moved) == THOUSAND // 2
        assert rig.log.made == THOUSAND
        for place in (0, 3):
            assert_steady(rig.engines[place].chunks)

    scene()


def assert_steady(chunks: list[tuple[float, str, Any]]) -> None:
    """Each request's tokens came one tenth of a second apart, without a pause."""
    first: dict[str, float] = {}
    tokens: dict[str, int] = {}
    for when, name, chunk in chunks:
        tokens[name] = tokens.get(name, 0) + len(chunk.token_ids)
        began = when - 0.1 * tokens[name]
        assert first.setdefault(name, began) == pytest.approx(began)


def test_an_expand_rebalances_without_losing_a_token():
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = crowd()
        await rig.scheduler.initialize()
        await rig.scheduler.shrink_sampler([1, 2, 3])
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.full(0, THOUSAND))
            await later(1.77)
            report = await rig.scheduler.expand_sampler([1, 2, 3])
            shares = [engine.attempts for engine in rig.machine.status().engines]
            assert report["remapped"] >= 600
            assert min(shares) >= 150
        assert all_words(rig) == expected
        assert rig.sampled == sum(kept.policy_tokens for kept in rig.kept.values())

    scene()


def test_engines_that_die_cost_at_most_what_was_not_heard_yet():
    expected = undisturbed()

    @played
    async def scene() -> None:
        rig = crowd()
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.full(0, THOUSAND))
            for place in (2, 0, 3):
                await later(1.77)
                rig.engines[place].die()
        assert all_words(rig) == expected
        assert rig.log.made == THOUSAND
        assert rig.ledger.attempts.dropped == {}

    scene()
