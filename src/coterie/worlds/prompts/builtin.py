"""Rewards that need no code of the user's. A class's fields are the options of its reward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol
from xml.etree import ElementTree

from coterie.extras import require
from coterie.rollouts import Task
from coterie.worlds.prompts.finding import FORMAT, fenced, final_answer, last_number
from coterie.worlds.prompts.reading import look_up


@dataclass(frozen=True)
class Verdict:
    """What one reward says of one answer; None: it does not apply. `note` says why it is not more."""

    value: float | None
    note: str = ""


class Reward(Protocol):
    """Judges the answers of a group, so that it may hold them against each other."""

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]: ...


DOES_NOT_APPLY = Verdict(None)


@dataclass(frozen=True)
class Exact:
    """1 if the final answer is the column's text, or one of its texts."""

    column: str = "answer"
    extract: str = ""
    ignore_case: bool = False

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        truth = look_up(task.spec, self.column)
        if truth is None:
            return [DOES_NOT_APPLY] * len(answers)
        right = {self._plain(str(one)) for one in (truth if isinstance(truth, list) else [truth])}
        return [self._compare(final_answer(answer, self.extract), right) for answer in answers]

    def _plain(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text

    def _compare(self, given: str | None, right: set[str]) -> Verdict:
        if given is None:
            return Verdict(0.0, "no answer was found")
        return Verdict(1.0) if self._plain(given) in right else Verdict(0.0, f"{given[:40]!r} is not the answer")


@dataclass(frozen=True)
class Numeric:
    """1 if the last number of the final answer is the column's, to within the tolerance."""

    column: str = "answer"
    extract: str = ""
    tolerance: float = 1e-6  # of the number, or of 1 if that is more

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        truth = look_up(task.spec, self.column)
        right = None if truth is None else last_number(final_answer(str(truth)) or "")
        if right is None:
            return [DOES_NOT_APPLY] * len(answers)
        allowed = Fraction(self.tolerance) * max(Fraction(1), abs(right))
        verdicts = []
        for answer in answers:
            given = last_number(final_answer(answer, self.extract) or "")
            if given is None:
                verdicts.append(Verdict(0.0, "no number was found"))
            elif abs(given - right) <= allowed:
                verdicts.append(Verdict(1.0))
            else:
                verdicts.append(Verdict(0.0, f"{str(given)[:40]} is not {str(right)[:40]}"))
        return verdicts


@dataclass(frozen=True)
class Regex:
    """1 if the pattern is found in the answer."""

    pattern: str = FORMAT

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"the pattern {self.pattern!r} is no regular expression: {error}") from None

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        found = re.compile(self.pattern)
        return [Verdict(1.0) if found.search(a) else Verdict(0.0, "it is not in the form asked for") for a in answers]


def read_json(answer: str) -> tuple[Any, str]:
    """The value in a ```json block or the whole answer, and what is wrong with it."""
    try:
        return json.loads(fenced(answer, ("json", "")), parse_constant=_no_constant), ""
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {str(error)[:80]}"


def _no_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


@dataclass(frozen=True)
class Json:
    """1 if the answer, or its last json block, is JSON."""

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        problems = [read_json(answer)[1] for answer in answers]
        return [Verdict(0.0 if problem else 1.0, problem) for problem in problems]


@dataclass(frozen=True)
class Schema:
    """1 if the answer is JSON that keeps a JSON schema: an option, a file, or a column of the task."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    column: str = "schema"

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        schema = self._schema(task)
        if schema is None:
            return [DOES_NOT_APPLY] * len(answers)
        jsonschema = require("jsonschema", "schema")
        validator = jsonschema.validators.validator_for(schema)(schema)
        verdicts = []
        for answer in answers:
            value, problem = read_json(answer)
            error = None if problem else jsonschema.exceptions.best_match(validator.iter_errors(value))
            problem = problem or (f"at {error.json_path}: {error.message}"[:120] if error else "")
            verdicts.append(Verdict(0.0 if problem else 1.0, problem))
        return verdicts

    def _schema(self, task: Task) -> Any:
        if self.schema:
            return self.schema
        if self.file:
            with open(self.file, encoding="utf-8") as file:
                return json.load(file)
        held = look_up(task.spec, self.column)
        return json.loads(held) if isinstance(held, str) else held


@dataclass(frozen=True)
class Xml:
    """1 if the answer is well-formed elements; with `tags`, just these, in this order, beside each other."""

    tags: Sequence[str] = ()

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        problems = [self._problem(answer) for answer in answers]
        return [Verdict(0.0 if problem else 1.0, problem) for problem in problems]

    def _problem(self, answer: str) -> str:
        if "<!" in answer or "<?" in answer:  # entities can be made to grow without bound
            return "declarations are not taken"
        try:
            found = [element.tag for element in ElementTree.fromstring(f"<answers>{answer}</answers>")]
        except (ElementTree.ParseError, ValueError) as error:
            return f"it is not XML: {error}"
        if not found:
            return "there is no element"
        return "" if not self.tags or found == list(self.tags) else f"the elements are {', '.join(found)}"[:120]


@dataclass(frozen=True)
class Length:
    """1 between `least` and `most` words; less in proportion below, and down to 0 at twice the most."""

    least: int = 1
    most: int = 200

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ValueError(f"length goes from least {self.least} to most {self.most}; write the smaller one first")

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        return [self._value(len(answer.split())) for answer in answers]

    def _value(self, words: int) -> Verdict:
        if words < self.least:
            return Verdict(words / self.least, f"{words} words are too few")
        if words > self.most:
            return Verdict(max(0.0, 2 - words / self.most), f"{words} words are too many")
        return Verdict(1.0)


def grams(text: str, size: int) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)] or ([tuple(words)] if words else [])


@dataclass(frozen=True)
class Repetition:
    """The share of an answer's runs of words that are not said again; an empty answer has earned nothing."""

    words: int = 4

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        said = [grams(answer, self.words) for answer in answers]
        return [Verdict(len(set(runs)) / len(runs)) if runs else Verdict(0.0, "it is empty") for runs in said]


@dataclass(frozen=True)
class Diversity:
    """How little an answer shares with its siblings: 1 less the mean overlap of their runs of words."""

    words: int = 2

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        if len(answers) < 2:
            return [DOES_NOT_APPLY] * len(answers)
        runs = [frozenset(grams(answer, self.words)) for answer in answers]
        verdicts = []
        for place, mine in enumerate(runs):
            overlaps = [_overlap(mine, other) for at, other in enumerate(runs) if at != place]
            verdicts.append(Verdict(1 - sum(overlaps) / len(overlaps)))
        return verdicts


def _overlap(a: frozenset[Any], b: frozenset[Any]) -> float:
    """|a and b| / |a or b| (Jaccard); two empty ones are the same."""
    return len(a & b) / len(a | b) if a or b else 1.0
