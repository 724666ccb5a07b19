"""Where the answer stands in what a model wrote. Only its own words are read, never the prompt's."""

from __future__ import annotations

import re
from fractions import Fraction

FORMAT = r"(?s)^(?:(?!<answer>).)*<answer>(?:(?!</?answer>).)+</answer>\s*$"
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
MARKED = re.compile(r"####\s*(.+)")
NUMBER = re.compile(r"(?:(?<![\d)])[-+\u2212])?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?(?:\s*/\s*\d+)?")
LONGEST_NUMBER = 400  # what is longer was not meant as one, and takes long to read
FENCED = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)```", re.DOTALL)


def final_answer(text: str, extract: str = "") -> str | None:
    """What the pattern finds last; without one, the last <answer>, \\boxed{} or ####, or else the whole text."""
    if extract:
        found = list(re.finditer(extract, text))
        return (found[-1][1] if found[-1].re.groups else found[-1][0]) if found else None
    for pattern in (TAGGED, BOXED, MARKED):
        if marked := pattern.findall(text):
            return str(marked[-1]).strip()
    return text.strip()


def last_number(text: str) -> Fraction | None:
    """The last number in a text: 1,234 and 3/4 and 1e3 are numbers."""
    found = NUMBER.findall(text)
    return read_number(found[-1]) if found else None


def read_number(text: str) -> Fraction | None:
    if len(text) > LONGEST_NUMBER:
        return None
    above, _, below = text.replace(",", "").replace("\u2212", "-").replace(" ", "").partition("/")
    try:
        return Fraction(above) / (Fraction(below) if below else 1)
    except (ValueError, ZeroDivisionError):
        return None


def fenced(text: str, kinds: tuple[str, ...]) -> str:
    """The last fenced block of one of these kinds, or the whole text."""
    blocks = [body for kind, body in FENCED.findall(text) if kind.lower() in kinds]
    return str(blocks[-1]) if blocks else text
