r"""Whether math answers are right, by tables."""

import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.rewards.given import said

from windrow.errors import RewardError
from windrow.rewards.answers import find_answer, last_boxed
from windrow.rewards.math import MathReward, why_refused
from windrow.rewards.protocol import Placed

RIGHT_NUMBERS = [
    ("19", "19"),
    ("19", "19.0"),
    ("19", "12 + 7 = 19"),
    ("19", r"First 12, then 7, so \boxed{19}."),
    ("19", r"\boxed{12}? No: \boxed{19}"),
    ("19", r"\boxed{\text{19 apples}}"),
    ("19", r"\boxed{x = 19}"),
    ("19", "answer: 19 apples"),
    ("19", "answer: about 19 of them"),
    ("0.75", "answer: 3/4 of a mile"),
    ("19", "The answer is 19."),
    ("19", "**Answer:** 19"),
    ("19", "Answer:\n19"),
    ("19", "answer: 5. Wait.\nanswer: 19"),
    ("19", "There are 3 boxes.\n#### 19"),
    ("19", "<think>5 or 6</think><answer>19</answer>"),
    ("19", "<answer>It is 19.</answer>"),
    ("-5", "−5"),
    ("-5", "the answer is -5"),
    ("1234", "1,234"),
    ("1234", r"\boxed{1{,}234}"),
    ("1234", r"\boxed{1\,234}"),
    ("1,234", "1234"),
    ("12", "$12"),
    ("12", r"\boxed{\$12.00}"),
    ("5", r"\boxed{5\text{ cm}^2}"),
    ("5", "answer: 5 km/h"),
    ("90", r"\boxed{90^\circ}"),
    ("0.5", "1/2"),
    ("0.5", r"\boxed{\frac{1}{2}}"),
    ("0.5", ".5"),
    (r"\frac12", r"\boxed{\dfrac{2}{4}}"),
    (r"\frac{1}{2}", "0.5"),
    ("7/2", r"\boxed{3\frac{1}{2}}"),
    ("7/2", "answer: 3 1/2"),
    ("1/3", "0.333333"),
    ("200/3", "66.6667"),
    ("50%", "50"),
    ("50", r"\boxed{50\%}"),
    ("0.5", "50%"),
    ("0.5", "50 percent"),
    ("1500", r"\boxed{1.5 \times 10^3}"),
    ("1500", "1.5e3"),
    ("0.015", r"1.5 \cdot 10^{-2}"),
    ("0", "0"),
    ("5000000", "answer: 5 million people"),
    ("5000000", "it costs $5 Million"),
    ("5 million", r"\boxed{5{,}000{,}000}"),
    ("2500", r"\boxed{2.5\text{ thousand}}"),
    ("500000", r"\boxed{\frac{1}{2} \text{ million}}"),
    ("60", "answer: 5 dozen eggs"),
    ("24", r"\boxed{2 \text{ dozens}}"),
    ("19", "answer: x = 12 + 7 = 19"),
    ("1234", "answer: x = 1,200 + 34 = 1,234"),
    ("50", r"\boxed{x = 5 \text{ cm} = 50 \text{ mm}}"),
    ("5", "answer: 5 months"),
    ("5", "answer: 5 pints"),
    ("5", r"\boxed{5 \text{ meters squared}}"),
    ("5", "answer: 5 more apples"),
    ("2", "answer: 2 quarters"),
]

