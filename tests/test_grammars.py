"""Grammars over a language model's tokens: every answer follows, and the ratio stays 1."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import GRPOConfig, GRPOTrainer
from coterie.build import make_language_model
from coterie.config import ConfigError
from coterie.engines.base import Dials, Sampling
from coterie.engines.torch.decoder import decoder as schedule
from coterie.engines.torch.decoder.decoder import Decoder
from coterie.engines.torch.hf import LanguageModelEngine
from coterie.rollouts import Finish, make_batch
from small_lm import Colors, byte_tokens, make_model

SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["color", "count"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
TASKS = Colors().tasks("train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), byte_tokens())


def engine_of(folder: Path, grammar: str, **settings: Any) -> LanguageModelEngine:
    usual = {"model": str(folder), "threads": 1, "lora_rank": 4, "grammar": grammar, "dtype": "float32"}
    return make_language_model(GRPOConfig(**{**usual, **settings}), Colors())


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_answers_follow_a_json_schema_and_the_ratio_is_one(folder: Path, tmp_path: Path, top_p: float) -> None:
    (file := tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    engine = engine_of(folder, str(file))
    sampling = Sampling(temperature=0.8, top_p=top_p, max_tokens=60)
    groups = [group for _, group in engine.sample(TASKS, 6, sampling)]
    completions = [c for group in groups for c in group.completions]
    assert {c.finish for c in completions} == {Finish.STOP}
    found = [json.loads(c.text) for c in completions]
    assert all(each.keys() == {"color", "count"} and 0 <= each["count"] <= 99 for each in found)
    assert {each["color"] for each in found} == {"red", "green"}
    batch = make_batch(groups, np.random.default_rng(0).normal(size=(len(TASKS), 6)))
    np.testing.assert_allclose(engine.logprobs(batch, 0.8), batch.logprobs, atol=1e-5)
    metrics = engine.update(batch, Dials(0.01, 0.8))
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert np.abs(engine.logprobs(batch, 0.8) - batch.logprobs).max() > 1e-3


def test_a_language_model_builds_machines_under_the_worlds_own_schema(folder: Path) -> None:
    pytest.importorskip("mujoco")
    options = {"kinds": "car", "max_blocks": 3, "words_first": False}
    config = GRPOConfig(
        world="machines", model=str(folder), grammar="world", lora_rank=0, world_options=options, prompts_per_step=1,
        group_size=6, max_tokens=200, learning_rate=1e-3, device="cpu", threads=1, workers=1,
    )  # fmt: skip
    trainer = GRPOTrainer(config)
    world, task = trainer.world, trainer.world.tasks("train")[0]
    assert task.prompt in world.instruction(task) and world.instruction(task).endswith("Give the list alone.")
    with trainer.scorer:
        [group] = trainer.generate_rollouts([task])
        [scores] = trainer.judge([group])
        metrics = trainer.train_on_rollouts([group], np.array([[1.0, -1, 1, -1, 1, -1]]))
    machines = [json.loads(answer) for answer in group.answers]
    assert all([block["order_id"] for block in machine] == list(range(len(machine))) for machine in machines)
    # Which faces there are, and what overlaps, is more than a schema can say.
    reasons = {name for score in scores for name, value in score.parts.items() if value and name.startswith("invalid/")}
    assert reasons <= {"invalid/face", "invalid/ends", "invalid/overlap"}
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    with pytest.raises(ConfigError, match="the world 'colors' brings no grammar"):
        engine_of(folder, "world")


def test_answers_follow_a_regular_expression_or_lark(folder: Path, tmp_path: Path) -> None:
    (file := tmp_path / "words.lark").write_text('start: "yes" | "no" (" " "no")~2\n')
    for grammar, pattern in (("(red|blue){1,3}", "(red|blue){1,3}"), (str(file), "yes|no no no")):
        engine = engine_of(folder, grammar)
        answers = {a for _, g in engine.sample(TASKS, 8, Sampling(max_tokens=40)) for a in g.answers}
        assert len(answers) > 1
        assert all(re.fullmatch(pattern, answer) for answer in answers)


def test_a_beginning_counts_for_the_grammar(folder: Path) -> None:
    engine = engine_of(folder, "(red|blue)")
    [(_, group)] = engine.sample(TASKS[:1], 4, Sampling(max_tokens=10, begin="re"))
    assert group.answers == ["red"] * 4


@pytest.mark.parametrize("grammar", ["(red", "nowhere.json", "nowhere.lark"])
def test_a_grammar_that_cannot_be_used_is_told(folder: Path, grammar: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        engine_of(folder, grammar)


def test_rows_are_asked_together_what_each_would_say_alone(folder: Path) -> None:
    engine = engine_of(folder, "(yes|no|red) (one|two)?")
    assert engine.grammar is not None
    constraint = engine.grammar.constraint(3)
    yes, red = (engine.encode_answer(word) for word in ("yes", "red"))
    for first, second in zip(yes, red, strict=False):
        constraint.advance(np.array([first, second, engine.ends[0]]))  # the third may not end here
    together = constraint.legal()
    for row, matcher in enumerate(constraint.matchers[:2]):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        assert (together[row] == np.unpackbits(bits, bitorder="little", count=constraint.vocabulary)).all()
        assert together[row].any()
    assert not together[2].any()
    assert (np.packbits(together, axis=-1) == constraint.packed()).all()


@pytest.mark.parametrize("slots", [1024, 4])  # all at once, or a task after the other
def test_the_decoder_for_gpus_obeys_a_schema(
    folder: Path, tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "BUCKETS", (1, 2, 4, slots))
    (file := tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    engine = engine_of(folder, str(file))
    engine.decoder = Decoder(engine.model)
    groups = [group for _, group in engine.sample(TASKS, 4, Sampling(temperature=0.8, max_tokens=60))]
    assert len(groups) == len(TASKS) > 1
    for group in groups:
        assert all(json.loads(answer).keys() == {"color", "count"} for answer in group.answers)
    batch = make_batch(groups, np.ones((len(TASKS), 4)))
    np.testing.assert_allclose(engine.logprobs(batch, 0.8), batch.logprobs, atol=1e-5)
