r"""Where in a response the final answer stands.

Promises: of several places that look like an answer the most deliberate one counts, and of several such the last:
`\boxed{…}`, `<answer>…</answer>`, `answer: …` or `the answer is …`, `#### …`; and only without any of these the last
number, or the last formula. Naming many answers is not naming the right one.
"""

import re
from typing import Literal

from windrow.types import Value

Where = Literal["boxed", "tag", "said", "bare"]

LONGEST = 10_000
"""Characters of a response that are looked at, from its end."""
LONGEST_BARE = 200
"""A response without any mark is an answer itself if it is this short."""

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SAID = re.compile(r"(?:\banswer\b(?:\s+is\b|\s*[:=])+|####)[\s:]*(?=\S)", re.IGNORECASE)
_BRACES = re.compile(r"\\[{}]|\\(?:boxed|fbox)\s*\{|[{}]")
_FORMULA = re.compile(r"\$([^$\n]+)\$|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]", re.DOTALL)
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_THIN = re.compile(r"(?<=\d)\\[,!](?=\d{3}(?!\d))")
_SPACES = re.compile(r"\\[,;:! ]|~|\\quad\b|\\qquad\b")
_PLAIN = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u202f": " ", "\uff0c": ","})


class Answer(Value, frozen=True):
    """What a response says in the end, and where that stands."""

    text: str
    where: Where


def find_answer(response: str) -> Answer:
    """The final answer of a response."""
    text = response[-LONGEST:]
    boxed = last_boxed(text)
    if boxed is not None:
        return Answer(tidy(boxed), "boxed")
    tags = _TAG.findall(text)
    if tags:
        return Answer(tidy(tags[-1]), "tag")
    plain = text.replace("**", "").replace("__", "")
    said = [found.end() for found in _SAID.finditer(plain)]
    if said:
        return Answer(tidy(_first_sentence(plain[said[-1] :].partition("\n")[0])), "said")
    return Answer(tidy(_bare(text)), "bare")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\\boxed{…}` that is complete; braces inside are counted."""
    opened: list[int | None] = []  # all and only the braces that are not closed yet: where a box begins, or None
    begin, inside = -1, None
    for found in _BRACES.finditer(text):
        if found.group().startswith("\\") and found.group()[1] in "{}":
            continue  # a brace that is shown
        if found.group() != "}":
            opened.append(found.end() if len(found.group()) > 1 else None)
            continue
        box = opened.pop() if opened else None
        if box is not None and box > begin:
            begin, inside = box, text[box : found.start()]
    return inside


def tidy(text: str) -> str:
    """The same answer with what only makes it look nice taken away."""
    text = text.translate(_PLAIN)
    text = text.replace("\\%", "%").replace("\\$", "$").replace("{,}", ",")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\left", "").replace("\\right", "")
    text = _WRAPPED.sub(r" \1 ", _SPACES.sub(" ", _THIN.sub("", text)))
    text = " ".join(text.split())
    text = _unwrapped(text)
    return text.rstrip(".") if not text.endswith("...") else text


def _unwrapped(text: str) -> str:
    """Without the marks around a formula."""
    for before, after in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("`", "`")):
        if text.startswith(before) and text.rstrip(".").endswith(after) and len(text) > len(before) + len(after):
            return text[len(before) :].rstrip(".").removesuffix(after).strip()
    return text


def _first_sentence(line: str) -> str:
    end = _SENTENCE.search(line)
    return line[: end.start()] if end and end.start() else line


def _bare(text: str) -> str:
    """The last formula, or the text itself if it is short, or its last line."""
    formulas: list[tuple[str, ...]] = _FORMULA.findall(text)
    if formulas:
        return next(part for part in formulas[-1] if part)
    stripped = text.strip()
    if len(stripped) <= LONGEST_BARE and "\n" not in stripped:
        return stripped
    return stripped.rpartition("\n")[2]
