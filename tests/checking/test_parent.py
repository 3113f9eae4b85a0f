"""A check ends, whatever the environment does, and leaves nothing behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

import pytest
from tests.checking import broken

from windrow.checking.examining import expected
from windrow.checking.messages import Job
from windrow.checking.parent import MOST_SAID, check, drop_too_much, tail
from windrow.checking.settings import CheckSettings
from windrow.errors import ConfigError
from windrow.types import but

FILE = str(Path(broken.__file__).resolve())
PATIENCE_S = 10.0
SETTINGS = CheckSettings(tasks=5, timeout_s=0.5)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(name: str, settings: CheckSettings = SETTINGS) -> Job:
    return Job(target=f"{FILE}:{name}", settings=settings)


@pytest.mark.parametrize(("name", "rule", "words"), broken.ELSEWHERE, ids=[name for name, _, _ in broken.ELSEWHERE])
def test_what_only_another_process_can_tell_is_found(name: str, rule: str, words: str):
    report = check(job(name))
    (found,) = [finding for finding in report.findings if finding.rule == rule]
    assert not report.ok
    assert any(word in found.message for word in words.split("|")), found.message
    assert {finding.severity for finding in report.findings} == {"error"}


def test_a_good_one_passes_and_tells_how_far_it_is():
    heard: list[int] = []
    report = check(job("Good"), heard.append)
    assert (report.ok, report.findings, report.ended) == (True, (), "done")
    assert (report.solve_score, report.tasks) == (1.0, 5)
    assert heard == [*range(1, expected(SETTINGS) + 1)]


def test_what_was_found_before_the_hang_is_kept():
    report = check(job("EndsItsProcess"))
    assert report.ended == "stopped by the end of its process"
    assert report.findings[0].task == 0
    assert report.solve_score is None


def test_how_far_it_came_is_told_although_it_died():
    report = check(job("EndsLate"))
    assert (report.tasks, report.episodes, report.ended) == (3, 3, "stopped by the end of its process")


def test_one_that_closes_the_connection_and_goes_on_is_ended():
    report = check(job("ClosesTheConnection", but(SETTINGS, tasks=40)))
    assert report.ended == "stopped by the end of its connection"
    assert [finding.rule for finding in report.findings] == ["dies"]


def test_output_does_not_fill_the_disk():
    flood = "import os\nfor _ in range(60): os.write(2, b'x' * (1 << 20))\nos.write(2, b'the end')\nos._exit(5)\n"
    Path("loud.py").write_text(flood, encoding="utf-8")
    with tempfile.TemporaryFile() as said:
        said.truncate(0)
        subprocess.run([sys.executable, "loud.py"], stderr=said, check=False)
        drop_too_much(said)
        assert os.fstat(said.fileno()).st_blocks * 512 < MOST_SAID
        subprocess.run([sys.executable, "-c", "print('and on', end='')"], stdout=said, check=True)
        assert tail(said) == "and on"


def test_what_is_printed_is_shown_although_most_of_it_was_dropped():
    report = check(job("Floods"))
    (found,) = [finding for finding in report.findings if finding.rule == "prints"]
    assert found.task == 0
    assert "\\x00" not in found.message


def test_no_process_of_the_environment_is_left():
    report = check(job("LeavesAChild"))
    assert any("child processes" in finding.message for finding in report.findings)
    children = [int(line) for line in Path("children").read_text(encoding="utf-8").splitlines()]
    assert children
    until = monotonic() + PATIENCE_S
    while any(map(is_alive, children)):  # they have been killed; the system may need a moment
        assert monotonic() < until, "a process is left"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
        os.kill(pid, 0)
    except OSError:
        return False
    return state not in "ZX"


def test_a_file_that_cannot_be_loaded_is_no_check():
    Path("bad.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.py cannot be loaded: ModuleNotFoundError: .* \(bad\.py:1\)$"):
        check(Job(target="bad.py:Env"))


def test_a_file_that_crashes_while_it_is_loaded_is_no_check():
    Path("bad.py").write_text("import os\nos._exit(5)\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.py:Env cannot be loaded: .* ended with exit code 5"):
        check(Job(target="bad.py:Env"))
