"""Losses, means and importance weights against numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.grpo.losses import (
    EXTREMES,
    cispo,
    clipped_surrogate,
    constant_length,
    gspo,
    mask_overlong,
    policy_gradient,
    ratio_extremes,
    sequence_mean,
    token_mean,
    truncated_importance_weights,
)
from test_grpo import every_library


@every_library
def test_clipped_surrogate_by_hand(make: Callable[[Any], Any]) -> None:
    ratios = np.array([[1.0, 1.5, 0.5, 1.1], [1.0, 1.5, 0.5, 0.9]])
    advantages = np.array([[2.0], [-1.0]])
    mask = np.array([[True, True, True, True], [True, True, True, False]])
    loss, sums = clipped_surrogate(
        make(np.log(ratios)), make(np.zeros((2, 4))), make(advantages), make(mask), clip_low=0.2, clip_high=0.3
    )
    # Row 1, A = 2: 2, min(3, 2.6), min(1, 1.6), 2.2. Row 2, A = -1: -1, min(-1.5, -1.3), min(-.5, -.8).
    np.testing.assert_allclose(np.asarray(loss)[0], [-2.0, -2.6, -1.0, -2.2])
    np.testing.assert_allclose(np.asarray(loss)[1, :3], [1.0, 1.5, 0.8])
    assert float(sums["clip_high"]) == 1.0
    assert float(sums["clip_low"]) == 1.0
    assert float(token_mean(loss, make(mask), 7)) == pytest.approx((-7.8 + 3.3) / 7)


@every_library
def test_what_is_masked_may_be_anything(make: Callable[[Any], Any]) -> None:
    poisoned = make(np.array([[0.0, np.nan, np.inf]]))
    mask = make(np.array([[True, False, False]]))
    loss, sums = clipped_surrogate(poisoned, make(np.zeros((1, 3))), make(np.ones((1, 1))), mask, 0.2, 0.2)
    assert float(token_mean(loss, mask, 1)) == -1.0
    assert all(math.isfinite(float(value)) for value in sums.values())


@every_library
def test_the_dual_clip_bounds_the_loss_of_a_bad_answer(make: Callable[[Any], Any]) -> None:
    ratios = np.array([[5.0, 2.0], [5.0, 2.0]])
    loss, sums = clipped_surrogate(
        make(np.log(ratios)),
        make(np.zeros((2, 2))),
        make(np.array([[-2.0], [2.0]])),
        make(np.ones((2, 2), bool)),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
    )
    # A = -2: 10 is cut at 3 x 2, 4 stays. A = 2: the usual clip at 1.2 already holds.
    np.testing.assert_allclose(np.asarray(loss), [[6.0, 4.0], [-2.4, -2.4]])
    assert float(sums["clip_dual"]) == 1.0


@every_library
def test_gspo_by_hand(make: Callable[[Any], Any]) -> None:
    ratios = np.array([[4.0, 1.0, 9.0], [0.5, 0.5, 9.0]])
    mask = np.array([[True, True, False], [True, True, False]])
    loss, sums = gspo(
        make(np.log(ratios)), make(np.zeros((2, 3))), make(np.array([[1.0], [-1.0]])), make(mask), 0.2, 0.2
    )
    # Geometric means 2 and 1/2: the first is clipped at 1.2, the second at .8.
    np.testing.assert_allclose(np.asarray(loss)[:, :2], [[-1.2, -1.2], [0.8, 0.8]])
    assert float(sums["clip_high"]) == 2.0
    assert float(sums["clip_low"]) == 2.0


@every_library
def test_cispo_by_hand(make: Callable[[Any], Any]) -> None:
    logprobs = np.log([[0.6, 0.2, 0.1]])
    old = np.log([[0.3, 0.2, 0.4]])
    tokens = (make(logprobs), make(old), make(np.array([[2.0]])), make(np.ones((1, 3), bool)))
    loss, sums = cispo(*tokens, clip_low=0.2, clip_high=0.3)
    # Ratios 2, 1, 1/4 become 1.3, 1, .8.
    np.testing.assert_allclose(np.asarray(loss), -2 * np.array([[1.3, 1.0, 0.8]]) * logprobs)
    assert (float(sums["clip_low"]), float(sums["clip_high"])) == (1.0, 1.0)
    capped, _ = cispo(*tokens, clip_low=1.0, clip_high=0.5)
    np.testing.assert_allclose(np.asarray(capped), -2 * np.array([[1.5, 1.0, 0.25]]) * logprobs)


def test_a_clipped_token_keeps_its_gradient_in_cispo_alone() -> None:
    old, advantages, mask = torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    gradients = []
    for loss in (clipped_surrogate, cispo):
        logprobs = torch.log(torch.tensor([[2.0]])).requires_grad_(True)
        loss(logprobs, old, advantages, mask, 0.2, 0.25)[0].sum().backward()
        assert logprobs.grad is not None
        gradients.append(logprobs.grad.item())
    assert gradients == [0.0, -1.25]


@every_library
def test_policy_gradient_by_hand(make: Callable[[Any], Any]) -> None:
    loss, sums = policy_gradient(make(np.array([[-1.0, -2.0]])), make(np.array([[3.0]])), make(np.ones((1, 2), bool)))
    assert np.asarray(loss).tolist() == [[3.0, 6.0]]
    assert sums == {}


@every_library
def test_three_means_by_hand(make: Callable[[Any], Any]) -> None:
    per_token = make(np.array([[1.0, 2.0, 3.0], [10.0, np.nan, np.nan], [np.nan] * 3]))
    mask = make(np.array([[True, True, True], [True, False, False], [False, False, False]]))
    assert float(token_mean(per_token, mask, 4)) == 4.0
    # Means 2, 10 and, of an empty answer, 0.
    assert float(sequence_mean(per_token, mask, 3)) == 4.0
    assert float(constant_length(per_token, mask, num_rows=3, length=8)) == pytest.approx(16 / 24)


@every_library
def test_an_answer_that_was_cut_off_is_masked(make: Callable[[Any], Any]) -> None:
    mask = mask_overlong(make(np.array([[True, True], [True, False]])), make(np.array([True, False])))
    assert np.asarray(mask).tolist() == [[False, False], [True, False]]


@every_library
def test_importance_weights_by_hand(make: Callable[[Any], Any]) -> None:
    weights = truncated_importance_weights(
        make(np.log([[0.5, 0.1, 0.9, 0.9]])),
        make(np.log([[0.25, 0.2, 0.01, 0.01]])),
        make(np.array([[True, True, True, False]])),
        cap=3.0,
    )
    np.testing.assert_allclose(np.asarray(weights), [[2.0, 0.5, 3.0, 1.0]])


def test_importance_weights_are_constant_to_the_gradient() -> None:
    logprobs = torch.zeros(1, 2, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert not truncated_importance_weights(logprobs, torch.ones(1, 2), mask, cap=2.0).requires_grad


@every_library
def test_ratio_extremes_by_hand(make: Callable[[Any], Any]) -> None:
    mask = np.array([[True, True, False], [True, False, False]])
    new, old = np.log([[2.0, 0.5, 100.0], [3.0, 100.0, 100.0]]), np.zeros((2, 3))
    whole = ratio_extremes(make(new), make(old), make(mask))
    assert {name: float(value) for name, value in whole.items()} == pytest.approx({"ratio_min": 0.5, "ratio_max": 3})
    parts = [ratio_extremes(make(new[i : i + 1]), make(old[i : i + 1]), make(mask[i : i + 1])) for i in range(2)]
    for name, combine in EXTREMES.items():
        assert combine(float(parts[0][name]), float(parts[1][name])) == float(whole[name])


log_ratios = arrays(np.float64, (2, 4), elements=st.floats(-1e4, 1e4))


@given(log_ratios, st.sampled_from([clipped_surrogate, gspo, cispo]))
def test_no_ratio_is_too_extreme(log_ratio: np.ndarray, loss_of: Callable[..., Any]) -> None:
    logprobs = torch.tensor(log_ratio, requires_grad=True)
    advantages, mask = torch.tensor([[1.0], [-1.0]]), torch.ones(2, 4, dtype=torch.bool)
    loss, _ = loss_of(logprobs, torch.zeros(2, 4), advantages, mask, 0.2, 0.2)
    loss.sum().backward()
    assert logprobs.grad is not None
    assert loss.isfinite().all() and logprobs.grad.isfinite().all()
