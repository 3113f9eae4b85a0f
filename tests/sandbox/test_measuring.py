"""The benchmark of the sandbox: the shape of what it says; how fast anything is belongs to the benchmark itself."""

import pytest

from windrow.bench import sandbox
from windrow.errors import InternalError


def test_each_level_is_compared_with_a_fresh_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "PROGRAMS", 4)
    monkeypatch.setattr(sandbox, "ROUNDS", 1)
    said: list[str] = []
    results = sandbox.run(said.append)
    assert "the best level here is namespaces" in said
    assert [(result.what.partition(" (")[0], result.unit) for result in results] == [
        ("programs per second, level namespaces", "1/s"),
        ("latency of one program, level namespaces", "ms"),
        ("programs per second, level landlock", "1/s"),
        ("latency of one program, level landlock", "ms"),
    ]
    assert all(result.ratio == result.ours / result.alternative > 0 for result in results)


def test_a_program_that_says_something_else_is_not_measured():
    with pytest.raises(InternalError, match="said '41' instead of"):
        sandbox._check("41")
