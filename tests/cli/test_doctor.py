"""`windrow doctor`: what people and programs read, and its exit code."""

import pytest
from tests.cli.given import Windrow

from windrow.doctor import machine
from windrow.doctor.findings import Finding

BAD = Finding("memory", "bad", "too little", "buy some")


def test_people_read_a_line_for_each_check(windrow: Windrow):
    said = windrow("doctor")
    assert said.code == 0
    for name in ("python", "sandbox", "open files", "ray cluster", "clock", "nothing is in the way"):
        assert name in said.out


def test_programs_read_one_object(windrow: Windrow):
    found = windrow("doctor", "--json").result
    assert found["ok"] is True
    assert all(set(each) == {"name", "state", "found", "advice"} for each in found["checks"])
    assert {each["state"] for each in found["checks"]} <= {"ok", "warn"}


def test_something_bad_is_exit_code_1(windrow: Windrow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "findings", lambda: [BAD])
    said = windrow("doctor", "--json")
    assert said.code == 1
    assert said.result["ok"] is False
    assert "in the way: memory" in said.err
    assert windrow("doctor", "--address", "nowhere").code == 1
