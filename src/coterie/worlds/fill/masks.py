"""Which places of a text are blank: here and there, in clusters, or in spans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.rollouts import Bools

STICKINESS = 0.8  # how often the next blank of a sticky mask lies next to one
SPAN_LENGTH = 5.0  # places, on average


def random(length: int, count: int, rng: np.random.Generator) -> Bools:
    """Every place is as likely as any other."""
    blank = np.zeros(length, np.bool_)
    blank[rng.choice(length, count, replace=False)] = True
    return blank


def sticky(length: int, count: int, rng: np.random.Generator) -> Bools:
    """A place is likelier next to a blank."""
    free, beside = set(range(length)), set[int]()
    for _ in range(count):
        places = sorted(beside if beside and rng.random() < STICKINESS else free)
        place = places[int(rng.integers(len(places)))]
        free.remove(place)
        beside = (beside | {place - 1, place + 1}) & free
    return np.array([place not in free for place in range(length)])


def span(length: int, count: int, rng: np.random.Generator) -> Bools:
    """Runs of geometric length, anywhere."""
    blank = np.zeros(length, np.bool_)
    while (missing := count - int(blank.sum())) > 0:
        size = min(int(rng.geometric(1 / SPAN_LENGTH)), missing)
        start = int(rng.integers(0, length - size + 1))
        blank[start : start + size] = True
    return blank


MASKS: dict[str, Callable[[int, int, np.random.Generator], Bools]] = {"random": random, "sticky": sticky, "span": span}
