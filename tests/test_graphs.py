"""Answers drawn with everything on the device are those of the plain loop; on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from coterie.engines.base import Sampling
from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.small import stepping
from coterie.engines.torch.small.decoding import Drawn, decode
from coterie.engines.torch.small.graphs import GraphDecoder, bucket_of
from coterie.engines.torch.small.tables import DeviceTables
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.engines.torch.transfer import pack
from coterie.rollouts import Completion, Finish, Group, Task, make_batch, pack_bits, unpack_bits
from coterie.worlds.base import Characters, FixedConstraint, Language, TabledConstraint
from coterie.worlds.bricks.language import AbsoluteLanguage
from coterie.worlds.theory.language import TheoryLanguage
from dead_end import DeadEnd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
THEORIES = TheoryLanguage(60), ["BOS", "BOS GAUGE_GROUPS NUM_GAUGE num_2", "BOS GAUGE_GROUPS", "BOS", ""]
BRICKS = AbsoluteLanguage(max_bricks=5), ["a bench 8 wide 3 deep 4 tall", "a table 6 wide 6 deep 3 tall"]
LETTERS = Characters("abcdef", max_tokens=9), ["x", "y2"]


def make_engine(language: Language, heads: int = 2) -> CausalEngine:
    engine = CausalEngine(language, PolicyShape(len(language.vocabulary), 48, 2, heads), LearnerSettings(), 0, DEVICE)
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(3.0)  # far from uniform, so that a mistake shows
    return engine


def draw_both(
    engine: CausalEngine, prompts: Sequence[str], group_size: int, sampling: Sampling
) -> tuple[dict[int, Drawn], dict[int, Drawn]]:
    """By the plain loop and by graphs."""
    language = engine.language
    asked = [language.encode_prompt(prompt) for prompt in prompts]
    tasks = [Task("t", prompt) for prompt in prompts for _ in range(group_size)]
    limit = sampling.max_tokens or language.max_tokens
    plain = decode(
        engine.model, asked, group_size, language.constraint(tasks), language.end, limit, sampling,
        torch.Generator(DEVICE).manual_seed(1),
    )  # fmt: skip
    graphs = GraphDecoder(engine.model, language.end).decode(
        asked, group_size, language.constraint(tasks), limit, sampling, torch.Generator(DEVICE).manual_seed(2)
    )
    return dict(plain), dict(graphs)


@pytest.mark.parametrize(("language", "prompts"), [THEORIES, BRICKS, LETTERS], ids=["theories", "bricks", "letters"])
def test_greedy_answers_are_those_of_the_plain_loop(language: Language, prompts: Sequence[str]) -> None:
    plain, graphs = draw_both(make_engine(language), prompts, 3, Sampling(temperature=0.0))
    assert sorted(plain) == sorted(graphs) == list(range(3 * len(prompts)))
    for row, mine in graphs.items():
        np.testing.assert_array_equal(mine.tokens, plain[row].tokens)
        np.testing.assert_array_equal(mine.support, plain[row].support)
        np.testing.assert_allclose(mine.logprobs, plain[row].logprobs, atol=1e-6)
        assert mine.finish is plain[row].finish


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.7, 0.9), Sampling(1.2, top_k=3), Sampling(max_tokens=7)],
    ids=["plain", "top_p", "top_k", "short"],
)
@pytest.mark.parametrize(("language", "prompts"), [THEORIES, BRICKS, LETTERS], ids=["theories", "bricks", "letters"])
def test_what_graphs_sample_is_what_is_trained(language: Language, prompts: Sequence[str], sampling: Sampling) -> None:
    engine = make_engine(language, heads=3)
    tasks = [Task(str(i), prompt) for i, prompt in enumerate(prompts)]
    _, drawn = draw_both(engine, prompts, 40, sampling)
    groups = []
    for place, task in enumerate(tasks):
        asked = language.encode_prompt(task.prompt)
        rows = [engine._complete(asked, drawn[place * 40 + i]) for i in range(40)]
        groups.append(Group(task, rows))
        for completion in rows:
            check_answer(completion, len(language.vocabulary), language.end, sampling.max_tokens or language.max_tokens)
        check_legal(language, task, rows, narrowed=sampling.top_p < 1 or sampling.top_k > 0)
    batch = make_batch(groups, np.zeros((len(groups), 40)))
    again = engine.learner.logprobs(engine.model, batch, sampling.temperature)
    assert np.abs(again - batch.logprobs).max() < 1e-5
    assert batch.logprobs[batch.chosen].min() < -1  # something was really chosen


def check_answer(completion: Completion, vocabulary: int, end: int, limit: int) -> None:
    answer = completion.tokens[completion.chosen]
    assert (answer[:-1] != end).all()
    assert completion.finish is (Finish.STOP if answer[-1] == end else Finish.LENGTH)
    assert len(answer) == limit or completion.finish is Finish.STOP
    assert completion.legal is not None
    assert unpack_bits(completion.legal, vocabulary)[np.arange(len(answer)), answer].all()


def check_legal(language: Language, task: Task, rows: Sequence[Completion], narrowed: bool) -> None:
    """The support is what the constraint says, or part of it where top-k or top-p narrow it."""
    for completion in rows[::8]:
        constraint = language.constraint([task])
        answer = completion.tokens[completion.chosen]
        assert completion.legal is not None
        for token, packed in zip(answer, completion.legal, strict=True):
            legal = pack_bits(constraint.legal()[0])
            assert (packed & ~legal == 0).all() and (narrowed or (packed == legal).all())
            constraint.advance(np.array([token]))


def test_draws_of_graphs_follow_the_distribution() -> None:
    language = Characters("abcdef", max_tokens=2)
    engine = make_engine(language)
    _, drawn = draw_both(engine, ["x"], 20_000, Sampling())
    counts = np.bincount([answer.tokens[0] for answer in drawn.values()], minlength=len(language.vocabulary))
    chances = {int(a.tokens[0]): np.exp(a.logprobs[0]) for a in drawn.values()}
    assert sum(chances.values()) == pytest.approx(1, abs=1e-4)
    chi_square = sum((counts[token] - 20_000 * p) ** 2 / (20_000 * p) for token, p in chances.items())
    assert chi_square < 28  # p < .0001 for six degrees of freedom


def test_the_same_seed_gives_the_same_answers_and_moves_the_stream_on() -> None:
    engine = make_engine(THEORIES[0])
    decoder = GraphDecoder(engine.model, 0)
    asked = [THEORIES[0].encode_prompt("")]

    def go(stream: torch.Generator) -> list[list[int]]:
        constraint = THEORIES[0].constraint([Task("t", "")] * 50)
        drawn = dict(decoder.decode(asked, 50, constraint, 60, Sampling(), stream))
        return [drawn[row].tokens.tolist() for row in range(50)]

    stream, again = (torch.Generator(DEVICE).manual_seed(5) for _ in range(2))
    first, second = go(stream), go(stream)
    assert first != second
    assert [go(again), go(again)] == [first, second]


def test_a_decoder_makes_room_for_more_rows_and_longer_answers() -> None:
    engine = make_engine(THEORIES[0])
    decoder = GraphDecoder(engine.model, 0)
    for prompts, group_size, limit in (([""], 2, 5), ([""], 40, 5), (["BOS GAUGE_GROUPS", ""], 40, 60), ([""], 2, 60)):
        asked = [THEORIES[0].encode_prompt(prompt) for prompt in prompts]
        tasks = [Task("t", prompt) for prompt in prompts for _ in range(group_size)]
        args = asked, group_size
        how = Sampling(temperature=0.0)
        stream = torch.Generator(DEVICE)
        graphs = dict(decoder.decode(*args, THEORIES[0].constraint(tasks), limit, how, stream))
        plain = dict(decode(engine.model, *args, THEORIES[0].constraint(tasks), 0, limit, how, stream))
        assert [graphs[i].tokens.tolist() for i in graphs] == [plain[i].tokens.tolist() for i in graphs]
        assert len(graphs) == len(tasks)


@pytest.mark.skipif(DEVICE == "cpu", reason="kernels need a GPU")
@pytest.mark.parametrize("rows", [3, 100, 700, 2048])
def test_products_of_kernels_are_those_of_plain_torch(rows: int) -> None:
    from coterie.engines.torch.small import kernels

    torch.manual_seed(0)
    norm = torch.nn.RMSNorm(40, device=DEVICE)
    x, stream = torch.randn(rows, 40, device=DEVICE), torch.randn(rows, 24, device=DEVICE)
    weight = torch.randn(48, 40, device=DEVICE) / 6
    with torch.inference_mode():
        for ours, plain in (
            (kernels.project(x, weight, norm), stepping.project(x, weight, norm)),
            (kernels.project(x, weight, norm, gated=True), stepping.project(x, weight, norm, gated=True)),
            (
                kernels.project(x, weight[:24], add_to=stream.clone()),
                stepping.project(x, weight[:24], add_to=stream.clone()),
            ),
        ):
            assert (ours - plain).abs().max() < 1e-5


def test_a_dead_end_known_to_the_host_ends_the_answer() -> None:
    engine = make_engine(LETTERS[0])
    asked, constraint = [LETTERS[0].encode_prompt("x")], DeadEnd(3, len(LETTERS[0].vocabulary))
    drawn = GraphDecoder(engine.model, 0).decode(asked, 3, constraint, 9, Sampling(), torch.Generator(DEVICE))
    assert [(len(answer.tokens), answer.finish) for _, answer in drawn] == [(2, Finish.DEAD_END)] * 3


def test_a_dead_end_in_tables_ends_the_answer() -> None:
    engine = make_engine(LETTERS[0])
    nothing = FixedConstraint(np.zeros(len(LETTERS[0].vocabulary), np.bool_), 3)
    asked = [LETTERS[0].encode_prompt("x")]
    drawn = GraphDecoder(engine.model, 0).decode(asked, 3, nothing, 9, Sampling(), torch.Generator(DEVICE))
    assert [(len(answer.tokens), answer.finish) for _, answer in drawn] == [(0, Finish.DEAD_END)] * 3


def test_tables_and_the_host_agree_on_random_walks() -> None:
    rng = np.random.default_rng(0)
    language = TheoryLanguage()
    constraint = language.constraint([Task("t", "")] * 64)
    assert isinstance(constraint, TabledConstraint)
    tables = DeviceTables.upload(constraint.tables, torch.device(DEVICE))
    state, count = (torch.from_numpy(a).to(DEVICE) for a in constraint.places)
    for _ in range(80):
        legal = constraint.legal()
        np.testing.assert_array_equal(tables.legal(state, count).cpu().numpy(), legal)
        rows = np.flatnonzero(legal.any(1))
        constraint.keep(rows)
        kept = torch.from_numpy(rows).to(DEVICE)
        token = (rng.random(legal.shape) * legal).argmax(1)[rows]
        constraint.advance(token)
        chosen = torch.from_numpy(token).to(DEVICE)
        state, count = tables.transitions[state[kept], chosen], count[kept] + tables.counts[chosen]


def test_constraints_by_geometry_are_not_taken_for_tables() -> None:
    assert not isinstance(BRICKS[0].constraint([Task("t", "")]), TabledConstraint)
    assert isinstance(LETTERS[0].constraint([Task("t", "")]), TabledConstraint)


def test_packing_on_the_device_is_numpys() -> None:
    for vocabulary in (1, 8, 13, 64):
        mask = np.random.default_rng(vocabulary).random((5, vocabulary)) < 0.5
        packed = pack(torch.from_numpy(mask).to(DEVICE))
        np.testing.assert_array_equal(packed.cpu().numpy(), np.packbits(mask, axis=-1))


def test_buckets_hold_their_rows_and_little_more() -> None:
    assert [bucket_of(n) for n in (1, 16, 17, 24, 25, 33, 100, 2048)] == [16, 16, 24, 24, 32, 48, 128, 2048]
