"""The engine that fills in: what was blank is what is trained, under the pass that filled it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.engines.base import Dials, Sampling
from coterie.engines.torch.fill import FillEngine
from coterie.engines.torch.filling import states_at
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.small.transformer import PolicyShape, Transformer
from coterie.rollouts import Batch, Floats, Group, Score, Task, make_batch, unpack_bits
from coterie.training.replay import Replay, ReplayRule
from coterie.worlds.base import Example
from coterie.worlds.fill.language import BlanksLanguage, spell_characters

LANGUAGE = BlanksLanguage(spell_characters(["abcdefgh "]), "□", 24)
# Of different lengths and different numbers of blanks, so that rows are padded.
TASKS = [Task("one", "ab□d □□□ hg□"), Task("two", "□□□ cab"), Task("three", "a□c de□□ gh ab□□ef"), Task("four", "bad□")]
WAYS = [Sampling(), Sampling(0.8, 0.95), Sampling(1.3, 0.5), Sampling(0.0), Sampling(0.8, 0.9, top_k=4)]


def make_engine(settings: LearnerSettings | None = None, seed: int = 0, width: int = 32) -> FillEngine:
    shape = PolicyShape(len(LANGUAGE.vocabulary), width, 2, 2, causal=False)
    engine = FillEngine(LANGUAGE, shape, settings or LearnerSettings(), seed)
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(2.0)  # far from uniform, so that a mistake shows
    return engine


def sample(engine: FillEngine, sampling: Sampling, group_size: int = 4, tasks: list[Task] = TASKS) -> list[Group]:
    return [group for _, group in engine.sample(tasks, group_size, sampling)]


def make_step(engine: FillEngine, sampling: Sampling, seed: int = 0) -> Batch:
    groups = sample(engine, sampling)
    return make_batch(groups, np.random.default_rng(seed).normal(size=(len(TASKS), 4)))


def gradient(engine: FillEngine) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("passes", [1, 2, 3, 9])
@pytest.mark.parametrize("sampling", WAYS, ids=lambda s: f"{s.temperature}/{s.top_p}")
def test_ratio_is_one_before_any_update(sampling: Sampling, passes: int) -> None:
    engine = make_engine()
    batch = make_step(engine, replace(sampling, fill_passes=passes))
    again = engine.learner.logprobs(engine.model, batch, sampling.temperature)
    np.testing.assert_allclose(again, batch.logprobs, atol=2e-6)
    metrics = engine.update(batch, Dials(0.0, sampling.temperature))
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5) and metrics["ratio_max"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("passes", [1, 3])
def test_what_was_not_blank_never_changes(passes: int) -> None:
    engine = make_engine()
    for group in sample(engine, Sampling(fill_passes=passes)):
        asked = np.array(LANGUAGE.encode_prompt(group.task.prompt))
        for completion in group.completions:
            np.testing.assert_array_equal(completion.chosen, asked == LANGUAGE.mask)
            np.testing.assert_array_equal(completion.tokens[~completion.chosen], asked[~completion.chosen])
            assert (completion.logprobs[~completion.chosen] == 0).all()
            known = (a == b for a, b in zip(completion.text, group.task.prompt, strict=True) if b != "□")
            assert all(known)


@pytest.mark.parametrize("passes", [1, 3])
def test_what_was_not_blank_never_contributes_to_the_loss(passes: int) -> None:
    engine = make_engine()
    batch = make_step(engine, Sampling(fill_passes=passes))
    engine.update(batch, Dials(0.0))
    first = gradient(engine)
    # Whatever the log-probabilities say at known places: they are no part of the loss.
    noise = np.where(batch.chosen, 0, np.random.default_rng(0).normal(size=batch.chosen.shape))
    engine.update(replace(batch, logprobs=(batch.logprobs + noise).astype(np.float32)), Dials(0.0))
    assert torch.equal(gradient(engine), first)
    places = engine.learner.score(engine.model, batch, 1.0)
    assert (places.logprobs.detach().numpy()[~batch.chosen] == 0).all()


@pytest.mark.parametrize("passes", [1, 4])
def test_special_tokens_are_never_filled_in(passes: int) -> None:
    engine = make_engine()
    with torch.no_grad():
        engine.model.head.weight[:3] = 10.0  # the policy would like nothing better
    for group in sample(engine, Sampling(fill_passes=passes), 16):
        for completion in group.completions:
            assert (completion.tokens[completion.chosen] >= 3).all()
            assert completion.legal is not None
            support = unpack_bits(completion.legal, len(LANGUAGE.vocabulary))
            assert not support[:, :3].any() and support.any(1).all()
            assert "□" not in completion.text and len(completion.text) == len(group.task.prompt)


def three_token_engine() -> tuple[FillEngine, BlanksLanguage]:
    """Three characters, two blanks; whatever is around, a place prefers a over b over c by fixed logits."""
    language = BlanksLanguage(spell_characters(["abc"]), "□", 4)
    engine = FillEngine(language, PolicyShape(6, 16, 1, 2, causal=False), LearnerSettings(), 0)
    return engine, language


@torch.no_grad()
def hand_logprob(model: Transformer, tokens: list[int], place: int, temperature: float, support: list[int]) -> float:
    """log p of a place straight from the model's logits, with nothing of the engine's in between."""
    row = torch.tensor([tokens])
    logits = model.head(model(row, torch.arange(len(tokens))[None]))[0, place] / temperature
    kept = logits[support].exp()
    return float(torch.log(kept / kept.sum())[0])


def test_the_joint_log_probability_is_the_sum_by_hand() -> None:
    engine, language = three_token_engine()
    task, mask = Task("t", "a□□"), language.mask
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(3.0)
        logits = engine.model.head(engine.model(torch.tensor([[2, 3, mask, mask]]), torch.arange(4)[None]))[0]
    [group] = sample(engine, Sampling(), 64, [task])
    table = logits[2:, 3:].log_softmax(-1)  # both blanks, over a, b and c
    total = 0.0
    for x, y in itertools.product(range(3), range(3)):
        total += math.exp(float(table[0, x] + table[1, y]))
    assert total == pytest.approx(1.0)
    assert len(set(group.answers)) > 3
    for completion in group.completions:
        x, y = (int(t) - 3 for t in completion.tokens[2:])
        assert completion.logprobs.sum() == pytest.approx(float(table[0, x] + table[1, y]), abs=1e-5)


def test_in_two_passes_the_second_blank_is_scored_with_the_first_in_sight() -> None:
    engine, language = three_token_engine()
    mask, temperature, top_p = language.mask, 0.7, 0.9
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(4.0)
    sampling = Sampling(temperature, top_p, fill_passes=2)
    [group] = sample(engine, sampling, 32, [Task("t", "□b□")])
    for completion in group.completions:
        assert completion.passes is not None and completion.legal is not None
        support = unpack_bits(completion.legal, 6)
        first, second = (int(np.flatnonzero(completion.chosen & (completion.passes == p))[0]) for p in (0, 1))
        seen = completion.tokens.tolist()
        for place, hidden in ((first, [first, second]), (second, [second])):
            row = [mask if t in hidden else token for t, token in enumerate(seen)]
            slot = int(completion.chosen[:place].sum())
            allowed = np.flatnonzero(support[slot]).tolist()
            ordered = [seen[place], *(t for t in allowed if t != seen[place])]
            expected = hand_logprob(engine.model, row, place, temperature, ordered)
            assert completion.logprobs[place] == pytest.approx(expected, abs=1e-5)


def test_each_pass_commits_its_even_share_the_surest_first() -> None:
    engine = make_engine()
    [group] = sample(engine, Sampling(fill_passes=3), 2, [TASKS[0]])  # five blanks
    completion = group.completions[0]
    assert completion.passes is not None
    assert np.bincount(completion.passes[completion.chosen]).tolist() == [2, 2, 1]
    row = torch.tensor([LANGUAGE.encode_prompt(TASKS[0].prompt)])
    places = (row[0] == LANGUAGE.mask).nonzero()[:, 0]
    states = states_at(engine.model, row, torch.tensor([row.shape[1]]), torch.zeros_like(places), places)
    sureness = engine.model.head(states)[:, 3:].softmax(-1).amax(-1)
    surest = places[sureness.argsort(descending=True)[:2]].sort().values
    assert np.flatnonzero(completion.chosen & (completion.passes == 0)).tolist() == surest.tolist()
    many = sample(engine, Sampling(fill_passes=50), 1, [TASKS[0]])[0].completions[0]
    assert many.passes is not None and sorted(many.passes[many.chosen]) == [0, 1, 2, 3, 4]


def test_padding_is_not_seen() -> None:
    engine = make_engine()
    alone = make_batch(sample(engine, Sampling(seed=1), 1, [TASKS[3]]), np.ones((1, 1)))
    beside = make_batch(
        [*sample(engine, Sampling(seed=1), 1, [TASKS[3]]), *sample(engine, Sampling(), 1, [TASKS[2]])], np.ones((2, 1))
    )
    width = alone.tokens.shape[1]
    assert beside.tokens.shape[1] > width
    short, long = (engine.learner.logprobs(engine.model, batch, 1.0) for batch in (alone, beside))
    np.testing.assert_allclose(long[0, :width], short[0], atol=1e-6)


@pytest.mark.parametrize("passes", [1, 3])
def test_the_gradient_does_not_depend_on_the_split(passes: int) -> None:
    gradients = []
    for tokens in (10_000, 60, 1):
        engine = make_engine(LearnerSettings(micro_batch_tokens=tokens, max_grad_norm=1e9))
        engine.update(make_step(engine, Sampling(fill_passes=passes)), Dials(0.0))
        gradients.append(gradient(engine))
    for other in gradients[1:]:
        assert (other - gradients[0]).norm() / gradients[0].norm() < 1e-5


def test_the_gradient_is_the_same_bytes_every_time() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    found = []
    try:
        for _ in range(3):
            engine = make_engine(width=64)
            tasks = [Task(str(i), "□" * 12 + "ab") for i in range(8)]
            groups = sample(engine, Sampling(), 32, tasks)
            engine.update(make_batch(groups, np.linspace(-1, 1, 256).reshape(8, 32)), Dials(1e-3))
            found.append(torch.cat([p.detach().flatten() for p in engine.model.parameters()]))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_equal_rewards_give_no_gradient() -> None:
    engine = make_engine()
    batch = make_step(engine, Sampling())
    before = [p.detach().clone() for p in engine.model.parameters()]
    metrics = engine.update(replace(batch, advantages=np.zeros_like(batch.advantages)), Dials(1e-2))
    assert (metrics["loss"], metrics["grad_norm"], metrics["skipped_rows"]) == (0.0, 0.0, batch.num_rows)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.model.parameters(), strict=True))


def test_a_text_without_blanks_is_skipped_and_counted() -> None:
    engine, whole = make_engine(), Task("whole", "abc def")
    groups = sample(engine, Sampling(), 4, [TASKS[0], whole])
    assert [c.text for c in groups[1].completions] == ["abc def"] * 4
    advantages = np.array([[1.0, -1.0, 0.5, -0.5]] * 2)
    metrics = engine.update(make_batch(groups, advantages), Dials(0.0))
    with_whole = gradient(engine)
    assert metrics["skipped_rows"] == 4
    engine.update(make_batch(groups[:1], advantages[:1]), Dials(0.0))
    assert torch.equal(gradient(engine), with_whole)
    only = engine.update(make_batch(groups[1:], advantages[1:]), Dials(1e-2))
    assert (only["loss"], only["skipped_rows"]) == (0.0, 4)
    learned = engine.imitate([Example(whole, "abc def"), Example(TASKS[3], "badb")], 1e-3)
    assert learned["cold_start_blankless"] == 1


@pytest.mark.parametrize("passes", [1, 2])
def test_the_kl_is_zero_at_the_start_and_not_after_an_update(passes: int) -> None:
    engine = make_engine()
    batch = make_step(engine, Sampling(0.8, 0.95, fill_passes=passes))
    batch = replace(batch, reference=engine.reference_logprobs(batch, 0.8))
    dials = Dials(1e-2, 0.8, kl_coef=0.1)
    assert abs(engine.update(batch, dials)["kl"]) < 1e-9
    assert engine.update(batch, dials)["kl"] > 1e-6


def test_an_update_moves_towards_what_has_an_advantage() -> None:
    engine = make_engine()
    batch = make_step(engine, Sampling())

    def joint() -> Floats:
        return np.asarray(engine.learner.logprobs(engine.model, batch, 1.0).sum(1))

    before = joint()
    engine.update(batch, Dials(1e-3))
    assert np.corrcoef(joint() - before, batch.advantages)[0, 1] > 0.3


def test_imitation_learns_the_text_and_counts_what_is_not_it() -> None:
    engine = make_engine()
    examples = [Example(task, task.prompt.replace("□", "e")) for task in TASKS]
    first = engine.imitate(examples, 1e-2)["cold_start_loss"]
    for _ in range(20):
        last = engine.imitate(examples, 1e-2)["cold_start_loss"]
    assert last < first / 4
    wrong = [Example(TASKS[0], "something else"), Example(TASKS[3], "bad!")]
    assert engine.imitate([*examples, *wrong], 1e-2)["cold_start_refused"] == 2
    assert engine.imitate(wrong, 1e-2) == {"cold_start_refused": 2.0, "cold_start_blankless": 0.0}


def test_a_saved_engine_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    engine = make_engine()
    engine.update(make_step(engine, Sampling()), Dials(1e-3))
    engine.save(tmp_path)
    other = make_engine(seed=99)
    other.load(tmp_path)
    results = [make_step(one, Sampling(fill_passes=2)) for one in (engine, other)]
    np.testing.assert_array_equal(results[0].tokens, results[1].tokens)
    np.testing.assert_array_equal(results[0].logprobs, results[1].logprobs)


def test_replay_keeps_the_pass_of_each_token(tmp_path: Path) -> None:
    engine = make_engine()
    groups = sample(engine, Sampling(fill_passes=3))
    replay = Replay(ReplayRule(capacity=8))
    replay.add(1, groups, [[Score(float(i)) for i in range(4)] for _ in groups])
    replay.save(tmp_path)
    again = Replay(ReplayRule(capacity=8))
    again.load(tmp_path, {task.id: task for task in TASKS})
    kept = [entry.group for entry in again.kept]
    old, new = (make_batch(found, np.ones((4, 4))) for found in (groups, kept))
    assert old.passes is not None and new.passes is not None and old.passes.max() == 2
    np.testing.assert_array_equal(old.passes, new.passes)
    index = np.array([5, 2])
    part = new.rows(index)
    assert part.passes is not None
    np.testing.assert_array_equal(part.passes, new.passes[index, : part.tokens.shape[1]])
    np.testing.assert_allclose(engine.learner.logprobs(engine.model, part, 1.0), part.logprobs, atol=2e-6)


def test_a_causal_policy_is_not_taken_for_one_that_fills_in(tmp_path: Path) -> None:
    make_engine().save(tmp_path)
    saved = (tmp_path / "policy.json").read_text().replace('"causal": false', '"causal": true')
    (tmp_path / "policy.json").write_text(saved)
    with pytest.raises(ValueError, match="has causal True, not False"):
        make_engine().load_policy(tmp_path)
