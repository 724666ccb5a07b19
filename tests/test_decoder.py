"""The decoder for GPUs: its schedule and plain operations here, its graphs and kernels where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

from coterie.engines.base import Sampling
from coterie.engines.torch.decoder import decoder as schedule
from coterie.engines.torch.decoder import twins
from coterie.engines.torch.decoder.decoder import Decoder
from coterie.engines.torch.decoder.layers import FusedLayers, lay_together
from coterie.engines.torch.decoder.slots import Room, Slots
from coterie.engines.torch.pretrained import LanguageModel
from coterie.engines.torch.small.decoding import Drawn
from coterie.rollouts import Bools, Finish, Ints, unpack_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = [[1, 2, 3, 4, 5], [7], [9, 8] * 40, [5, 6, 7]]
END, VOCABULARY = 0, 97


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_causal(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": VOCABULARY, **shape, **more}
    causal = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**more))
    with torch.no_grad():
        for weight in causal.parameters():
            weight.normal_(0, 0.15) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
    return causal.to(DEVICE).eval()


def draw(
    decoder: Decoder, sampling: Sampling, group_size: int = 2, max_tokens: int = 20, **more: Any
) -> dict[int, Drawn]:
    stream = torch.Generator(DEVICE).manual_seed(3)
    found = dict(decoder.decode(PROMPTS, group_size, (END,), max_tokens, sampling, stream, **more))
    assert sorted(found) == list(range(len(PROMPTS) * group_size))
    return found


def farthest(causal: Any, drawn: dict[int, Drawn], group_size: int, temperature: float) -> float:
    """How far the decoder's log-probabilities are from those of a plain pass over the whole text."""
    far = 0.0
    for row, answer in drawn.items():
        prompt = PROMPTS[row // group_size]
        tokens = torch.tensor([[*prompt, *answer.tokens]], device=DEVICE)
        with torch.no_grad():
            logits = causal(tokens).logits[0, len(prompt) - 1 : -1] / temperature
        if answer.support is not None:
            support = torch.from_numpy(unpack_bits(answer.support, VOCABULARY)).to(DEVICE)
            logits = logits.masked_fill(~support, -torch.inf)
        plain = logits.log_softmax(-1).gather(-1, tokens[0, len(prompt) :, None])[:, 0]
        far = max(far, float((plain.cpu() - torch.from_numpy(answer.logprobs)).abs().max()))
    return far


MODELS = [("Qwen2", {}), ("Llama", {"head_dim": 32}), ("Qwen3", {"head_dim": 16}), ("Gemma", {"head_dim": 16})]


@pytest.mark.parametrize(("kind", "more"), MODELS)
def test_greedy_answers_are_those_of_generate(kind: str, more: dict[str, int]) -> None:
    causal = make_causal(kind, **more)
    decoder = Decoder(LanguageModel(causal))
    assert ("fused layers" in decoder.describe()) == (kind != "Gemma")
    drawn = draw(decoder, Sampling(temperature=0))
    for place, prompt in enumerate(PROMPTS):
        given = torch.tensor([prompt], device=DEVICE)
        whole = causal.generate(given, max_new_tokens=20, do_sample=False, eos_token_id=END, pad_token_id=END)[0]
        for row in (2 * place, 2 * place + 1):
            assert drawn[row].tokens.tolist() == whole[len(prompt) :].tolist()
            assert drawn[row].finish == (Finish.STOP if drawn[row].tokens[-1] == END else Finish.LENGTH)


@pytest.mark.parametrize("own_layers", [True, False])
@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_p=0.8), Sampling(1.3, top_k=5)])
def test_logprobs_are_those_of_a_plain_pass(own_layers: bool, sampling: Sampling) -> None:
    causal = make_causal("Qwen2")
    decoder = Decoder(LanguageModel(causal))
    if own_layers:
        decoder.why_own_layers = "asked for"
    drawn = draw(decoder, sampling)
    assert farthest(causal, drawn, 2, sampling.temperature) < 1e-5
    again = draw(decoder, sampling)
    assert all((again[row].tokens == drawn[row].tokens).all() for row in drawn)


def test_an_adapter_is_active_without_being_merged() -> None:
    causal = make_causal("Llama")
    plain = draw(Decoder(LanguageModel(causal)), Sampling(0.0))
    peft.get_peft_model(causal, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, weight in causal.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3)
    decoder = Decoder(LanguageModel(causal))
    drawn = draw(decoder, Sampling(1.0))
    assert "fused" in decoder.describe()
    assert farthest(causal, drawn, 2, 1.0) < 1e-5
    adapted = draw(decoder, Sampling(0.0))
    assert any(adapted[row].tokens.tolist() != plain[row].tokens.tolist() for row in plain)