WRONG_NUMBERS = [
    ("19", "20"),
    ("19", "-19"),
    ("19", "190"),
    ("19", "19.5"),
    ("19", ""),
    ("19", "nineteen"),
    ("19", "12 + 7"),  # not worked out: the last number is 7
    ("19", "answer: 12 + 7"),
    ("12", r"\boxed{3 \cdot 4}"),
    ("1024", r"\boxed{2^{10}}"),
    ("3", "6/2"),
    ("3", r"\boxed{\frac{6}{2}}"),
    ("19", "answer: 19 or 20"),
    ("19", "answer: 18, 19, 20"),
    ("19", r"\boxed{18, 19}"),
    ("19", r"\boxed{19} or rather \boxed{20}"),
    ("19", "18 19 20"),
    ("5", r"\boxed{5x}"),
    ("5", r"\boxed{5 x}"),
    ("5", r"\boxed{5 + x}"),
    ("5", r"\boxed{5 of 10}"),
    ("5", r"\boxed{about 5}"),
    ("5", "answer: 5x"),
    ("5", "answer: 5 x"),
    ("5", "answer: 5 + x"),
    ("5", "answer: x - 5"),
    ("5", r"answer: \sqrt 5"),
    ("1/3", "0.33"),
    ("1/3", "0.333332"),
    ("19", r"\boxed{}"),
    ("19", r"\boxed{19"),  # cut off: what is not closed is no box, and no number stands by itself
    ("2", "x2"),
    ("12", "9" * 5000),
    ("12", "1e999999999"),
    ("12", r"\boxed{9^{9^{9^{9}}}}"),
    ("12", r"\boxed{99999999!}"),
    ("5", r"\boxed{5 million}"),
    ("5", r"\boxed{5 \text{ Billion}}"),
    ("5", "the answer is 5 million"),
    ("5", "5 million"),
    ("5", r"\boxed{5 dozen}"),
    ("5", r"\boxed{5 pi}"),
    ("5", r"\boxed{5pi}"),
    ("5", "answer: about 5 pi"),
    ("5", "answer: 5 e"),
    ("5", r"\boxed{5 squared}"),
    ("5", r"\boxed{5 sqrt}"),
    ("5", r"\boxed{5 plus x}"),
    ("5", r"\boxed{5 hundredths}"),
    ("5", "answer: 5 and a half"),
    ("5", "answer: 5 or more"),
    ("5 million", r"\boxed{5}"),
    ("5 pi", r"\boxed{5}"),
    ("7", r"\boxed{x=5, x=7}"),
    ("7", r"\boxed{x=5 x=7}"),
    ("7", r"\boxed{x=5 \text{ or } x=7}"),
    ("7", "answer: x = 5 or x = 7"),
    ("7", "answer: x = 5 and y = 7"),
    ("7", "answer: 5 or x = 7"),
    ("5", r"\boxed{x >= 5}"),
    ("5", r"\boxed{x != 5}"),
    ("5", r"\boxed{x <= 5}"),
    ("5", r"\boxed{x \neq 5}"),
    ("5", "answer: n ≠ 5"),
    ("5", "so it is >= 5"),
    ("3", "the answer is not 3"),
    ("3", "answer: not 3"),
    ("3", "answer: less than 3"),
    ("3", "answer: at most 3"),
    ("3", "it is minus 3"),
    ("23", "answer: 1,23"),
    ("3", "answer: 1,2,3"),
]

RIGHT_FORMULAS = [
    ("x+1", r"\boxed{1 + x}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    (r"\frac{\sqrt{3}}{2}", r"\boxed{\sqrt{3}/2}"),
    (r"\sqrt{2}", "answer: sqrt(2)"),
    (r"\sqrt{2}", "1.414214"),
    (r"2\pi", r"$2\pi$"),
    (r"\{1,2\}", "answer: 2, 1"),
    (r"\{1,2\}", "answer: 1 or 2"),
    ("(1,2)", r"\boxed{(1, 2)}"),
    ("[0,1)", r"\boxed{[0, 1)}"),
    ("x=3", "3"),
    ("x>3", r"\boxed{(3,\infty)}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}"),
    ("Paris", "The answer is Paris."),
    ("B", "answer: (B)"),
    ("B", r"\boxed{\text{B}}"),
    ("yes", "Yes"),
]

WRONG_FORMULAS = [
    ("x+1", r"\boxed{x+2}"),
    ("x+1", r"\boxed{x+1, x+2}"),
    ("x+y", r"\boxed{y+z}"),
    ("[0,1)", r"\boxed{(0,1)}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    (r"\sqrt{2}", "1.41"),
    ("x^2", r"\boxed{\int 2x dx}"),  # not worked out
    (r"\sqrt{2}", r"\boxed{9^{9^{9}}}"),
    ("x", r"\boxed{99999999!}"),
    ("x+1", r"\boxed{(x+1)^{99999}}"),
    ("x+1", r"\boxed{}}{{{}"),
    ("x+1", ""),
    ("C", "answer: B"),
    ("Paris", "answer: London"),
]


def value(right: object, response: str) -> float:
    return MathReward().score(said(response, {"answer": right})).value


@pytest.mark.parametrize(("right", "response"), RIGHT_NUMBERS)
def test_a_right_number_is_seen(right: str, response: str):
    assert value(right, response) == 1.0


@pytest.mark.parametrize(("right", "response"), WRONG_NUMBERS)
def test_a_wrong_number_is_wrong(right: str, response: str):
    assert value(right, response) == 0.0


@pytest.mark.parametrize(("right", "response"), RIGHT_FORMULAS)
def test_a_right_formula_is_seen(right: str, response: str):
    assert value(right, response) == 1.0


@pytest.mark.parametrize(("right", "response"), WRONG_FORMULAS)
def test_a_wrong_formula_is_wrong(right: str, response: str):
    assert value(right, response) == 0.0


ROW = re.compile(r"^\| `(.+?)` \| `(.+?)` \| ([01]) \|", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
LIMITS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_the_limits_are_documented():
    assert len(LIMITS) > 10


@pytest.mark.parametrize(("right", "response", "worth"), LIMITS)
def test_the_limits_are_as_documented(right: str, response: str, worth: str):
    assert value(right, response) == float(worth)


HARD = [
    "\\boxed{" * 1500, "<answer>" * 1250, "1 " * 5000, "1," * 5000, "1/" * 5000, "\\(" * 5000, "answer:" * 1400,
    "answer:" + " " * 9990, "$" * 9999, "a" * 10_000, "5 " + "a " * 5000, "\\frac{1}{" * 1100, "=" * 10_000,
    "\\boxed{" + "x=1 " * 2000 + "}", "\\boxed{" + "x = 1, " * 1400 + "}", "not " * 2500, "1 million " * 1000,
    "{" * 10_000, "\\boxed{" + "(" * 100 + "x" + ")" * 100 + "}", "\\boxed{((9^{99})^{99})^{99}}",
    "\\boxed{(10!)!}", "\\boxed{\\sum_{n=1}^{999999999} n}", "\\boxed{2^{x^{x^x}}}", "\\boxed{" + "9" * 300 + "x}",
    "\\boxed{9**9**9}", "\\boxed{10^{10^{10}}}", "\\boxed{x^9^9^9}", "\\boxed{\\binom{999999}{4999}}",
]  # fmt: skip


@pytest.mark.parametrize("right", ["12", "x+1"])
@pytest.mark.parametrize("response", HARD, ids=lambda text: text[:20])
def test_no_response_keeps_it_busy(right: str, response: str):
    began = time.process_time()
    assert value(right, response) == 0.0
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 201, "longer"),
        ("1" * 21, "digits"),
        (r"\int x", "not worked out"),
        ("5!", "not worked out"),
        ("9^{9^9}", "power of a power"),
        ("9^9^9", "power of a power"),
        ("x^{100}", "power"),
        ("(x+1)^{21}", "power"),
        ("(" * 11 + "x" + ")" * 11, "brackets"),
        ("x^{99}", ""),
        ("(x+1)^{20}", ""),
    ],
)
def test_what_the_library_never_sees(text: str, why: str):
    refused = why_refused(text, "x")
    assert (why in refused) if why else not refused


