"""The nearest thing that would work."""

import pytest

from windrow.nearest import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("stalenes", ["staleness", "stages"], "staleness"),
        ("KEEP", ["wait", "keep"], "keep"),
        ("keep", ["Keep"], "Keep"),
        ("xyz", ["wait", "keep"], None),
        ("x", [], None),
    ],
)
def test_the_nearest_word(word: str, known: list[str], found: str | None):
    assert nearest(word, known) == found


def test_the_end_of_a_message():
    assert did_you_mean("wiat", ["wait", "keep"]) == "; did you mean wait?"
    assert did_you_mean("xyz", ["wait", "keep"]) == "; known are wait, keep"
    assert did_you_mean("xyz", [str(n) for n in range(100)]) == ""
    assert did_you_mean("xyz", []) == ""
