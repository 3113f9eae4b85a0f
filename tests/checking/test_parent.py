"""A check ends, whatever the environment does, and leaves nothing behind."""

import os
from pathlib import Path
from time import monotonic

import pytest
from tests.checking import broken

from windrow.checking.examining import expected
from windrow.checking.messages import Job
from windrow.checking.parent import check
from windrow.checking.settings import CheckSettings
from windrow.errors import ConfigError

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