def test_an_update_of_the_weights_is_what_the_next_answer_is_drawn_from() -> None:
    causal = make_causal("Llama")
    decoder = Decoder(LanguageModel(causal))
    draw(decoder, Sampling(1.0))
    with torch.no_grad():
        for weight in causal.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    assert farthest(causal, draw(decoder, Sampling(1.0)), 2, 1.0) < 1e-5


def test_weights_laid_together_are_still_the_layers_own() -> None:
    layers = [torch.nn.Linear(4, size) for size in (3, 2)]
    before = [layer.weight.detach().clone() for layer in layers]
    whole = lay_together([layer.weight for layer in layers])
    assert torch.equal(whole, torch.cat(before))
    again = lay_together([layer.weight for layer in layers])
    assert again.data_ptr() == whole.data_ptr()
    assert torch.equal(again, whole)
    with torch.no_grad():
        layers[1].weight.zero_()
    assert torch.equal(whole[3:], torch.zeros(2, 4))
    layers[0](torch.ones(1, 4)).sum().backward()
    assert layers[0].weight.grad is not None


def test_a_model_whose_weights_lie_together_is_saved_as_it_is(tmp_path: Path) -> None:
    causal = make_causal("Qwen2", tie_word_embeddings=True)
    before = {name: value.clone() for name, value in causal.state_dict().items()}
    with torch.no_grad():
        FusedLayers(causal, 32, twins)
    causal.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name].to(DEVICE), value) for name, value in before.items())


def test_answers_do_not_depend_on_who_waits_for_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(make_causal("Llama"))
    at_once = draw(Decoder(model), Sampling(1.0), group_size=4, max_tokens=40)
    monkeypatch.setattr(schedule, "BUCKETS", (1, 2, 4))
    narrow = Decoder(model)
    in_turn = draw(narrow, Sampling(1.0), group_size=4, max_tokens=40)
    assert narrow.steps is not None
    assert narrow.steps.slots.room.slots == 4
    assert len({len(answer.tokens) for answer in at_once.values()}) > 2
    assert all(at_once[row].tokens.tolist() == in_turn[row].tokens.tolist() for row in at_once)


def test_every_answer_stops_at_its_own_limit() -> None:
    decoder = Decoder(LanguageModel(make_causal("Llama")))
    limits = np.array([3, 9, 1, 40] * 4)
    stream = torch.Generator(DEVICE).manual_seed(1)
    drawn = dict(decoder.decode(PROMPTS, 4, (-5,), 40, Sampling(1.0), stream, limits=limits))
    assert [len(drawn[row].tokens) for row in range(16)] == limits.tolist()


class OddThenEven:
    """Odd tokens and even ones in turn; a row that drew 13 has nothing left."""

    def __init__(self, rows: int) -> None:
        self.last, self.place = np.full(rows, -1), 0

    def legal(self) -> Bools:
        found = np.zeros((len(self.last), VOCABULARY), np.bool_)
        found[:, 1 - self.place % 2 :: 2] = True
        found[self.last == 13] = False
        return found

    def advance(self, tokens: Ints) -> None:
        self.last, self.place = tokens, self.place + 1

    def keep(self, rows: Ints) -> None:
        self.last = self.last[rows]


def test_a_grammar_is_obeyed_and_its_masks_are_kept() -> None:
    causal = make_causal("Llama")
    drawn = draw(Decoder(LanguageModel(causal)), Sampling(2.0), group_size=8, constraint=OddThenEven(32))
    finishes = {answer.finish for answer in drawn.values()}
    assert finishes >= {Finish.DEAD_END, Finish.LENGTH}
    for answer in drawn.values():
        assert all(token % 2 == (place + 1) % 2 for place, token in enumerate(answer.tokens))
        assert (answer.finish == Finish.DEAD_END) == (13 in answer.tokens)
    assert farthest(causal, drawn, 8, 2.0) < 1e-5


def test_what_is_drawn_follows_the_probabilities() -> None:
    room = Room(1, 1, 1, 4000)
    slots = Slots(room, 1, 1, 16, torch.float32, torch.device(DEVICE))
    for buffer, value in ((slots.finished, 0), (slots.limit, 5000), (slots.seed, 77)):
        buffer.fill_(value)
    torch.manual_seed(1)
    logits = torch.randn(1, 12, device=DEVICE)
    for _ in range(4000):
        operations().draw(logits, slots, torch.zeros(1, dtype=torch.int32, device=DEVICE), greedy=False)
    expected = 4000 * logits[0].softmax(-1).cpu()
    counts = torch.bincount(slots.tokens[0].long().cpu(), minlength=12)
    assert float(((counts - expected) ** 2 / expected).sum()) < 31.3  # chi-square, 11 degrees of freedom, p = .001


def operations() -> Any:
    if DEVICE == "cpu":
        return twins
    from coterie.engines.torch.decoder import kernels

    return kernels
