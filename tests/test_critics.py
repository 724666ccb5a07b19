"""Sequence classifiers as rewards: what they say, and how it joins what the world says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from coterie import GRPOConfig, GRPOTrainer, Task
from coterie.config import ConfigError
from coterie.engines.torch.classifier import Classifier
from coterie.engines.torch.pretrained import ModelError
from coterie.rollouts import Score
from coterie.training.critics import CriticScorer
from coterie.worlds.base import Critic
from coterie.worlds.prompts.world import PromptsWorld
from coterie.worlds.scoring import Scorer
from small_lm import make_model, word_tokens

TEXTS = ["blue", "red green", "say a word please now", "no no no"]
TASK = Task("t", "say a word")


def make_classifier(folder: Path, labels: tuple[str, ...]) -> Path:
    """Random weights that tell these labels apart somehow."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=word_tokens(), eos_token="<end>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: place for place, name in enumerate(labels)},
    )
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("kinds"), ("rude", "kind", "odd"))


@pytest.fixture(scope="module")
def rating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("rating"), ("reward",))


def one_by_one(folder: Path, texts: list[str]) -> Tensor:
    """[texts, labels]: the plain way."""
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        found = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(found)


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_a_labels_probability_does_not_depend_on_the_batch(kinds: Path, batch: int) -> None:
    said = Classifier(Critic(str(kinds), "kind", batch=batch), "cpu")(TEXTS, [TASK] * len(TEXTS))
    expected = one_by_one(kinds, TEXTS).softmax(1)[:, 1].tolist()
    assert max(expected) - min(expected) > 0.05
    assert said == pytest.approx(expected, abs=1e-5)


def test_a_single_logit_is_given_as_it_is_and_may_read_the_prompt(rating: Path) -> None:
    said = Classifier(Critic(str(rating)), "cpu")(TEXTS, [TASK] * len(TEXTS))
    assert said == pytest.approx(one_by_one(rating, TEXTS)[:, 0].tolist(), abs=1e-5)
    both = Classifier(Critic(str(rating), reads="both"), "cpu")(TEXTS, [TASK] * len(TEXTS))
    joined = [f"{TASK.prompt} {text}" for text in TEXTS]
    assert both == pytest.approx(one_by_one(rating, joined)[:, 0].tolist(), abs=1e-5)


def test_a_label_must_be_one_of_the_models(kinds: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no label 'kin'; write label = one of rude, kind, odd"):
        Classifier(Critic(str(kinds), "kin"), "cpu")
    with pytest.raises(ModelError, match="has several labels; write label = one of"):
        Classifier(Critic(str(kinds)), "cpu")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Classifier(Critic(str(tmp_path / "nowhere")), "cpu")
    with pytest.raises(ValueError, match="reads 'answer' or 'both', not 'all'"):
        Critic("x", reads="all")


def judged_by(critic: dict[str, Any], **of_numeric: Any) -> PromptsWorld:
    numeric = {"name": "numeric", "weight": 3.0, **of_numeric}
    return PromptsWorld(rewards=[numeric, {"name": "kind", "kind": "classifier", "model": "m", **critic}])


def test_what_a_critic_says_is_weighed_with_the_rest() -> None:
    world = judged_by({"weight": 1.0})
    score = world.complete(Score(1.0, {"numeric": 1.0}, success=True), {"kind": 0.2})
    assert (score.total, score.parts, score.success) == (0.8, {"numeric": 1.0, "kind": 0.2}, True)


def test_a_gate_before_a_critic_shuts_it_out() -> None:
    world = judged_by({"weight": 1.0, "needs": "numeric"})
    assert world.complete(Score(0.0, {"numeric": 0.0}), {"kind": 0.9}).parts["kind"] == 0.0
    assert world.complete(Score(1.0, {"numeric": 1.0}), {"kind": 0.9}).total == pytest.approx(3.9 / 4)


def test_a_critic_that_weighs_most_decides_what_success_is() -> None:
    world = judged_by({"weight": 9.0, "passes_at": 0.5})
    right, wrong = (world.complete(Score(1.0, {"numeric": 1.0}, success=True), {"kind": v}) for v in (0.6, 0.4))
    assert (right.success, wrong.success) == (True, False)


def test_no_reward_may_wait_for_a_critic() -> None:
    with pytest.raises(ValueError, match="needs 'kind', a classifier, which is asked last"):
        judged_by({}, needs="kind")
    with pytest.raises(ValueError, match="the reward 'kind' needs model; write it in its table"):
        PromptsWorld(rewards=[{"name": "kind", "kind": "classifier"}])


def test_a_critic_that_fails_costs_the_answer_and_says_why() -> None:
    world, task = judged_by({"weight": 1.0}), PromptsWorld().tasks("train")[0]
    answer = str(task.spec["answer"])

    def moody(texts: Any, tasks: Any) -> list[float]:
        if any(text == "x" for text in texts):
            raise RuntimeError("no such word")
        return [0.5] * len(texts)

    with CriticScorer(world, Scorer(world, 1, 10.0), lambda: {"kind": moody}) as scorer:
        right, failed = scorer.score(task, [answer, "x"])
    assert (right.total, right.parts["kind"]) == ((3 + 0.5) / 4, 0.5)
    assert (failed.fault, failed.note) == ("critic", "kind raised RuntimeError: no such word")
    assert failed.total == right.total  # the lowest of its siblings


def test_a_policy_learns_to_please_a_classifier(kinds: Path, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", word_tokens())
    (tmp_path / "p.json").write_text(json.dumps({"prompts": ["say a word", "say a word please", "a word now"]}))
    options = {
        "data": str(tmp_path / "p.json"),
        "rewards": [{"name": "kind", "kind": "classifier", "model": str(kinds), "label": "kind"}],
    }
    config = GRPOConfig(
        world="prompts", model=str(model), lora_rank=0, learning_rate=3e-3, steps=15, prompts_per_step=2, group_size=16,
        max_tokens=3, device="cpu", threads=1, workers=1, seed=2, world_options=options,
    )  # fmt: skip
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        first = trainer.step()["rewards/kind"]
        last = trainer.train()["rewards/kind"]
    assert last > first + 0.1


def test_a_classifier_that_will_not_do_is_told_as_a_mistake_of_the_configuration(kinds: Path, tmp_path: Path) -> None:
    world = PromptsWorld(rewards=[{"name": "k", "kind": "classifier", "model": str(kinds)}])
    model = make_model(tmp_path / "model", word_tokens())
    trainer = GRPOTrainer(GRPOConfig(world="prompts", model=str(model), device="cpu", threads=1), world=world)
    with trainer.scorer, pytest.raises(ConfigError, match="has several labels"):
        trainer.evaluate(num_tasks=1)
