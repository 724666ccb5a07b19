"""The fill world: its text, its blanks, its language, and the judge that nobody trains against."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coterie.rollouts import Task
from coterie.worlds.base import FillLanguage, LanguageError
from coterie.worlds.check import check_world
from coterie.worlds.fill import FillWorld
from coterie.worlds.fill.corpus import read_paragraphs, split_stretches
from coterie.worlds.fill.language import BlanksLanguage, read_fills, spell_characters
from coterie.worlds.fill.masks import MASKS
from coterie.worlds.fill.ngram import NgramModel
from coterie.worlds.fill.world import share_right

WORLD = FillWorld(block_size=64)


def test_held_out_text_is_never_in_the_training_text() -> None:
    train = "\n".join(WORLD.stretches["train"])
    assert len(train) > 100_000
    assert not any(task.spec["text"] in train for task in WORLD.tasks("heldout"))
    paragraphs = {split: set("\n".join(texts).split("\n")) for split, texts in WORLD.stretches.items()}
    shared = {p for p in paragraphs["train"] & paragraphs["heldout"] if len(p) > 60}
    assert not shared


def test_a_paragraph_that_comes_again_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one two\n\nthree\n  \nfour\n\none two\n")
    assert read_paragraphs(str(path)) == ["one two", "three", "four"]


def test_every_tenth_stretch_is_held_out() -> None:
    paragraphs = [f"{i:04d}" + "x" * 1_995 for i in range(40)]
    splits = split_stretches(paragraphs, 64)
    assert [text[:4] for text in splits["heldout"]] == ["0005", "0015", "0025", "0035"]
    assert len(splits["train"]) == 36


@pytest.mark.parametrize(
    ("text", "settings", "told"),
    [
        ("too short", {}, "has 9 characters, too few"),
        ("x □ y " * 2_000, {}, "contains □, the sign for a blank"),
        ("abc " * 4_000, {"masks": "some"}, "masks is 'some'; write one of random, sticky, span or mixed"),
        ("abc " * 4_000, {"ratio_low": 0.6}, "must be shares, the low one first"),
        ("abc " * 4_000, {"block_size": 2}, "block_size is 2; write 8 or more"),
        ("abc " * 4_000, {"tokenizer": "none.json"}, "there is no such file"),
    ],
)
def test_what_cannot_be_meant_is_told(tmp_path: Path, text: str, settings: dict[str, object], told: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        FillWorld(corpus=str(path), **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        FillWorld(corpus=str(tmp_path / "none.txt"))


@pytest.mark.parametrize("kind", list(MASKS))
@given(length=st.integers(1, 60), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_mask_has_as_many_blanks_as_asked_for(kind: str, length: int, share: float, seed: int) -> None:
    count = round(share * length)
    blank = MASKS[kind](length, count, np.random.default_rng(seed))
    assert (blank.shape, blank.sum()) == ((length,), count)


def test_blanks_lie_apart_in_random_masks_and_together_in_the_others() -> None:
    def runs(kind: str) -> float:
        found = [MASKS[kind](128, 48, np.random.default_rng(seed)) for seed in range(50)]
        return float(np.mean([np.count_nonzero(np.diff(np.append(0, mask)) == 1) for mask in found]))

    # 48 of 128 at random: 48 * 80/128 = 30 runs, and a little more for one that begins the text.
    assert runs("random") == pytest.approx(30, abs=1.5)
    assert runs("sticky") < 15 and runs("span") < 15


def test_the_ratio_is_drawn_for_each_text_and_the_blanks_depend_on_the_task_alone() -> None:
    ratios = [float(task.tags["ratio"]) for task in WORLD.tasks("train")]
    assert 0.29 <= min(ratios) < 0.32 and 0.48 < max(ratios) <= 0.51
    assert {task.tags["masks"] for task in WORLD.tasks("train")} == {"random", "sticky", "span"}
    again = FillWorld(block_size=64)
    assert [t.prompt for t in again.tasks("heldout")] == [t.prompt for t in WORLD.tasks("heldout")]


@pytest.mark.parametrize(
    ("prompt", "answer", "one_each", "fills"),
    [
        ("a□c", "abc", True, [(1, "b")]),
        ("□□b□", "xyba", True, [(2, "xy"), (1, "a")]),
        ("abc", "abc", True, []),
        ("a□□□", "abab", True, [(3, "bab")]),
        ("□ab", "abab", True, None),
        ("□ab", "abab", False, [(1, "ab")]),
        ("a□c", "ac", False, None),
        ("a□c", "abd", True, None),
        ("abc", "abcd", False, None),
        ("a□b□c", "a1bb2c", False, [(1, "1"), (1, "b2")]),
    ],
)
def test_an_answer_is_read_as_the_prompt_filled_in(
    prompt: str, answer: str, one_each: bool, fills: list[tuple[int, str]] | None
) -> None:
    assert read_fills(prompt, answer, "□", one_each) == fills


@given(text=st.text("ab", min_size=1, max_size=30), seed=st.integers(0, 999))
def test_what_was_hidden_is_read_back(text: str, seed: int) -> None:
    blank = np.random.default_rng(seed).random(len(text)) < 0.5
    prompt = "".join("□" if hidden else c for c, hidden in zip(text, blank, strict=True))
    fills = read_fills(prompt, text, "□", one_each=True)
    assert fills is not None
    assert "".join(fill for _, fill in fills) == "".join(c for c, hidden in zip(text, blank, strict=True) if hidden)


def test_the_match_is_the_share_of_right_characters() -> None:
    assert share_right([(2, "ab"), (1, "c")], [(2, "ax"), (1, "c")]) == pytest.approx(2 / 3)
    assert share_right([(1, "ing")], [(1, "in")]) == pytest.approx(2 / 3)
    assert share_right([], []) == 1.0


def test_the_true_text_earns_everything_and_another_text_nothing() -> None:
    task = WORLD.tasks("heldout")[0]
    truth = WORLD.solution(task)
    assert truth is not None
    worse = "".join("e" if c == "□" else c for c in task.prompt)
    best, middling, other = WORLD.score(task, [truth, worse, truth[:-1]])
    assert (best.total, best.parts, best.success) == (1.0, {"ngram": 1.0, "match": 1.0}, True)
    assert 0 < middling.total < 0.7 and middling.valid and not middling.success
    assert (other.total, other.valid) == (0.0, False)


def test_a_text_without_a_truth_is_held_against_what_is_usual() -> None:
    good, bad = (WORLD.score(Task("mine", "the va□ue"), [text])[0] for text in ("the value", "the vaQue"))
    assert "match" not in good.parts
    assert good.total > bad.total > 0


def test_the_ngram_model_is_witten_bell_by_hand() -> None:
    model = NgramModel(["abab"], 2, 2)
    # Of one character: a and b twice each, two kinds, uniform 1/3 below: (2 + 2/3) / (4 + 2) = 4/9.
    # After a: b twice, one kind: (2 + 4/9) / 3 = 22/27. After b: a once, one kind: (1 + 4/9) / 2 = 13/18.
    # At the start: a once, one kind: (1 + 4/9) / 2 = 13/18.
    expected = (math.log(13 / 18) + math.log(22 / 27) + math.log(13 / 18)) / 3
    assert model.log_probability("aba") == pytest.approx(expected)
    # c was never seen: after a (0 + p) / 3 with p = (0 + 2/3) / 6.
    assert model.log_probability("ac") == pytest.approx((math.log(13 / 18) + math.log((2 / 3 / 6) / 3)) / 2)
    assert model.log_probability("") == 0


def small_language() -> BlanksLanguage:
    return BlanksLanguage(spell_characters(["abc "]), "□", 16)


def test_tokens_of_a_prompt_and_of_what_fills_it() -> None:
    language = small_language()
    assert isinstance(language, FillLanguage)
    assert list(language.vocabulary) == ["<end>", "<mask>", "<text>", " ", "a", "b", "c"]
    assert language.encode_prompt("a□ □c") == [2, 4, 1, 3, 1, 6]
    assert language.fill_in("a□ □c", "ab cc") == [2, 4, 5, 3, 6, 6]
    assert language.fillable.tolist() == [False] * 3 + [True] * 4
    assert language.decode([2, 4, 1, 3, 1, 6]) == "a□ □c"
    with pytest.raises(LanguageError, match="is not 'a□c', filled in"):
        language.fill_in("a□c", "abb")
    with pytest.raises(LanguageError, match="character 2 of 'ax', 'x', is not in the corpus"):
        language.encode("ax")


def test_from_left_to_right_what_is_known_is_forced() -> None:
    language = small_language()
    constraint = language.constraint([Task("t", "a□"), Task("u", "□")])
    seen = []
    for token in ([4, 5], [6, 0], [0, 0]):
        seen.append([np.flatnonzero(row).tolist() for row in constraint.legal()])
        constraint.advance(np.array(token))
    assert seen == [[[4], [3, 4, 5, 6]], [[3, 4, 5, 6], [0]], [[0], [0]]]


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of the corpus, as anyone would train it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(WORLD.stretches["train"], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_given_tokenizer_serves_as_well_as_characters(tokenizer_file: Path) -> None:
    world = FillWorld(tokenizer=str(tokenizer_file), block_size=32)
    assert [f.problem for f in check_world(world, num_examples=16) if f.problem] == []
    language, task = world.language(), world.tasks("heldout")[0]
    truth = world.solution(task)
    assert truth is not None
    tokens, asked = language.fill_in(task.prompt, truth), language.encode_prompt(task.prompt)
    assert len(tokens) == len(asked) == 33 and language.mask not in tokens
    assert len(truth) > 40  # pieces are longer than characters
    assert all(a == b for a, b in zip(tokens, asked, strict=True) if b != language.mask)
    broken = [p for p, fine in zip(language.spelling.pieces, language.fillable[3:], strict=True) if not fine]
    assert broken and all("\ufffd" in piece or not piece for piece in broken)


def test_a_file_that_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"no": "tokenizer"}))
    with pytest.raises(ValueError, match="is no tokenizer"):
        FillWorld(tokenizer=str(path))


def test_a_person_sees_what_was_blank_and_what_became_of_it() -> None:
    task = Task("t", "a□□ d□", {"text": "abc de"})
    before, blanks, after = WORLD.passages(task, "abx de")
    assert ("".join(t for t, _ in before.pieces), before.title) == ("abc de", "before")
    assert [kind for _, kind in blanks.pieces] == ["plain", "blank", "blank", "plain", "plain", "blank"]
    expected = [("a", "plain"), ("b", "right"), ("x", "wrong"), (" ", "plain"), ("d", "plain"), ("e", "right")]
    assert after.pieces == expected
    assert WORLD.passages(task, "garbage")[-1].pieces == [("garbage", "wrong")]
