"""The maths against numbers computed by hand, and the same in numpy, torch and jax."""

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

from coterie.grpo.advantages import has_signal, standardized
from coterie.grpo.kl import k3
from coterie.grpo.losses import clipped_surrogate, token_mean
from coterie.grpo.objective import Objective, entropy, step_loss

jax.config.update("jax_enable_x64", True)

LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "torch": torch.as_tensor,
    "jax": jnp.asarray,
}
every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


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


def test_a_group_of_one_has_no_advantage() -> None:
    assert standardized(np.array([[3.0], [4.0]])).tolist() == [[0.0], [0.0]]


@given(arrays(np.float64, (3, 5), elements=st.floats(-1e3, 1e3)), st.floats(-100, 100), st.floats(0.1, 10))
def test_advantages_do_not_see_shift_or_scale(rewards: np.ndarray, shift: float, scale: float) -> None:
    plain = standardized(rewards)
    np.testing.assert_allclose(plain.sum(1), 0, atol=1e-9)
    wide = np.ptp(rewards, axis=1) > 1e-2
    np.testing.assert_allclose(standardized(rewards * scale + shift)[wide], plain[wide], rtol=1e-3, atol=1e-4)


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
    expected = sum(r - 1 - math.log(r) for r in (1.0, 1.5, 0.5, 1.1, 1.0, 1.5, 0.5))
    assert float(sums["approx_kl"]) == pytest.approx(expected)
    assert float(token_mean(loss, make(mask), 7)) == pytest.approx((-7.8 + 3.3) / 7)


@every_library
def test_what_is_masked_may_be_anything(make: Callable[[Any], Any]) -> None:
    poisoned = make(np.array([[0.0, np.nan, np.inf]]))
    mask = make(np.array([[True, False, False]]))
    loss, sums = clipped_surrogate(poisoned, make(np.zeros((1, 3))), make(np.ones((1, 1))), mask, 0.2, 0.2)
    assert float(token_mean(loss, mask, 1)) == -1.0
    assert all(math.isfinite(float(value)) for value in sums.values())


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
def test_entropy_by_hand(make: Callable[[Any], Any]) -> None:
    with np.errstate(divide="ignore"):
        table = np.log(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(np.asarray(entropy(make(table))), [math.log(2), 0.0], atol=1e-12)


def test_the_gradient_of_entropy_is_finite_where_tokens_are_illegal() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    entropy(logits.log_softmax(-1)).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[0, :2].isfinite().all()


def inputs(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "logprobs": rng.normal(-2, 1, (3, 7)),
        "entropies": rng.uniform(0, 2, (3, 7)),
        "old_logprobs": rng.normal(-2, 1, (3, 7)),
        "reference": rng.normal(-2, 1, (3, 7)),
        "advantages": rng.normal(0, 1, (3, 1)),
        "mask": rng.random((3, 7)) < 0.7,
    }


OBJECTIVE = Objective(clip_low=0.2, clip_high=0.28, kl_coef=0.1, entropy_coef=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_libraries_agree_on_the_loss_and_its_gradient(seed: int) -> None:
    given_inputs = inputs(seed)
    num_tokens = float(given_inputs["mask"].sum())
    plain, _ = step_loss(OBJECTIVE, **given_inputs, num_tokens=num_tokens)

    tensors = {name: torch.as_tensor(value) for name, value in given_inputs.items()}
    tensors["logprobs"].requires_grad_(True)
    loss, _ = step_loss(OBJECTIVE, **tensors, num_tokens=num_tokens)
    loss.backward()

    def in_jax(logprobs: Any) -> Any:
        rest = {name: jnp.asarray(value) for name, value in given_inputs.items() if name != "logprobs"}
        return step_loss(OBJECTIVE, logprobs, **rest, num_tokens=num_tokens)[0]

    value, gradient = jax.value_and_grad(in_jax)(jnp.asarray(given_inputs["logprobs"]))
    assert loss.item() == pytest.approx(float(plain), rel=1e-12)
    assert float(value) == pytest.approx(float(plain), rel=1e-12)
    np.testing.assert_allclose(np.asarray(gradient), tensors["logprobs"].grad, rtol=1e-10, atol=1e-14)


def test_the_objective_is_the_sum_of_its_terms() -> None:
    given_inputs = inputs(0)
    count = float(given_inputs["mask"].sum())
    total, sums = step_loss(OBJECTIVE, **given_inputs, num_tokens=count)
    terms = sums["policy_loss"] + 0.1 * sums["kl"] - 0.01 * sums["entropy"]
    assert float(total) == pytest.approx(float(terms) / count)
