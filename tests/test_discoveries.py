"""What was found before is worth less."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import Score
from coterie.training.discoveries import Discoveries, distinct_share


def found(identity: str) -> Score:
    return Score(1.0, success=bool(identity), identity=identity)


def test_novelty_is_one_over_the_root_of_how_often_it_was_found() -> None:
    known = Discoveries()
    known.counts = {"a": 3}
    scores = [[found("a"), found("b"), found("")], [found("c"), found("c"), found("c")]]
    expected = [[1 / 2, 1, 0], [1 / np.sqrt(3)] * 3]  # a for the fourth time; c three times at once
    assert known.novelty(scores) == pytest.approx(np.array(expected))


def test_the_share_of_distinct_successes_counts_each_once() -> None:
    assert distinct_share([[found("a"), found("b")], [found("a"), found("")]]) == {"distinct_successes": 2 / 3}
    assert distinct_share([[found("")]]) == {}
