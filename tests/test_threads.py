"""How many threads a small policy gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import GRPOConfig, GRPOTrainer, build
from coterie.config import read_toml
from coterie.engines.torch import threads
from coterie.engines.torch.small.transformer import PolicyShape


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cores", "taken", "wanted"),
    [
        (1, {1: 9.0}, 1),
        (16, {1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0, 16: 0.5}, 16),
        (16, {1: 8.0, 2: 4.0, 4: 3.0, 8: 9.0, 16: 0.1}, 4),  # clearly slower: no more are tried
        (16, {1: 8.0, 2: 4.0, 4: 3.9, 8: 3.8, 16: 3.7}, 2),  # a little is not worth it
        (16, {1: 8.0, 2: 8.1, 4: 4.0, 8: 5.0, 16: 0.1}, 4),  # one that is no better may hide one that is
        (6, {1: 8.0, 2: 4.0, 4: 3.0, 6: 2.0}, 6),
    ],
)
def test_as_many_threads_as_are_worth_it(cores: int, taken: dict[int, float], wanted: int) -> None:
    assert threads.pick_threads(lambda: taken[torch.get_num_threads()], cores) == wanted


def test_a_trial_writes_and_learns_and_leaves_torch_as_it_was() -> None:
    before, random = torch.get_num_threads(), torch.get_rng_state()
    assert threads.fastest_threads(PolicyShape(20, 16, 1, 2), 4, 2) in (1, 2)
    assert threads.fastest_threads(PolicyShape(20, 16, 1, 2, causal=False), 4, 1) == 1
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), random)


def test_a_run_on_many_cores_remembers_what_was_fastest(
    sums_file: Path, tmp_path: Path, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fastest(shape: PolicyShape, rows: int, cores: int) -> int:
        asked.append((shape.width, rows, cores))
        return 3

    monkeypatch.setattr(threads, "fastest_threads", fastest)
    settings = {**small, "world": str(sums_file), "prompts_per_step": 4, "group_size": 6, "threads": 0}
    for cores, out in ((4, "few"), (6, "many")):
        monkeypatch.setattr(build, "available_cores", lambda cores=cores: cores)
        with GRPOTrainer(GRPOConfig(**{**settings, "out": str(tmp_path / out)})).scorer:
            assert torch.get_num_threads() == (4 if out == "few" else 3)
    assert asked == [(settings["width"], 24, 6)]
    assert read_toml(tmp_path / "few" / "config.toml").get("threads", 0) == 0
    again = GRPOConfig(**read_toml(tmp_path / "many" / "config.toml"))
    assert again.threads == 3
    with GRPOTrainer(again.model_copy(update={"out": None})).scorer:
        assert len(asked) == 1
