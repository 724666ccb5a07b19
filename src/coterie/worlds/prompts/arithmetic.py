"""Sums in words, for a world that was told of no file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

WORDS = ("plus", "minus", "times")
NUM_QUESTIONS = 1500
INSTRUCTION = "Answer with the number only."


def questions(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Distinct questions with their answers, always the same ones."""
    rng = np.random.default_rng(seed)
    seen: set[tuple[int, int, int]] = set()
    while len(seen) < NUM_QUESTIONS:
        kind = int(rng.integers(len(WORDS)))
        first, second = (int(n) for n in rng.integers(2, 13 if WORDS[kind] == "times" else 60, 2))
        # There are but 121 products.
        if (kind, first, second) in seen:
            continue
        seen.add((kind, first, second))
        answer = (first + second, first - second, first * second)[kind]
        prompt = f"What is {first} {WORDS[kind]} {second}? {INSTRUCTION}"
        yield {"prompt": prompt, "answer": str(answer), "kind": WORDS[kind], "largest": max(first, second)}