def test_work_left_undone_is_fine_where_the_right_answer_leaves_it_undone():
    assert value("10! x", r"\boxed{x \cdot 10!}") == 1.0
    assert value("3628800 x", r"\boxed{x \cdot 10!}") == 0.0


@pytest.mark.parametrize("answer", [None, "", "  ", True, ["1"], {"x": 1}])
def test_an_episode_without_a_right_answer_is_no_zero(answer: object):
    with pytest.raises(RewardError, match="the environment must put the right one there"):
        value(answer, "12")


def test_a_right_answer_that_cannot_be_read_is_no_zero():
    with pytest.raises(RewardError, match="cannot be read by math-verify"):
        value("}{", r"\boxed{x}")


@pytest.mark.parametrize("answer", [12, 12.0, "12"])
def test_a_right_answer_may_be_a_number(answer: object):
    assert value(answer, "12") == 1.0


def test_a_note_says_what_was_wrong():
    score = MathReward().score(said("20", {"answer": "19"}))
    assert score.note == "said '20', right is '19'"


def test_it_says_that_it_wants_a_process_and_travels_there():
    reward = pickle.loads(pickle.dumps(MathReward()))  # noqa: S301 -- our own
    assert isinstance(reward, Placed)
    assert (reward.isolation, reward.preload) == ("process", ("math_verify",))
    assert isinstance(reward, MathReward)
    assert reward.score(said("19", {"answer": "19"})).value == 1.0


def test_without_formulas_only_numbers_and_words_are_compared():
    reward = MathReward(formulas=False)
    assert reward.isolation == "thread"
    assert reward.score(said("1+x", {"answer": "x+1"})).value == 0.0
    assert reward.score(said("x + 1", {"answer": "x+1"})).value == 1.0
    assert reward.score(said("0.5", {"answer": "1/2"})).value == 1.0


def test_it_works_in_many_threads_at_once():
    cases = [("x+1", f"\\boxed{{x+{place % 3}}}") for place in range(60)]
    with ThreadPoolExecutor(4) as pool:
        values = [*pool.map(lambda case: value(*case), cases)]
    assert values == [float(place % 3 == 1) for place in range(60)]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{1}", "1"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{2}}", "2"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"} \boxed{3} {", "3"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\fbox{4}", "4"),
        ("none", None),
    ],
)
def test_the_last_whole_box_is_found(text: str, inside: str | None):
    assert last_boxed(text) == inside


@pytest.mark.parametrize(
    ("text", "where"),
    [(r"answer: 1 \boxed{2}", "boxed"), ("answer: 1 <answer>2</answer>", "tag"), ("answer: 2", "said"), ("2", "bare")],
)
def test_the_most_deliberate_answer_counts(text: str, where: str):
    answer = find_answer(text)
    assert (answer.text, answer.where) == ("2", where)
