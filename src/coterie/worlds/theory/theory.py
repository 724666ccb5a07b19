"""A theory and its text: gauge groups, scalars and what they break, fermions, interactions.

    BOS
    GAUGE_GROUPS NUM_GAUGE num_3 SU3 SU2 U1
    SYMMETRY_BREAKING
    VEV v=246 1 2.low q=1/2             S1: a scalar, and the component that gets a vacuum expectation value
    MULTIPLETS
    SCALAR 1 2 q=1/2                    S2
    FERMION LEFT x3 3 2 q=1/6           F1: chirality, generations, a representation or charge for each group
    FERMION RIGHT x3 3 1 q=2/3          F2
    INTERACTIONS
    YUKAWA F1 F2 S1 c=1
    EOS

Line breaks do not matter; what follows # on a line is for people. A term stands for the sum of all its
gauge-invariant forms: scalars may enter as themselves or as their conjugates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, lru_cache
from math import inf, lcm
from typing import Any, NamedTuple

from coterie.worlds.base import LanguageError
from coterie.worlds.theory.groups import REPS, conjugate, find_rep, rep_name

UNIT = 6  # charges are whole numbers of sixths, unless a text says otherwise
MAX_FACTORS = 4
COUNTS = tuple(f"num_{i}" for i in range(1, MAX_FACTORS + 1))

# A term: the kinds of its fields, and the letter of its parameter.
TERMS = {
    "PHI2": ("SS", "m"),
    "PHI3": ("SSS", "m"),
    "PHI4": ("SSSS", "c"),
    "YUKAWA": ("FFS", "c"),
    "MASS": ("FF", "m"),
}


class Scalar(NamedTuple):
    """A complex scalar multiplet; with a VEV, also which component has it."""

    reps: tuple[str, ...]  # one for each SU(N), in order
    charges: tuple[int, ...]  # one for each U(1), in units of the theory's 1/unit
    vev: float | None = None  # GeV
    directions: tuple[str, ...] = ()  # for each SU(N): "low", "high", or k where an adjoint splits N into k and N-k


class Fermion(NamedTuple):
    """A Weyl fermion multiplet."""

    left: bool
    generations: int
    reps: tuple[str, ...]
    charges: tuple[int, ...]


class Term(NamedTuple):
    """An interaction; fields are counted from 0."""

    kind: str
    fields: tuple[int, ...]  # for YUKAWA: two fermions and a scalar
    parameter: float


class Theory(NamedTuple):
    """Everything that a text says."""

    groups: tuple[int, ...]  # N for SU(N), 1 for U(1)
    scalars: tuple[Scalar, ...]
    fermions: tuple[Fermion, ...]
    terms: tuple[Term, ...]
    unit: int = UNIT

    @property
    def simple(self) -> tuple[int, ...]:
        """The N of each SU(N)."""
        return simple_factors(self.groups)

    @property
    def num_abelian(self) -> int:
        return self.groups.count(1)

    @property
    def vevs(self) -> tuple[Scalar, ...]:
        return tuple(s for s in self.scalars if s.vev is not None)

    def charge(self, value: int) -> Fraction:
        return Fraction(value, self.unit)


@cache
def simple_factors(groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in groups if n > 1)


@cache
def conjugate_name(n: int, name: str) -> str:
    return rep_name(n, conjugate(find_rep(n, name)))


@lru_cache(maxsize=65_536)
def left_handed(fermion: Fermion, simple: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Representations and charges of the left-handed field: a right-handed one counts as its conjugate."""
    if fermion.left:
        return fermion.reps, fermion.charges
    return conjugated(fermion.reps, fermion.charges, simple)


