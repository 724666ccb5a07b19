"""Random Qwen2 models of known shapes, whose answers end as often as asked; for the other benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from coterie.rollouts import Score, Task
from coterie.worlds.base import World

END = 0
NEVER = -30.0  # an end token's log-odds


@dataclass(frozen=True)
class Shape:
    """A Qwen2 as its configuration names it."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int = 512
    tie_word_embeddings: bool = False

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_weights(self) -> int:
        """Matrix elements that a token meets, without the head."""
        heads = 2 * self.num_attention_heads + 2 * self.num_key_value_heads
        each = self.hidden_size * (heads * self.head_width + 3 * self.intermediate_size)
        return self.num_hidden_layers * each

    @property
    def cache_width(self) -> int:
        """Numbers that a token leaves in the cache."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_width


SHAPES = {
    "0.3M": Shape(64, 4, 4, 2, 256),
    "1M": Shape(128, 4, 4, 2, 512),
    "4M": Shape(256, 4, 4, 2, 1024),
    "0.5B": Shape(896, 24, 14, 2, 4864, 151_936, True),
    "1.5B": Shape(1536, 28, 12, 2, 8960, 151_936, True),
    "7B": Shape(3584, 28, 28, 4, 18_944, 152_064),
    "14B": Shape(5120, 48, 40, 8, 13_824, 152_064),
}


@torch.no_grad()
def random_model(shape: Shape, ending: float, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """A model whose every token is the end with about this probability; never with 0."""
    torch.manual_seed(7)
    config = transformers.Qwen2Config(
        **asdict(shape), max_position_embeddings=4096, bos_token_id=None, eos_token_id=END, pad_token_id=END
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            causal = transformers.Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)
    # Every embedding has the same large first number, so that the last hidden state always has a known one too.
    embedding, head = causal.model.embed_tokens.weight, causal.lm_head.weight
    embedding[:, 0] = config.initializer_range * math.sqrt(shape.hidden_size)
    tokens = torch.randint(1, shape.vocab_size, (4, 64), device=device)
    hidden = causal.model(tokens, use_cache=False).last_hidden_state.float().reshape(-1, shape.hidden_size)
    others = torch.logsumexp(hidden @ head[1:].float().T, -1)
    odds = NEVER if ending == 0 else math.log(ending / (1 - ending))
    head[END] = 0
    head[END, 0] = (odds + others.mean()) / hidden[:, 0].mean()
    causal.generation_config.eos_token_id = causal.generation_config.pad_token_id = END
    return causal


def make_tokenizer(vocabulary: int) -> Any:
    """A tokenizer whose words are numbers."""
    words = {"<end>": END} | {str(i): i for i in range(1, vocabulary)}
    plain = Tokenizer(WordLevel(words, unk_token="<end>"))
    plain.pre_tokenizer = WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", pad_token="<end>")


def save_model(folder: Path, causal: Any) -> Path:
    """A folder with this model and its tokenizer."""
    make_tokenizer(causal.config.vocab_size).save_pretrained(folder)
    causal.save_pretrained(folder)
    return folder


def random_prompts(count: int, length: int, vocabulary: int, seed: int = 1) -> list[list[int]]:
    """Tokens without the end token."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (count, length), generator=stream).tolist()


def share_of_even(tokens: Sequence[int]) -> float:
    """A reward that costs nothing and differs between any two answers."""
    return sum(token % 2 == 0 for token in tokens) / max(1, len(tokens)) + 1e-3 * (sum(tokens) % 97)


@dataclass
class EvenNumbers(World):
    """Tasks are lists of numbers, and answers should have even ones."""

    prompts: Sequence[Sequence[int]]
    name: str = "even_numbers"

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{i}", " ".join(map(str, prompt))) for i, prompt in enumerate(self.prompts)]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return [Score(share_of_even([int(word) for word in answer.split()])) for answer in answers]
