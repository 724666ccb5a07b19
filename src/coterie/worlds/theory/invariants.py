"""Which products of fields are gauge invariant, and which components an invariant couples.

Invariants are counted by characters, in integers: the trivial representation's multiplicity in a product is an
alternating sum over the Weyl group, and symmetric powers (equal fields commute, fermion bilinears are symmetric)
come from cycle types. Couplings to a vacuum value are read off the invariant tensors themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.theory.groups import Weight, conjugate, find_rep, raising, weights
from coterie.worlds.theory.theory import TERMS, Fermion, Scalar, Term, Theory, conjugated, left_handed

Form = tuple[bool, ...]  # which fields of a term enter as conjugates
Character = dict[Weight, int]
FLIP = {"low": "high", "high": "low"}


@cache
def _weyl_terms(n: int) -> tuple[tuple[Weight, int], ...]:
    """(rho - w rho, sign of w) for every permutation w, in Dynkin labels."""
    found = []
    for places in permutations(range(n)):
        sign = round(float(np.linalg.det(np.eye(n)[list(places)])))
        shift = [places[i] - i for i in range(n)]
        found.append((tuple(shift[i] - shift[i + 1] for i in range(n - 1)), sign))
    return tuple(found)


def _times(a: Character, b: Character) -> Character:
    result: Counter[Weight] = Counter()
    for (w, m), (v, k) in product(a.items(), b.items()):
        result[tuple([x + y for x, y in zip(w, v, strict=True)])] += m * k
    return result


@cache
def _power_character(n: int, name: str, power: int) -> Character:
    """Of g^power in this representation: every weight times the power."""
    return Counter(tuple(power * x for x in w) for w in weights(n, find_rep(n, name)))


@lru_cache(maxsize=65_536)
def count_trivial(n: int, factors: tuple[tuple[str, int], ...]) -> int:
    """How often the trivial representation is in this product of characters (name, power of g)."""
    boxes = sum(power * i * a for name, power in factors for i, a in enumerate(find_rep(n, name), 1))
    if boxes % n:
        return 0  # the center of the group already says no
    characters = sorted((_power_character(n, *factor) for factor in factors), key=len)
    total: Character = {(0,) * (n - 1): 1}
    for character in characters[:-1]:
        total = _times(total, character)
    last = characters[-1]
    count = 0
    for shift, sign in _weyl_terms(n):
        # The coefficient of `shift` in total times last, without the whole product.
        for w, m in last.items():
            count += sign * m * total.get(tuple([s - x for s, x in zip(shift, w, strict=True)]), 0)
    return count


@cache
def _cycle_types(size: int) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
    """(share of the symmetric group, cycle lengths)."""
    found: Counter[tuple[int, ...]] = Counter()
    for places in permutations(range(size)):
        lengths, seen = [], set[int]()
        for start in range(size):
            length, at = 0, start
            while at not in seen:
                seen.add(at)
                at, length = places[at], length + 1
            if length:
                lengths.append(length)
        found[tuple(sorted(lengths))] += 1
    return tuple((Fraction(count, factorial(size)), lengths) for lengths, count in found.items())


@lru_cache(maxsize=65_536)
def count_invariants(simple: tuple[int, ...], fields: tuple[tuple[tuple[str, ...], int, int], ...]) -> int:
    """Invariants in a product of (representations, generations, how many of this same field)."""
    total = Fraction(0)
    for choice in product(*(_cycle_types(count) for _, _, count in fields)):
        value = prod((share for share, _ in choice), start=Fraction(1))
        for (_, generations, _), (_, cycles) in zip(fields, choice, strict=True):
            value *= generations ** len(cycles)
        for place, n in enumerate(simple):
            factors = [(f[0][place], c) for f, (_, cycles) in zip(fields, choice, strict=True) for c in cycles]
            value *= count_trivial(n, tuple(sorted(factors)))
        total += value
    assert total.denominator == 1
    return int(total)


def forms_of(theory: Theory, term: Term) -> tuple[Form, ...]:
    """The gauge-invariant forms of a term: for each, which of its fields enter as conjugates."""
    kinds = TERMS[term.kind][0]
    fields: list[Fermion | Scalar] = [
        theory.fermions[i] if kind == "F" else theory.scalars[i] for kind, i in zip(kinds, term.fields, strict=True)
    ]
    return _forms(theory.simple, kinds, term.fields, tuple(fields))


@lru_cache(maxsize=65_536)
def _forms(
    simple: tuple[int, ...], kinds: str, numbers: tuple[int, ...], fields: tuple[Fermion | Scalar, ...]
) -> tuple[Form, ...]:
    contents = [left_handed(f, simple) if isinstance(f, Fermion) else (f.reps, f.charges) for f in fields]
    generations = tuple([f.generations if isinstance(f, Fermion) else 1 for f in fields])
    allowed = _allowed(simple, kinds, numbers, tuple([reps for reps, _ in contents]), generations)
    return tuple([form for form in allowed if _neutral([charges for _, charges in contents], form)])


def _neutral(charges: Sequence[tuple[int, ...]], form: Form) -> bool:
    """Whether the charges under every U(1) add up to zero."""
    for each in zip(*charges, strict=True):
        if sum([-q if bar else q for q, bar in zip(each, form, strict=True)]):
            return False
    return True


@lru_cache(maxsize=65_536)
def _allowed(
    simple: tuple[int, ...],
    kinds: str,
    fields: tuple[int, ...],
    reps: tuple[tuple[str, ...], ...],
    generations: tuple[int, ...],
) -> tuple[Form, ...]:
    """The forms that every SU(N) allows; equal fields are symmetrized.

    Scalars may be conjugated, but not the first of a purely scalar term, which would only write its conjugate.
    """
    found = []
    for form in product(*((False, True) if kind == "S" else (False,) for kind in kinds)):
        if "F" not in kinds and form[0]:
            continue
        slots = Counter(zip(kinds, fields, form, strict=True))
        first = {slot: i for i, slot in reversed(list(enumerate(zip(kinds, fields, form, strict=True))))}
        sets = []
        for slot, count in slots.items():
            ours = reps[first[slot]]
            ours = conjugated(ours, (), simple)[0] if slot[2] else ours
            sets.append((ours, generations[first[slot]], count))
        if count_invariants(simple, tuple(sorted(sets))):
            found.append(form)
    return tuple(found)


@cache
def vacuum(n: int, name: str, direction: str) -> NDArray[np.float64]:
    """The vector that gets the VEV: an extremal component, or the adjoint's diagonal one that splits N into k, N-k."""
    operators, ws = raising(n, find_rep(n, name))
    if direction == "high":
        return np.asarray([float(w == find_rep(n, name)) for w in ws])
    if direction == "low":
        lowest = tuple(-x for x in conjugate(find_rep(n, name)))
        return np.asarray([float(w == lowest) for w in ws])
    if direction == "":
        return np.ones(1)
    neutral = [i for i, w in enumerate(ws) if not any(w)]
    kept = np.concatenate([operators[i][:, neutral] for i in range(n - 1) if i != int(direction) - 1] or [
        np.zeros((1, len(neutral)))
    ])  # fmt: skip
    vector = np.zeros(len(ws))
    vector[neutral] = np.linalg.svd(kept)[2][-1]
    return vector


