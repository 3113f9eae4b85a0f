"""Templates and what a judge's words mean."""

import pytest
from tests.rewards.given import said

from windrow.errors import ConfigError, RewardError
from windrow.rewards.verdicts import TEMPLATE, Template, out_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("score: 7", 0.7),
        ("Score: 7/10", 0.7),
        ("**Score:** 7.5", 0.75),
        ("I thought of 3 first.\nscore: 9\n", 0.9),
        ("score: 2 ... no, score: 8", 0.8),
        ("The score is 10.", 1.0),
        ("rating = 0", 0.0),
        ("7", 0.7),
        ("7/10", 0.7),
        ("I give it 7 out of 10.", 0.7),
        ("between 3 and 5: 4", 0.4),
        ("Score (0-10): 8", 0.8),
        ("Score (1-10): 8", 0.8),
        ("**Score (0 – 10):** 8", 0.8),
        ("Score (out of 10): 8", 0.8),
        ("Score from 0 to 10: 8", 0.8),
        ("On a scale from 0 to 10 I say 8.", 0.8),
        ("score: 8 of 10", 0.8),
        ("rating of 10", 1.0),
        ("score: 7.5/10.0", 0.75),
        ("score: 8, 3 things are missing", 0.8),
        ("score: 8 because of 3 errors", 0.8),
        ("score: 3 of 5", None),
        ("score: 3/5", None),
        ("score: 2, no: score: 3 out of 5", None),
        ("score: 3 stars out of 5", None),
        ("score: 7,5", None),
        ("score: 7-9", None),
        ("score: 7 to 9", None),
        ("score: 8%", None),
        ("7,5", None),
        ("3/5", None),
        ("3 out of 5", None),
        ("score: 11", None),
        ("score: -1", None),
        ("1000", None),
        ("good", None),
        ("", None),
    ],
)
def test_a_verdict_is_read_or_there_is_none(text: str, value: float | None):
    assert out_of(10)(text) == (value if value is None else pytest.approx(value))


def test_a_scale_may_end_elsewhere():
    assert out_of(5)("score: 4") == pytest.approx(0.8)
    assert out_of(1)("score: 0.25") == 0.25
    with pytest.raises(ConfigError, match="it must end above 0"):
        out_of(0)


def test_places_are_filled_in():
    template = Template("Q {question} A {answer} R {reference} {{braces}}")
    prompt = template.fill(said("four", {"answer": "4"}, shown="2 + 2"))
    assert prompt == "Q 2 + 2 A four R 4 {braces}"


def test_a_reference_of_its_own_comes_before_the_answer():
    assert Template("{answer} {reference}").fill(said("a", {"answer": 1, "reference": "b"})) == "a b"


def test_a_conversation_has_all_that_was_shown_and_said():
    assert Template("{conversation}").fill(said("yes", shown="so?", rewards=(0.0, 0.0))) == (
        "user: so?\npolicy: yes\nuser: so?\npolicy: yes"
    )


def test_what_the_policy_said_is_not_read_as_a_template():
    nasty = "{question} {answer.__class__} {0} }{ {reference}"
    assert Template("say: {answer}").fill(said(nasty)) == f"say: {nasty}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{answer} {refrence}", r"unknown place {refrence}.*did you mean reference\?"),
        ("{answer.__class__}", "unknown place"),
        ("{answer[0]}", "unknown place"),
        ("{}", "unknown place"),
        ("{answer!r}", "has a format"),
        ("{answer:>9}", "has a format"),
        ("{answer", "cannot be read"),
        ("answer}", "cannot be read"),
        ("{question}", "nothing to judge"),
        ("judge!", "nothing to judge"),
    ],
)
def test_a_template_that_cannot_work_is_refused_when_it_is_made(text: str, why: str):
    with pytest.raises(ConfigError, match=why):
        Template(text)


def test_what_is_missing_is_no_empty_place():
    with pytest.raises(RewardError, match="no reference for the judge"):
        Template("{answer} {reference}").fill(said("a"))
    with pytest.raises(RewardError, match="was shown nothing"):
        Template(TEMPLATE).fill(said("a", shown=""))
