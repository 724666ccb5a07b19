"""The torch engine: what is sampled is what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.engines.base import Dials, OutOfStep, Sampling
from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.learner import LearnerSettings, micro_batches
from coterie.engines.torch.small.decoding import choose_support, draw
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.grpo.objective import Objective
from coterie.rollouts import Batch, Finish, Group, Task, make_batch, unpack_bits
from coterie.worlds.base import Characters, World
from coterie.worlds.bricks import BricksWorld
from dead_end import DeadEnd

BRICKS = BricksWorld(max_bricks=12)


def make_engine(world: World = BRICKS, settings: LearnerSettings | None = None, seed: int = 0) -> CausalEngine:
    language = world.language()
    assert language is not None
    engine = CausalEngine(
        language, PolicyShape(len(language.vocabulary), 32, 2, 2), settings or LearnerSettings(), seed
    )
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(2.0)  # far from uniform, so that a mistake shows
    return engine


def sample(engine: CausalEngine, num_tasks: int, group_size: int, sampling: Sampling) -> list[Group]:
    # Captions of different lengths, so that prompts are padded.
    tasks = [*BRICKS.tasks("train")[:: len(BRICKS.tasks("train")) // num_tasks]][:num_tasks]
    assert len({len(engine.language.encode_prompt(t.prompt)) for t in tasks}) > 1
    return [group for _, group in sorted(engine.sample(tasks, group_size, sampling), key=lambda pair: pair[0])]


def make_step(engine: CausalEngine, sampling: Sampling | None = None, seed: int = 0) -> Batch:
    groups = sample(engine, 5, 4, sampling or Sampling())
    return make_batch(groups, np.random.default_rng(seed).normal(size=(5, 4)))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.8, 0.95), Sampling(), Sampling(1.3, 0.5), Sampling(0.0)],
    ids=lambda s: f"{s.temperature}/{s.top_p}",
)
def test_ratio_is_one_before_any_update(sampling: Sampling) -> None:
    engine = make_engine()
    batch = make_step(engine, sampling)
    again = engine.learner.logprobs(engine.model, batch, sampling.temperature)
    assert np.abs(again - batch.logprobs).max() < 1e-5
    if sampling.temperature:
        assert batch.logprobs[batch.chosen].min() < -1  # something was really chosen


def test_ratio_is_one_for_all_objectives_in_the_metrics() -> None:
    engine = make_engine()
    batch = make_step(engine, Sampling(0.8, 0.95))
    metrics = engine.update(batch, Dials(0.0, 0.8, kl_coef=0.1, entropy_coef=0.01))
    assert metrics["approx_kl"] < 1e-9
    assert abs(metrics["ratio_max"] - 1) < 1e-5
    assert abs(metrics["ratio_min"] - 1) < 1e-5
    assert metrics["clip_low"] == metrics["clip_high"] == 0


def test_logprobs_do_not_depend_on_the_company_a_row_has() -> None:
    engine = make_engine()
    batch = make_step(engine)
    together = engine.learner.logprobs(engine.model, batch, 1.0)
    for row in range(batch.num_rows):
        part = batch.rows(np.array([row]))
        alone = engine.learner.logprobs(engine.model, part, 1.0)
        np.testing.assert_allclose(alone[0], together[row, : alone.shape[1]], atol=2e-6)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(kl_coef=0.1, entropy_coef=0.02),
        Objective(loss="gspo", aggregation="sequence_mean"),
        Objective(loss="cispo", aggregation="constant_length", constant_length=50, importance_cap=2.0),
    ],
    ids=lambda objective: objective.loss + "/" + objective.aggregation,
)
def test_the_gradient_does_not_depend_on_the_split(objective: Objective) -> None:
    gradients = []
    for tokens in (10_000, 300, 1):
        engine = make_engine(settings=LearnerSettings(objective, micro_batch_tokens=tokens, max_grad_norm=1e9))
        batch = make_step(engine)
        reference = np.where(batch.chosen, batch.logprobs - 0.3, 0).astype(np.float32)
        batch = replace(batch, reference=reference if objective.needs_reference else None)
        engine.update(batch, Dials(0.0, 1.0, objective.kl_coef, objective.entropy_coef))
        gradients.append(torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None]))
    for other in gradients[1:]:
        assert (other - gradients[0]).norm() / gradients[0].norm() < 1e-5


def test_rows_without_advantage_are_skipped_and_change_nothing() -> None:
    results = []
    for skip in (False, True):
        # A vanishing entropy bonus keeps the rows in without changing the gradient.
        dials = Dials(1e-2, entropy_coef=0.0 if skip else 1e-30)
        engine = make_engine()
        batch = make_step(engine)
        advantages = batch.advantages.copy()
        advantages[4:12] = 0
        metrics = engine.update(replace(batch, advantages=advantages), dials)
        assert metrics["skipped_rows"] == (8 if skip else 0)
        results.append(torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None]))
    assert (results[1] - results[0]).norm() / results[0].norm() < 1e-5


def test_an_update_moves_towards_what_has_an_advantage() -> None:
    engine = make_engine()
    batch = make_step(engine)
    before = engine.learner.logprobs(engine.model, batch, 1.0).sum(1)
    engine.update(batch, Dials(1e-3, 1.0))
    moved = engine.learner.logprobs(engine.model, batch, 1.0).sum(1) - before
    assert np.corrcoef(moved, batch.advantages)[0, 1] > 0.3


def test_a_gradient_that_is_not_finite_is_skipped_and_ten_in_a_row_stop_the_run() -> None:
    engine = make_engine()
    batch = make_step(engine)
    poisoned = replace(batch, advantages=np.full(batch.num_rows, np.nan, np.float32))
    weights = [p.detach().clone() for p in engine.model.parameters()]
    for _ in range(9):
        assert engine.update(poisoned, Dials(1e-2, 1.0))["skipped_updates"] == 1
    assert all(torch.equal(a, b) for a, b in zip(weights, engine.model.parameters(), strict=True))
    with pytest.raises(OutOfStep, match="10 updates in a row"):
        engine.update(poisoned, Dials(1e-2, 1.0))
    assert engine.update(batch, Dials(1e-2, 1.0))["skipped_updates"] == 0
    assert engine.learner.bad_updates_in_a_row == 0


def test_answers_end_for_the_right_reason() -> None:
    language = Characters("ab", max_tokens=5)
    engine = CausalEngine(language, PolicyShape(len(language.vocabulary), 16, 1, 2), LearnerSettings(), 0)
    [(_, group)] = engine.sample([Task("t", "x")], 64, Sampling())
    for completion in group.completions:
        answer = completion.tokens[completion.chosen]
        ended = answer[-1] == language.end
        assert completion.finish is (Finish.STOP if ended else Finish.LENGTH)
        assert len(answer) == 5 if not ended else len(answer) <= 5
        assert completion.text == language.decode(answer.tolist())
    assert {completion.finish for completion in group.completions} == {Finish.STOP, Finish.LENGTH}


class DeadEndLanguage(Characters):
    def constraint(self, tasks: Sequence[Task]) -> DeadEnd:
        return DeadEnd(len(tasks), len(self.vocabulary))


def test_a_dead_end_ends_the_answer_and_is_told() -> None:
    language = DeadEndLanguage("ab", 9)
    engine = CausalEngine(language, PolicyShape(len(language.vocabulary), 16, 1, 2), LearnerSettings(), 0)
    [(_, group)] = engine.sample([Task("t", "x")], 3, Sampling())
    assert [c.finish for c in group.completions] == [Finish.DEAD_END] * 3
    assert [len(c.text) for c in group.completions] == [2, 2, 2]
    metrics = engine.update(make_batch([group], np.array([[1.0, -1.0, 0.0]])), Dials(1e-3, 1.0))
    assert np.isfinite(metrics["loss"])


def test_draws_follow_the_distribution_and_top_p() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(40_000, 4)
    legal = torch.tensor([True, True, True, True]).expand(40_000, 4)
    for sampling, expected in (
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_p=0.79), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (Sampling(top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Sampling(top_k=2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (Sampling(temperature=0.5), np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365),
    ):
        support = choose_support(logits, legal, sampling)
        tokens, logprobs = draw(logits, support, sampling.temperature, torch.Generator().manual_seed(0))
        counts = torch.bincount(tokens, minlength=4).numpy()
        wanted = np.array(expected)
        assert (counts[wanted == 0] == 0).all()
        likely = wanted > 0
        chi_square = ((counts[likely] - 40_000 * wanted[likely]) ** 2 / (40_000 * wanted[likely])).sum()
        assert chi_square < 20  # p < .0005 for three degrees of freedom
        np.testing.assert_allclose(logprobs.exp(), wanted[tokens.numpy()], rtol=1e-5)


def test_illegal_tokens_are_never_drawn() -> None:
    engine = make_engine()
    for group in sample(engine, 5, 4, Sampling(0.8, 0.95)):
        for completion in group.completions:
            assert completion.legal is not None
            legal = unpack_bits(completion.legal, len(engine.language.vocabulary))
            answer = completion.tokens[completion.chosen]
            assert legal[np.arange(len(answer)), answer].all()
            assert BRICKS.score(group.task, [completion.text])[0].valid


def test_greedy_answers_are_all_alike() -> None:
    engine = make_engine()
    for group in sample(engine, 5, 3, Sampling(temperature=0.0)):
        assert len(set(group.answers)) == 1


def test_micro_batches_hold_every_row_once_and_fit() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 100)
    parts = list(micro_batches(lengths, 200))
    assert sorted(np.concatenate(parts)) == list(range(100))
    assert all(len(part) * lengths[part].max() <= 200 for part in parts)
    assert [len(part) for part in micro_batches(np.array([300, 7]), 200)] == [1, 1]


def test_imitation_learns_the_examples_and_counts_the_refused(sums: World) -> None:
    engine = make_engine(sums)
    examples = list(sums.examples())
    first = engine.imitate(examples, 1e-2)["cold_start_loss"]
    for _ in range(30):
        last = engine.imitate(examples, 1e-2)["cold_start_loss"]
    assert last < first / 2
    wrong = [type(examples[0])(examples[0].task, "x" * 50), type(examples[0])(examples[0].task, "hello")]
    assert engine.imitate([*examples, *wrong], 1e-2)["cold_start_refused"] == 2
    assert engine.imitate(wrong, 1e-2) == {"cold_start_refused": 2}


def test_the_kl_is_zero_at_the_reference_and_the_reference_stays() -> None:
    engine = make_engine()
    batch = make_step(engine)
    engine.blend_reference(0.0)
    first = engine.reference_logprobs(batch, 1.0)
    with_reference, dials = replace(batch, reference=first), Dials(1e-2, kl_coef=0.1)
    assert abs(engine.update(with_reference, dials)["kl"]) < 1e-9
    np.testing.assert_array_equal(engine.reference_logprobs(batch, 1.0), first)
    assert engine.update(with_reference, dials)["kl"] > 1e-6
    old = {name: weight.clone() for name, weight in engine.reference.state_dict().items()}  # type: ignore[union-attr]
    engine.blend_reference(0.75)
    for name, weight in engine.reference.state_dict().items():  # type: ignore[union-attr]
        torch.testing.assert_close(weight, 0.75 * old[name] + 0.25 * engine.model.state_dict()[name])


def test_a_saved_engine_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    engine = make_engine(settings=LearnerSettings(epochs=2, minibatch_size=7))
    engine.blend_reference(0.0)
    engine.update(make_step(engine), Dials(1e-3, 1.0))
    engine.save(tmp_path)
    other = make_engine(settings=LearnerSettings(epochs=2, minibatch_size=7), seed=99)
    other.load(tmp_path)
    results = []
    for one in (engine, other):
        batch = make_step(one)
        one.update(batch, Dials(1e-3, 1.0))
        results.append((batch.tokens, [p.detach() for p in one.model.parameters()]))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_a_policy_of_another_shape_is_refused(tmp_path: Path) -> None:
    make_engine().save(tmp_path)
    language = BRICKS.language()
    other = CausalEngine(language, PolicyShape(len(language.vocabulary), 64, 2, 2), LearnerSettings(), 0)
    with pytest.raises(ValueError, match="has width 32, not 64"):
        other.load_policy(tmp_path)
