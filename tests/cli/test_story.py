"""`windrow story`: what happened to one group or attempt."""

import pytest
from tests.cli.given import LONG_TAIL, SMALL, Windrow


@pytest.fixture
def journal(windrow: Windrow) -> str:
    """Two steps of four groups of eight."""
    assert windrow("simulate", LONG_TAIL, *SMALL, "--journal", "run.jsonl").code == 0
    return "run.jsonl"


def test_a_group_from_its_first_grant_to_its_batch(windrow: Windrow, journal: str):
    said = windrow("story", journal, "g1", "--json")
    assert said.code == 0
    story = said.result["story"]
    assert "g1.a0 granted to worker w0 with engine e0 under version 0" in story[0]
    assert sum(" finished: " in line for line in story) == 8
    assert " g1 delivered to trainer in batch " in story[-1]
    assert all("g1" in line for line in story)
    assert said.err.splitlines() == [*story, *said.result["now"].splitlines()], "people read the same"


def test_times_never_go_back(windrow: Windrow, journal: str):
    times = [float(line.split()[0]) for line in windrow("story", journal, "g1", "--json").result["story"]]
    assert times == sorted(times)


def test_an_attempt_is_told_without_its_siblings(windrow: Windrow, journal: str):
    said = windrow("story", journal, "g1.a3")
    assert said.code == 0
    told = [line.split(maxsplit=1)[1] for line in said.out.splitlines()[:3]]
    assert told[0].startswith("g1.a3 granted to worker w0")
    assert told[1].startswith("g1.a3 finished: ")
    assert told[2].startswith("g1 delivered to trainer")
    assert "g1.a2" not in said.out


def test_one_is_not_ten(windrow: Windrow, journal: str):
    windrow("simulate", LONG_TAIL, *SMALL, "steps=6", "--journal", "long.jsonl")
    said = windrow("story", "long.jsonl", "g1", "--json")
    assert not any("g10" in line or "g11" in line for line in said.result["story"])


def test_the_last_words_say_what_became_of_it(windrow: Windrow, journal: str):
    assert windrow("story", journal, "g0", "--json").result["now"].startswith("g0 is ")


@pytest.mark.parametrize("name", ["g999", "g999.a0", "g1.a99"])
def test_whom_the_journal_does_not_know_has_no_story(name: str, windrow: Windrow, journal: str):
    said = windrow("story", journal, name, "--json")
    assert said.code == 2
    assert f"{journal}: nothing about {name}" in said.line


@pytest.mark.parametrize("name", ["17", "a3", "g", "g1.", "g1.a", "g-1", "g1.a2.b3", "G1", ""])
def test_what_is_no_id_is_refused(name: str, windrow: Windrow, journal: str):
    said = windrow("story", journal, name)
    assert said.code == 2
    assert "g17" in said.line, "an example"
    assert repr(name) in said.line
