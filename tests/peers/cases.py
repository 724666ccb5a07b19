"""Inputs on which we are compared with the peers, and the file in which their answers are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Outputs = dict[str, Floats]

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
DUAL_CLIP = 3.0
IMPORTANCE_CAP = 2.0
LENGTH = 16  # of the constant-length mean
REWARD_WEIGHTS = (1.0, 0.5)
CISPO_CAP = 5.0  # absolute, as TRL has it
KL_COEF, ENTROPY_COEF = 0.05, 0.01
OBSERVED_KLS = (0.5, 5.0, 0.55, 0.0, 0.45)

FOLDER = Path(__file__).parent


def make_rewards() -> Floats:
    """[2, P, G]: two rewards; one group without signal, one with a tie for the best, one of tiny spread."""
    rewards = np.random.default_rng(1).normal(0, 2, (2, 6, 5))
    rewards[0, 0] = 0.5
    rewards[0, 1] = [0.0, 1.0, 1.0, 0.0, 0.25]
    rewards[0, 2] *= 1e-3
    return rewards


def make_tokens() -> dict[str, NDArray[Any]]:
    """[N, T] arrays with ragged rows: one full, one of a single token, one empty; ratios from e^-15 to e^15."""
    rng = np.random.default_rng(2)
    lengths = np.array([12, 1, 0, 7, 5, 9, 12, 3])
    shape = (len(lengths), 12)
    mask = np.arange(12) < lengths[:, None]
    old = -rng.exponential(2.0, shape)
    log_ratio = rng.normal(0, 0.4, shape)
    log_ratio[0, :4] = [15.0, -15.0, 3.0, -3.0]
    log_ratio[3, :4] = [15.0, -15.0, 3.0, -3.0]
    to_reference = rng.normal(0, 0.8, shape)
    to_reference[0, 5] = 4.0  # a k3 above 10, where verl stops
    return {
        "mask": mask,
        "logprobs": old + log_ratio,
        "old_logprobs": old,
        "sampler_logprobs": old + rng.normal(0, 0.7, shape),
        "reference": old + log_ratio + to_reference,
        "entropies": rng.uniform(0, 3, shape),
        "advantages": np.array([1.5, -0.5, 1.0, -2.0, 0.3, -0.1, 0.0, 1.0]),
    }


def beyond_the_clamp() -> Floats:
    """[N, T]: log-probabilities with twice the log-ratios, up to 30."""
    tokens = make_tokens()
    result: Floats = 2 * tokens["logprobs"] - tokens["old_logprobs"]
    return result


def write_record(peer: str, versions: Mapping[str, str], outputs: Mapping[str, Floats]) -> None:
    """What the peer answered, and which peer it was; the inputs are those made above."""
    kept = {name: np.asarray(value, np.float64).tolist() for name, value in sorted(outputs.items())}
    (FOLDER / f"{peer}.json").write_text(json.dumps({"versions": dict(versions), "outputs": kept}, indent=0) + "\n")


def read_record(peer: str) -> Outputs:
    """The peer's answers as they were recorded."""
    kept = json.loads((FOLDER / f"{peer}.json").read_text())["outputs"]
    return {name: np.array(value, np.float64) for name, value in kept.items()}
