"""Devices that generation and training share."""

import asyncio

import pytest

from windrow.errors import InternalError
from windrow.pipelines.turns import Turns


def test_work_without_the_turn_is_a_bug():
    async def main() -> None:
        turns = Turns([0, 1])
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


def test_where_nothing_is_shared_nobody_needs_a_turn():
    async def main() -> None:
        turns = Turns([])
        await turns.hand_to("training")
        turns.check("generation")

    asyncio.run(main())
