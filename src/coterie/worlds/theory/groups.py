"""SU(N) representations, exactly: weights, dimension, index, cubic anomaly, and the matrices of raising operators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.base import LanguageError

Dynkin = tuple[int, ...]  # N - 1 labels
Weight = tuple[int, ...]  # in the same basis

# What the language can say, by dimension; a bar is the conjugate.
REPS: dict[int, dict[str, Dynkin]] = {
    2: {"1": (0,), "2": (1,), "3": (2,), "4": (3,), "5": (4,)},
    3: {
        "1": (0, 0),
        "3": (1, 0),
        "3bar": (0, 1),
        "6": (2, 0),
        "6bar": (0, 2),
        "8": (1, 1),
        "10": (3, 0),
        "10bar": (0, 3),
    },
    4: {
        "1": (0, 0, 0),
        "4": (1, 0, 0),
        "4bar": (0, 0, 1),
        "6": (0, 1, 0),
        "10": (2, 0, 0),
        "10bar": (0, 0, 2),
        "15": (1, 0, 1),
    },
    5: {
        "1": (0, 0, 0, 0),
        "5": (1, 0, 0, 0),
        "5bar": (0, 0, 0, 1),
        "10": (0, 1, 0, 0),
        "10bar": (0, 0, 1, 0),
        "15": (2, 0, 0, 0),
        "15bar": (0, 0, 0, 2),
        "24": (1, 0, 0, 1),
    },
}
NAMES = {n: {labels: name for name, labels in reps.items()} for n, reps in REPS.items()}
MAX_DIMENSION = 200  # of a representation given by its Dynkin labels


@cache
def find_rep(n: int, name: str) -> Dynkin:
    """The Dynkin labels of a representation by its name, or as they are written: [2,1]."""
    if name in REPS[n]:
        return REPS[n][name]
    labels = name.strip("[]").split(",")
    if name.startswith("[") and name.endswith("]") and len(labels) == n - 1 and all(s.isdigit() for s in labels):
        found = tuple(map(int, labels))
        if dimension(n, found) <= MAX_DIMENSION:
            return found
        raise LanguageError(f"the representation {name} of SU({n}) has more than {MAX_DIMENSION} components")
    raise LanguageError(
        f"SU({n}) has no representation {name!r} here; write one of {', '.join(REPS[n])}, "
        f"or its {n - 1} Dynkin labels as in [{','.join('1' * (n - 1))}]"
    )


def rep_name(n: int, rep: Dynkin) -> str:
    return NAMES[n].get(rep, f"[{','.join(map(str, rep))}]")


def conjugate(rep: Dynkin) -> Dynkin:
    return rep[::-1]


def dimension(n: int, rep: Dynkin) -> int:
    """Weyl's formula."""
    top = bottom = 1
    for i in range(n - 1):
        for j in range(i + 1, n):
            top *= sum(rep[i:j]) + j - i
            bottom *= j - i
    return top // bottom


@cache
def contents(n: int, rep: Dynkin) -> tuple[tuple[int, ...], ...]:
    """How often each of 1..N stands in every semistandard tableau of this shape: the weights, in e_i's."""

    def below(row: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Rows of a Gelfand-Tsetlin pattern that may stand under this one."""
        yield from product(*(range(row[i + 1], row[i] + 1) for i in range(len(row) - 1)))

    def fill(row: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(row) == 1:
            yield row
            return
        for under in below(row):
            for inner in fill(under):
                yield (*inner, sum(row) - sum(under))

    return tuple(fill((*(sum(rep[i:]) for i in range(n - 1)), 0)))


@cache
def weights(n: int, rep: Dynkin) -> tuple[Weight, ...]:
    """Every component's weight in Dynkin labels, multiplicities written out."""
    return tuple(tuple(c[i] - c[i + 1] for i in range(n - 1)) for c in contents(n, rep))


@cache
def twice_index(n: int, rep: Dynkin) -> int:
    """2 T(R), 1 for the fundamental: the trace of diag(1, -1, 0, …)^2 over that of the fundamental."""
    return sum(w[0] ** 2 for w in weights(n, rep)) // 2


@cache
def cubic_anomaly(n: int, rep: Dynkin) -> int:
    """A(R), 1 for the fundamental: the trace of diag(1, …, 1, -(N-1))^3 over that of the fundamental."""
    if n == 2:
        return 0
    boxes = sum(i * a for i, a in enumerate(rep, 1))
    trace = sum((boxes - n * c[-1]) ** 3 for c in contents(n, rep))
    return trace // ((n - 1) - (n - 1) ** 3)


@cache
def raising(n: int, rep: Dynkin) -> tuple[NDArray[np.float64], tuple[Weight, ...]]:
    """[N-1, dim, dim] the raising operators of the simple roots, and the weight of each component.

    Made inside a tensor power of the fundamental by lowering its highest vector; a representation whose
    conjugate needs fewer boxes is made from that.
    """
    if sum(i * a for i, a in enumerate(rep, 1)) > sum(i * a for i, a in enumerate(conjugate(rep), 1)):
        operators, theirs = raising(n, conjugate(rep))
        return -operators.transpose(0, 2, 1), tuple(tuple(-x for x in w) for w in theirs)
    top: NDArray[np.float64] = np.ones(1)
    for i, count in enumerate(rep, 1):
        for _ in range(count):
            top = np.asarray(np.kron(top, _antisymmetric_top(n, i)), np.float64)
    boxes = sum(i * a for i, a in enumerate(rep, 1))
    basis: dict[Weight, list[NDArray[np.float64]]] = {rep: [top]}
    queue = [(rep, top)]
    while queue:
        weight, vector = queue.pop()
        for i in range(n - 1):
            lower = _shift(n, boxes, vector, i + 1, i)
            under = tuple(w - r for w, r in zip(weight, _simple_root(n, i), strict=True))
            for known in basis.get(under, []):
                lower = lower - known * (known @ lower)
            size = np.linalg.norm(lower)
            if size > 1e-9:
                basis.setdefault(under, []).append(lower / size)
                queue.append((under, lower / size))
    vectors = np.array([v for vs in basis.values() for v in vs])
    operators = np.array([vectors @ np.array([_shift(n, boxes, v, i, i + 1) for v in vectors]).T for i in range(n - 1)])
    return operators, tuple(weight for weight, vs in basis.items() for _ in vs)


def _simple_root(n: int, i: int) -> Weight:
    """In Dynkin labels: a row of the Cartan matrix."""
    return tuple(2 if j == i else -1 if abs(i - j) == 1 else 0 for j in range(n - 1))


def _antisymmetric_top(n: int, order: int) -> NDArray[np.float64]:
    """The highest vector of the antisymmetric tensors of this order, normalized."""
    from itertools import permutations

    tensor = np.zeros((n,) * order)
    for places in permutations(range(order)):
        tensor[places] = np.linalg.det(np.eye(order)[list(places)])
    return np.asarray(tensor.ravel() / np.linalg.norm(tensor))


def _shift(n: int, boxes: int, vector: NDArray[np.float64], to: int, source: int) -> NDArray[np.float64]:
    """The operator that turns e_source into e_to, on each box in turn."""
    tensor = vector.reshape((n,) * boxes) if boxes else vector
    result = np.zeros_like(tensor)
    for axis in range(boxes):
        moved, from_ = np.moveaxis(result, axis, 0), np.moveaxis(tensor, axis, 0)
        moved[to] += from_[source]
    return result.ravel()
