r"""Numbers as models write them: `1,234`, `-3/4`, `\frac{1}{2}`, `12.5 %`, `1.5 \times 10^3`, `5 km/h`, `2 million`.

Promises: a number is read exactly, as a fraction, or not at all; nothing is computed that could take long, whatever the
text is. Units are read over, not compared; a word beside a number that makes it another one (`5 pi`, `at most 5`) is no
unit, and then it is no number.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from windrow.types import Value

Form = Literal["whole", "decimal", "fraction"]

MOST_DIGITS = 60
"""A longer number is not read."""
MOST_EXPONENT = 60
"""Of ten, in scientific notation."""
SURE_DIGITS = 6
"""A decimal with so many significant digits may stand for a fraction that has no end."""

MANY = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words that multiply the number before them."""

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = (
    r"(?P<sign>[-+]\s?)?(?:[$€£¥]\s?)?(?:"
    rf"(?:(?P<a>\d+)\s*)?\\frac\s*(?:\{{(?P<b>-?{_WHOLE})\}}\s*\{{(?P<c>-?{_WHOLE})\}}|(?P<d>\d)\s*(?P<e>\d))"
    rf"|(?:(?P<f>\d+)\s+)?(?P<g>{_WHOLE})\s?/\s?(?P<h>{_WHOLE})"
    rf"|(?P<decimal>{_WHOLE}(?:\.\d+)?|\.\d+)"
    r"(?:\s?(?:\\times|\\cdot|[x×*])\s?10\s?(?:\^|\*\*)\s?\{?(?P<ten>-?\d+)\}?|[eE](?P<exponent>[-+]?\d+))?"
    rf")(?P<percent>\s?(?:%|percent\b))?(?:\s?(?P<many>(?i:{'|'.join(MANY)}))s?\b)?"
)
_BEFORE = (
    r"\b(?i:not|isn't|never|than|least|most|under|over|below|above|minus|negative|plus|times)\s+"
    r"|(?:[<>!]=|[≤≥≠]|\\[lgn]eq?\b)\s?"
)
"""What makes the number behind it another one, or none."""
_BEHIND = (
    r"(?i:pi|sqrt|root|squared|cubed|factorial|choose|mod|sin|cos|tan|log|ln|exp|plus|minus|over|divided|multiplied"
    r"|tens|bn|mln|half|halves|thirds?|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million|billion)ths?"
    r"|or\s+(?:more|less|fewer|greater|higher|lower)|and\s+(?:a|one|two|three)\s+(?:half|third|quarter|fourth)s?)\b"
)
"""What makes the number before it another one, or none."""
_NO_UNIT = rf"{_BEHIND}|(?i:{'|'.join(MANY)})s?\b"
_POWER = r"(?:\s?\^\{?[23]\}?|[²³])?"
_UNIT = (
    r"(?:\s*(?:\^?\s?\{?\\circ\}?|°)\s?[CF]?"
    rf"|\s*(?!{_NO_UNIT})(?:[A-Za-z\u00b5\u03bc]{{2,20}}|[mgslhtLVWAKNJCF€£¥]){_POWER}(?:(?:/|\s)[A-Za-z]{{1,20}}{_POWER}){{0,4}})?"
)
_ALONE = re.compile(rf"{_NUMBER}{_UNIT}\s*")
_AMONG_WORDS = re.compile(
    rf"(?P<before>{_BEFORE})?(?<![\w.^/*{{\\])(?<!\d,){_NUMBER}(?![\w^*/({{\\]|[.,]\d)(?P<behind>\s?{_BEHIND})?"
)


class Number(Value, frozen=True, kw_only=True, gc=True):
    """A number, and how it was written."""

    value: Fraction
    form: Form
    percent: bool = False
    significant: int = 0
    """Digits of a decimal that count."""
    places: int = 0
    """Digits of a decimal behind the point."""


def read_number(text: str) -> Number | None:
    """The number that a text is, with or without a unit; None if it is anything else."""
    found = _ALONE.fullmatch(text.strip())
    return _number(found) if found else None


def numbers_in(text: str) -> Iterator[Number | None]:
    """The numbers that stand by themselves in a text, none part of a formula or a word; None where one is not meant."""
    for found in _AMONG_WORDS.finditer(text):
        yield None if found["before"] or found["behind"] else _number(found)


def are_equal(right: Number, said: Number) -> bool:
    """Whether an answer is the right number.

    A whole number must be written as one: `6/2` is not worked out. A decimal with six significant digits may stand for
    a fraction that it rounds. Where only one of the two is a percentage, it may mean a hundredth or not.
    """
    if right.form == "whole" and said.form == "fraction":
        return False
    if said.percent == right.percent:
        return _same(right, said.value, said)
    hundredth = said.value / 100 if said.percent else said.value * 100
    return _same(right, said.value, said) or right.value == hundredth


def _same(right: Number, value: Fraction, said: Number) -> bool:
    if value == right.value:
        return True
    return (
        said.form == "decimal"
        and right.form == "fraction"
        and said.significant >= SURE_DIGITS
        and round(right.value, said.places) == value
    )


def _number(found: re.Match[str]) -> Number | None:
    if len(found.group()) > 2 * MOST_DIGITS or any(len(part or "") > MOST_DIGITS for part in found.groups()):
        return None
    part = found.groupdict()
    number = _one(part)
    if number is None or part["many"] is None:
        return number
    value = number.value * MANY[part["many"].lower()]
    return Number(value=value, form="whole" if value.denominator == 1 else "fraction", percent=number.percent)


def _one(part: dict[str, str | None]) -> Number | None:
    """Without the word that multiplies it."""
    sign = -1 if (part["sign"] or "").startswith("-") else 1
    percent = part["percent"] is not None
    if part["decimal"] is not None:
        return _decimal(part, sign, percent=percent)
    top, bottom = part["b"] or part["d"] or part["g"], part["c"] or part["e"] or part["h"]
    whole = part["a"] or part["f"] or "0"
    if not _int(bottom):
        return None
    value = sign * (_int(whole) + Fraction(_int(top), _int(bottom)))
    return Number(value=value, form="fraction", percent=percent)


def _decimal(part: dict[str, str | None], sign: int, *, percent: bool) -> Number | None:
    digits = (part["decimal"] or "").replace(",", "")
    ten = int(part["ten"] or part["exponent"] or "0")
    if abs(ten) > MOST_EXPONENT:
        return None
    value = sign * Fraction(digits) * Fraction(10) ** ten
    _, point, behind = digits.partition(".")
    form: Form = "decimal" if point or ten < 0 else "whole"
    significant = len(digits.replace(".", "").lstrip("0"))
    return Number(value=value, form=form, percent=percent, significant=significant, places=max(0, len(behind) - ten))


def _int(text: str | None) -> int:
    return int((text or "0").replace(",", ""))
