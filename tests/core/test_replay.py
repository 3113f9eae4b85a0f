"""The journal and the snapshot: whatever was, can be again.

Same seed, same journal, byte for byte. A journal replayed gives the same state. A snapshot at any event and the rest of
the journal give the same commands. What is illegal or refused leaves no trace.
"""

from dataclasses import dataclass
from random import Random

import pytest
from tests.core.play import Player
from tests.core.test_walk import WORLDS

from windrow.core import events as e
from windrow.core import journal
from windrow.core.commands import AnyCommand
from windrow.core.machine import Machine
from windrow.errors import ConfigError, IllegalEvent, Refused
from windrow.types import AttemptId, Finished

EVENTS = 1_500
CUTS = 12

every_world = pytest.mark.parametrize("name", WORLDS)


@dataclass
class Recording:
    """A life that was written down."""

    lines: list[bytes]
    entries: list[tuple[float, e.AnyEvent]]
    commands: list[list[AnyCommand]]
    end: bytes


def record(name: str, seed: int = 0, events: int = EVENTS) -> Recording:
    """Play a life and write it down."""
    world = WORLDS[name]
    player = Player(world.settings, world.habits, f"replay {name}/{seed}")
    entries: list[tuple[float, e.AnyEvent]] = []
    player.journal = entries
    commands = []
    for _ in range(events):
        before = len(entries)
        ordered = player.step(player.next_event())
        if len(entries) > before:  # it was not refused
            commands.append(ordered)
    lines = [journal.header(world.settings), *(journal.line(now, event) for now, event in entries)]
    return Recording([line + b"\n" for line in lines], entries, commands, player.machine.snapshot())


def go_on(machine: Machine, entries: list[tuple[float, e.AnyEvent]]) -> list[list[AnyCommand]]:
    """What a machine orders for the rest of a life."""
    return [machine.step(event, now) for now, event in entries]


@every_world
def test_same_seed_same_journal(name: str):
    assert b"".join(record(name).lines) == b"".join(record(name).lines)


@every_world
def test_a_replayed_journal_gives_the_same_commands_and_state(name: str):
    recording = record(name)
    seen: list[list[AnyCommand]] = []
    machine = journal.replay(recording.lines, look=lambda _, __, commands: seen.append(commands))
    assert seen == recording.commands
    assert machine.snapshot() == recording.end


@every_world
def test_a_snapshot_at_any_cut_goes_on_as_if_nothing_had_been(name: str):
    recording = record(name, seed=1)
    cuts = sorted(Random(name).sample(range(len(recording.entries)), CUTS))
    machine = Machine(WORLDS[name].settings)
    for count, (now, event) in enumerate(recording.entries):
        if count in cuts:
            snapshot = machine.snapshot()
            other = Machine.restore(snapshot)
            assert other.snapshot() == snapshot
            other.check()
            assert go_on(other, recording.entries[count:]) == recording.commands[count:], f"cut at {count}"
            assert other.snapshot() == recording.end
        machine.step(event, now)


@every_world
def test_a_machine_that_is_restored_again_and_again_is_the_same(name: str):
    """A restart after every few events, as in a life full of crashes."""
    recording = record(name, seed=2, events=600)
    machine = Machine(WORLDS[name].settings)
    for count, (now, event) in enumerate(recording.entries):
        assert machine.step(event, now) == recording.commands[count], f"after {count} events"
        if count % 3 == 0:
            machine = Machine.restore(machine.snapshot())
    assert machine.snapshot() == recording.end


def test_until_stops_in_the_middle():
    recording = record("keep_1", events=200)
    machine = Machine(WORLDS["keep_1"].settings)
    go_on(machine, recording.entries[:77])
    assert journal.replay(recording.lines, until=77).snapshot() == machine.snapshot()


@every_world
def test_what_is_illegal_or_refused_leaves_no_trace(name: str):
    world = WORLDS[name]
    player = Player(world.settings, world.habits, f"trace {name}")
    for count in range(600):
        if count % 25 == 0:
            leaves_no_trace(player)
        event = player.next_event()
        twin = Machine.restore(player.machine.snapshot()) if count % 25 == 1 else None
        if twin is not None and not player.must_refuse(event):
            assert twin.step(event, player.now) == player.step(event)
        else:
            player.step(event)


def leaves_no_trace(player: Player) -> None:
    """Nothing that cannot happen, and nothing that must be refused, changes a byte."""
    machine = player.machine
    before, deadline = machine.snapshot(), machine.next_deadline
    bad = [*player.impossible_events(), *(event for event in requests(player) if player.must_refuse(event))]
    for event in bad:
        with pytest.raises((IllegalEvent, Refused)):
            machine.step(event, player.now + 1.0)
        assert machine.snapshot() == before, f"{event} left a trace"
    if machine.now > 0:
        with pytest.raises(IllegalEvent, match="time went from"):
            machine.step(e.TimePassed(), machine.now - 0.5)
    assert machine.snapshot() == before
    assert machine.next_deadline == deadline


def requests(player: Player) -> list[e.AnyEvent]:
    """Things that somebody may ask for, now or never."""
    size = player.settings.train.group_size
    events: list[e.AnyEvent] = [e.ShrinkWanted(()), e.ExpandWanted(()), e.ShrinkWanted((99,)), e.ExpandWanted((0, 99))]
    events += [e.ShrinkWanted(engine.devices) for engine in player.book.engines.values()]
    events += [e.ExpandWanted(engine.devices[:1]) for engine in player.book.engines.values()]
    events += [e.ShrinkWanted(tuple(range(2 * player.habits.engines)))]
    events += [e.BatchWanted("trainer", "train", n, 10**6) for n in (-1, 0, -2, size + 1 if size > 1 else 0)]
    for batch in player.book.batches.values():
        events.append(e.BatchWanted(batch.consumer, batch.mode, player.book.wanted[batch.batch] + size, batch.step))
    return events


def test_a_last_line_that_was_cut_off_is_left_out():
    recording = record("keep_1", events=60)
    *whole, last = recording.lines
    without = journal.replay(whole).snapshot()
    for length in range(len(last) - 1):
        cut = [last[:length]] if length else []
        assert journal.replay([*whole, *cut]).snapshot() == without
    assert journal.replay([*whole, last.rstrip(b"\n")]).snapshot() == recording.end


def test_any_other_broken_line_is_an_error_with_its_number():
    recording = record("keep_1", events=60)
    for number in (2, 30, len(recording.lines)):
        broken = [*recording.lines]
        broken[number - 1] = broken[number - 1][:-9] + b"\n"
        with pytest.raises(ConfigError, match=f"line {number} "):
            journal.replay(broken)
    with pytest.raises(ConfigError, match="line 1 "):
        journal.replay(recording.lines[1:])


def test_a_journal_with_an_event_that_cannot_have_happened_says_so():
    recording = record("keep_1", events=60)
    extra = journal.line(recording.entries[-1][0], e.AttemptEnded(AttemptId(10**6, 0), Finished(1.0, 1, 0))) + b"\n"
    with pytest.raises(ConfigError, match=f"line {len(recording.lines) + 1} .* never granted"):
        journal.replay([*recording.lines, extra])
