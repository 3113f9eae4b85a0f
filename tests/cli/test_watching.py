"""What a person sees: what goes on now, and warnings above it."""

import io
import logging

import pytest

from windrow.cli.alarms import ALIKE, Alarms
from windrow.cli.output import Output
from windrow.cli.watching import Spectator
from windrow.pipelines.watching import Glance


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def glance(doing: str, ready: int = 0) -> Glance:
    return Glance(doing=doing, step=0, steps=5, in_flight=8, ready=ready, wanted=16)


def bars(spectator: Spectator) -> dict[str, str]:
    assert spectator._bars is not None
    return {task.description: task.fields["note"] for task in spectator._bars.tasks}


def test_the_bars_of_the_steps_are_there_from_the_first_ones_beginning():
    with Spectator(Output(stderr=Terminal())) as spectator:
        spectator.stage("warm start", 30, 30)
        spectator.glimpsed(glance("getting ready"))
        assert [*bars(spectator)] == ["warm start"]
        spectator.glimpsed(glance("validating", ready=4))
        assert bars(spectator) == {
            "steps": "0/5",
            "this step": "validating: 8 trajectories in flight, 4 of 16 ready",
        }


def test_warnings_stand_above_the_bars():
    terminal = Terminal()
    out = Output(stderr=terminal)
    with Alarms(out), Spectator(out):
        logging.getLogger("windrow.train").warning("the gradient is %s", "odd")
        assert "windrow: warning: the gradient is odd" in terminal.getvalue()
    assert out.live is None


def test_of_many_warnings_alike_the_first_few_are_shown(capsys: pytest.CaptureFixture[str]):
    with Alarms(Output()):
        for number in range(100):
            logging.getLogger("windrow.rollout").warning("attempt %d failed\nsomewhere", number)
        logging.getLogger("windrow.rollout").info("nothing happened")
        logging.getLogger("windrow.cli.train").error("said elsewhere")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == ALIKE
    assert lines[0] == "windrow: warning: attempt 0 failed"
    assert lines[-1] == "windrow: warning: attempt 4 failed; more of these are in console.log alone"


def test_a_terminal_that_is_gone_disturbs_nobody():
    terminal = io.StringIO()
    terminal.close()
    with Alarms(Output(stderr=terminal)):
        logging.getLogger("windrow.rollout").warning("nobody hears")
