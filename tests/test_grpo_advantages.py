"""Advantages against numbers computed by hand and against brute force, and the same in numpy, torch and jax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.grpo.advantages import (
    ADVANTAGES,
    batch_standardized,
    best_minus_second,
    centered,
    clip_advantages,
    has_signal,
    leave_one_out,
    pass_at_k,
    pass_at_k_binary,
    standardized,
    with_baseline,
)
from test_grpo import every_library, in_every_library

every_estimator = pytest.mark.parametrize("name", ADVANTAGES)


@every_library
def test_standardized_by_hand(make: Callable[[Any], Any]) -> None:
    # Mean 2.5, deviations -2.5 -1.5 .5 3.5, squares sum to 21, unbiased std sqrt(7).
    result = np.asarray(standardized(make(np.array([[0.0, 1.0, 3.0, 6.0]])), eps=0.0))
    np.testing.assert_allclose(result, np.array([[-2.5, -1.5, 0.5, 3.5]]) / math.sqrt(7), rtol=1e-12)


@every_library
def test_float_noise_is_no_signal(make: Callable[[Any], Any]) -> None:
    rewards = make(np.array([[0.1 + 0.2, 0.3, 0.3], [0.0, 0.0, 1.0]]))
    assert np.asarray(has_signal(rewards)).tolist() == [False, True]
    assert np.asarray(standardized(rewards))[0].tolist() == [0.0, 0.0, 0.0]


@given(arrays(np.float64, (3, 5), elements=st.floats(-1e3, 1e3)), st.floats(-100, 100), st.floats(0.1, 10))
def test_advantages_do_not_see_shift_or_scale(rewards: np.ndarray, shift: float, scale: float) -> None:
    plain = standardized(rewards)
    np.testing.assert_allclose(plain.sum(1), 0, atol=1e-9)
    wide = np.ptp(rewards, axis=1) > 1e-2
    np.testing.assert_allclose(standardized(rewards * scale + shift)[wide], plain[wide], rtol=1e-3, atol=1e-4)


@every_library
def test_signal_may_be_asked_of_another_metric_and_tolerance(make: Callable[[Any], Any]) -> None:
    success = make(np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    assert np.asarray(has_signal(success)).tolist() == [False, True]
    near = make(np.array([[0.50, 0.52, 0.51]]))
    assert np.asarray(has_signal(near, tolerance=0.1)).tolist() == [False]


@every_library
def test_centered_and_leave_one_out_by_hand(make: Callable[[Any], Any]) -> None:
    rewards = make(np.array([[0.0, 1.0, 3.0, 6.0]]))
    np.testing.assert_allclose(np.asarray(centered(rewards)), [[-2.5, -1.5, 0.5, 3.5]])
    # The means of the others are 10/3, 9/3, 7/3, 4/3.
    np.testing.assert_allclose(np.asarray(leave_one_out(rewards)), [[-10 / 3, -2.0, 2 / 3, 14 / 3]])


@every_library
def test_batch_standardized_by_hand(make: Callable[[Any], Any]) -> None:
    # The batch 0 2 4 6 has mean 3, squares 9 1 1 9, unbiased std sqrt(20/3); the groups have means 1 and 5.
    result = np.asarray(batch_standardized(make(np.array([[0.0, 2.0], [4.0, 6.0]])), eps=0.0))
    np.testing.assert_allclose(result, np.array([[-1, 1], [-1, 1]]) / math.sqrt(20 / 3))


@every_library
def test_pass_at_k_by_hand(make: Callable[[Any], Any]) -> None:
    rewards = make(np.array([[3.0, 0.0, 7.0, 1.0]]))
    np.testing.assert_allclose(np.asarray(pass_at_k(rewards, 2)), [[5 / 3, 0, 17 / 3, 1 / 3]])
    # Of the three triples with 7, the seconds are 1, 3, 3; of those with 3, one has no 7: 3 - 1.
    np.testing.assert_allclose(np.asarray(pass_at_k(rewards, 3)), [[2 / 3, 0, 14 / 3, 0]])
    np.testing.assert_allclose(np.asarray(pass_at_k(rewards, 4)), [[0, 0, 4, 0]])


def brute_force(rewards: Sequence[float], k: int) -> list[float]:
    """The mean over the k-subsets that hold i of max(subset) - max(subset without i)."""
    found = []
    for i, mine in enumerate(rewards):
        others = [reward for j, reward in enumerate(rewards) if j != i]
        gains = [max(mine, *rest) - max(rest) for rest in combinations(others, k - 1)]
        found.append(sum(gains) / len(gains))
    return found


# Halves, so that ties are common and spreads are never mistaken for noise.
groups = st.integers(2, 8).flatmap(lambda size: st.lists(st.integers(-20, 20), min_size=size, max_size=size))


@given(groups)
def test_pass_at_k_equals_brute_force_for_every_k(doubled: list[int]) -> None:
    rewards = [value / 2 for value in doubled]
    for k in range(2, len(rewards) + 1):
        np.testing.assert_allclose(pass_at_k(np.array([rewards]), k)[0], brute_force(rewards, k), atol=1e-12)


@pytest.mark.parametrize("group_size", range(2, 9))
def test_pass_at_k_equals_brute_force_in_groups_of(group_size: int) -> None:
    rewards = np.random.default_rng(group_size).normal(0, 3, (4, group_size))
    for k in range(2, group_size + 1):
        expected = [brute_force(row.tolist(), k) for row in rewards]
        np.testing.assert_allclose(pass_at_k(rewards, k), expected, rtol=1e-12, atol=1e-12)


@given(groups)
def test_pass_at_one_is_centered_times_a_factor(doubled: list[int]) -> None:
    rewards = np.array([doubled]) / 2
    size = rewards.shape[1]
    np.testing.assert_allclose(pass_at_k(rewards, 1), centered(rewards) * size / (size - 1), atol=1e-12)


@pytest.mark.parametrize("k", [2, 7, 32, 63, 64])
def test_pass_at_k_is_exact_in_large_groups(k: int) -> None:
    rewards = np.random.default_rng(k).permutation(64).astype(float)
    # The answer at place p gains p - q with weight C(q, k-2); exact in fractions, where C(63, 31) has 60 bits.
    total = math.comb(63, k - 1)
    by_place = [float(sum(Fraction(math.comb(q, k - 2) * (p - q), total) for q in range(p))) for p in range(64)]
    np.testing.assert_allclose(pass_at_k(rewards[None], k)[0], np.array(by_place)[rewards.astype(int)], rtol=1e-13)


def test_pass_at_k_keeps_its_digits_far_from_zero() -> None:
    rewards = np.array([[0.0, 1.0, 3.0, 7.0]])
    np.testing.assert_allclose(pass_at_k(rewards + 2.0**40, 2), pass_at_k(rewards, 2), rtol=1e-12)


@every_library
def test_pass_at_k_binary_by_hand(make: Callable[[Any], Any]) -> None:
    rewards = make(np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]))
    # One right of four, pairs: half of them fail, s = 1/2; with a given wrong answer 2 of 3 fail.
    # Three right: no pair fails. None right: every pair does.
    expected = np.array([[1.0, -1 / 3, -1 / 3, -1 / 3], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(np.asarray(pass_at_k_binary(rewards, 2)), expected)


@pytest.mark.parametrize("group_size", range(2, 8))
def test_pass_at_k_binary_is_the_standardized_reward_of_subsets(group_size: int) -> None:
    for num_right in range(group_size + 1):
        rewards = np.arange(group_size) < num_right
        for k in range(1, group_size + 1):
            subsets = [(set(s), float(rewards[list(s)].any())) for s in combinations(range(group_size), k)]
            values = np.array([value for _, value in subsets])
            std = values.std() or math.inf
            expected = [
                np.mean([(value - values.mean()) / std for members, value in subsets if i in members])
                for i in range(group_size)
            ]
            np.testing.assert_allclose(pass_at_k_binary(rewards[None].astype(float), k)[0], expected, atol=1e-12)


@every_library
def test_best_minus_second_by_hand(make: Callable[[Any], Any]) -> None:
    rewards = make(np.array([[0.0, 1.0, 6.0, 3.0], [2.0, 0.0, 2.0, 1.0]]))
    # Only the lead of 6 over 3 counts, over the std sqrt(7); shared first places lead by nothing.
    expected = np.array([[0, 0, 3 / math.sqrt(7), 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(np.asarray(best_minus_second(rewards, eps=0.0)), expected)


@every_library
def test_a_baseline_and_a_limit_by_hand(make: Callable[[Any], Any]) -> None:
    advantages = with_baseline(make(np.array([[1.0], [3.0]])), make(np.array([0.5, 4.0])))
    assert np.asarray(advantages).tolist() == [[0.5], [-1.0]]
    assert np.asarray(clip_advantages(advantages, 0.75)).tolist() == [[0.5], [-0.75]]


@every_estimator
def test_a_group_of_one_has_no_advantage(name: str) -> None:
    assert ADVANTAGES[name](np.array([[3.0], [4.0]]), 1).tolist() == [[0.0], [0.0]]


@every_estimator
def test_float_noise_has_no_advantage(name: str) -> None:
    rewards = np.array([[0.1 + 0.2, 0.3, 0.3], [0.0, 0.0, 1.0]])
    advantages = ADVANTAGES[name](rewards, 2)
    assert advantages[0].tolist() == [0.0, 0.0, 0.0]
    assert advantages[1, 2] > 0


@every_estimator
@pytest.mark.parametrize("k", [1, 3, 5])
def test_libraries_agree_on_every_estimator(name: str, k: int) -> None:
    rewards = np.random.default_rng(k).integers(0, 3, (7, 5)) / 2
    plain, *others = in_every_library(lambda array: ADVANTAGES[name](array, k), rewards)
    for other in others:
        assert np.asarray(other).dtype == np.float64
        np.testing.assert_allclose(np.asarray(other), plain, rtol=1e-12, atol=1e-14)
    traced = jax.jit(lambda array: ADVANTAGES[name](array, k))(rewards)
    np.testing.assert_allclose(np.asarray(traced), plain, rtol=1e-12, atol=1e-14)


@every_estimator
@given(rewards=arrays(np.float64, (3, 5), elements=st.integers(0, 6).map(float)), order=st.permutations(range(5)))
def test_advantages_follow_their_answers(name: str, rewards: np.ndarray, order: list[int]) -> None:
    moved = ADVANTAGES[name](rewards[:, order], 2)
    np.testing.assert_allclose(moved, ADVANTAGES[name](rewards, 2)[:, order], atol=1e-12)
