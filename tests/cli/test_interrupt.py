"""Ctrl-C: what there is is printed, the exit code says so, and nobody is left behind.

Each run has a terminal of its own for standard error, so the progress bar tells when to interrupt; a terminal sends
the signal to the whole group of processes, and so do we. The terminal is at its end when the last process that holds
it is gone: reading it to the end shows that no child is left.
"""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from tests.cli.given import LONG_TAIL, SMALL, Said, Windrow, files

PATIENCE_S = 60.0
"""A run that has not ended by then never heard of its interruption."""
FOREVER = ("slots=16", "machine.train.batch_size=32", "steps=10000000")
MANY_RUNS = (*SMALL, "seeds=20000", "--compare", "--policies", "barrier")


def interrupted(folder: Path, argv: tuple[str, ...], at: str, times: int = 1) -> Said:
    """Run the command and interrupt it as soon as these words have appeared so many times on the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "windrow", *argv],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
    )
    os.close(theirs)
    seen = ""
    waiting = True
    try:
        for text in _read(ours):
            seen += text
            if waiting and seen.count(at) >= times:
                os.killpg(process.pid, signal.SIGINT)
                waiting = False
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)
    assert not waiting, seen
    return Said(process.returncode, out, seen)


def _read(terminal: int) -> Iterator[str]:
    """Everything that is said there until nobody holds it any more, within our patience."""
    until = monotonic() + PATIENCE_S
    while True:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - monotonic()))
        assert ready, "it does not end"
        assert monotonic() < until, "it goes on"
        try:
            text = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            return
        yield text.decode(errors="replace")


def test_a_run_tells_what_there_is_and_its_journal_is_whole(windrow: Windrow, folder: Path):
    said = interrupted(folder, ("simulate", LONG_TAIL, *FOREVER, "--journal", "j", "--json"), at="s virtual")
    assert said.code == 130
    assert said.result["report"]["outcome"] == "interrupted"
    assert said.result["report"]["steps"] > 0
    assert "Traceback" not in said.err
    assert files(folder) == ["j"]
    replayed = windrow("replay", "j", "--json")
    assert replayed.code == 0
    assert replayed.result["ledger"]["train"]["groups"]["trained"] >= 4 * said.result["report"]["steps"]


def test_a_comparison_tells_what_there_is(folder: Path):
    said = interrupted(folder, ("simulate", LONG_TAIL, *MANY_RUNS, "--json"), at="barrier, seed")
    assert said.code == 130
    assert 0 < said.result["policies"]["barrier"]["seeds"] < 20000
    assert "stopped early" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("redraws", [1, 3, 5, 7])
def test_a_comparison_that_has_only_begun_says_so_in_one_line(redraws: int, folder: Path):
    """While the other processes start; the bar is drawn ten times a second."""
    argv = ("simulate", LONG_TAIL, *FOREVER, "--compare", "--policies", "barrier", "--no-png", "--json")
    said = interrupted(folder, argv, at="  0 %", times=redraws)
    assert said.code == 130
    assert said.out == ""
    assert "windrow: interrupted" in said.err
    assert "Traceback" not in said.err
    assert files(folder) == []


@pytest.mark.parametrize("config", ["scripted", "guess"])
def test_a_rollout_tells_what_there_is_and_its_books_balance(config: str, folder: Path):
    argv = ("rollout", f"examples/rollout/{config}.yaml", "batches=100000", "rollout.rollout_batch_size=64", "--json")
    said = interrupted(folder, argv, at="64 trajectories")
    assert said.code == 130
    assert said.result["batches"] > 0
    assert said.result["ledger"]["train"]["attempts"]["alive"] == 0
    assert "stopped early" in said.err
    assert "Traceback" not in said.err
