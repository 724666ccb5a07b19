"""How many threads a small policy is fastest with: beyond some, they wait for each other longer than they compute."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from coterie.engines.torch.small.transformer import PolicyShape, Transformer

WORTH_IT = 1.1  # more threads must bring a tenth, so that chance does not choose
TOKENS = 2  # written and learned from in every row of a trial


def fastest_threads(shape: PolicyShape, rows: int, cores: int) -> int:
    """For a policy of this shape that writes so many answers at once."""
    before = torch.get_num_threads()
    try:
        return pick_threads(make_trial(shape, rows), cores)
    finally:
        torch.set_num_threads(before)


def pick_threads(seconds: Callable[[], float], cores: int) -> int:
    """Twice as many, and at last all, until that is clearly slower; `seconds` tries with the threads that torch has."""
    chosen, best = 1, torch.inf
    counts = [2**power for power in range(cores.bit_length()) if 2**power < cores]
    for count in [*counts, cores]:
        torch.set_num_threads(count)
        seconds()  # new threads start
        taken = min(seconds(), seconds())
        if taken > WORTH_IT * best:
            break
        if WORTH_IT * taken < best:
            chosen, best = count, taken
    return chosen


def make_trial(shape: PolicyShape, rows: int) -> Callable[[], float]:
    """Some tokens written one after the other, and an update's work on as many."""
    with torch.random.fork_rng([]):
        model = Transformer(shape)
    places = torch.arange(TOKENS).expand(rows, TOKENS)
    tokens = places % shape.vocabulary

    def seconds() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            for place in range(TOKENS):
                model.head(model(tokens[:, place : place + 1], places[:, place : place + 1]))
        model.head(model(tokens, places)).logsumexp(-1).mean().backward()
        model.zero_grad()
        return time.perf_counter() - start

    return seconds
