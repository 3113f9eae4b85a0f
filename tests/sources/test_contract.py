"""What every task source promises, whatever it is made of."""

import asyncio
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.kits import ENDLESS, KITS, TOTAL, Make, shown, take

from windrow.errors import ConfigError
from windrow.sources.protocol import Retriever
from windrow.trajectory import Task

every_source = pytest.mark.parametrize("make", KITS.values(), ids=KITS)


@every_source
def test_tasks_come_in_the_same_order_however_many_are_asked_for_at_once(make: Make, folder: Path):
    whole = take(make(folder), TOTAL)
    source = make(folder)
    assert [task for count in (1, 4, 0, 7, 3) for task in take(source, count)] == whole
    assert len(whole) == TOTAL


@every_source
def test_ordinals_are_unique(make: Make, folder: Path):
    ordinals = [task.ordinal for task in take(make(folder), TOTAL)]
    assert len({*ordinals}) == TOTAL
    assert min(ordinals) >= 0


@pytest.mark.parametrize("name", [name for name in KITS if name != "curriculum"])
def test_ordinals_increase(name: str, folder: Path):
    """A curriculum has those of its levels, which take turns."""
    ordinals = [task.ordinal for task in take(KITS[name](folder), TOTAL)]
    assert ordinals == sorted(ordinals)


@pytest.mark.parametrize("name", KITS)
def test_it_says_whether_it_ends(name: str, folder: Path):
    source = KITS[name](folder)
    assert source.is_endless == (name in ENDLESS)
    assert len(take(source, TOTAL + 20)) == (TOTAL if has_end(name) else TOTAL + 20)
    assert len(take(source, 1)) == (0 if has_end(name) else 1)


@every_source
def test_nothing_is_asked_for_nothing_is_given(make: Make, folder: Path):
    source = make(folder)
    before = take(source, 2)
    assert take(source, 0) == []
    assert before + take(source, 1) == take(make(folder), 3)


@every_source
def test_rewound_it_begins_again(make: Make, folder: Path):
    source = make(folder)
    first = take(source, 8)
    source.rewind()
    assert take(source, 8) == first


@every_source
def test_from_every_position_it_goes_on_as_if_nothing_had_happened(make: Make, folder: Path):
    whole = take(make(folder), TOTAL)
    source = make(folder)
    for place in range(TOTAL + 1):
        other = make(folder)
        position = json.loads(json.dumps(source.position()))
        assert all(type(number) is int for number in position.values())
        other.restore(position)
        assert other.position() == position
        assert take(other, TOTAL - place) == whole[place:]
        take(source, 1)


IN_ANOTHER_PROCESS = """
import json, sys
from pathlib import Path
from tests.sources.kits import KITS, TOTAL, shown, take
folder, positions = Path(sys.argv[1]), json.loads(sys.argv[2])
said = {}
for name, position in positions.items():
    source = KITS[name](folder)
    source.restore(position)
    said[name] = shown(take(source, 6))
print(json.dumps(said))
"""


def test_at_the_same_position_it_gives_the_same_tasks_in_another_process(folder: Path):
    sources = {name: make(folder) for name, make in KITS.items()}
    for source in sources.values():
        take(source, 7)
    positions = json.dumps({name: source.position() for name, source in sources.items()})
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(folder), positions]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {name: json.loads(json.dumps(shown(take(source, 6)))) for name, source in sources.items()}


@pytest.mark.parametrize("name", KITS)
def test_restored_beyond_its_end_it_has_ended(name: str, folder: Path):
    source = KITS[name](folder)
    take(source, TOTAL)
    beyond = {key: number + 1000 * is_a_place(key) for key, number in source.position().items()}
    other = KITS[name](folder)
    other.restore(beyond)
    assert len(take(other, 5)) == (0 if has_end(name) else 5)


def is_a_place(key: str) -> bool:
    """Rather than a mark, or what a curriculum has learnt."""
    return "#" not in key and "chooser" not in key


