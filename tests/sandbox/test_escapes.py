"""Every program of the table is held by every level that claims to hold it, and leaves nothing behind."""

import asyncio
import os
from collections.abc import Iterator

import pytest
from tests.sandbox.escapes import ESCAPED, ESCAPES, Escape
from tests.sandbox.kit import Outside, outside, processes_of, warden_of

from windrow.sandbox.pool import Sandbox
from windrow.sandbox.values import Level, Program, Ran, SandboxSettings

WALLED: tuple[Level, ...] = ("namespaces", "landlock")


class Jail:
    """A sandbox of one level for many tests."""

    def __init__(self, level: Level, around: Outside, runner: asyncio.Runner) -> None:
        self.level = level
        self.around = around
        self._runner = runner
        self._sandbox = Sandbox(SandboxSettings(at_most=level, at_least=level))
        runner.run(self._sandbox.open())
        self.warden = warden_of(self._sandbox)

    def run(self, escape: Escape) -> Ran:
        source = escape.source.format(**self.around.names(), warden=self.warden)
        return self._runner.run(self._sandbox.run(Program(source=source, limits=escape.limits)))

    def close(self) -> None:
        self._runner.run(self._sandbox.close())


@pytest.fixture(scope="module")
def around() -> Iterator[Outside]:
    os.environ["CANARY"] = "in the environment"
    with outside() as made:
        yield made
    del os.environ["CANARY"]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module", params=WALLED)
def jail(request: pytest.FixtureRequest, around: Outside, runner: asyncio.Runner) -> Iterator[Jail]:
    made = Jail(request.param, around, runner)
    yield made
    made.close()


@pytest.fixture(scope="module")
def open_field(around: Outside, runner: asyncio.Runner) -> Iterator[Jail]:
    made = Jail("limits", around, runner)
    yield made
    made.close()


def test_there_are_many_and_each_has_its_name():
    assert len({escape.name for escape in ESCAPES}) == len(ESCAPES) >= 40


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_a_program_is_held(escape: Escape, jail: Jail):
    before = jail.around.state()
    ran = jail.run(escape)
    if jail.level == "landlock" and escape.only_in_namespaces:
        assert ESCAPED in ran.stdout, "this level holds more than it says"
        return
    wanted = escape.landlocked if jail.level == "landlock" and escape.landlocked else escape.outcome
    assert ESCAPED not in ran.stdout, ran
    assert ran.level == jail.level
    assert ran.outcome == wanted, ran
    assert escape.prints in ran.stdout
    assert jail.around.state() == before
    assert jail.around.visitors() == []
    assert processes_of(os.getpid()) == {jail.warden}, "its warden lives, and no process of the program's"


@pytest.mark.parametrize("escape", [e for e in ESCAPES if e.works_outside], ids=lambda escape: escape.name)
def test_without_walls_it_would_have_worked(escape: Escape, open_field: Jail):
    """The attempts are real: these do no harm, so they can be seen to succeed."""
    ran = open_field.run(escape)
    assert ESCAPED in ran.stdout, ran
    assert ran.level == "limits"
    open_field.around.visitors()  # they have been let in
