"""A language model small enough to train in a blink, its tokenizer, and a world that it can please."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, World

WORDS = ("say", "a", "word", "please", "now", "red", "green", "blue", "one", "two", "three", "four", "yes", "no")


def word_tokens() -> Tokenizer:
    """A token a word."""
    plain = Tokenizer(WordLevel({word: i for i, word in enumerate(("<end>", "<unk>", *WORDS))}, unk_token="<unk>"))
    plain.pre_tokenizer = WhitespaceSplit()
    return plain


def byte_tokens() -> Tokenizer:
    """Any text, in bytes and a few pairs of them, as real language models have it."""
    plain = Tokenizer(BPE())
    plain.pre_tokenizer, plain.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=300, special_tokens=["<end>", "<unk>"], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    plain.train_from_iterator(['{"color": "red", "count": 12}', " ".join(WORDS)] * 4, trainer)
    return plain


def make_model(folder: Path, plain: Tokenizer, **shape: Any) -> Path:
    """A folder with random weights and this tokenizer."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    usual: dict[str, Any] = {
        "vocab_size": plain.get_vocab_size() + 3,  # as real ones have it: more rows than the tokenizer knows
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**usual, **shape})).save_pretrained(folder)
    return folder


@dataclass
class Colors(World):
    """An answer is as good as the share of its words that are blue."""

    name: str = "colors"

    def tasks(self, split: str) -> Sequence[Task]:
        ends = ("red", "green", "one", "two") if split == "train" else ("three", "four")
        return [Task(f"{split}-{word}", f"say a word {word}" + " please" * i) for i, word in enumerate(ends)]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        shares = [answer.split().count("blue") / max(1, len(answer.split())) for answer in answers]
        return [Score(share, {"blue": share}, success=share == 1) for share in shares]

    def examples(self) -> Sequence[Example]:
        return [Example(task, "blue blue") for task in self.tasks("train")]
