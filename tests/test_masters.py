"""Weights in bfloat16: what is too small for them is kept, and a resumed run keeps it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from coterie import GRPOConfig, GRPOTrainer
from coterie.build import read_run_config, settle
from coterie.engines.base import Dials, Sampling
from coterie.engines.torch.hf import LanguageModelEngine
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.masters import Masters
from coterie.engines.torch.pretrained import ModelSettings
from coterie.grpo.objective import Objective
from coterie.rollouts import Batch, make_batch
from coterie.runs.folder import RunFolder
from small_lm import Colors, make_model, word_tokens

TASKS = Colors().tasks("train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), word_tokens())


def engine_of(
    folder: Path, rank: int = 4, dtype: str = "bfloat16", cap: float | None = None, **more: str
) -> LanguageModelEngine:
    optimizer, device = more.get("optimizer", "adamw"), more.get("device", "cpu")
    learner = LearnerSettings(Objective(importance_cap=cap), micro_batch_tokens=64, optimizer=optimizer)
    return LanguageModelEngine(ModelSettings(str(folder), dtype=dtype, lora_rank=rank), learner, 1, device)


def step_of(engine: LanguageModelEngine) -> Batch:
    groups = [group for _, group in sorted(engine.sample(TASKS, 4, Sampling(max_tokens=8)), key=lambda pair: pair[0])]
    return make_batch(groups, np.random.default_rng(0).normal(size=(len(TASKS), 4)))


def weights_of(engine: LanguageModelEngine) -> dict[str, Tensor]:
    return {each.name: each.master.detach() for each in engine.learner.masters.learned}


def one_weight() -> tuple[nn.Linear, Masters]:
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    return model, Masters(model)


def test_eight_updates_too_small_for_bfloat16_are_one_that_is_not() -> None:
    model, masters = one_weight()
    address = model.weight.data_ptr()
    optimizer = torch.optim.SGD([masters.learned[0].master], lr=2**-10)
    for update in range(8):
        # Just below 1, numbers in bfloat16 lie 2^-8 apart: 2^-10 off is rounded back.
        assert model.weight.item() == [1, 1, 1, 1 - 2**-8, 1 - 2**-8, 1 - 2**-8, 1 - 2**-7, 1 - 2**-7][update]
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        masters.publish()
    assert model.weight.item() == 1 - 2**-7
    assert masters.learned[0].master.item() == 1 - 2**-7
    assert model.weight.data_ptr() == address


def test_gradients_of_micro_batches_gather_in_float32() -> None:
    model, masters = one_weight()
    for given in (1.0, 2.0**-9):
        model(torch.full((1, 1), given, dtype=torch.bfloat16)).sum().backward()
    grad = masters.learned[0].master.grad
    assert grad is not None
    assert grad.item() == 1 + 2**-9  # which in bfloat16 would be 1
    assert model.weight.grad is None


def test_weights_in_float32_are_their_own_masters(folder: Path) -> None:
    engine = engine_of(folder, dtype="float32")
    assert engine.learner.masters.apart == []
    assert not any(name.startswith("master.") for name in engine.learner.state())


@pytest.mark.parametrize("rank", [4, 0])
def test_weights_stay_where_they_are_and_a_restored_engine_makes_the_same_update(
    folder: Path, tmp_path: Path, rank: int
) -> None:
    engine, other = engine_of(folder, rank), engine_of(folder, rank)
    batch = step_of(engine)
    addresses = [p.data_ptr() for p in other.model.parameters()]
    for _ in range(3):
        engine.update(batch, Dials(1e-4))
        engine.blend_reference(0.9)
    engine.save(tmp_path)
    other.load(tmp_path)
    for each in (engine, other):
        each.update(batch, Dials(1e-4))
        each.blend_reference(0.9)
        each.reference_logprobs(batch, 1.0)
    mine, theirs = engine.learner.state(), other.learner.state()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert all(torch.equal(a, b) for a, b in zip(engine.model.parameters(), other.model.parameters(), strict=True))
    np.testing.assert_array_equal(engine.reference_logprobs(batch, 1.0), other.reference_logprobs(batch, 1.0))
    assert [p.data_ptr() for p in other.model.parameters()] == addresses


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_on_a_gpu_what_was_saved_is_restored(tmp_path: Path, optimizer: str) -> None:
    if optimizer == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    folder = make_model(tmp_path / "model", word_tokens(), hidden_size=128)  # fewer than 4,096 weights stay in 32 bits
    engine, other = (engine_of(folder, 0, optimizer=optimizer, device="cuda") for _ in range(2))
    engine.update(step_of(engine), Dials(1e-4))
    engine.save(tmp_path)
    other.load(tmp_path)
    mine, theirs = engine.learner.state(), other.learner.state()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (torch.uint8 in {value.dtype for value in mine.values()}) == (optimizer == "adamw_8bit")


@pytest.mark.parametrize("rank", [4, 0])
def test_a_mean_of_policies_does_not_lose_what_bfloat16_would(folder: Path, rank: int) -> None:
    engine = engine_of(folder, rank)
    engine.blend_reference(0.0)
    engine.update(step_of(engine), Dials(0.01))
    for _ in range(200):
        engine.blend_reference(0.99)
    found = engine.reference if isinstance(engine.reference, dict) else engine.reference_masters
    assert found is not None
    now, start = weights_of(engine), weights_of(engine_of(folder, rank))
    assert len(found) == len(now)
    moved = 0.0
    for name, value in found.items():
        mine = name if rank == 0 else name.replace("base_model.model.", "causal.").replace(".weight", ".default.weight")
        torch.testing.assert_close(value, now[mine] + (start[mine] - now[mine]) * 0.99**200, atol=1e-5, rtol=0)
        moved += float((value - start[mine]).norm())
    assert moved > 0


@pytest.mark.parametrize("settings", [{"lora_rank": 4}, {"lora_rank": 0, "reference": "ema", "minibatch_size": 16}])
def test_a_run_in_bfloat16_resumes_with_the_same_bytes(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    def run(out: Path, steps: int, resumed: bool) -> None:
        usual = {"model": str(folder), "dtype": "bfloat16", "threads": 1, "workers": 1, "device": "cpu", "kl_coef": 0.1}
        small: dict[str, Any] = {
            "max_tokens": 4,
            "prompts_per_step": 4,
            "group_size": 8,
            "warmup_steps": 0,
            "save_every": 2,
        }
        small |= {"schedule": "constant", "steps": steps, "out": None if resumed else str(out)}
        config = GRPOConfig(**{**usual, **small, **settings})
        trainer = GRPOTrainer(config, world=Colors(), run=RunFolder.open(out) if resumed else None)
        with trainer.scorer:
            if resumed:
                assert trainer.resume()
            trainer.train()

    run(tmp_path / "whole", 4, False)
    run(tmp_path / "halved", 2, False)
    run(tmp_path / "halved", 4, True)
    files = sorted(p.name for p in (tmp_path / "whole/checkpoints/step-000004").glob("*.safetensors"))
    assert "learner.safetensors" in files
    for name in files:
        whole, halved = (tmp_path / run / "checkpoints/step-000004" / name for run in ("whole", "halved"))
        assert whole.read_bytes() == halved.read_bytes(), name


def test_the_gap_is_how_far_the_sampler_and_the_learner_are_apart(folder: Path) -> None:
    engine = engine_of(folder, dtype="float32")
    batch = step_of(engine)
    metrics = engine.update(batch, Dials(0.0))
    assert metrics["sampler_gap_max"] < 1e-5
    shifted = batch.logprobs.copy()
    shifted[batch.chosen] -= 0.25
    row, place = np.argwhere(batch.chosen)[0]
    shifted[row, place] -= 0.5
    moved = Batch(batch.tokens, batch.lengths, batch.chosen, shifted, batch.advantages)
    metrics = engine.update(moved, Dials(0.0))
    assert metrics["sampler_gap_max"] == pytest.approx(0.75, abs=1e-5)
    assert metrics["sampler_gap_mean"] == pytest.approx(0.25 + 0.5 / batch.chosen.sum(), abs=1e-5)


def test_with_one_update_a_step_the_old_policy_is_the_policy_itself(folder: Path) -> None:
    engine = engine_of(folder, dtype="float32", cap=2.0)
    batch = step_of(engine)
    shifted = np.where(batch.chosen, batch.logprobs - np.log(1.5), 0).astype(np.float32)
    metrics = engine.update(Batch(batch.tokens, batch.lengths, batch.chosen, shifted, batch.advantages), Dials(0.0))
    assert metrics["ratio_max"] == metrics["ratio_min"] == 1
    assert metrics["importance_weight"] == pytest.approx(1.5, abs=1e-4)


def test_the_importance_cap_is_on_in_bfloat16_unless_somebody_says_otherwise(folder: Path, tmp_path: Path) -> None:
    def cap(**settings: Any) -> float | None:
        return settle(GRPOConfig(model=str(folder), device="cpu", **settings), Colors()).importance_cap

    assert cap() is None
    assert cap(dtype="float32") is None
    assert cap(dtype="bfloat16") == 2
    assert cap(dtype="bfloat16", importance_cap=5) == 5
    config = GRPOConfig(
        model=str(folder), device="cpu", dtype="bfloat16", importance_cap=None, out=str(tmp_path / "run")
    )
    with GRPOTrainer(config, world=Colors()).scorer:
        again = read_run_config(RunFolder.open(tmp_path / "run"))
    assert settle(again, Colors()).importance_cap is None


def test_the_engine_says_how_it_learns(folder: Path) -> None:
    said = engine_of(folder).describe()
    assert "rows are packed, attention by scaled dot products; log-probabilities by plain torch" in said
    assert "scaled dot products; 5 norms in fewer passes; log" in engine_of(folder, dtype="float32").describe()


def test_the_engine_says_why_rows_are_padded(tmp_path: Path) -> None:
    make_model(tmp_path, word_tokens())
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Gemma2Config(vocab_size=19, num_key_value_heads=2, head_dim=8, eos_token_id=0, **shape)
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    engine = engine_of(tmp_path, dtype="float32")
    said = engine.describe()
    assert "rows are padded, as it caps its attention's scores; log-probabilities by autograd" in said
    batch = step_of(engine)
    np.testing.assert_allclose(engine.logprobs(batch, 1.0), batch.logprobs, atol=1e-5)
    assert engine.update(batch, Dials(1e-4))["grad_norm"] > 0
