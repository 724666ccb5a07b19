"""The same numbers as TRL and verl on the same inputs; where a peer does otherwise by design, the test says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from coterie.grpo.advantages import (
    batch_standardized,
    best_minus_second,
    centered,
    leave_one_out,
    pass_at_k,
    standardized,
)
from coterie.grpo.kl import KLS
from coterie.grpo.losses import truncated_importance_weights
from coterie.grpo.objective import Objective, step_loss
from coterie.grpo.rewards import normalized_sum, weighted_sum
from coterie.grpo.steering import adapt_kl_coef
from peers import cases, record_trl, record_verl

REWARDS = cases.make_rewards()
TOKENS = cases.make_tokens()
WEIGHTS = np.array(cases.REWARD_WEIGHTS)
PEERS: dict[str, Callable[[], cases.Outputs]] = {"trl": record_trl.record, "verl": record_verl.record}
TRL_EPS = 1e-4


def our_loss(
    objective: Objective, logprobs: np.ndarray, advantages: np.ndarray, from_sampler: bool
) -> tuple[float, np.ndarray]:
    """The loss of the cases' tokens, and its gradient by their log-probabilities."""
    tokens = {name: torch.as_tensor(value) for name, value in TOKENS.items()}
    policy = torch.tensor(logprobs, requires_grad=True)
    loss, _ = step_loss(
        objective,
        policy,
        tokens["entropies"],
        tokens["old_logprobs"],
        tokens["reference"] if objective.needs_reference else None,
        torch.as_tensor(advantages)[:, None],
        tokens["mask"],
        num_tokens=float(TOKENS["mask"].sum()),
        num_rows=float(len(TOKENS["mask"])),
        sampler_logprobs=tokens["sampler_logprobs"] if from_sampler else None,
    )
    loss.backward()
    assert policy.grad is not None
    return float(loss.detach()), policy.grad.numpy()


def objective(**settings: object) -> Objective:
    """An objective with the clips of the cases."""
    clips = {"clip_low": cases.CLIP_LOW, "clip_high": cases.CLIP_HIGH, "constant_length": cases.LENGTH}
    return Objective(**(clips | settings))  # type: ignore[arg-type]


OBJECTIVES = {
    "clipped/token_mean": objective(),
    "clipped/token_mean_of_step": objective(),
    "clipped/sequence_mean": objective(aggregation="sequence_mean"),
    "clipped/constant_length": objective(aggregation="constant_length"),
    "clipped/dual": objective(dual_clip=cases.DUAL_CLIP),
    "clipped/kl": objective(kl_coef=cases.KL_COEF),
    "clipped/entropy": objective(entropy_coef=cases.ENTROPY_COEF),
    "clipped/importance": objective(importance_cap=cases.IMPORTANCE_CAP),
    "clipped/beyond_the_clamp": objective(),
    "gspo/sequence_mean": objective(loss="gspo", aggregation="sequence_mean"),
    "gspo/token_mean": objective(loss="gspo"),
    "cispo/token_mean": objective(loss="cispo"),
    "policy_gradient/token_mean": objective(loss="policy_gradient"),
}
# TRL's cap is absolute and has no lower side.
TRL_OBJECTIVES = OBJECTIVES | {"cispo/token_mean": objective(loss="cispo", clip_low=1.0, clip_high=cases.CISPO_CAP - 1)}


def our_losses(
    objectives: dict[str, Objective], names: set[str], length_eps: float = 0.0
) -> Iterator[tuple[str, np.ndarray]]:
    """Loss and gradient by name; length_eps is what a peer adds to an answer's length in its mean."""
    lengths = TOKENS["mask"].sum(1)
    for name in names:
        chosen = objectives[name]
        logprobs = cases.beyond_the_clamp() if name == "clipped/beyond_the_clamp" else TOKENS["logprobs"]
        advantages = TOKENS["advantages"]
        if chosen.aggregation == "sequence_mean":
            # The policy loss is proportional to the advantage, so the peer's divisor can be put there.
            advantages = advantages * np.maximum(lengths, 1) / (np.maximum(lengths, 1) + length_eps)
        loss, gradient = our_loss(chosen, logprobs, advantages, from_sampler=name == "clipped/importance")
        yield f"{name}/loss", np.array(loss)
        yield f"{name}/gradient", gradient


def our_importance_weights() -> np.ndarray:
    """The peers have 0 outside the mask, where we have 1."""
    weights = truncated_importance_weights(
        TOKENS["old_logprobs"], TOKENS["sampler_logprobs"], TOKENS["mask"], cases.IMPORTANCE_CAP
    )
    return np.where(TOKENS["mask"], weights, 0.0)


def our_coefs() -> np.ndarray:
    coefs = [0.1]
    for observed in cases.OBSERVED_KLS:
        coefs.append(adapt_kl_coef(coefs[-1], observed, target=0.5, rate=64 / 640))
    return np.array(coefs[1:])


def answers_to_trl(names: set[str]) -> cases.Outputs:
    """TRL adds 1e-4 to a std; after normalizing each reward it divides their sum by the batch's std."""
    return {
        "advantages/standardized": standardized(REWARDS[0], TRL_EPS),
        "advantages/batch_standardized": batch_standardized(REWARDS[0], TRL_EPS),
        "advantages/centered": centered(REWARDS[0]),
        "advantages/weighted_sum": standardized(weighted_sum(REWARDS, WEIGHTS), TRL_EPS),
        "advantages/normalized_sum": batch_standardized(normalized_sum(REWARDS, WEIGHTS, TRL_EPS), TRL_EPS),
        "importance_weights": our_importance_weights(),
        **dict(our_losses(TRL_OBJECTIVES, names)),
    }


def answers_to_verl(names: set[str]) -> cases.Outputs:
    """verl lets no k3 pass 10, and adds 1e-8 to an answer's length."""
    mine = {name: kl(TOKENS["logprobs"], TOKENS["reference"]) for name, kl in KLS.items()}
    return {
        "advantages/standardized": standardized(REWARDS[0]),
        "advantages/centered": centered(REWARDS[0]),
        "advantages/leave_one_out": leave_one_out(REWARDS[0]),
        "advantages/best_minus_second": best_minus_second(REWARDS[0]),
        "advantages/pass_at_group": pass_at_k(REWARDS[0], REWARDS.shape[2]),
        "importance_weights": our_importance_weights(),
        "adapted_coefs": our_coefs(),
        "kl/k1": mine["k1"],
        "kl/k2": mine["k2"],
        "kl/k3": np.minimum(mine["k3"], 10),
        **dict(our_losses(OBJECTIVES, names, length_eps=1e-8)),
    }


ANSWERS = {"trl": answers_to_trl, "verl": answers_to_verl}


def assert_equal_to_peer(peer: str, theirs: cases.Outputs) -> None:
    ours = ANSWERS[peer]({name.removesuffix("/loss") for name in theirs if name.endswith("/loss")})
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-6, err_msg=f"{peer} {name}")


@pytest.mark.parametrize("peer", PEERS)
def test_we_equal_the_recorded_peer(peer: str) -> None:
    assert_equal_to_peer(peer, cases.read_record(peer))


@pytest.mark.parametrize("peer", PEERS)
def test_we_equal_the_installed_peer(peer: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(peer, reason=f"{peer} is not installed; its recorded answers are compared instead")
        theirs = PEERS[peer]()
    assert_equal_to_peer(peer, theirs)
