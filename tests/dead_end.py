"""A constraint that leaves nothing to say."""

from __future__ import annotations

import numpy as np


class DeadEnd:
    """Nothing is legal at the third place."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self.rows, self.vocabulary, self.place = rows, vocabulary, 0

    def legal(self) -> np.ndarray:
        return np.full((self.rows, self.vocabulary), self.place < 2) & (np.arange(self.vocabulary) > 1)

    def advance(self, tokens: np.ndarray) -> None:
        self.place += 1

    def keep(self, rows: np.ndarray) -> None:
        self.rows = len(rows)
