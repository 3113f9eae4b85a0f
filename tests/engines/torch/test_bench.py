"""`windrow bench engine`: the shape of its answers; how fast anything is belongs to the benchmark itself."""

import pytest

from windrow.bench import engine
from windrow.cli.bench import BENCHMARKS


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CONCURRENCY": (1, 2), "BATCHES": 1, "ROUNDS": 1, "PROMPT": (2, 5), "ANSWER": (2, 8), "INTERRUPTED": 2,
        "EPISODES": 2, "TURNS": 2, "OBSERVATION": 3, "ACTION": 2, "LAYERS": 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(engine, name, value)


@pytest.mark.usefixtures("small")
def test_each_thing_is_compared_with_an_alternative():
    said: list[str] = []
    results = engine.run(said.append)
    assert said
    assert len({result.what for result in results}) == len(results) == 6
    for result in results:
        assert "alternative: " in result.what
        assert result.ratio == result.ours / result.alternative > 0
        assert result.unit in {"tokens/s", "turns/s", "ms"}


def test_the_command_line_knows_it():
    assert BENCHMARKS["engine"] == "windrow.bench.engine"
    assert engine.WHAT


def test_the_same_work_is_done_each_time():
    one, other = engine.workload(4), engine.workload(4)
    assert [request.sampling.max_tokens for request in one] == [request.sampling.max_tokens for request in other]
    assert all((a.prompt == b.prompt).all() for a, b in zip(one, other, strict=True))
