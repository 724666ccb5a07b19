"""The objective of a step: the same in numpy, torch and jax, however the step is split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from coterie.grpo.kl import KLS
from coterie.grpo.objective import AGGREGATIONS, LOSSES, Objective, entropy, step_loss

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]

LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "torch": torch.as_tensor,
    "jax": jnp.asarray,
}
every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


def in_every_library(function: Callable[..., Any], *values: np.ndarray) -> list[Any]:
    """The function's results in numpy, torch and jax, in this order."""
    return [function(*(make(value) for value in values)) for make in LIBRARIES.values()]


@every_library
def test_entropy_by_hand(make: Callable[[Any], Any]) -> None:
    with np.errstate(divide="ignore"):
        table = np.log(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(np.asarray(entropy(make(table))), [math.log(2), 0.0], atol=1e-12)


def test_the_gradient_of_entropy_is_finite_where_tokens_are_illegal() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    entropy(logits.log_softmax(-1)).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, :2].isfinite().all()


def inputs(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    mask = rng.random((5, 7)) < 0.7
    mask[3] = False
    return {
        "logprobs": rng.normal(-2, 1, (5, 7)),
        "entropies": rng.uniform(0, 2, (5, 7)),
        "old_logprobs": rng.normal(-2, 1, (5, 7)),
        "reference": rng.normal(-2, 1, (5, 7)),
        "advantages": rng.normal(0, 1, (5, 1)),
        "mask": mask,
        "sampler_logprobs": rng.normal(-2, 1, (5, 7)),
    }


OBJECTIVE = Objective(
    clip_low=0.2, clip_high=0.28, kl_coef=0.1, entropy_coef=0.01, constant_length=9, importance_cap=2.0
)
OBJECTIVES = [
    *(replace(OBJECTIVE, loss=loss, aggregation=aggregation) for loss in LOSSES for aggregation in AGGREGATIONS),
    *(replace(OBJECTIVE, kl=kl) for kl in KLS),
    replace(OBJECTIVE, dual_clip=1.5),
]
every_objective = pytest.mark.parametrize(
    "objective", OBJECTIVES, ids=lambda o: f"{o.loss}-{o.aggregation}-{o.kl}{'-dual' if o.dual_clip else ''}"
)


def loss_in_torch(objective: Objective, arrays: dict[str, Any], **totals: float) -> tuple[float, np.ndarray]:
    """The loss and its gradient by the policy's log-probabilities."""
    tensors: dict[str, Any] = {name: torch.as_tensor(value) for name, value in arrays.items()}
    logprobs = tensors.pop("logprobs").clone().requires_grad_(True)
    loss, _ = step_loss(objective, logprobs, **tensors, **totals)
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.numpy()


@every_objective
def test_libraries_agree_on_the_loss_and_its_gradient(objective: Objective) -> None:
    given_inputs = inputs(0)
    totals = {"num_tokens": float(given_inputs["mask"].sum()), "num_rows": 5.0}
    plain, plain_sums = step_loss(objective, **given_inputs, **totals)
    loss, torch_gradient = loss_in_torch(objective, given_inputs, **totals)

    def in_jax(logprobs: Any) -> Any:
        rest: dict[str, Any] = {name: jnp.asarray(value) for name, value in given_inputs.items() if name != "logprobs"}
        return step_loss(objective, logprobs, **rest, **totals)

    graded = jax.jit(jax.value_and_grad(in_jax, has_aux=True))
    (value, sums), gradient = graded(jnp.asarray(given_inputs["logprobs"]))
    assert loss == pytest.approx(float(plain), rel=1e-12)
    assert float(value) == pytest.approx(float(plain), rel=1e-12)
    assert {name: float(x) for name, x in sums.items()} == pytest.approx({n: float(x) for n, x in plain_sums.items()})
    np.testing.assert_allclose(np.asarray(gradient), torch_gradient, rtol=1e-10, atol=1e-14)


@every_objective
def test_the_gradient_does_not_depend_on_the_split(objective: Objective) -> None:
    given_inputs = inputs(1)
    totals = {"num_tokens": float(given_inputs["mask"].sum()), "num_rows": 5.0}
    whole, whole_gradient = loss_in_torch(objective, given_inputs, **totals)
    parts = [
        loss_in_torch(objective, {name: value[rows] for name, value in given_inputs.items()}, **totals)
        for rows in ([0, 3], [1], [2, 4])
    ]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, rel=1e-12)
    together = np.concatenate([gradient for _, gradient in parts])
    np.testing.assert_allclose(together, whole_gradient[[0, 3, 1, 2, 4]], rtol=1e-12, atol=1e-15)


