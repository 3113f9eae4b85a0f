"""`windrow bench ray`: both layouts collect what they are asked for, and figures follow from what was measured."""

import asyncio

import pytest

from windrow.bench import on_ray
from windrow.bench.usual_layout import Usual

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def test_both_layouts_collect_in_turns_and_are_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(on_ray, "LEAST", 32)  # of 1,024: four batches in each turn

    async def main() -> None:
        said: list[str] = []
        per_second, turns = await on_ray._throughput(said.append, groups=2, size=4, rounds=1)
        assert per_second.ours > 0
        assert per_second.ratio == pytest.approx(per_second.ours / per_second.alternative)
        assert turns.ours == pytest.approx(on_ray.TURNS * per_second.ours)
        assert "2 x 4 episodes at once" in said[0]

    asyncio.run(main())


def test_the_usual_layout_stands_still_while_it_is_paused_and_loses_nothing():
    async def main() -> None:
        async with Usual(8, turns=2, said=4, width=32, clients=2, engines=2) as layout:
            assert await layout.collect(16) == 16
            await layout.pause()
            await asyncio.sleep(1.0)  # calls that were under way end
            before = await layout._queue.done.remote()
            await asyncio.sleep(0.5)
            assert await layout._queue.done.remote() == before
            assert await layout.collect(16) == 16

    asyncio.run(main())


def test_engines_that_are_kept_make_a_step_shorter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(on_ray, "OVERLAP_BATCH", 64)  # half of everything, so the same part of a step is training
    monkeypatch.setattr(on_ray, "TRAIN_S", on_ray.TRAIN_S / 2)

    async def main() -> None:
        said: list[str] = []
        steps, gain = await on_ray._overlap(said.append, rounds=1, steps=on_ray.OVERLAP_WARM + 3)
        assert steps.ours > steps.alternative
        assert 0.6 < gain.ratio < 1.2

    asyncio.run(main())
