"""Divergences, rewards and steering against numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.grpo.kl import KLS, LOG_RATIO_LIMIT, exact, k1, k2, k3
from coterie.grpo.rewards import minus_kl, normalized_sum, overlong_penalty, weighted_sum
from coterie.grpo.steering import adapt_entropy_coef, adapt_kl_coef
from test_grpo import every_library


@every_library
def test_k3_by_hand(make: Callable[[Any], Any]) -> None:
    # q/p = 2 and 1/2: 2 - 1 - ln 2, and 1/2 - 1 + ln 2.
    result = np.asarray(k3(make(np.log([0.25, 0.5])), make(np.log([0.5, 0.25]))))
    np.testing.assert_allclose(result, [1 - math.log(2), math.log(2) - 0.5])
    assert float(k3(make(np.array([-3.0])), make(np.array([-3.0])))[0]) == 0.0
    assert np.isfinite(np.asarray(k3(make(np.array([-1000.0])), make(np.array([0.0])))))[0]


@given(arrays(np.float64, (4,), elements=st.floats(-30, 0)), arrays(np.float64, (4,), elements=st.floats(-30, 0)))
def test_k3_is_never_negative(policy: np.ndarray, reference: np.ndarray) -> None:
    assert (k3(policy, reference) >= -1e-12).all()


@every_library
def test_k1_and_k2_by_hand(make: Callable[[Any], Any]) -> None:
    policy, reference = make(np.log([0.25, 0.5])), make(np.log([0.5, 0.25]))
    np.testing.assert_allclose(np.asarray(k1(policy, reference)), [-math.log(2), math.log(2)])
    np.testing.assert_allclose(np.asarray(k2(policy, reference)), [math.log(2) ** 2 / 2] * 2)


@every_library
def test_exact_by_hand(make: Callable[[Any], Any]) -> None:
    with np.errstate(divide="ignore"):
        log_p = np.log(np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
        log_q = np.log(np.array([[0.25, 0.75, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]))
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.5 * math.log(2), LOG_RATIO_LIMIT]
    np.testing.assert_allclose(np.asarray(exact(make(log_p), make(log_q))), expected, atol=1e-12)


def test_the_gradient_of_exact_is_finite_where_tokens_are_illegal() -> None:
    logits = np.array([[1.0, 2.0, -np.inf, 0.5]])
    reference = np.log(np.array([[0.5, 0.25, 0.25, 1e-300]])) - np.array([[0, 0, 0, np.inf]])
    tensor = torch.tensor(logits, requires_grad=True)
    exact(tensor.log_softmax(-1), torch.as_tensor(reference)).sum().backward()
    assert tensor.grad is not None
    gradient = jax.grad(lambda x: exact(jax.nn.log_softmax(x), jnp.asarray(reference)).sum())(jnp.asarray(logits))
    assert np.isfinite(tensor.grad.numpy()[0, [0, 1, 3]]).all()
    np.testing.assert_allclose(np.asarray(gradient)[0, [0, 1, 3]], tensor.grad.numpy()[0, [0, 1, 3]], rtol=1e-10)


tables = arrays(np.float64, (5,), elements=st.floats(-3, 3)).map(lambda x: x - np.log(np.exp(x).sum()))


@given(tables, tables)
def test_k1_and_k3_have_the_exact_divergence_as_their_mean(log_p: np.ndarray, log_q: np.ndarray) -> None:
    p = np.exp(log_p)
    assert (p * k1(log_p, log_q)).sum() == pytest.approx(exact(log_p, log_q), abs=1e-12)
    assert (p * k3(log_p, log_q)).sum() == pytest.approx(exact(log_p, log_q), abs=1e-12)


def test_the_expected_gradients_of_the_estimators_are_those_their_words_say() -> None:
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    log_q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()

    def gradient(value: torch.Tensor) -> np.ndarray:
        [found] = torch.autograd.grad(value, [logits], retain_graph=True)
        return found.numpy()

    log_p = logits.log_softmax(-1)
    p = log_p.detach().exp()
    expected = {name: gradient((p * kl(log_p, log_q)).sum()) for name, kl in KLS.items()}
    np.testing.assert_allclose(expected["k1"], 0, atol=1e-12)
    np.testing.assert_allclose(expected["k2"], gradient(exact(log_p, log_q)), atol=1e-12)
    np.testing.assert_allclose(expected["k3"], gradient(exact(log_q, log_p)), atol=1e-12)


@pytest.mark.parametrize("name", KLS)
def test_at_the_reference_every_divergence_is_zero(name: str) -> None:
    logprobs = np.log([[0.1, 0.9]])
    assert KLS[name](logprobs, logprobs).tolist() == [[0.0, 0.0]]
    assert exact(logprobs, logprobs).tolist() == [0.0]


@every_library
def test_several_rewards_by_hand(make: Callable[[Any], Any]) -> None:
    parts = make(np.array([[[0.0, 2.0], [1.0, 1.0]], [[300.0, 100.0], [0.0, 100.0]]]))
    weights = make(np.array([1.0, 0.5]))
    np.testing.assert_allclose(np.asarray(weighted_sum(parts, weights)), [[150.0, 52.0], [1.0, 51.0]])
    # A pair standardizes to -+ 1/sqrt(2) whatever its spread; equal rewards to 0.
    root = math.sqrt(0.5)
    expected = [[-root / 2, root / 2], [-root / 2, root / 2]]
    np.testing.assert_allclose(np.asarray(normalized_sum(parts, weights)), expected, rtol=1e-5)


@every_library
def test_overlong_penalty_by_hand(make: Callable[[Any], Any]) -> None:
    lengths = make(np.array([0, 80, 85, 95, 100, 120]))
    expected = [0, 0, -0.25, -0.75, -1, -1]
    np.testing.assert_allclose(np.asarray(overlong_penalty(lengths, max_length=100, buffer=20)), expected)


@every_library
def test_divergence_in_the_reward_by_hand(make: Callable[[Any], Any]) -> None:
    divergence = make(np.array([[1.0, 2.0, np.nan], [4.0, np.nan, np.nan]]))
    mask = make(np.array([[True, True, False], [True, False, False]]))
    result = minus_kl(make(np.array([[10.0, 20.0]])), divergence, mask, kl_coef=0.5)
    assert np.asarray(result).tolist() == [[8.5, 18.0]]


def test_coefficients_move_by_hand() -> None:
    assert adapt_kl_coef(1.0, observed=0.55, target=0.5) == pytest.approx(1.01)
    assert adapt_kl_coef(1.0, observed=9.0, target=0.5) == pytest.approx(1.02)
    assert adapt_kl_coef(1.0, observed=0.0, target=0.5, rate=0.5) == pytest.approx(0.9)
    assert adapt_entropy_coef(1.0, observed=0.55, target=0.5) == pytest.approx(0.99)
    assert adapt_entropy_coef(1.0, observed=0.0, target=0.5) == pytest.approx(1.02)


@pytest.mark.parametrize("start", [1e-3, 10.0])
def test_a_steered_divergence_reaches_its_target(start: float) -> None:
    coef = start
    for _ in range(2000):
        coef = adapt_kl_coef(coef, observed=0.1 / coef, target=0.5)
    assert 0.1 / coef == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("start", [1e-3, 10.0])
def test_a_steered_entropy_reaches_its_target(start: float) -> None:
    coef = start
    for _ in range(2000):
        coef = adapt_entropy_coef(coef, observed=2 * coef, target=0.5)
    assert 2 * coef == pytest.approx(0.5, rel=1e-3)
