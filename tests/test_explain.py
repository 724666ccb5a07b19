"""A configuration in words, its memory, its warnings; the examples; names from elsewhere."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import GRPOConfig, GRPOTrainer
from coterie.build import settle
from coterie.config import ConfigError, parse_settings, read_toml
from coterie.doubts import warnings_of
from coterie.engines.torch.learner import score_places
from coterie.engines.torch.small.transformer import Cache, PolicyShape, Transformer
from coterie.explain import WORDS, explain
from coterie.rollouts import Batch
from coterie.sizes import Sizes, count_parameters, hidden_width, memory
from coterie.worlds.base import World
from coterie.worlds.load import load_world, world_fields

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.toml"))


def test_every_choice_has_its_words() -> None:
    choices = {
        name: set(typing.get_args(field.annotation))
        for name, field in GRPOConfig.model_fields.items()
        if typing.get_origin(field.annotation) is typing.Literal
    }
    assert {"advantage", "loss", "aggregation", "kl"} <= choices.keys()
    assert {name: set(words) for name, words in WORDS.items()} == choices


@pytest.mark.parametrize("name", ["advantage", "loss", "aggregation"])
def test_the_formula_of_each_choice_is_told_with_its_numbers(name: str, sums: World) -> None:
    for choice, words in WORDS[name].items():
        config = parse_settings({name: choice, "clip_low": 0.125, "constant_length": 77, "pass_k": 3}, {})
        text = explain(config, sums)
        assert words.format_map(config.model_dump()) in text
        assert "{" not in text


def test_the_arithmetic_of_a_step(sums: World) -> None:
    config = GRPOConfig(
        prompts_per_step=6,
        group_size=4,
        steps=10,
        epochs=3,
        minibatch_size=8,
        micro_batch_tokens=100,
        replay_capacity=9,
        replay_share=0.5,
    )
    # Prompts are "make 39" after one token that asks; answers have at most 24 tokens. Replay adds 3 groups.
    text = explain(config, sums)
    assert "6 tasks x 4 answers = 24 answers a step" in text
    assert "10 steps = 240 answers; 60 tasks drawn of 31 to train on, 1.9 times each" in text
    assert "epochs x minibatches: 3 x 5 (of 8 answers) = 15 optimizer updates a rollout, 150 in all" in text
    assert "prompts up to 8 tokens, answers up to 24: at most 1,152 tokens a step, 864 of them chosen" in text
    assert "of the longest rows 3 at once, so at most 3 an update" in text
    assert "up to 9 groups of the last 50 steps are kept; 3 join each step" in text


@pytest.mark.parametrize(("vocabulary", "width", "depth", "heads"), [(136, 128, 4, 4), (50, 24, 1, 2), (7, 40, 3, 5)])
def test_parameters_and_memory_are_those_of_the_real_model(vocabulary: int, width: int, depth: int, heads: int) -> None:
    model = Transformer(PolicyShape(vocabulary, width, depth, heads))
    assert model.shape.hidden == hidden_width(width)
    assert count_parameters(vocabulary, width, depth) == sum(p.numel() for p in model.parameters())


def test_the_optimizer_and_the_cache_take_the_memory_told(sums_trainer: GRPOTrainer) -> None:
    sums_trainer.train_on_rollouts(*_rollouts(sums_trainer))
    sizes = Sizes.of(sums_trainer.config, sums_trainer.world)
    told = memory(sizes, 2_048)
    engine: Any = sums_trainer.engine
    weights = sum(p.nbytes for p in engine.model.parameters())
    moments = sum(t.nbytes for t in engine.learner.state().values() if t.dim())
    gradients = sum(p.grad.nbytes for p in engine.model.parameters())
    assert (told["weights"], told["gradients"], told["AdamW (two moments)"]) == (weights, gradients, moments)
    assert told["reference"] == 0
    cache = Cache(engine.model.shape, sizes.answers, sizes.row_tokens, torch.device("cpu"))
    assert told["cache while sampling"] == 2 * sum(t.nbytes for layer in cache.layers for t in layer)


def _rollouts(trainer: GRPOTrainer) -> tuple[Any, Any]:
    with trainer.scorer:
        rollouts = trainer.generate_rollouts(trainer.world.tasks("train")[:4])
        return rollouts, np.ones((4, 4))


def test_what_is_kept_for_the_gradient_is_about_what_is_told(sums: World) -> None:
    config = GRPOConfig(width=64, depth=3, heads=4, prompts_per_step=4, group_size=8)
    sizes = Sizes.of(config, sums)
    model = Transformer(PolicyShape(sizes.vocabulary, 64, 3, 4))
    shape = (32, sizes.row_tokens)
    chosen = np.zeros(shape, np.bool_)
    chosen[:, sizes.prompt_tokens :] = True
    blank = np.zeros(shape, np.float32)
    batch = Batch(np.ones(shape, np.int64), np.full(32, shape[1]), chosen, blank, np.ones(32, np.float32), None)
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        places = score_places(model, batch, 1.0)
    assert places.logprobs.requires_grad
    told = memory(sizes, 32 * sizes.row_tokens)
    real = sum(t.untyped_storage().nbytes() for t in kept.values()) - told["weights"]
    assert real == pytest.approx(told["activations of a micro-batch"] + told["logits at chosen places"], rel=0.2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"group_size": 1}, "a group of one has no sibling"),
        ({"group_size": 2}, "standardized knows only better and worse"),
        ({"baseline_memory": 0.9}, "takes the place of advantage = standardized"),
        ({"baseline_memory": 1.0, "group_size": 1}, "baseline_memory = 1 keeps the first mean"),
        ({"temperature": 0.0}, "at temperature 0 all answers of a group are the same"),
        ({"advantage_limit": 0.2}, "leaves little but the sign"),
        ({"advantage": "pass_at_k_binary"}, "takes a reward above 1/2 for right"),
        ({"reward_sum": "normalized_sum"}, "has no parts to sum"),
        ({"reward_parts": {"neer": 1.0}}, "no part 'neer': it counts as 0"),
        ({"signal": "far"}, "no part 'far'"),
        ({"reference": "ema"}, "the reference is set but kl_coef is 0"),
        ({"kl": "k1", "kl_coef": 0.1}, "k1 in the loss has an expected gradient of 0"),
        ({"kl_coef": 0.1, "reference": "ema", "reference_old_share": 1.0}, "with reference_old_share 1 is static"),
        ({"kl_coef": 0.1, "reference": "periodic"}, "never copies in 100 steps"),
        ({"loss": "gspo"}, "clips are usually about 3e-4 and 4e-4"),
        ({"loss": "gspo"}, "gspo is meant with aggregation sequence_mean"),
        ({"loss": "policy_gradient", "epochs": 2}, "policy_gradient has no ratio"),
        ({"loss": "policy_gradient", "replay_capacity": 8}, "policy_gradient has no ratio"),
        ({"clip_low": 1.0}, "clip_low of 1 or more never acts"),
        ({"loss": "cispo", "dual_clip": 3.0}, "cispo takes no notice"),
        ({"constant_length": 9}, "constant_length is set but the aggregation is token_mean"),
        ({"minibatch_size": 48}, "minibatch_size 48 does not divide 128 answers: the last update of an epoch has 32"),
        ({"learning_rate": 0.1}, "learning_rate = 0.1 is high for AdamW"),
        ({"prompts_per_step": 64}, "the world has 31 training tasks, fewer than prompts_per_step"),
        ({"curriculum": [{"name": "a"}, {"name": "b", "open_at": 2.0}]}, "phase b opens at a success of 2"),
        ({"hindsight": 4}, "the world sums does not define relabel"),
        ({"start_from": "runs/first"}, "goes through the cold start again"),
        ({"cold_start_steps": 0}, "starts from random weights"),
        ({"eval_tasks": 50}, "only 8 tasks are held out"),
        ({"max_tokens": 99}, "max_tokens = 99 is cut to the language's own 24"),
        ({"overlong": "shape", "overlong_buffer": 24}, "every answer is penalized"),
        ({"replay_capacity": 8, "prompts_per_step": 1}, "rounds to 0 groups"),
        ({"width": 50}, "width 50 does not divide into 4 heads"),
        ({"micro_batch_tokens": 20}, "such rows, 32 tokens, go one by one"),
        ({"warmup_steps": 100}, "the peak rate is never reached"),
        ({"eval_every": 0}, "no held-out numbers"),
        ({"save_every": 200}, "a run that is killed starts over"),
    ],
)
def test_what_looks_wrong_is_told(settings: dict[str, Any], told: str, sums: World) -> None:
    quiet = {"eval_every": 10, "eval_tasks": 8}
    assert warnings_of(parse_settings(quiet, {}), sums) == []
    found = warnings_of(parse_settings({**quiet, **settings}, {}), sums)
    assert any(told in warning for warning in found), found
    assert all(warning in explain(parse_settings({**quiet, **settings}, {}), sums) for warning in found)


def test_a_phase_that_cannot_be_read_is_told(sums: World) -> None:
    for phase, told in (({"nmae": "a"}, "phase 1 of the curriculum has 'nmae'"), ({"open_at": 0.5}, "needs a name")):
        with pytest.raises(ConfigError, match=told):
            explain(GRPOConfig(curriculum=[phase]), sums)


def test_the_reference_and_the_steering_are_told(sums: World) -> None:
    config = GRPOConfig(kl_coef=0.1, kl_target=0.02, reference="ema", entropy_coef=0.01, entropy_target=1.5)
    text = explain(config, sums)
    assert "0.1 * (q/p - 1 - log(q/p)), in each token's loss" in text
    assert "q is moved after each step to 0.99 * reference + (1 - 0.99) * policy" in text
    assert "towards a KL of 0.02" in text and "steered towards an H of 1.5" in text


def test_the_phases_tell_how_many_tasks_they_admit(sums: World) -> None:
    config = GRPOConfig(curriculum=[{"name": "low", "only": {"goal": [2, 9]}}, {"name": "all", "open_at": 0.5}])
    text = explain(config, sums)
    assert "phase 'low': 7 of 31 tasks, only {'goal': [2, 9]}" in text
    assert "phase 'all': 31 of 31 tasks, opens at a success of 50% in the one before" in text


def test_there_is_an_example_for_each_system() -> None:
    names = "besiege-14b brickgpt bricks fill llm-arithmetic machines-car machines-catapult relax theory"
    assert [path.stem for path in EXAMPLES] == names.split()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_read_and_explained(path: Path) -> None:
    settings = read_toml(path)
    settings.pop("tune", None)
    config = parse_settings(settings, world_fields(settings["world"]))
    assert {name for name in settings if name != "world_options"} <= GRPOConfig.model_fields.keys(), "no aliases here"
    world = load_world(config.world, config.world_options)
    text = explain(settle(config, world), world)
    assert f"{config.prompts_per_step} tasks x {config.group_size} answers" in text


def test_an_example_trains(small: dict[str, Any]) -> None:
    settings = read_toml(EXAMPLES[1])
    settings.pop("tune")
    tiny = {"steps": 1, "prompts_per_step": 2, "group_size": 2, "cold_start_steps": 1, "cold_start_batch": 4}
    config = parse_settings({**settings, **small, **tiny, "max_tokens": 20}, world_fields("bricks"))
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        metrics = trainer.train()
    assert trainer.progress.step == 1
    assert np.isfinite(metrics["loss"]) and metrics["kl"] == 0.0


def test_names_of_other_trainers_are_understood() -> None:
    trl: dict[str, Any] = {
        "num_generations": 16,
        "max_completion_length": 256,
        "temperature": 0.9,
        "top_p": 0.95,
        "beta": 0.04,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "delta": 3.0,
        "reward_weights": {"near": 2.0},
        "ref_model_sync_steps": 64,
        "output_dir": "runs/here",
        "report_to": "tensorboard",
        "max_steps": 9,
        "save_steps": 3,
        "logging_steps": 2,
        "eval_steps": 4,
    }
    ours: dict[str, Any] = {
        "group_size": 16,
        "max_tokens": 256,
        "temperature": 0.9,
        "top_p": 0.95,
        "kl_coef": 0.04,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "reward_parts": {"near": 2.0},
        "reference_every": 64,
        "out": "runs/here",
        "track": "tensorboard",
        "steps": 9,
        "save_every": 3,
        "log_every": 2,
        "eval_every": 4,
    }
    assert parse_settings(trl, {}) == GRPOConfig(**ours)
    seeds: dict[str, Any] = {
        "kl_beta": 0.1,
        "clip_range": 0.3,
        "ppo_epochs": 2,
        "rollout_batch_size": 4,
        "max_new_tokens": 8,
    }
    seeds |= {"reference_mode": "ema", "ema_alpha": 0.9, "num_episodes": 5, "save_interval": 2, "log_interval": 6}
    config = parse_settings(seeds, {})
    assert (config.kl_coef, config.clip_low, config.clip_high, config.epochs) == (0.1, 0.3, 0.3, 2)
    assert (config.prompts_per_step, config.max_tokens, config.reference) == (4, 8, "ema")
    assert (config.reference_old_share, config.steps, config.save_every, config.log_every) == (0.9, 5, 2, 6)
