"""Devices that generation and training share."""

import asyncio
from collections.abc import Mapping

import pytest

from windrow.engines.torch.spells import Activity
from windrow.errors import InternalError
from windrow.pipelines.turns import Turns


class Engines:
    """What engines have done, as a test says."""

    def __init__(self, **tokens: int) -> None:
        self.tokens = tokens

    async def look(self) -> Mapping[str, Activity]:
        return {
            name.replace("_", "-"): Activity(now=0.0, forwards=tokens, tokens=tokens, spells=())
            for name, tokens in self.tokens.items()
        }


def test_work_without_the_turn_is_a_bug():
    async def main() -> None:
        turns = Turns([0, 1], ["engine-0"], Engines().look)
        with pytest.raises(InternalError, match=r"training on devices \[0, 1\], where it is the turn of None"):
            turns.check("training")
        await turns.hand_to("generation")
        turns.check("generation")
        with pytest.raises(InternalError, match="turn of generation"):
            turns.check("training")
        await turns.hand_to("training")
        turns.check("training")
        turns.end()

    asyncio.run(main())


def test_an_engine_that_computes_while_its_device_is_lent_is_found_out():
    async def main() -> None:
        engines = Engines(engine_0=5, engine_1=5)
        turns = Turns([0], ["engine-0"], engines.look)
        await turns.hand_to("generation")
        engines.tokens["engine_0"] = 7
        await turns.hand_to("training")
        engines.tokens["engine_1"] = 90  # it has a device of its own
        await turns.check_quiet()
        engines.tokens["engine_0"] = 10
        with pytest.raises(InternalError, match=r"engine engine-0 sampled 3 tokens in 3 forwards .* on devices \[0\]"):
            await turns.check_quiet()
        with pytest.raises(InternalError, match="engine-0"):
            await turns.hand_to("generation")

    asyncio.run(main())


def test_an_engine_that_was_lost_meanwhile_is_no_violation():
    async def main() -> None:
        engines = Engines(engine_0=5)
        turns = Turns([0], ["engine-0"], engines.look)
        await turns.hand_to("training")
        engines.tokens.clear()
        await turns.hand_to("generation")

    asyncio.run(main())


def test_where_nothing_is_shared_nobody_needs_a_turn():
    async def main() -> None:
        turns = Turns([], [], Engines(engine_0=1).look)
        await turns.hand_to("training")
        turns.check("generation")

    asyncio.run(main())
