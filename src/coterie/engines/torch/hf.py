"""The engine for language models: any causal one that transformers loads, whole or by LoRA."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from coterie.engines.base import Dials, Metrics, OutOfStep, Sampling
from coterie.engines.torch.decoder.decoder import Decoder
from coterie.engines.torch.decoder.writing import decode as decode_plainly
from coterie.engines.torch.grammars import Grammar
from coterie.engines.torch.learner import LEARNER_FILE, Learner, LearnerSettings
from coterie.engines.torch.logprobs.chunks import score_in_chunks, split_rows
from coterie.engines.torch.logprobs.head import PLAIN, kernels_for
from coterie.engines.torch.logprobs.packed_attention import flash_runs
from coterie.engines.torch.pretrained import (
    LanguageModel,
    ModelError,
    ModelSettings,
    Pretrained,
    learning_memory,
    load_pretrained,
)
from coterie.engines.torch.small.decoding import Drawn
from coterie.rollouts import Batch, Completion, Finish, Floats, Group, Task, as_groups, make_batch
from coterie.worlds.base import Constraint, Example, read_messages

ADAPTER_FILE = "adapter_model.safetensors"
LONGEST = 256  # tokens of an answer, where nobody says
USABLE = 0.9  # of a GPU's memory


class LanguageModelEngine:
    """Samples and trains a pretrained model that reads and writes text."""

    def __init__(
        self,
        model: ModelSettings,
        settings: LearnerSettings,
        seed: int,
        device: str = "cpu",
        offload_reference: bool = False,
        instruction: Callable[[Task], str] = attrgetter("prompt"),
        loaded: Pretrained | None = None,
    ) -> None:
        self.settings, self.offload_reference, self.instruction = model, offload_reference, instruction
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        loaded = loaded or load_pretrained(model, self.device, seed)
        self.model, self.tokenizer, self.adapter = loaded.model, loaded.tokenizer, loaded.adapter
        self.ends = end_tokens(self.model.causal, self.tokenizer)
        self.grammar: Grammar | None = None
        if model.grammar is not None:
            self.grammar = Grammar(model.grammar, self.tokenizer, self.model.vocabulary, self.ends)
        on_gpu = self.device.type == "cuda"
        self.decoder = Decoder(self.model) if on_gpu and not self.model.why_plain else None
        # Nothing before it is first asked of. With LoRA then weights of the adapter, empty if it is off.
        self.reference: LanguageModel | dict[str, Tensor] | None = None
        # What a whole model in fewer bits rounds, once it is a mean: such steps are too small for it.
        self.reference_masters: dict[str, Tensor] = {}
        score = partial(score_in_chunks, chunk=model.logprob_chunk)
        split = partial(split_rows, self.model)
        self.learner: Learner[LanguageModel] = Learner(self.model, settings, self.generator, score, split)

    def describe(self) -> str:
        weights = list(self.model.parameters())
        learning = sum(p.numel() for p in weights if p.requires_grad) / 1e6
        how = f"LoRA of rank {self.settings.lora_rank}" if self.adapter else "all weights"
        dtype = str(self.model.causal.dtype).removeprefix("torch.")
        return (
            f"{type(self.model.causal).__name__} {self.settings.model}: {sum(p.numel() for p in weights) / 1e6:.1f}M "
            f"parameters, {learning:.2f}M learn ({how}), on {self.device}, {dtype}, {torch.get_num_threads()} threads; "
            f"learning takes about {self._learning_bytes() / 1e9:.1f} GB; {self._learning_by()}; {self._sampling_by()}"
        )

    def _learning_bytes(self) -> int:
        learner = self.learner.settings
        moment_bytes = 1 if learner.optimizer == "adamw_8bit" else 4
        return learning_memory(self.model, self.settings, learner.micro_batch_tokens, moment_bytes)

    def _learning_by(self) -> str:
        flash = flash_runs(self.device, self.model.causal.dtype, self.model.head_width)
        rows = f"packed, attention by {'flash kernels' if flash else 'scaled dot products'}"
        if self.model.why_plain:
            rows = f"padded, as {self.model.why_plain}"
        kernels = "plain torch" if kernels_for(self.device) is PLAIN else "Triton kernels"
        norms = f"; {self.model.quick_norms} norms in fewer passes" if self.model.quick_norms else ""
        return f"rows are {rows}{norms}; log-probabilities by {kernels if self.model.plain_head else 'autograd'}"

    def _sampling_by(self) -> str:
        if self.decoder is not None:
            return self.decoder.describe()
        return f"sampling by plain operations{f' ({self.model.why_plain})' if self.model.why_plain else ''}"

    # Text and tokens.

    def encode_prompt(self, prompt: str) -> list[int]:
        """A prompt's tokens: a JSON list of messages, or a text that is one where the model has a chat template."""
        messages = read_messages(prompt)
        if messages is None and self.settings.chat_template and self.tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
        if messages is None:
            return self.tokenizer(prompt)["input_ids"] or [self.ends[0]]
        if not self.tokenizer.chat_template:
            prompt = "\n\n".join(str(message["content"]) for message in messages) + "\n\n"
            return list(self.tokenizer(prompt)["input_ids"])
        shown = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(shown, add_special_tokens=False)["input_ids"])

    def encode_answer(self, answer: str) -> list[int]:
        """An answer's tokens, without its end."""
        return list(self.tokenizer(answer, add_special_tokens=False)["input_ids"])

    def decode_answer(self, tokens: Sequence[int]) -> str:
        """The text of an answer; an end token adds nothing."""
        kept = [token for token in tokens if token not in self.ends]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def known(self, task: Task, answer: str) -> Completion:
        """An answer that somebody wrote, as if it had been drawn, everything being possible."""
        tokens = np.array([*self.encode_answer(answer), self.ends[0]], np.int64)
        drawn = Drawn(tokens, np.zeros(len(tokens), np.float32), None, Finish.STOP)
        return self._complete(self.encode_prompt(self.instruction(task)), drawn)

    def _complete(self, prompt: Sequence[int], answer: Drawn, begun: Sequence[int] = ()) -> Completion:
        return Completion(
            tokens=np.concatenate([np.array(prompt, np.int64), answer.tokens]),
            chosen=np.arange(len(prompt) + len(answer.tokens)) >= len(prompt),
            logprobs=np.concatenate([np.zeros(len(prompt), np.float32), answer.logprobs]),
            legal=answer.support,
            text=self.decode_answer([*begun, *answer.tokens.tolist()]),
            finish=answer.finish,
        )

    # The contract.

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        begun = self.encode_answer(sampling.begin) if sampling.begin else []
        prompts = [self.encode_prompt(self.instruction(task)) + begun for task in tasks]
        max_tokens = sampling.max_tokens or LONGEST
        stream = self.generator
        if sampling.seed is not None:
            stream = torch.Generator(self.device).manual_seed(sampling.seed)
        decode = self.decoder.decode if self.decoder else partial(decode_plainly, self.model)

        def completions() -> Iterator[tuple[int, Completion]]:
            at_once = self._prompts_at_once(prompts, group_size, max_tokens)
            for start in range(0, len(prompts), at_once):
                asked = prompts[start : start + at_once]
                constraint = self._constraint(len(asked) * group_size, begun)
                for row, answer in decode(asked, group_size, self.ends, max_tokens, sampling, stream, constraint):
                    yield start * group_size + row, self._complete(asked[row // group_size], answer, begun)

        try:
            yield from as_groups(tasks, group_size, completions())
        except torch.OutOfMemoryError:
            raise OutOfStep(
                f"memory does not suffice to sample {len(tasks)} x {group_size} answers of up to {max_tokens} tokens "
                f"after prompts of up to {max(map(len, prompts))}; lower prompts_per_step, group_size or max_tokens"
            ) from None

    def _prompts_at_once(self, prompts: Sequence[Sequence[int]], group_size: int, max_tokens: int) -> int:
        """All, as others wait for a slot; but a grammar's rows go in step, and must all have one."""
        if self.grammar is None or self.decoder is None:
            return len(prompts)
        steps = self.decoder.make_room(len(prompts), max(map(len, prompts)), len(prompts) * group_size, max_tokens)
        return max(1, steps.slots.room.slots // group_size)

    def _constraint(self, num_rows: int, begun: Sequence[int]) -> Constraint | None:
        """What the grammar asks of answers that have begun like this."""
        if self.grammar is None:
            return None
        constraint = self.grammar.constraint(num_rows)
        for token in begun:
            constraint.advance(np.full(num_rows, token))
        return constraint

    def update(self, batch: Batch, dials: Dials) -> Metrics:
        self._make_way()
        with self._dropout_stream():
            return self.learner.update(batch, dials)

    def imitate(self, examples: Sequence[Example], learning_rate: float) -> Metrics:
        groups = [Group(example.task, [self.known(example.task, example.answer)]) for example in examples]
        with self._dropout_stream():
            metrics = self.learner.imitate(make_batch(groups, np.ones((len(groups), 1))), learning_rate)
        return {**metrics, "cold_start_refused": 0.0}

    def _make_way(self) -> None:
        """What sampling holds is kept for the next time, unless learning needs the memory."""
        if self.decoder is not None and self.decoder.steps is not None:
            room = USABLE * torch.cuda.get_device_properties(self.device).total_memory
            if self._learning_bytes() + self.decoder.steps.slots.num_bytes > room:
                self.decoder.release()

    @contextmanager
    def _dropout_stream(self) -> Iterator[None]:
        """Dropout draws from torch's own stream: let it follow from ours, so that a resumed run draws the same."""
        with torch.random.fork_rng(enabled=self.settings.lora_dropout > 0):
            if self.settings.lora_dropout > 0:
                torch.manual_seed(int(torch.randint(2**62, (), generator=self.generator, device=self.generator.device)))
            yield

    # The reference.

    def reference_logprobs(self, batch: Batch, temperature: float) -> Floats:
        if self.reference is None:
            self._found_reference()
        if isinstance(self.reference, LanguageModel):
            logprobs = self.learner.logprobs(self.reference.to(self.device), batch, temperature)
            if self.offload_reference:
                self.reference.to("cpu")
            return logprobs
        assert self.reference is not None
        with self._adapter_as(self.reference):
            return self.learner.logprobs(self.model, batch, temperature)

    def logprobs(self, batch: Batch, temperature: float) -> Floats:
        """[N, T]: the batch under the policy as it is."""
        return self.learner.logprobs(self.model, batch, temperature)

    def _found_reference(self) -> None:
        """The policy as it is: an adapter that has learned nothing is simply switched off."""
        if self.adapter and not any(value.any() for name, value in self._adapter_weights().items() if "lora_B" in name):
            self.reference = {}
        else:
            self.blend_reference(0.0)

    @torch.no_grad()
    def blend_reference(self, old_share: float) -> None:
        """With LoRA it is the adapter's weights that are blended, each for itself."""
        if self.reference is None and old_share > 0:
            self._found_reference()
        elif self.adapter:
            now = self._adapter_weights()
            # An adapter that is off is one whose B are zero.
            old = self.reference or {n: v.zero_() if "lora_B" in n else v for n, v in self._adapter_weights().items()}
            assert isinstance(old, dict)
            self.reference = {name: old_share * old[name] + (1 - old_share) * now[name] for name in now}
        elif old_share == 0 or not isinstance(self.reference, LanguageModel):
            self.reference, self.reference_masters = copy.deepcopy(self.model).requires_grad_(False), {}
        else:
            self._average(dict(self.reference.named_parameters()), old_share)
        if self.offload_reference and isinstance(self.reference, LanguageModel):
            self.reference.to("cpu")

    def _average(self, weights: Mapping[str, Tensor], old_share: float) -> None:
        """Move the reference's weights towards the policy's."""
        for each in self.learner.masters.learned:
            weight = weights[each.name]
            mean = weight
            if weight.dtype != torch.float32:
                mean = self.reference_masters.setdefault(each.name, weight.float())
            mean.mul_(old_share).add_(each.master.to(mean.device), alpha=1 - old_share)
            weight.copy_(mean)

    def _adapter_weights(self) -> dict[str, Tensor]:
        """A copy, in float32 and under the names that peft saves."""
        masters = {
            each.name.replace("causal.", "base_model.model.", 1): each.master for each in self.learner.masters.learned
        }
        state = peft.get_peft_model_state_dict(self.adapter, masters, save_embedding_layers=False)
        return {name: value.detach().clone() for name, value in state.items()}

    def _set_adapter(self, weights: Mapping[str, Tensor]) -> None:
        told = peft.set_peft_model_state_dict(self.adapter, dict(weights))
        assert not told.unexpected_keys, told.unexpected_keys

    def _adapter_as(self, weights: Mapping[str, Tensor]) -> AbstractContextManager[Any]:
        """The adapter with these weights for a while; with none it is off."""
        if not weights:
            return self.adapter.disable_adapter()  # type: ignore[no-any-return]
        return self._swapped(weights)

    @contextmanager
    def _swapped(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        mine = self._adapter_weights()
        self._set_adapter(weights)
        try:
            yield
        finally:
            self._set_adapter(mine)

    # What stays.

    def save(self, folder: Path) -> None:
        """A folder that transformers, or with LoRA peft, loads as it is; beside it what resuming needs."""
        self.export(folder, merge=False)
        self.learner.save(folder / LEARNER_FILE)
        if self.reference is not None:
            model = self.reference
            weights = dict(model.state_dict()) if isinstance(model, LanguageModel) else model
            # Tied weights are one tensor under two names, which safetensors does not allow.
            apart = {name: value.clone().contiguous() for name, value in weights.items()}
            means = {f"master.{name}": value for name, value in self.reference_masters.items()}
            save_file(apart | means, folder / "reference.safetensors")

    def export(self, folder: Path, merge: bool) -> None:
        """The policy alone: the adapter, or the whole model, with the adapter merged into it if asked."""
        if self.adapter and not merge:
            self.adapter.save_pretrained(folder, save_embedding_layers=False)
        else:
            # Merged in a copy: taking the adapter out again would leave rounding behind.
            whole = copy.deepcopy(self.adapter).merge_and_unload() if self.adapter else self.model.causal
            whole.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        self.load_policy(folder)
        self.learner.load(folder / LEARNER_FILE)
        self.reference = None
        if (folder / "reference.safetensors").exists():
            weights = load_file(folder / "reference.safetensors", device=str(self.device))
            if self.adapter:
                self.reference = weights
            else:
                self.blend_reference(0.0)
                assert isinstance(self.reference, LanguageModel)
                for name in [name for name in weights if name.startswith("master.")]:
                    mean = weights.pop(name)
                    self.reference_masters[name.removeprefix("master.")] = mean.to(self.reference.device)
                self.reference.load_state_dict(weights)

    def load_policy(self, folder: Path) -> None:
        if self.adapter and (folder / ADAPTER_FILE).is_file():
            saved = json.loads((folder / "adapter_config.json").read_text())
            if saved["r"] != self.settings.lora_rank:
                raise ModelError(
                    f"the adapter in {folder} has rank {saved['r']}, not {self.settings.lora_rank}: "
                    f"write lora_rank = {saved['r']}"
                )
            self._set_adapter(load_file(folder / ADAPTER_FILE, device=str(self.device)))
        elif self.adapter or not (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} holds no {'adapter' if self.adapter else 'whole model'}: "
                f"{'name it as the model' if self.adapter else 'set lora_rank to that of its adapter'}"
            )
        else:
            causal = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.causal.dtype)
            self.model.causal.load_state_dict(causal.state_dict())
        self.learner.masters.follow()


def end_tokens(causal: Any, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer; the first one ends what is imitated."""
    told = causal.generation_config.eos_token_id
    several = told if isinstance(told, list) else [told]
    found = tuple(dict.fromkeys(t for t in (tokenizer.eos_token_id, *several) if t is not None))
    if not found:
        raise ModelError(f"the tokenizer of {causal.name_or_path} has no end token: set its eos_token")
    return found
