"""The journal: the same events give the same bytes, and bytes give the same events back."""

import pytest
from tests.core.given import ended, failed, machine, opened, progressed, serving, wanted

from windrow.core import events, journal
from windrow.core.events import GroupJudged, SuspendWanted, TaskArrived, TimePassed, WorkerJoined
from windrow.core.machine import Machine
from windrow.core.settings import ModeSettings, Settings
from windrow.errors import ConfigError

SETTINGS = Settings(train=ModeSettings(group_size=1, batch_size=1, tags={"maze": 2.0}), kinds={"shop": 3})

RUN = [
    (0.0, WorkerJoined("w0", 1, ("", "shop"))),
    *((0.0, event) for event in serving("e0", devices=(1, 2))),
    (0.5, wanted(1)),
    (1.0, TaskArrived("train", 0, "maze")),
    (1.25, progressed(0, 0, 5, 0)),
    (2.0, failed(0, 0, "engine", "ünlucky\n", 3)),
    (3.0, TimePassed()),
    (3.5, ended(0, 1, score=0.1, tokens=9, version=0)),
    (4.0, SuspendWanted("user", "drain", ("e0",))),
]


def written(run=RUN, settings=SETTINGS) -> list[bytes]:
    return [journal.header(settings) + b"\n", *(journal.line(now, event) + b"\n" for now, event in run)]


def test_a_journal_gives_its_settings_and_events_back():
    settings, entries = journal.read(written())
    assert settings == SETTINGS
    assert [(entry.now, entry.event) for entry in entries] == RUN


def test_the_same_events_give_the_same_bytes():
    assert written() == written()


def test_every_kind_of_event_has_its_own_name():
    names = {kind.__struct_config__.tag for kind in events.AnyEvent.__args__}
    assert len(names) == len(events.AnyEvent.__args__) == 30


def test_an_event_is_one_line_that_says_what_it_is():
    assert journal.line(1.0, GroupJudged(3, accepted=True, why="fine\n")) == (
        b'[1.0,{"event":"GroupJudged","group":3,"accepted":true,"why":"fine\\n"}]'
    )


def test_a_replayed_journal_gives_the_same_state():
    made = Machine(SETTINGS)
    for now, event in RUN:
        made.step(event, now)
    assert journal.replay(written()).snapshot() == made.snapshot()


def test_any_moment_can_be_rebuilt():
    seen: list[bytes] = []
    journal.replay(written(), look=lambda made, _entry, _commands: seen.append(made.snapshot()))
    assert len(seen) == len(RUN)
    assert [journal.replay(written(), until=count + 1).snapshot() for count in range(len(RUN))] == seen
    assert journal.replay(written(), until=0).snapshot() == Machine(SETTINGS).snapshot()


def test_whoever_looks_sees_the_commands_of_each_step():
    seen: dict[str, int] = {}
    journal.replay(written(), look=lambda _made, entry, commands: seen.update({str(entry.now): len(commands)}))
    assert seen == {"0.0": 0, "0.5": 1, "1.0": 1, "1.25": 0, "2.0": 0, "3.0": 1, "3.5": 1, "4.0": 1}


def test_a_last_line_that_was_cut_off_is_left_out():
    lines = written()
    lines[-1] = lines[-1][:20]
    assert len(list(journal.read(lines)[1])) == len(RUN) - 1


def test_a_last_line_that_only_lacks_its_end_counts():
    lines = written()
    lines[-1] = lines[-1].rstrip(b"\n")
    assert len(list(journal.read(lines)[1])) == len(RUN)


def test_a_last_line_that_was_not_cut_off_and_cannot_be_read_is_an_error():
    with pytest.raises(ConfigError, match=r"journal line 12 cannot be read: "):
        list(journal.read([*written(), b"nonsense\n"])[1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"nonsense\n", r"line 3 cannot be read"),
        (b'[0.0,{"event":"NeverHappened"}]\n', r"line 3 cannot be read: Invalid value 'NeverHappened'"),
        (b'[0.0,{"event":"WorkerBeat"}]\n', r"line 3 cannot be read: .*missing required field `worker`"),
        (b"[0.0", r"line 3 cannot be read"),
    ],
)
def test_any_other_line_that_cannot_be_read_is_an_error_with_its_number(bad, message):
    lines = written()
    lines[2] = bad
    with pytest.raises(ConfigError, match=message):
        list(journal.read(lines)[1])


@pytest.mark.parametrize("first", [[], [b"nonsense\n"], [b"[0.0,{}]\n"], [b'{"journal":1}\n']])
def test_a_journal_without_a_header_is_an_error(first):
    with pytest.raises(ConfigError, match="journal line 1 is not a header"):
        journal.read(first)


def test_another_format_is_refused_by_its_number_whatever_else_it_has():
    with pytest.raises(ConfigError, match="the journal has format 2; this version reads format 1"):
        journal.read([b'{"journal":2,"settings":{"unheard_of":1},"more":[]}\n'])


def test_a_journal_of_something_impossible_is_refused():
    with pytest.raises(
        ConfigError, match=r"journal line 2 contradicts what came before: attempt g0.a0 was never granted$"
    ):
        journal.replay(written([(0.0, ended(0, 0))]))


def test_a_machine_says_what_it_was_made_of():
    assert machine(size=3, batch=9).settings.train.group_size == 3
    assert opened().version == 0
