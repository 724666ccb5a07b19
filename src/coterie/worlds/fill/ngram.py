"""A judge that nobody trains against: an n-gram model of the characters of the training text."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

START = "\x02"  # what stands before a text


class NgramModel:
    """Interpolated n-grams. Witten and Bell (1991): a context backs off the more, the more it is followed by."""

    def __init__(self, texts: Sequence[str], order: int, num_characters: int) -> None:
        self.order, self.num_characters = order, num_characters
        self.seen: defaultdict[str, int] = defaultdict(int)  # context and character
        self.total: defaultdict[str, int] = defaultdict(int)  # context
        self.kinds: defaultdict[str, int] = defaultdict(int)  # different characters after a context
        for text in texts:
            self._count(START * (order - 1) + text)

    def _count(self, text: str) -> None:
        for length in range(self.order):  # of the context
            grams = Counter(text[end - length : end + 1] for end in range(self.order - 1, len(text)))
            for gram, count in grams.items():
                self.kinds[gram[:-1]] += gram not in self.seen
                self.seen[gram] += count
                self.total[gram[:-1]] += count

    def log_probability(self, text: str) -> float:
        """Nats a character, on average; 0 for an empty text."""
        padded = START * (self.order - 1) + text
        places = range(self.order - 1, len(padded))
        return sum(math.log(self._probability(padded, place)) for place in places) / max(len(text), 1)

    def _probability(self, text: str, place: int) -> float:
        """Of one character after those before it: the longest context first in importance, last in the loop."""
        p = 1.0 / (self.num_characters + 1)
        for start in range(place, place - self.order, -1):
            total = self.total.get(text[start:place], 0)
            if total == 0:
                break  # longer contexts have not been seen either
            kinds = self.kinds[text[start:place]]
            p = (self.seen.get(text[start : place + 1], 0) + kinds * p) / (total + kinds)
        return p