@every_objective
def test_what_is_masked_has_no_part_in_the_gradient(objective: Objective) -> None:
    clean = inputs(2)
    poisoned = {
        name: value if name in ("mask", "advantages") else np.where(clean["mask"], value, np.nan)
        for name, value in clean.items()
    }
    totals = {"num_tokens": float(clean["mask"].sum()), "num_rows": 5.0}
    loss, gradient = loss_in_torch(objective, poisoned, **totals)
    expected, expected_gradient = loss_in_torch(objective, clean, **totals)
    assert loss == expected
    np.testing.assert_array_equal(gradient, expected_gradient)
    assert (gradient[~clean["mask"]] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_before_any_update_every_loss_has_the_gradient_of_the_policy_gradient(name: str) -> None:
    unused = ("reference", "sampler_logprobs")
    on_policy = inputs(3)
    on_policy["old_logprobs"] = on_policy["logprobs"]

    def gradient(loss: str) -> np.ndarray:
        tensors: dict[str, Any] = {key: torch.as_tensor(on_policy[key]) for key in on_policy if key not in unused}
        logprobs = tensors.pop("logprobs").clone().requires_grad_(True)
        step_loss(Objective(loss=loss), logprobs, **tensors, reference=None, num_tokens=20.0)[0].backward()
        return np.asarray(logprobs.grad)

    np.testing.assert_allclose(gradient(name), gradient("policy_gradient"), rtol=1e-12)


def test_the_objective_is_the_sum_of_its_terms() -> None:
    given_inputs = inputs(0)
    count = float(given_inputs["mask"].sum())
    total, sums = step_loss(OBJECTIVE, **given_inputs, num_tokens=count)
    terms = sums["policy_loss"] + 0.1 * sums["kl"] - 0.01 * sums["entropy"]
    assert float(total) == pytest.approx(float(terms) / count)


def test_approx_kl_by_hand() -> None:
    ratios = np.array([[1.0, 1.5, 0.5]])
    ones, mask = np.ones((1, 3)), np.ones((1, 3), bool)
    _, sums = step_loss(Objective(), np.log(ratios), ones, 0 * ones, None, ones[:, :1], mask, num_tokens=3)
    assert float(sums["approx_kl"]) == pytest.approx(sum(r - 1 - math.log(r) for r in (1.0, 1.5, 0.5)))


def test_importance_weights_scale_the_policy_term_alone() -> None:
    ones, mask = np.ones((1, 2)), np.ones((1, 2), bool)
    objective = Objective(kl_coef=1.0, kl="k1", importance_cap=2.0)
    old, sampler = np.log([[0.3, 0.4]]), np.log([[0.2, 0.1]])
    reference = old - 0.5
    loss, sums = step_loss(
        objective, old, ones, old, reference, ones[:, :1], mask, num_tokens=2, sampler_logprobs=sampler
    )
    # The weights are 1.5 and, capped, 2; the ratios 1; the divergence .5 a token.
    assert float(loss) == pytest.approx((-1.5 - 2 + 0.5 + 0.5) / 2)
    assert float(sums["importance_weight"]) == pytest.approx(3.5)


@pytest.mark.parametrize(
    "wrong", [{"loss": "ppo"}, {"kl": "k4"}, {"dual_clip": 0.5}, {"aggregation": "constant_length"}]
)
def test_an_objective_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Objective(**wrong)
