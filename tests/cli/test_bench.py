"""`windrow bench`: the shape of its answers; how fast anything is belongs to the benchmark itself."""

import pytest
from tests.cli.given import Windrow

from windrow.bench import core
from windrow.cli.bench import BENCHMARKS


def test_the_list_names_every_benchmark(windrow: Windrow):
    said = windrow("bench", "--list", "--json")
    assert said.code == 0
    assert [row["name"] for row in said.result["benchmarks"]] == [*BENCHMARKS]
    assert all(row["what"] for row in said.result["benchmarks"])
    assert "core" in windrow("bench", "--list").out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["cor"], "unknown benchmark cor; did you mean core?"),
        ([], f"name a benchmark; known are {', '.join(BENCHMARKS)}"),
    ],
)
def test_a_benchmark_has_a_name(argv: list[str], words: str, windrow: Windrow):
    said = windrow("bench", *argv, "--json")
    assert (said.code, said.line) == (2, f"windrow: error: command line: {words}")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SCALES", (100, 1_000))
    monkeypatch.setattr(core, "EVENTS", 400)
    monkeypatch.setattr(core, "ROUNDS", 1)
    monkeypatch.setattr(core, "ENGINES", 50)


@pytest.mark.usefixtures("tiny")
def test_core_compares_each_thing_with_an_alternative(windrow: Windrow):
    said = windrow("bench", "core", "--json")
    assert said.code == 0
    assert said.result["name"] == "core"
    results = said.result["results"]
    assert len({result["what"] for result in results}) == len(results) >= 5
    for result in results:
        assert set(result) == {"what", "ours", "alternative", "ratio", "unit"}
        assert "alternative: " in result["what"]
        assert result["ratio"] == result["ours"] / result["alternative"]
        assert result["unit"] in {"events/s", "1/s", "us", "s"}
    assert all(result["what"] in said.err for result in results), "people read the same"
