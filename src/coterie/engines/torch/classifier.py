"""A sequence-classification model that judges texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from coterie.engines.torch.pretrained import ModelError, pick_dtype
from coterie.rollouts import Task
from coterie.worlds.base import Critic, read_messages

LONGEST = 4096  # tokens, where neither the tokenizer nor the model says


class Classifier:
    """Gives each text the probability of a label, or the model's only logit."""

    def __init__(self, critic: Critic, device: str) -> None:
        self.critic, self.device = critic, torch.device(device)
        try:
            loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
                critic.model, dtype=pick_dtype("auto", self.device)
            )
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(critic.model)
        except (OSError, ValueError) as error:
            told = str(error).strip().splitlines()[0]
            raise ModelError(f"the classifier {critic.model!r} cannot be loaded ({told}); write a folder") from None
        self.model = loaded.to(self.device).eval().requires_grad_(False)
        self.column = self._column()
        if self.tokenizer.pad_token is None:  # models made from decoders often have none
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id

    def _column(self) -> int:
        """Which logit is meant."""
        names = {str(name): int(place) for place, name in self.model.config.id2label.items()}
        if not self.critic.label and len(names) == 1:
            return 0
        if self.critic.label not in names:
            told = f"has no label {self.critic.label!r}" if self.critic.label else "has several labels"
            raise ModelError(f"the classifier {self.critic.model} {told}; write label = one of {', '.join(names)}")
        return names[self.critic.label]

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], tasks: Sequence[Task], /) -> list[float]:
        rows = [self._encode(task, text) for task, text in zip(tasks, texts, strict=True)]
        found = [0.0] * len(rows)
        # Rows of a length beside each other waste little on padding.
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]["input_ids"]))
        for start in range(0, len(order), self.critic.batch):
            places = order[start : start + self.critic.batch]
            padded = self.tokenizer.pad([rows[place] for place in places], return_tensors="pt").to(self.device)
            logits = self.model(**padded).logits.float()
            values = logits.softmax(1)[:, self.column] if self.critic.label else logits[:, self.column]
            for place, value in zip(places, values.tolist(), strict=True):
                found[place] = value
        return found

    def _encode(self, task: Task, text: str) -> dict[str, list[int]]:
        limit = min(self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", LONGEST))
        if self.critic.reads == "answer":
            return dict(self.tokenizer(text, truncation=True, max_length=limit))
        messages = read_messages(task.prompt) or [{"role": "user", "content": task.prompt}]
        if not self.tokenizer.chat_template:
            asked = "\n\n".join(str(message["content"]) for message in messages)
            return dict(self.tokenizer(asked, text, truncation=True, max_length=limit))
        shown = self.tokenizer.apply_chat_template(
            [*messages, {"role": "assistant", "content": text}], tokenize=False, add_generation_prompt=False
        )
        return dict(self.tokenizer(shown, add_special_tokens=False, truncation=True, max_length=limit))
