"""How a language model's answers are drawn: the same as by transformers and the learner, with less work."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import chisquare

from coterie.engines.base import Dials, Sampling
from coterie.engines.torch.decoder import rows
from coterie.engines.torch.decoder.llama_step import WORTH_IT, Alone, LlamaStep, find_step
from coterie.engines.torch.decoder.rows import SHARED_FROM, StaticRows
from coterie.engines.torch.decoder.writing import GrowingRows, decode, pick, who_goes_on
from coterie.engines.torch.hf import LanguageModelEngine
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.pretrained import LanguageModel, ModelSettings
from coterie.rollouts import Finish, Group, Task, make_batch
from small_lm import WORDS, make_model, word_tokens

SHORT = ("say a word red please", "say", "a word now please please please")
LONG = tuple(" ".join((WORDS * 4)[: SHARED_FROM + extra]) for extra in (8, -20, 1))
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), word_tokens())


def engine_of(folder: Path, **settings: Any) -> LanguageModelEngine:
    return LanguageModelEngine(ModelSettings(str(folder), **{"lora_rank": 4, **settings}), LearnerSettings(), seed=1)


def sample(
    engine: LanguageModelEngine, prompts: Sequence[str], group_size: int, max_tokens: int, **more: Any
) -> list[Group]:
    tasks = [Task(str(i), prompt) for i, prompt in enumerate(prompts)]
    drawn = dict(engine.sample(tasks, group_size, Sampling(max_tokens=max_tokens, **more)))
    return [drawn[place] for place in range(len(tasks))]


def teach(engine: LanguageModelEngine) -> None:
    """An update, so that an adapter is more than nothing."""
    groups = sample(engine, SHORT, 4, 8)
    engine.update(make_batch(groups, np.random.default_rng(0).normal(size=(3, 4))), Dials(0.02))


def greedy_answers(causal: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """What transformers writes, a prompt at a time."""
    found = []
    for prompt in prompts:
        given = torch.tensor([list(prompt)])
        whole = causal.generate(given, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)[0]
        found.append(whole.tolist()[len(prompt) :])
    return found


@pytest.mark.parametrize("texts", [SHORT, LONG])
@pytest.mark.parametrize("group_size", [1, 2, 12])
def test_greedy_answers_are_transformers_own_token_by_token(
    folder: Path, texts: tuple[str, ...], group_size: int
) -> None:
    engine = engine_of(folder, lora_rank=0)
    prompts = [engine.encode_prompt(text) for text in texts]
    theirs = greedy_answers(transformers.AutoModelForCausalLM.from_pretrained(folder), prompts, 40)
    drawn = dict(decode(engine.model, prompts, group_size, (0,), 40, GREEDY, engine.generator))
    assert sorted(drawn) == list(range(len(prompts) * group_size))
    for row, answer in drawn.items():
        assert answer.tokens.tolist() == theirs[row // group_size]
        assert answer.finish == (Finish.STOP if answer.tokens[-1] == 0 else Finish.LENGTH)
        assert answer.support is None


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize(("texts", "group_size", "max_tokens"), [(SHORT, 24, 30), (LONG, 24, 30), (LONG, 2, 300)])
def test_logprobs_are_the_learners_while_rows_leave_and_the_cache_grows(
    folder: Path, rank: int, texts: tuple[str, ...], group_size: int, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "FIRST_ROOM", room := 3)
    engine = engine_of(folder, lora_rank=rank)
    teach(engine)
    groups = sample(engine, texts, group_size, max_tokens, temperature=1.5)
    assert len(texts) * group_size * max_tokens > WORTH_IT
    lengths = [len(c.tokens) for group in groups for c in group.completions]
    assert len(set(lengths)) > 3
    assert max(int(c.chosen.sum()) for group in groups for c in group.completions) > 2 * room
    batch = make_batch(groups, np.ones((len(texts), group_size)))
    np.testing.assert_allclose(engine.logprobs(batch, 1.5), batch.logprobs, atol=1e-5)


def test_siblings_share_a_long_prompt_and_copy_a_short_one(folder: Path) -> None:
    engine = engine_of(folder)
    with torch.inference_mode():
        short = StaticRows(engine.model, [engine.encode_prompt(text) for text in SHORT], 5, 4)
        long = StaticRows(engine.model, [engine.encode_prompt(text) for text in LONG], 5, 4)
    assert not short.shares and len(short.cache[0][0]) == 3 * 5 * 2  # two key heads
    assert long.shares and len(long.prompt[0][0]) == 3 * 2
    assert long.filled == 0


def test_a_model_with_windows_is_written_with_its_own_cache() -> None:
    torch.manual_seed(3)
    config = transformers.Qwen2Config(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
    )
    causal = transformers.Qwen2ForCausalLM(config).eval()
    model = LanguageModel(copy.deepcopy(causal))
    assert model.why_plain
    with torch.inference_mode():
        assert GrowingRows(model, [[1, 2]], 2).hidden.shape == (2, 32)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8, 9]]
    drawn = dict(decode(model, prompts, 2, (0,), 12, GREEDY, torch.Generator()))
    theirs = greedy_answers(causal, prompts, 12)
    assert [drawn[row].tokens.tolist() for row in range(4)] == [theirs[0], theirs[0], theirs[1], theirs[1]]


def test_tokens_come_as_often_as_they_should() -> None:
    probs = torch.tensor([0.0, 0.02, 0.0, 0.3, 0.08, 0.25, 0.35, 0.0])
    count = 40_000
    drawn = pick(probs.log().expand(count, -1), torch.Generator().manual_seed(5))
    seen = np.bincount(drawn.numpy(), minlength=8)
    assert seen[[0, 2, 7]].tolist() == [0, 0, 0]
    possible = probs.numpy() > 0
    assert chisquare(seen[possible], count * probs.numpy()[possible].astype(float)).pvalue > 0.01


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_first_tokens_have_the_models_distribution(folder: Path, temperature: float) -> None:
    engine = engine_of(folder)
    prompt = engine.encode_prompt(SHORT[0])
    with torch.inference_mode():
        logits = engine.model.logits(engine.model(torch.tensor([prompt]))[0, -1])
    probs = (logits / temperature).softmax(-1).double().numpy()
    count = 20_000
    generator = torch.Generator().manual_seed(2)
    drawn = decode(engine.model, [prompt], count, (0,), 1, Sampling(temperature), generator)
    seen = np.bincount([answer.tokens[0] for _, answer in drawn], minlength=len(probs))
    usual = probs * count >= 5
    assert usual.sum() > 10
    assert chisquare(seen[usual], seen[usual].sum() * probs[usual] / probs[usual].sum()).pvalue > 0.01


def test_groups_that_are_done_leave_and_the_others_keep_equally_many() -> None:
    done = np.array([[1, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 0]], np.bool_)
    kept, siblings = who_goes_on(done.reshape(-1), 4)
    # Two go on in the first group; the third keeps its one and a finished one beside it.
    assert siblings == 2
    assert kept.tolist() == [1, 2, 11, 8]
    kept, siblings = who_goes_on(done.reshape(-1), 1)
    assert (kept.tolist(), siblings) == ([1, 2, 11], 1)


def hidden_states(model: LanguageModel, step: LlamaStep) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, positions = torch.tensor([5, 2, 9]), torch.tensor([[0], [3], [50]])
    return step(tokens, positions, Alone()), model(tokens[:, None], positions=positions, layout=Alone())[:, 0]


@torch.no_grad()
def test_a_quicker_step_is_the_models_own_with_its_adapter(folder: Path) -> None:
    engine = engine_of(folder)
    with torch.enable_grad():
        teach(engine)
    before = {name: value.clone() for name, value in engine.model.named_parameters()}
    step = find_step(engine.model, WORTH_IT, 64)
    assert step is not None
    mine, models = hidden_states(engine.model, step)
    torch.testing.assert_close(mine, models, atol=1e-5, rtol=0)
    with engine.adapter.disable_adapter():
        without, base = hidden_states(engine.model, LlamaStep(engine.model, 64))
    torch.testing.assert_close(without, base, atol=1e-5, rtol=0)
    assert float((mine - without).abs().max()) > 0.01
    assert all(torch.equal(value, before[name]) for name, value in engine.model.named_parameters())
    assert find_step(engine.model, WORTH_IT - 1, 64) is None


SIZES: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("config", "quicker"),
    [
        (transformers.Qwen2Config(**SIZES), True),
        (transformers.MistralConfig(**SIZES, sliding_window=None), True),
        (transformers.GraniteConfig(**SIZES, residual_multiplier=0.5), False),  # Llama's parts, other sums
        (transformers.Qwen3Config(**SIZES, head_dim=8), False),  # more parts
        (transformers.GPT2Config(vocab_size=19, n_embd=32, n_layer=1, n_head=2, bos_token_id=0), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_of_other_kinds_keep_their_own_step(config: Any, quicker: bool) -> None:
    torch.manual_seed(0)
    model = LanguageModel(transformers.AutoModelForCausalLM.from_config(config).eval())
    with torch.inference_mode():
        assert (find_step(model, WORTH_IT, 64) is not None) == quicker
    drawn = dict(decode(model, [[1, 2, 3], [4]], 2, (0,), 8, GREEDY, torch.Generator()))
    theirs = greedy_answers(model.causal, [[1, 2, 3], [4]], 8)
    assert [drawn[row].tokens.tolist() for row in range(4)] == [theirs[0], theirs[0], theirs[1], theirs[1]]
