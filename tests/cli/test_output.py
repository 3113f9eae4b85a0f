"""What a command says, and where it goes."""

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from msgspec import Struct

from windrow.cli.output import Column, Output
from windrow.errors import InternalError


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def made(*, as_json: bool = False, stderr: io.StringIO | None = None) -> tuple[Output, io.StringIO, io.StringIO]:
    stdout, stderr = io.StringIO(), stderr or io.StringIO()
    return Output(json=as_json, stdout=stdout, stderr=stderr), stdout, stderr


class Point(Struct):
    x: float


@dataclass
class Pair:
    a: int


def test_a_result_may_hold_what_programs_make():
    out, stdout, _ = made(as_json=True)
    out.result({"n": np.int64(3), "f": np.float32(0.5), "p": Path("a/b"), "s": Point(1.0), "d": Pair(2)})
    out.finish()
    assert json.loads(stdout.getvalue()) == {"n": 3, "f": 0.5, "p": "a/b", "s": {"x": 1.0}, "d": {"a": 2}}
    assert stdout.getvalue().count("\n") == 1


def test_what_is_no_number_is_null_so_that_every_program_can_read_it():
    out, stdout, _ = made(as_json=True)
    out.result({"a": math.nan, "b": math.inf})
    out.finish()
    assert json.loads(stdout.getvalue()) == {"a": None, "b": None}


def test_the_result_is_written_last_and_only_for_programs():
    out, stdout, _ = made()
    out.result({"a": 1})
    out.say("later")
    out.finish()
    assert stdout.getvalue() == "later\n"


def test_a_command_has_one_result():
    out, _, _ = made(as_json=True)
    out.result({})
    with pytest.raises(InternalError, match="one result"):
        out.result({})


@pytest.mark.parametrize("value", [[1], 3, "text", {"a": object()}])
def test_a_result_is_an_object_of_plain_values(value: object):
    out, _, _ = made(as_json=True)
    with pytest.raises(InternalError, match="result"):
        out.result(value)
    assert not out.has_result


def test_a_table_is_plain_text_in_a_pipe():
    out, stdout, _ = made()
    out.table(["policy", "steps/s", Column("why", "left")], [["keep_1", 0.123456, "x"], ["wait [1]", 12345.6, None]])
    lines = [line.split() for line in stdout.getvalue().splitlines() if line.strip()]
    assert lines[0] == ["policy", "steps/s", "why"]
    assert lines[2:] == [["keep_1", "0.123", "x"], ["wait", "[1]", "12,346", "–"]]
    assert "\x1b" not in stdout.getvalue()


def test_a_wide_table_is_not_folded_in_a_pipe():
    out, stdout, _ = made()
    out.table([f"column {n}" for n in range(10)], [[f"value {n}" for n in range(10)]])
    assert len([line for line in stdout.getvalue().splitlines() if "value" in line]) == 1


def test_progress_is_a_line_now_and_then_without_a_terminal():
    times = iter([0.0, 1.0, 6.0, 7.0, 12.0])
    stdout, stderr = io.StringIO(), io.StringIO()
    out = Output(stdout=stdout, stderr=stderr, clock=lambda: next(times))
    with out.progress("steps", 100) as at:
        for done in (1, 50, 51, 99):
            at(done, "keep_1")
    assert stderr.getvalue() == "steps: 50 of 100 keep_1\nsteps: 99 of 100 keep_1\n"
    assert stdout.getvalue() == ""


def test_progress_is_a_bar_on_a_terminal():
    out, stdout, stderr = made(stderr=Terminal())
    with out.progress("steps", 4) as at:
        at(3, "keep_1")
    assert "75 %" in stderr.getvalue()
    assert "keep_1" in stderr.getvalue()
    assert stdout.getvalue() == ""