@lru_cache(maxsize=65_536)
def conjugated(
    reps: tuple[str, ...], charges: tuple[int, ...], simple: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple([conjugate_name(n, r) for n, r in zip(simple, reps, strict=True)]), tuple([-q for q in charges])


def without_idle_groups(theory: Theory) -> Theory:
    """The theory without the groups under which nothing transforms; what they do, nothing can see."""
    fields: list[Fermion | Scalar] = [*theory.fermions, *theory.scalars]
    busy_simple = [i for i in range(len(theory.simple)) if any(f.reps[i] != "1" for f in fields)]
    busy_abelian = [u for u in range(theory.num_abelian) if any(f.charges[u] for f in fields)]
    if len(busy_simple) + len(busy_abelian) == len(theory.groups):
        return theory

    def part(words: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
        return tuple([words[i] for i in places])

    simple = [theory.simple[i] for i in busy_simple]
    return theory._replace(
        groups=(*simple, *(1,) * len(busy_abelian)),
        scalars=tuple(
            [
                Scalar(
                    part(s.reps, busy_simple),
                    part(s.charges, busy_abelian),
                    s.vev,
                    part(s.directions, busy_simple) if s.directions else (),
                )
                for s in theory.scalars
            ]
        ),
        fermions=tuple(
            [f._replace(reps=part(f.reps, busy_simple), charges=part(f.charges, busy_abelian)) for f in theory.fermions]
        ),
    )


class Unfinished(LanguageError):
    """The text stops before EOS."""


class Wrong(Exception):
    """The word at this place after the beginning of a line will not do; what would is told."""

    def __init__(self, place: int, wanted: str) -> None:
        super().__init__(wanted)
        self.place = place


class Reader:
    """Takes words line by line and says where they go wrong."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.place = words, 0

    def expect(self, *wanted: str) -> str:
        [word] = self.take(1)
        if word not in wanted:
            raise self.wrong(0, " or ".join(wanted))
        return word

    def take(self, count: int) -> tuple[str, ...]:
        """The next words, which belong together."""
        end = self.place + count
        if end > len(self.words):
            raise Unfinished(f"the theory stops after {len(self.words)} words, before EOS")
        taken = tuple(self.words[self.place : end])
        self.place, self.start = end, self.place
        return taken

    def wrong(self, place: int, wanted: str) -> LanguageError:
        """About a word among those that were taken last."""
        return LanguageError(f"word {self.start + place + 1} is {self.words[self.start + place]!r}; write {wanted}")


def parse_theory(text: str) -> Theory:
    """The theory that a text spells; LanguageError says which word is wrong and what could stand there."""
    reader = Reader(without_comments(text).split())
    try:
        return _read_theory(reader)
    except Wrong as wrong:
        raise reader.wrong(wrong.place, str(wrong)) from None


def without_comments(text: str) -> str:
    return re.sub(r"#.*", "", text) if "#" in text else text


def _read_theory(reader: Reader) -> Theory:
    for word in ("BOS", "GAUGE_GROUPS", "NUM_GAUGE"):
        reader.expect(word)
    number = int(reader.expect(*COUNTS)[4:])
    groups = read_groups(reader.take(number))
    size = len(groups)
    scalars: list[Content] = []
    fermions: list[tuple[bool, int, Content]] = []
    terms: list[Term] = []
    reader.expect("SYMMETRY_BREAKING")
    while reader.expect("VEV", "MULTIPLETS") == "VEV":
        scalars.append(read_vacuum(groups, reader.take(1 + size)))
    while (word := reader.expect("SCALAR", "FERMION", "INTERACTIONS")) == "SCALAR":
        scalars.append(read_content(groups, reader.take(size)))
    while word == "FERMION":
        fermions.append(read_fermion(groups, reader.take(2 + size)))
        word = reader.expect("FERMION", "INTERACTIONS")
    while (word := reader.expect(*TERMS, "EOS")) != "EOS":
        terms.append(read_term(word, len(scalars), len(fermions), reader.take(len(TERMS[word][0]) + 1)))
    if reader.place < len(reader.words):
        reader.take(1)
        raise reader.wrong(0, "nothing after EOS")
    # Charges become whole numbers of the smallest unit that holds them all.
    contents = [*scalars, *(content for _, _, content in fermions)]
    unit = lcm(UNIT, *{q.denominator for content in contents for q in content.charges})
    return Theory(
        groups,
        tuple([Scalar(c.reps, in_units(c.charges, unit), c.vev, c.directions) for c in scalars]),
        tuple([Fermion(left, count, c.reps, in_units(c.charges, unit)) for left, count, c in fermions]),
        tuple(terms),
        unit,
    )


class Content(NamedTuple):
    """What a line says of a field."""

    reps: tuple[str, ...]
    charges: tuple[Fraction, ...]
    vev: float | None = None
    directions: tuple[str, ...] = ()


# The same lines come again and again in training: reading them is remembered.
remembered = lru_cache(maxsize=65_536)


@remembered
def in_units(charges: tuple[Fraction, ...], unit: int) -> tuple[int, ...]:
    return tuple(q.numerator * (unit // q.denominator) for q in charges)


@remembered
def read_groups(words: tuple[str, ...]) -> tuple[int, ...]:
    known = {"U1": 1, **{f"SU{n}": n for n in REPS}}
    for place, word in enumerate(words):
        if word not in known:
            raise Wrong(place, " or ".join(known))
    return tuple(known[word] for word in words)


@remembered
def read_content(groups: tuple[int, ...], words: tuple[str, ...], after: int = 0) -> Content:
    """A representation or a charge for each factor; `after` words of the line came before these."""
    reps, charges = [], []
    for place, (n, word) in enumerate(zip(groups, words, strict=True), after):
        if n == 1:
            if not re.fullmatch(r"q=[+-]?\d{1,9}(/[1-9]\d{0,8})?", word):
                raise Wrong(place, "a charge, as in q=1/6 or q=-1")
            charges.append(Fraction(word[2:]))
            continue
        try:
            reps.append(rep_name(n, find_rep(n, word)))
        except LanguageError as error:
            raise Wrong(place, f"a representation: {error}") from None
    return Content(tuple(reps), tuple(charges))


@remembered
def read_vacuum(groups: tuple[int, ...], words: tuple[str, ...]) -> Content:
    """The VEV, then a scalar's content with the component that has it: 2.low, 3.high, 24.3."""
    parts = [word.partition(".") for word in words[1:]]
    names = tuple(word if n == 1 else name for n, word, (name, _, _) in zip(groups, words[1:], parts, strict=True))
    content = read_content(groups, names, after=1)
    directions = []
    for place, (n, (name, _, way)) in enumerate(zip(groups, parts, strict=True), 1):
        if n > 1:
            ways = directions_of(n, name)
            if way not in ways:
                raise Wrong(place, " or ".join(f"{name}.{each}" if each else name for each in ways))
            directions.append(way)
    return content._replace(vev=read_value(words[0], "v", 0), directions=tuple(directions))


@remembered
def read_fermion(groups: tuple[int, ...], words: tuple[str, ...]) -> tuple[bool, int, Content]:
    if words[0] not in ("LEFT", "RIGHT"):
        raise Wrong(0, "LEFT or RIGHT")
    if not re.fullmatch(r"x[1-9]\d?", words[1]):
        raise Wrong(1, "the number of generations, as in x3")
    return words[0] == "LEFT", int(words[1][1:]), read_content(groups, words[2:], after=2)


@remembered
def read_term(kind: str, num_scalars: int, num_fermions: int, words: tuple[str, ...]) -> Term:
    letters, parameter = TERMS[kind]
    fields = []
    for place, (letter, word) in enumerate(zip(letters, words, strict=False)):
        count, what = {"S": (num_scalars, "scalar"), "F": (num_fermions, "fermion")}[letter]
        index = int(word[1:]) - 1 if word[:1] == letter and word[1:].isdecimal() else -1
        if not 0 <= index < count:
            raise Wrong(place, f"one of {letter}1 to {letter}{count}" if count else f"no such term: there is no {what}")
        fields.append(index)
    return Term(kind, tuple(fields), read_value(words[-1], parameter, len(letters)))


def read_value(word: str, letter: str, place: int) -> float:
    """A positive number after its letter."""
    try:
        value = float(word[2:]) if word[:2] == f"{letter}=" else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise Wrong(place, f"{letter}= and a number above 0, as in {letter}=100")
    return value


@cache
def directions_of(n: int, name: str) -> tuple[str, ...]:
    """Components that can have a VEV: the lowest, the highest, or an adjoint's diagonal ones."""
    rep = find_rep(n, name)
    if not any(rep):
        return ("",)
    adjoint = (2,) if n == 2 else (1, *(0,) * (n - 3), 1)
    return ("low", "high", *(str(k) for k in range(1, n) if rep == adjoint))


def group_name(n: int) -> str:
    return "U1" if n == 1 else f"SU{n}"


def print_theory(theory: Theory) -> str:
    """The text of a theory, a line for each thing it says; `parse_theory` is its inverse."""

    def content(reps: tuple[str, ...], charges: tuple[int, ...], directions: tuple[str, ...] = ()) -> str:
        left, right = iter(zip(reps, directions or ("",) * len(reps), strict=True)), iter(charges)
        words = []
        for n in theory.groups:
            if n == 1:
                words.append(f"q={theory.charge(next(right))}")
            else:
                rep, direction = next(left)
                words.append(f"{rep}.{direction}" if direction else rep)
        return " ".join(words)

    names = " ".join(map(group_name, theory.groups))
    lines = ["BOS", f"GAUGE_GROUPS NUM_GAUGE num_{len(theory.groups)} {names}", "SYMMETRY_BREAKING"]
    lines += [f"VEV v={s.vev:g} {content(s.reps, s.charges, s.directions)}" for s in theory.vevs]
    lines += ["MULTIPLETS"]
    lines += [f"SCALAR {content(s.reps, s.charges)}" for s in theory.scalars if s.vev is None]
    for f in theory.fermions:
        lines.append(f"FERMION {'LEFT' if f.left else 'RIGHT'} x{f.generations} {content(f.reps, f.charges)}")
    lines += ["INTERACTIONS"]
    for term in theory.terms:
        kinds, letter = TERMS[term.kind]
        fields = " ".join(f"{kind}{field + 1}" for kind, field in zip(kinds, term.fields, strict=True))
        lines.append(f"{term.kind} {fields} {letter}={term.parameter:g}")
    return "\n".join([*lines, "EOS", ""])
