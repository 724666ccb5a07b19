"""Theories in tokens: the grammar of their text, compiled, so that everything sampled is well formed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from coterie.rollouts import Task
from coterie.worlds.base import Constraint, LanguageError
from coterie.worlds.grammar import Grammar, State, compile_grammar
from coterie.worlds.theory.groups import REPS
from coterie.worlds.theory.theory import MAX_FACTORS, TERMS, UNIT, directions_of, group_name

MAX_VEVS, MAX_SCALARS, MAX_FERMIONS, MAX_GENERATIONS = 3, 6, 12, 3
GROUPS = (5, 4, 3, 2, 1)  # factors are written in this order
CHARGES = [f"q={Fraction(q, UNIT)}" for q in range(-3 * UNIT, 3 * UNIT + 1)]
PARAMETERS = {
    "v": (246, 1e3, 1e4, 1e6, 1e10, 1e16),  # GeV
    "m": (10, 100, 1e3, 1e4, 1e6, 1e10, 1e16),  # GeV
    "c": (1, 0.1, 0.01, 1e-3, 1e-4, 1e-6),
}
VALUES = {letter: [f"{letter}={x:g}" for x in values] for letter, values in PARAMETERS.items()}
NAMES = {
    "S": [f"S{i + 1}" for i in range(MAX_SCALARS)],
    "F": [f"F{i + 1}" for i in range(MAX_FERMIONS)],
}
GENERATIONS = [f"x{i + 1}" for i in range(MAX_GENERATIONS)]
# A line of the text begins with one of these.
LINES = ("GAUGE_GROUPS", "SYMMETRY_BREAKING", "VEV", "MULTIPLETS", "SCALAR", "FERMION", "INTERACTIONS", *TERMS, "EOS")
SCALAR_COUNTS = MAX_FERMIONS + 1  # the counter holds scalars * SCALAR_COUNTS + fermions


def plain_words(n: int) -> list[str]:
    """What a field may be under one factor."""
    return CHARGES if n == 1 else list(REPS[n])


def directed_words(n: int) -> list[str]:
    """The same for a scalar with a VEV."""
    if n == 1:
        return CHARGES
    return [f"{name}.{way}" if way else name for name in REPS[n] for way in directions_of(n, name)]


def all_words() -> list[str]:
    fixed = ["EOS", "BOS", "NUM_GAUGE", *LINES[:-1], "LEFT", "RIGHT"]
    groups = [*(f"num_{i + 1}" for i in range(MAX_FACTORS)), *map(group_name, GROUPS)]
    contents = [word for n in GROUPS for words in (plain_words(n), directed_words(n)) for word in words]
    values = [word for words in VALUES.values() for word in words]
    return list(dict.fromkeys([*fixed, *groups, *contents, *GENERATIONS, *NAMES["S"], *NAMES["F"], *values]))


def follow(state: Any) -> dict[str, State]:
    """Which words may come in a state, and where they lead."""
    match state:
        case "begin":
            return {"BOS": "gauge"}
        case "gauge":
            return {"GAUGE_GROUPS": "how many"}
        case "how many":
            return {"NUM_GAUGE": "number"}
        case "number":
            return {f"num_{k}": ("group", k, ()) for k in range(1, MAX_FACTORS + 1)}
        case "group", k, groups:
            last = len(groups) + 1 == k
            allowed = [n for n in GROUPS if not groups or n <= groups[-1]]
            return {group_name(n): ("break" if last else "group", 0 if last else k, (*groups, n)) for n in allowed}
        case "break", _, groups:
            return {"SYMMETRY_BREAKING": ("vevs", groups)}
        case "vevs", groups:
            return {"VEV": ("vev", groups), "MULTIPLETS": ("scalars", groups)}
        case "vev", groups:
            return dict.fromkeys(VALUES["v"], ("content", "vevs", groups, 0))
        case ("scalars" | "fermions") as block, groups:
            begun = {"FERMION": ("chirality", groups), "INTERACTIONS": "terms"}
            return begun | ({"SCALAR": ("content", "scalars", groups, 0)} if block == "scalars" else {})
        case "chirality", groups:
            return dict.fromkeys(("LEFT", "RIGHT"), ("generations", groups))
        case "generations", groups:
            return dict.fromkeys(GENERATIONS, ("content", "fermions", groups, 0))
        case "content", back, groups, place:
            words = (directed_words if back == "vevs" else plain_words)(groups[place])
            last = place + 1 == len(groups)
            return dict.fromkeys(words, (back, groups) if last else ("content", back, groups, place + 1))
        case "terms":
            return {**{kind: ("slot", *shape) for kind, shape in TERMS.items()}, "EOS": "end"}
        case "slot", kinds, letter:
            following = ("slot", kinds[1:], letter) if kinds[1:] else ("value", letter)
            return dict.fromkeys(NAMES[kinds[0]], following)
        case "value", letter:
            return dict.fromkeys(VALUES[letter], "terms")
    assert state == "end", state
    return {}


def role_of(state: Any) -> str:
    """States whose words depend on how many scalars and fermions there are."""
    match state:
        case ("vevs" | "scalars" | "fermions") as block, _:
            return str(block)
        case "slot", kinds, _:
            return f"a {kinds[0]}"
    return "terms" if state == "terms" else ""


def closed_terms(count: int) -> Iterator[str]:
    have = dict(zip("SF", divmod(count, SCALAR_COUNTS), strict=True))
    return (kind for kind, (fields, _) in TERMS.items() if not all(have[field] for field in fields))


LIMITS = {
    "vevs": lambda count: ["VEV"] if count // SCALAR_COUNTS >= MAX_VEVS else [],
    "scalars": lambda count: ["SCALAR"] if count // SCALAR_COUNTS >= MAX_SCALARS else [],
    "fermions": lambda count: ["FERMION"] if count % SCALAR_COUNTS >= MAX_FERMIONS else [],
    "terms": lambda count: list(closed_terms(count)),
    "a S": lambda count: NAMES["S"][count // SCALAR_COUNTS :],
    "a F": lambda count: NAMES["F"][count % SCALAR_COUNTS :],
}


@lru_cache(maxsize=1)
def grammar() -> Grammar:
    counts = {"VEV": SCALAR_COUNTS, "SCALAR": SCALAR_COUNTS, "FERMION": 1}
    num_counts = (MAX_SCALARS + 1) * SCALAR_COUNTS
    return compile_grammar(all_words(), "begin", follow, role_of, LIMITS, num_counts, counts)


@dataclass(frozen=True)
class TheoryLanguage:
    """The answer is the rest of the theory whose beginning is the prompt."""

    max_tokens: int = 512

    @property
    def vocabulary(self) -> Sequence[str]:
        return grammar().vocabulary

    @property
    def end(self) -> int:
        return 0

    def encode_prompt(self, prompt: str) -> list[int]:
        return begin(prompt)[0]

    def encode(self, answer: str) -> list[int]:
        words = answer.split()
        if words[-1:] == ["EOS"]:
            words.pop()
        ids = {word: i for i, word in enumerate(self.vocabulary)}
        for place, word in enumerate(words, 1):
            if word not in ids or word == "EOS":
                raise LanguageError(f"word {place}, {word!r}, is not in the vocabulary of theories")
        if len(words) >= self.max_tokens:
            raise LanguageError(f"the theory has {len(words)} words; write at most {self.max_tokens - 1}")
        return [*(ids[word] for word in words), self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        words = spellings()
        return "".join([words[t] for t in tokens]).lstrip()

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        places = [begin(task.prompt) for task in tasks]
        return grammar().constraint([state for _, state, _ in places], [count for _, _, count in places])


@cache
def spellings() -> list[str]:
    """Each word with what stands before it."""
    return [("\n" if word in LINES else " ") + word for word in grammar().vocabulary]


@lru_cache(maxsize=4096)
def begin(prompt: str) -> tuple[list[int], int, int]:
    """A prompt's tokens, and where the grammar stands after them; BOS where there is none."""
    tokens, state, count = grammar().walk(prompt.split() or ["BOS"])
    if tokens[-1] == 0:
        raise LanguageError("the prompt ends with EOS: there is nothing left to answer")
    return tokens, state, count
