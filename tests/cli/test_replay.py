"""`windrow replay`: a journal gives back what made it, and a broken one says where."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.given import LONG_TAIL, SMALL, Windrow, files

from windrow.config import load
from windrow.core.machine import Machine
from windrow.sim.config import SimConfig
from windrow.sim.world import World
from windrow.types import to_json

DROPPING = (*SMALL, "machine.train.on_stale=drop", "faults.crash_share=0.05", "steps=4")
"""A small run in which something goes wrong."""


@pytest.fixture
def journal(windrow: Windrow) -> list[bytes]:
    """The lines of run.jsonl, which was written just now."""
    assert windrow("simulate", LONG_TAIL, *DROPPING, "--journal", "run.jsonl").code == 0
    return Path("run.jsonl").read_bytes().splitlines(keepends=True)


def test_a_replayed_journal_has_the_ledger_of_the_run(windrow: Windrow, journal: list[bytes]):
    config = load(LONG_TAIL, DROPPING, SimConfig).value
    machine = Machine(config.machine)
    World(config, machine).run()
    replayed = windrow("replay", "run.jsonl", "--json").result
    assert replayed["ledger"] == json.loads(to_json(machine.ledgers))
    assert replayed["ledger"]["train"]["groups"]["dropped"], "something happened in this run"
    assert (replayed["now"], replayed["version"]) == (machine.now, machine.version)
    assert replayed["events"] == len(journal) - 1


def test_people_read_the_ledger(windrow: Windrow, journal: list[bytes]):
    said = windrow("replay", "run.jsonl")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{len(journal) - 1:,} events replayed to ")
    assert "all promises hold" in said.out
    rows = [line.split() for line in said.out.splitlines()]
    groups = next(row for row in rows if row[:2] == ["train", "groups"])
    assert "stale" in groups


@pytest.mark.parametrize("events", [0, 1, 7, 50])
def test_any_moment_can_be_rebuilt_and_checked(events: int, windrow: Windrow, journal: list[bytes]):
    result = windrow("replay", "run.jsonl", "--until", str(events), "--check", "--json").result
    assert result["events"] == events
    assert result["now"] == (json.loads(journal[events])[0] if events else 0.0)


def test_beyond_the_end_is_the_end(windrow: Windrow, journal: list[bytes]):
    far = windrow("replay", "run.jsonl", "--until", "1000000", "--json")
    assert (far.code, far.result) == (0, windrow("replay", "run.jsonl", "--json").result)


def test_the_promises_hold_after_every_event(windrow: Windrow, journal: list[bytes]):
    said = windrow("replay", "run.jsonl", "--check")
    assert said.code == 0
    assert "all promises hold" in said.out


def test_a_last_line_that_was_cut_off_is_left_out(windrow: Windrow, journal: list[bytes]):
    Path("cut.jsonl").write_bytes(b"".join(journal)[:-5])
    said = windrow("replay", "cut.jsonl", "--json")
    assert (said.code, said.result["events"]) == (0, len(journal) - 2)


def test_replaying_writes_nothing(windrow: Windrow, journal: list[bytes], folder: Path):
    windrow("replay", "run.jsonl")
    assert files(folder) == ["run.jsonl"]
    assert Path("run.jsonl").read_bytes() == b"".join(journal)


Edit = Callable[[list[bytes]], None]


def put(line: int, text: bytes) -> Edit:
    def edit(lines: list[bytes]) -> None:
        lines[line - 1] = text + b"\n"

    return edit


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        pytest.param(put(7, b'{"a":1}'), 7, id="an object"),
        pytest.param(put(7, b"[1.0, "), 7, id="cut off"),
        pytest.param(put(7, b""), 7, id="empty"),
        pytest.param(put(7, b"\xff\xfe"), 7, id="no text"),
        pytest.param(put(7, b'[1.0,{"event":"Nothing"}]'), 7, id="an unknown event"),
        pytest.param(put(7, b'["soon",{"event":"EngineReady","engine":"e0"}]'), 7, id="no time"),
        pytest.param(put(1, b'{"journal":1,"settings":{"train":{"group_size":0}}}'), 1, id="wrong settings"),
        pytest.param(put(1, b"slots: 4"), 1, id="no header"),
    ],
)
@pytest.mark.parametrize("command", [["replay"], ["story", "g0"]], ids=["replay", "story"])
def test_a_broken_line_is_named(edit: Edit, line: int, command: list[str], windrow: Windrow, journal: list[bytes]):
    edit(journal)
    Path("broken.jsonl").write_bytes(b"".join(journal))
    said = windrow(command[0], "broken.jsonl", *command[1:])
    assert said.code == 2
    assert f"line {line} " in said.line
    assert "broken.jsonl" in said.line


def forget(lines: list[bytes]) -> None:
    del lines[4]


def double(lines: list[bytes]) -> None:
    lines.insert(2, lines[1])


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        pytest.param(double, 3, id="a line twice"),
        pytest.param(forget, 5, id="a line left out"),
        pytest.param(put(30, b'[-1.0,{"event":"EngineReady","engine":"e0"}]'), 30, id="time goes back"),
    ],
)
def test_a_journal_that_contradicts_itself_is_no_traceback(
    edit: Edit, line: int, windrow: Windrow, journal: list[bytes]
):
    edit(journal)
    Path("odd.jsonl").write_bytes(b"".join(journal))
    said = windrow("replay", "odd.jsonl")
    assert said.code in (1, 2)
    assert said.out == ""
    assert f"line {line}" in said.err


def test_a_journal_of_another_format_is_refused(windrow: Windrow, journal: list[bytes]):
    Path("new.jsonl").write_bytes(journal[0].replace(b'"journal":1', b'"journal":99') + b"".join(journal[1:]))
    said = windrow("replay", "new.jsonl")
    assert said.code == 2
    assert "has format 99; this version reads format 1" in said.line


@pytest.mark.parametrize("command", [["replay"], ["story", "g0"]], ids=["replay", "story"])
@pytest.mark.parametrize("what", [LONG_TAIL, "examples/sim/trace.csv", "empty", "noise", "examples", "missing"])
def test_what_is_no_journal_is_refused(what: str, command: list[str], windrow: Windrow):
    Path("empty").touch()
    Path("noise").write_bytes(bytes(range(256)))
    said = windrow(command[0], what, *command[1:], "--json")
    assert said.code == 2
    assert what in said.line
    assert "journal" in said.line


@pytest.mark.parametrize("number", ["-1", "x", "1.5"])
def test_until_is_a_number_of_events(number: str, windrow: Windrow, journal: list[bytes]):
    said = windrow("replay", "run.jsonl", f"--until={number}")
    assert said.code == 2
    assert "--until" in said.line
    assert number in said.line
