"""Instructions that a rule can check."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.envs.instructions import KINDS, VOCABULARY, InstructionEnv
from windrow.envs.instructions.rules import (
    FILLERS,
    AnyRule,
    Avoid,
    Begin,
    Bullets,
    Case,
    CountLetter,
    End,
    Include,
    Initials,
    Json,
    Length,
    Lines,
    Quoted,
    Repeat,
    Reverse,
    Sort,
    Times,
    mended,
    read_rules,
    to_plain,
)
from windrow.errors import ConfigError, EnvError
from windrow.trajectory import Task

every_kind = pytest.mark.parametrize("kind", KINDS)
rules = st.builds(lambda kind, seed, longest: KINDS[kind](Random(seed), longest),
                  st.sampled_from([*KINDS]), st.integers(0, 10**6), st.integers(2, 12))  # fmt: skip
texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(VOCABULARY + FILLERS), max_size=12).map(" ".join),
)


@given(rule=rules, text=texts)
@settings(max_examples=400, deadline=None)
def test_what_a_rule_has_mended_keeps_it(rule: AnyRule, text: str):
    written = mended("", [rule])
    assert rule.holds(written)
    if text.isascii() and '"' not in text and text.split() == [word for word in text.split() if word.isalpha()]:
        assert rule.holds(rule.mend(text))


@given(rule=rules, text=texts)
@settings(max_examples=400, deadline=None)
def test_a_rule_judges_any_text_without_failing(rule: AnyRule, text: str):
    assert rule.holds(text) in {True, False}
    assert not rule.holds("")
    assert not rule.holds(" \n ")


@given(rule=rules)
@settings(max_examples=400, deadline=None)
def test_a_text_that_was_spoilt_does_not_keep_the_rule(rule: AnyRule):
    assert not rule.holds(spoilt(rule, mended("", [rule])))


def spoilt(rule: AnyRule, text: str) -> str:  # noqa: C901 -- one line per kind
    """The text with just that done which the rule forbids."""
    match rule:
        case Repeat() | Sort() | Reverse() | Initials() | CountLetter():
            return f"{text} more"
        case Json():
            return text.replace("}", ', "more": 1}')
        case Include(given=words):
            return text.replace(words[-1], f"{words[-1]}s")
        case Times(given=word):
            return f"{text} {word}"
        case Begin():
            return f"so {text}"
        case End():
            return f"{text} so"
        case Length(how="at most"):
            return f"{text} {text} more"
        case Length(how="at least"):
            return " ".join(text.split()[1:])
        case Length():
            return f"{text} more"
        case Avoid(letter=letter):
            return text + letter.upper()
        case Lines() | Bullets():
            return f"{text}\n- more"
        case Case(case="upper"):
            return f"{text} a"
        case Case():
            return f"{text} A"
        case Quoted():
            return f"{text}."


@given(rule=rules)
@settings(max_examples=200, deadline=None)
def test_a_rule_can_be_written_down_and_read_back(rule: AnyRule):
    assert read_rules(to_plain([rule])) == [rule]


@pytest.mark.parametrize(
    ("rule", "words", "good", "bad"),
    [
        (Length(count=3), "Write exactly 3 words.", "one, two; three!", "one two"),
        (Length(count=2, how="at most"), "Write at most 2 words.", "one", "one two three"),
        (Include(given=("moon", "sun")), 'Use the words "moon" and "sun".', "Sun, then moon.", "sunny moon"),
        (Times(given="ha", count=2), 'Use the word "ha" exactly 2 times.', "ha, ha", "ha ha ha"),
        (Avoid(letter="e"), "Do not use the letter e.", "a short song", "THE song"),
        (Case(case="upper"), "Write everything in upper case.", "LOUD 1!", "Loud"),
        (Lines(count=2), "Write exactly 2 lines.", "a\nb\n", "a\n\nb"),
        (Bullets(count=2), 'Write a list of 2 lines, each of which begins with "- ".', "- a\n- b", "* a\n* b"),
        (Begin(given="once"), 'Begin with the word "once".', "Once upon", "upon once"),
        (End(given="end"), 'End with the word "end".', "the End.", "end it"),
        (Json(keys=("a", "b")), 'Write a JSON object with just the keys "a" and "b".', '{"b": [], "a": 0}', '{"a": 1}'),
        (Json(keys=("a",)), 'Write a JSON object with just the keys "a".', '```json\n{"a": 1}\n```', "[1]"),
        (Sort(given=("b", "a", "c")), "Sort these words by the alphabet: b a c.", "a, b, c", "a c b"),
        (Reverse(given=("b", "a", "c")), "Write these words in reverse order: b a c.", "C A B", "b a c"),
        (Initials(given=("sun", "up")), "Write the first letters of these words as one word: sun up.", "SU", "S U"),
        (Repeat(text="go on"), 'Repeat this: "go on"', "Go on!", "go on on"),
        (Quoted(), "Put all of it between double quotation marks.", '"hm"', 'he said "hm"'),
        (
            CountLetter(letter="o", given="moon"),
            'How many times is the letter o in "moon"? Say only the number.',
            "2.",
            "2 or 3",
        ),
    ],
)
def test_a_rule_says_and_checks_what_it_means(rule: AnyRule, words: str, good: str, bad: str):
    assert rule.words() == words
    assert rule.holds(good)
    assert not rule.holds(bad)


@every_kind
def test_every_kind_comes_up_in_a_question(kind: str):
    company = () if KINDS[kind](Random(0), 8).alone else ("length",)
    env = InstructionEnv(kinds=(kind, *company), fewest=1 + len(company), most=1 + len(company))
    asyncio.run(env.start(Task(ordinal=0)))
    assert kind in {rule["kind"] for rule in asyncio.run(env.step("")).info["rules"]}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_instructions_of_one_question_can_be_followed_together(count: int):
    async def play(seed: int) -> None:
        env = InstructionEnv(fewest=count, most=count)
        shown = str(await env.start(Task(ordinal=0, seed=seed)))
        asked = read_rules((await env.step("")).info["rules"])
        assert len({type(rule) for rule in asked}) == count
        assert all(rule.holds(env.solve()) for rule in asked)
        assert all(rule.words() in shown for rule in asked)
        assert any(rule.alone for rule in asked)

    for seed in range(60):
        asyncio.run(play(seed))


LISTS = ("repeat", "sort", "reverse", "initials")


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("count", [2, 4, 6])
def test_lists_are_as_long_as_they_are_asked_to_be(kind: str, count: int):
    for seed in range(20):
        env = InstructionEnv(kinds=[kind], most=1, shortest=count, longest=count)
        asyncio.run(env.start(Task(ordinal=0, seed=seed)))
        (rule,) = asyncio.run(env.step("")).info["rules"]
        assert len(rule["text"].split() if kind == "repeat" else rule["given"]) == count


@pytest.mark.parametrize("kind", [*LISTS, "json", "include", "times", "begin", "end", "count_letter"])
def test_instructions_are_about_as_many_different_words_as_they_may_be(kind: str):
    def asked(seed: int, words: int) -> str:
        return str(asyncio.run(InstructionEnv(kinds=[kind], most=1, words=words).start(Task(ordinal=0, seed=seed))))

    def met(words: int) -> set[str]:
        texts = " ".join(asked(seed, words) for seed in range(200))
        return {word for word in VOCABULARY if word in texts}

    assert set() < met(8) <= set(VOCABULARY[:8])
    assert len(met(len(VOCABULARY))) > 30


@pytest.mark.parametrize(
    "args", [{"words": 5}, {"words": 49}, {"shortest": 1}, {"shortest": 7}, {"shortest": 4, "longest": 3}]
)
def test_lists_that_cannot_be_are_refused(args: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"shortest|words"):
        InstructionEnv(**args)


def test_what_only_says_how_is_refused_alone():
    with pytest.raises(ConfigError, match="allows too little"):
        asyncio.run(InstructionEnv(kinds=["quoted"], most=1).start(Task(ordinal=0)))


def test_instructions_of_a_dataset_are_given():
    rules = [{"kind": "length", "count": 2, "how": "at most"}, {"kind": "end", "given": "moon"}]
    env = InstructionEnv()
    payload = {"question": "Two words at most, the last one moon.", "rules": rules}
    assert asyncio.run(env.start(Task(ordinal=0, payload=payload))) == payload["question"]
    assert all(rule.holds(env.solve()) for rule in read_rules(rules))


def test_instructions_that_contradict_each_other_have_no_solution():
    rules = [{"kind": "begin", "given": "sun"}, {"kind": "begin", "given": "moon"}]
    env = InstructionEnv()
    asyncio.run(env.start(Task(ordinal=0, payload={"question": "?", "rules": rules})))
    with pytest.raises(EnvError, match="no solution"):
        env.solve()


@pytest.mark.parametrize(
    "rules", [None, [], "x", [{"kind": "sing"}], [{"kind": "length"}], [{"kind": "length", "count": 0}]]
)
def test_instructions_that_cannot_be_read_are_the_tasks_fault(rules: Any):
    with pytest.raises(EnvError, match="rules"):
        asyncio.run(InstructionEnv().start(Task(ordinal=0, payload={"question": "?", "rules": rules})))


@every_kind
def test_no_text_keeps_a_rule_busy(kind: str):
    rule = KINDS[kind](Random(1), 8)
    for text in ("a" * 20_000, "a'" * 10_000, "[" * 20_000, "```" + " " * 20_000, "\n" * 20_000, '"' * 20_000):
        assert not rule.holds(text) or kind in {"avoid", "case"}