@cache
def coupled(n: int, a: str, b: str, scalar: str, direction: str) -> tuple[tuple[int, int], ...]:
    """Pairs of components of a and b that some invariant of a, b and the scalar couples through the VEV."""
    vector = vacuum(n, scalar, direction)
    if len(vector) == 1:
        if find_rep(n, b) != conjugate(find_rep(n, a)):
            return ()
        theirs = {w: i for i, w in _places(n, b)}
        # Weights of multiplicity above one stand beside each other in the same order in both.
        return tuple((i, theirs[(tuple(-x for x in w[0]), w[1])]) for i, w in _places(n, a))
    matrices = invariant_tensors(n, (a, b, scalar)) @ vector  # [count, a, b]
    pairs = np.argwhere((np.abs(matrices) > 1e-9).any(0))
    return tuple((int(i), int(j)) for i, j in pairs)


def _places(n: int, name: str) -> Iterator[tuple[int, tuple[Weight, int]]]:
    seen: Counter[Weight] = Counter()
    for i, w in enumerate(raising(n, find_rep(n, name))[1]):
        yield i, (w, seen[w])
        seen[w] += 1


@lru_cache(maxsize=1024)
def invariant_tensors(n: int, names: tuple[str, str, str]) -> NDArray[np.float64]:
    """[count, dim, dim, dim]: a basis of the invariants: neutral tensors that every raising operator annihilates."""
    spaces = [raising(n, find_rep(n, name)) for name in names]
    sizes = [len(ws) for _, ws in spaces]
    neutral = [
        places
        for places in product(*map(range, sizes))
        if not any(sum(space[1][i][r] for space, i in zip(spaces, places, strict=True)) for r in range(n - 1))
    ]
    if not neutral:
        return np.zeros((0, *sizes))
    columns: dict[tuple[int, ...], int] = {}
    entries: list[tuple[int, int, float]] = []
    for column, places in enumerate(neutral):
        for r in range(n - 1):
            for axis, (operators, _) in enumerate(spaces):
                for target in np.flatnonzero(np.abs(operators[r][:, places[axis]]) > 1e-12):
                    moved = (r, *places[:axis], int(target), *places[axis + 1 :])
                    row = columns.setdefault(moved, len(columns))
                    entries.append((row, column, float(operators[r][target, places[axis]])))
    matrix = np.zeros((max(len(columns), 1), len(neutral)))
    for row, column, value in entries:
        matrix[row, column] += value
    values, rows = np.linalg.svd(matrix, full_matrices=True)[1:]
    rank = int((values > 1e-9).sum())
    tensors = np.zeros((len(neutral) - rank, *sizes))
    for tensor, row_values in zip(tensors, rows[rank:], strict=True):
        tensor[tuple(np.array(neutral).T)] = row_values
    return tensors