def has_end(name: str) -> bool:
    """The tag that is asked for here has one."""
    return name not in ENDLESS or name == "mixture"


@every_source
@pytest.mark.parametrize("number", [-1, 1.5, "3", None])
def test_a_position_that_nobody_can_have_said_is_refused(make: Make, number: object, folder: Path):
    source = make(folder)
    take(source, 2)
    before = source.position()
    with pytest.raises(ConfigError, match="must be an integer of 0 or more, got"):
        source.restore(dict.fromkeys(before, number))  # type: ignore[arg-type]
    assert source.position() == before


@every_source
def test_a_position_is_a_copy(make: Make, folder: Path):
    source = make(folder)
    position = source.position()
    copy = dict(position)
    take(source, 3)
    assert position == copy != source.position()


@every_source
def test_an_unknown_tag_is_refused_and_takes_nothing(make: Make, folder: Path):
    source = make(folder)
    with pytest.raises(ConfigError, match="tag 'maze'"):
        take(source, 1, "maze")
    assert take(source, 3) == take(make(folder), 3)


@every_source
def test_calls_that_wait_at_once_share_the_tasks(make: Make, folder: Path):
    source = make(folder)

    async def body() -> list[Task]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(source.next("", 3)) for _ in range(5)]
        return [task for call in calls for task in call.result()]

    given = asyncio.run(body())
    whole = take(make(folder), TOTAL)
    assert sorted(given, key=whole.index) == whole


@every_source
def test_a_call_that_is_cancelled_has_taken_nothing(make: Make, folder: Path):
    source = make(folder)

    async def body() -> list[Task]:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(source.next("", 4))
            await asyncio.sleep(0)
            call.cancel()
        return [] if call.cancelled() else call.result()

    got = asyncio.run(body())
    assert got + take(source, 3) == take(make(folder), len(got) + 3)


@every_source
def test_a_position_never_counts_a_task_that_nobody_has_yet(make: Make, folder: Path):
    source = make(folder)
    take(source, 2)

    async def body() -> None:
        before = source.position()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(source.next("", 4))
            while not call.done():
                assert source.position() == before
                await asyncio.sleep(0)
        assert source.position() != before

    asyncio.run(body())


@every_source
def test_rewound_while_a_call_waits_nothing_is_lost_or_doubled(make: Make, folder: Path):
    source = make(folder)
    take(source, 5)

    async def body() -> list[Task]:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(source.next("", 2))
            await asyncio.sleep(0)
            is_done = call.done()
            source.rewind()
        after = await source.next("", 2)
        return after if is_done else call.result() + after

    given = asyncio.run(body())
    assert given == take(make(folder), len(given))


@every_source
def test_a_task_is_found_again_by_its_ordinal(make: Make, folder: Path):
    source = make(folder)
    whole = take(source, TOTAL)
    other = make(folder)
    assert isinstance(other, Retriever)
    before = other.position()
    for task in whole:
        assert asyncio.run(other.fetch(task.ordinal)) == task
    assert {tag: other.position()[tag] for tag in before} == before
    with pytest.raises(ConfigError, match="has no task with ordinal"):
        asyncio.run(other.fetch(-1))


@every_source
def test_it_travels_to_another_process_as_it_is(make: Make, folder: Path):
    source = make(folder)
    take(source, 4)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 -- our own
    assert take(copy, 5) == take(source, 5)


@given(name=st.sampled_from([*KITS]), counts=st.lists(st.integers(0, 5), max_size=8), saved=st.integers(0, 7))
def test_any_walk_with_a_restore_in_it_gives_the_undisturbed_stream(
    name: str, counts: list[int], saved: int, folder: Path
):
    source = KITS[name](folder)
    got: list[Task] = []
    for number, count in enumerate(counts):
        if number == saved:
            position, source = source.position(), KITS[name](folder)
            source.restore(position)
        got += take(source, count)
    assert got == take(KITS[name](folder), sum(counts))
