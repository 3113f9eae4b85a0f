"""`windrow bench ray`: both layouts collect what they are asked for, and figures follow from what was measured."""

import asyncio

import pytest

from windrow.bench import on_ray
from windrow.bench.usual_layout import Usual

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def test_both_layouts_collect_in_turns_and_are_compared():
    async def main() -> None:
        said: list[str] = []
        per_second, turns = await on_ray._throughput(said.append, groups=2, size=4, rounds=1)
        assert per_second.ours > 0
        assert per_second.ratio == pytest.approx(per_second.ours / per_second.alternative)
        assert turns.ours == pytest.approx(on_ray.TURNS * per_second.ours)
        assert "2 x 4 episodes at once" in said[0]

    asyncio.run(main())


def test_the_usual_layout_stands_still_while_it_is_paused():
    """Nobody is given an episode until the next batch is asked for."""
    import ray

    async def main() -> None:
        async with Usual(8, turns=2, said=4, width=32, clients=2, engines=2) as layout:
            assert await layout.collect(16) == 16
            await layout.pause()
            lease = layout._queue.lease.remote()
            assert ray.wait([lease], timeout=0.5) == ([], [lease])
            assert await layout.collect(8) == 8
            assert await lease > 16

    asyncio.run(main())


def test_engines_that_are_kept_make_a_step_shorter():
    async def main() -> None:
        said: list[str] = []
        steps, gain = await on_ray._overlap(said.append, rounds=1, steps=on_ray.OVERLAP_WARM + 3)
        assert steps.ours > steps.alternative
        assert 0 < gain.ratio < 1.2

    asyncio.run(main())
