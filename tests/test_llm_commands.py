"""Language models at the command line: a configuration in words, and a conversation."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie import GRPOConfig, GRPOTrainer
from coterie.build import make_language_model, settle
from coterie.cli import main
from coterie.engines.torch.pretrained import learning_memory
from coterie.explain import explain
from coterie.models import KNOWN, ModelShape, find_shape
from coterie.sizes import Sizes, text_memory
from coterie.worlds.prompts.world import PromptsWorld
from small_lm import Colors, make_model, word_tokens

SMALL: dict[str, Any] = {"device": "cpu", "threads": 1, "workers": 1, "prompts_per_step": 2, "group_size": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), word_tokens())


def explained(**settings: Any) -> str:
    world = PromptsWorld()
    return explain(settle(GRPOConfig(world="prompts", **settings), world), world)


@pytest.mark.parametrize(
    "settings", [{"lora_rank": 4}, {"lora_rank": 4, "lora_targets": "q_proj,v_proj"}, {"lora_rank": 0}]
)
def test_sizes_told_from_the_configuration_are_those_of_the_model(folder: Path, settings: dict[str, Any]) -> None:
    config = settle(GRPOConfig(model=str(folder), **SMALL, **settings), Colors())
    engine = make_language_model(config, Colors())
    shape = find_shape(str(folder))
    assert shape is not None
    weights = list(engine.model.parameters())
    learning = sum(p.numel() for p in weights if p.requires_grad)
    rank = config.lora_rank
    assert shape.parameters + (learning if rank else 0) == sum(p.numel() for p in weights)
    assert learning == (shape.adapter(rank, config.lora_targets) if rank else shape.parameters)
    held = text_memory(Sizes.of(config, Colors()), shape, "a CPU", 2_048)
    told = sum(size for name, size in held.items() if name not in ("reference", "cache while sampling"))
    assert told == learning_memory(engine.model, engine.settings, 2_048, 4)


def test_sizes_of_models_that_are_not_here_are_known() -> None:
    assert KNOWN["smollm2"].parameters == 134_515_008
    big = KNOWN["Qwen/Qwen2.5-14B-Instruct"]
    assert big.parameters / 1e9 == pytest.approx(14.77, abs=0.01)
    assert big.cached == 2 * 48 * 8 * 128
    # One layer of width 4 and inner width 8, rank 2: q and o 2 x 8, k and v 2 x 6, three of the MLP 2 x 12.
    assert ModelShape(4, 1, 8, 2, 1, 10, tied=True).adapter(2, "all-linear") == 2 * 16 + 2 * 12 + 3 * 24


def test_what_a_language_model_does_is_told(tmp_path: Path) -> None:
    text = explained(model="Qwen/Qwen2.5-14B-Instruct", lora_rank=64, kl_coef=0.1, optimizer="adamw_8bit")
    assert "LoRA of rank 64 on all-linear, 275.25M parameters, counting 0.5 times; all else is frozen" in text
    assert "reference: the adapter switched off; no second model" in text
    assert "two moments in 8 bits" in text and "gradient checkpointing: off" in text and "grammar: off" in text
    # Two moments of a byte each take half of what gradients of four bytes do.
    assert "gradients 1,050.0, AdamW (two moments) 525.0" in text
    whole = explained(model="smollm2", lora_rank=0, kl_coef=0.1, reference="ema", grammar="(yes|no)", device="cpu")
    assert "all weights learn" in whole and "reference: a copy of the model" in whole
    assert "grammar ((yes|no)): on" in whole and "on a GPU, in MiB" not in whole
    assert "answers up to 256" in whole
    assert "is not on this disk" in explained(model=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optimizer": "adamw_8bit", "device": "cpu"}, "adamw_8bit needs a GPU"),
        ({"frozen": "embed"}, "training refuses frozen"),
        ({"lora_rank": 0, "learning_rate": 1e-3}, "is high for all weights of a language model"),
        ({"lora_rank": 4, "lora_alpha": 32}, "counts 8 times learns in jumps"),
    ],
)
def test_what_looks_wrong_in_a_language_model_is_told(settings: dict[str, Any], told: str) -> None:
    usual = {"model": "smollm2", "eval_every": 10}
    assert explained(**usual).endswith("Warnings\n  none\n")
    assert told in explained(**{**usual, **settings})


def test_without_a_model_a_world_of_text_cannot_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "prompts"]) == 2
    assert "name a language model, as in --model smollm2" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "chat"
    options = {"system": "say a word"}
    config = GRPOConfig(
        world="prompts", model=str(folder), steps=1, max_tokens=4, temperature=0.0, out=str(out), world_options=options,
        **SMALL,
    )  # fmt: skip
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        trainer.train()
    return out


def test_a_run_can_be_chatted_with_at_a_terminal(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("red please\n\nred please\n/reset\nred please\n"))
    assert main(["sample", str(run)]) == 0
    greeting, first, second, forgotten, again, *_ = capsys.readouterr().out.replace("> ", "").splitlines()
    assert greeting == "A line is a message; /reset forgets all, ^D ends."
    assert forgotten == "(forgotten)"
    # The same words a second time have more before them; after /reset they have not.
    assert first == again and second != first


def test_chats_need_a_language_model_and_prompts_need_no_chat(
    run: Path,
    small: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("red\n"))
    assert main(["sample", str(run), "--chat"]) == 0
    assert capsys.readouterr().out.startswith("A line is a message")
    assert main(["sample", str(run), "--prompt", "say a word", "--num", "2"]) == 0
    assert capsys.readouterr().out.count("# say a word: ") == 2
    GRPOTrainer(GRPOConfig(world="bricks", out=str(tmp_path / "bricks"), **small)).save()
    assert main(["sample", str(tmp_path / "bricks"), "--chat"]) == 2
    assert "--chat is for language models" in capsys.readouterr().err
