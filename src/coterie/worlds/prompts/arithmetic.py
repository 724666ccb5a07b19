"""Sums in words, for a world that was told of no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

WORDS = ("plus", "minus", "times")
NUM_QUESTIONS = 1500
LARGEST_FACTOR = 12  # as far as people know them by heart
INSTRUCTION = "Answer with the number only."


def questions(words: Sequence[str] = WORDS, largest: int = 59, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Distinct questions with their answers, always the same ones in the same order; no answer is below zero."""
    all_of_them = [
        (word, first, second)
        for word in words
        for first in range(1, 1 + (min(largest, LARGEST_FACTOR) if word == "times" else largest))
        for second in range(1, 1 + {"plus": largest, "minus": first, "times": min(largest, LARGEST_FACTOR)}[word])
    ]
    for place in np.random.default_rng(seed).permutation(len(all_of_them))[:NUM_QUESTIONS]:
        word, first, second = all_of_them[place]
        answer = {"plus": first + second, "minus": first - second, "times": first * second}[word]
        prompt = f"What is {first} {word} {second}? {INSTRUCTION}"
        yield {"prompt": prompt, "answer": str(answer), "kind": word, "largest": max(first, second)}
