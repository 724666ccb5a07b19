"""Theories: their text, their grammar, when two are the same, what they earn, and how they are shown."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import GRPOConfig, GRPOTrainer, load_world
from coterie.cli import main
from coterie.engines.base import Sampling
from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.rollouts import Finish, Task, make_batch
from coterie.runs.folder import RunFolder
from coterie.worlds.base import Example, LanguageError
from coterie.worlds.check import draw_at_random
from coterie.worlds.load import WorldError
from coterie.worlds.theory import TheoryWorld
from coterie.worlds.theory.canonical import canonical_form
from coterie.worlds.theory.conjectures import dream, extend, vary
from coterie.worlds.theory.known import known_theories, without_fermion
from coterie.worlds.theory.language import TheoryLanguage, begin
from coterie.worlds.theory.reward import log_reward, square_threshold_reward
from coterie.worlds.theory.sarah import sarah_model
from coterie.worlds.theory.tables import latex_table, markdown_table
from coterie.worlds.theory.theory import Theory, conjugate_name, conjugated, parse_theory, print_theory
from coterie.worlds.theory.world import products
from written import random_theories, theory_of

KNOWN = Path(__file__).parent.parent / "src/coterie/worlds/theory/known"
SM = known_theories()["standard-model"]
ANY = Task("any", "BOS")


@given(random_theories)
@settings(max_examples=200, deadline=None)
def test_printing_and_parsing_are_inverse(theory: Theory) -> None:
    assert parse_theory(print_theory(theory)) == theory


def test_charges_of_any_size_are_exact() -> None:
    theory = theory_of("U1", "FERMION LEFT x1 q=5/14", "FERMION RIGHT x1 q=-100001")
    assert [theory.charge(f.charges[0]) for f in theory.fermions] == [Fraction(5, 14), -100001]
    assert parse_theory(print_theory(theory)) == theory


def test_representations_may_be_given_by_dynkin_labels() -> None:
    assert theory_of("SU3", "FERMION LEFT x1 [1,0]").fermions == theory_of("SU3", "FERMION LEFT x1 3").fermions
    assert theory_of("SU3", "FERMION LEFT x1 [2,1]").fermions[0].reps == ("[2,1]",)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("SU3 SU2", "SU9 SU2"), "word 5 is 'SU9'; write U1 or SU2"),
        (("LEFT x3 3 2 q=1/6", "LEFT x3 7 2 q=1/6"), "word 18 is '7'; write a representation: SU(3) has no"),
        (("LEFT x3 3 2 q=1/6", "LEFT x3 3 2 1/6"), "word 20 is '1/6'; write a charge"),
        (("LEFT x3 3", "UP x3 3"), "word 16 is 'UP'; write LEFT or RIGHT"),
        (("LEFT x3 3", "LEFT 3 3"), "word 17 is '3'; write the number of generations"),
        (("2.low", "2.left"), "word 12 is '2.left'; write 2.low or 2.high"),
        (("v=246", "v=-1"), "word 10 is 'v=-1'; write v= and a number above 0"),
        (("F1 F2 S1", "F1 F9 S1"), "write one of F1 to F5"),
        (("YUKAWA F1 F2 S1 c=1", "YUKAWA F1 F2 S1 m=1"), "write c= and a number above 0"),
        (("EOS", "EOS EOS"), "write nothing after EOS"),
        (("EOS", ""), "before EOS"),
        (("BOS", "SOS"), "word 1 is 'SOS'; write BOS"),
    ],
)
def test_a_misspelled_theory_is_told_where_and_what_to_write(change: tuple[str, str], told: str) -> None:
    with pytest.raises(LanguageError) as caught:
        parse_theory(print_theory(SM).replace(*change, 1))
    assert told in str(caught.value)


def test_the_prompt_of_the_seed_is_understood() -> None:
    language = TheoryLanguage()
    words = [language.vocabulary[int(t)] for t in language.encode_prompt("BOS GAUGE_GROUPS NUM_GAUGE num_1")]
    assert words == ["BOS", "GAUGE_GROUPS", "NUM_GAUGE", "num_1"]
    assert language.encode_prompt("") == language.encode_prompt("BOS")
    with pytest.raises(LanguageError, match="word 2 is 'GAUGE'; write GAUGE_GROUPS"):
        language.encode_prompt("BOS GAUGE")
    with pytest.raises(LanguageError, match="nothing left to answer"):
        language.encode_prompt(" ".join(print_theory(theory_of("U1")).split()))


def test_whatever_the_grammar_lets_through_parses() -> None:
    language, rng = TheoryLanguage(), np.random.default_rng(0)
    world = TheoryWorld(products=True)
    tasks = [world.tasks("train")[i] for i in rng.integers(0, 104, 600)]
    ended = 0
    for task, tokens in zip(tasks, draw_at_random(language, tasks, rng), strict=True):
        if tokens[-1] == language.end:
            ended += 1
            theory = parse_theory(f"{task.prompt} {language.decode(tokens)}")
            assert parse_theory(print_theory(theory)) == theory
    assert ended > 500


def test_the_grammar_offers_only_what_is_there() -> None:
    """With one scalar and no fermion: no YUKAWA, no MASS, and no scalar but S1."""
    header = "BOS GAUGE_GROUPS NUM_GAUGE num_1 U1 SYMMETRY_BREAKING VEV v=246 q=1 MULTIPLETS INTERACTIONS"
    language = TheoryLanguage()

    def offered(prompt: str) -> set[str]:
        [legal] = language.constraint([Task("x", prompt)]).legal()
        return {language.vocabulary[int(i)] for i in np.flatnonzero(legal)}

    assert offered(header) == {"PHI2", "PHI3", "PHI4", "EOS"}
    assert offered(f"{header} PHI2") == {"S1"}
    assert "FERMION" not in offered(" ".join(print_theory(_many_fermions(12)).split()[:-2]))
    assert "FERMION" in offered(" ".join(print_theory(_many_fermions(11)).split()[:-2]))


def _many_fermions(count: int) -> Theory:
    return theory_of("U1", *["FERMION LEFT x1 q=1"] * count)


def test_sampled_theories_are_grammatical_and_the_ratio_is_one(small: dict[str, Any]) -> None:
    language = TheoryLanguage()
    shape = PolicyShape(len(language.vocabulary), width=16, depth=1, heads=2)
    engine = CausalEngine(language, shape, LearnerSettings(), seed=0)
    tasks = TheoryWorld(products=True).tasks("train")[:8]
    groups = [group for _, group in engine.sample(tasks, 64, Sampling(temperature=0.9, top_p=0.95))]
    for group in groups:
        for completion in group.completions:
            if completion.finish is Finish.STOP:
                parse_theory(f"{group.task.prompt} {completion.text}")
    batch = make_batch(groups, np.zeros((len(groups), 64)))
    again = engine.learner.logprobs(engine.model, batch, 0.9)
    assert np.abs(np.exp(again - batch.logprobs)[batch.chosen] - 1).max() < 1e-5


def test_theories_are_the_same_up_to_order_scale_and_conjugation() -> None:
    """Equal up to what does not matter, as the catalog counts them."""
    rng, form = np.random.default_rng(0), canonical_form(SM)
    shuffled = SM._replace(fermions=tuple(SM.fermions[i] for i in rng.permutation(5)), terms=())
    scaled = SM._replace(
        fermions=tuple(f._replace(charges=(-2 * f.charges[0],)) for f in SM.fermions),
        scalars=tuple(s._replace(charges=(-2 * s.charges[0],)) for s in SM.scalars),
    )
    flipped = [conjugated(f.reps, f.charges, SM.simple) for f in SM.fermions]
    other_hand = SM._replace(
        fermions=tuple(
            f._replace(left=not f.left, reps=reps, charges=q) for f, (reps, q) in zip(SM.fermions, flipped, strict=True)
        )
    )
    conjugate = SM._replace(fermions=tuple(f._replace(left=not f.left) for f in SM.fermions))
    split = SM._replace(
        fermions=(*SM.fermions[1:], SM.fermions[0]._replace(generations=1), SM.fermions[0]._replace(generations=2))
    )
    for same in (shuffled, scaled, other_hand, conjugate, split):
        assert canonical_form(same) == form
    for other in (
        without_fermion(SM, 4),
        SM._replace(fermions=tuple(f._replace(generations=2) for f in SM.fermions)),
        SM._replace(scalars=(SM.scalars[0]._replace(vev=None, directions=()),)),
        known_theories()["two-higgs-doublets"],
    ):
        assert canonical_form(other) != form


def test_equal_factors_may_change_places() -> None:
    a = theory_of("SU2 SU2 U1", "FERMION LEFT x1 2 1 q=1", "FERMION LEFT x2 1 3 q=-1")
    b = theory_of("SU2 SU2 U1", "FERMION LEFT x1 1 2 q=1", "FERMION LEFT x2 3 1 q=-1")
    c = theory_of("SU2 SU2 U1", "FERMION LEFT x1 1 2 q=1", "FERMION LEFT x2 1 3 q=-1")
    d = theory_of("U1 SU2 SU2", "FERMION LEFT x1 q=1 1 2", "FERMION LEFT x2 q=-1 3 1")
    assert canonical_form(a) == canonical_form(b) == canonical_form(d) != canonical_form(c)


def test_known_theories_can_be_varied_and_stay_right() -> None:
    world, rng = TheoryWorld(), np.random.default_rng(3)
    for theory in known_theories().values():
        for groups in (theory.groups, (5, *theory.groups)):
            extended = extend(theory, tuple(sorted(groups, reverse=True))[:4])
            if extended is not None:
                [score] = world.score(ANY, [print_theory(vary(extended, rng))])
                assert score.parts["anomalies"] == 1
    assert extend(SM, (5, 4)) is None


def test_the_reward_has_the_shape_of_the_seed() -> None:
    assert log_reward(0, bonus=1.0) == 1.0
    assert log_reward(9, bonus=1.0) == log_reward(-9, bonus=1.0) == -1.0
    assert square_threshold_reward(100, 100) == square_threshold_reward(1e16, 100) == 0
    assert square_threshold_reward(50, 100) == -0.25
    assert square_threshold_reward(0, 100) == -1
    [unfinished] = TheoryWorld().score(ANY, ["GAUGE_GROUPS NUM_GAUGE num_1 U1"])
    assert (unfinished.total, unfinished.valid, unfinished.parts) == (-300, False, {"length": -300})


def test_a_trivial_theory_earns_less_than_a_chiral_one_that_fails() -> None:
    world = TheoryWorld()
    empty, vector_like, failing, right = world.score(
        ANY,
        [
            print_theory(theory_of("U1")),
            print_theory(theory_of("U1", "FERMION LEFT x1 q=2", "FERMION RIGHT x1 q=2", "MASS F1 F2 m=1000")),
            print_theory(theory_of("U1", "FERMION LEFT x1 q=1", vevs=("VEV v=1000 q=1",))),
            print_theory(
                theory_of(
                    "U1",
                    "FERMION LEFT x3 q=1",
                    "FERMION LEFT x2 q=-4",
                    "FERMION LEFT x1 q=5",
                    vevs=("VEV v=1000 q=1",),
                )
            ),
        ],
    )
    assert empty.total <= vector_like.total < failing.total < right.total
    assert [s.success for s in (empty, vector_like, failing, right)] == [False, False, False, True]
    assert TheoryWorld(least_chiral=0).score(ANY, [print_theory(theory_of("U1"))])[0].success


def test_held_out_products_are_never_shown() -> None:
    world = TheoryWorld(products=True)
    train, heldout = ({t.id for t in world.tasks(split)} for split in ("train", "heldout"))
    assert not train & heldout and len(heldout) > 15
    for example in world.examples()[:300]:
        words = f"{example.task.prompt} {example.answer}".split()
        assert " ".join(words[4 : 4 + int(words[3][4:])]) not in heldout


def test_prompts_may_be_given(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("BOS GAUGE_GROUPS NUM_GAUGE num_1 U1\nBOS GAUGE_GROUPS NUM_GAUGE num_2 SU2 U1\n")
    for prompts in (str(file), "BOS GAUGE_GROUPS NUM_GAUGE num_1 U1; BOS GAUGE_GROUPS NUM_GAUGE num_2 SU2 U1"):
        world = load_world("theory", {"prompts": prompts})
        assert [t.id for t in world.tasks("train")] == ["U1", "SU2 U1"]
    with pytest.raises(WorldError, match="word 3 is 'NUM'; write NUM_GAUGE"):
        load_world("theory", {"prompts": "BOS GAUGE_GROUPS NUM"})
    with pytest.raises(WorldError, match="no beginning of a theory, and no file"):
        load_world("theory", {"prompts": "nowhere.txt"})


def test_tables_say_what_a_paper_would() -> None:
    assert "| F1 | left-handed fermion | 3 | 3 | 2 | 1/6 |" in markdown_table(SM)
    latex = latex_table(known_theories()["su5"])
    assert r"$\overline{\mathbf{5}}$" in latex and latex.count("&") == 5 * 3
    assert r"$-\frac{1}{3}$" in latex_table(SM)


def test_sarah_gets_left_handed_fields_and_each_term_once() -> None:
    model = sarah_model(SM, "SM")
    assert "Gauge[[3]] = {VU1, U[1], factor3, g3, False};" in model
    assert "FermionFields[[2]] = {f2, 3, conj[F2R], -3, 1, -2/3};" in model
    assert "LagHC = -(Y3 f1.f2.s1 + Y4 f1.f3.conj[s1] + Y5 f4.f5.conj[s1]);" in model
    assert "LagNoHC = -(M1^2 s1.conj[s1] + L2 s1.s1.conj[s1].conj[s1]);" in model
    assert "{-5, {0, 0, 0, 1}}" in sarah_model(known_theories()["su5"], "GG")


@pytest.mark.parametrize("file", sorted(KNOWN.glob("*.txt")), ids=lambda file: file.stem)
def test_score_prints_every_anomaly_exactly(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "theory", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["success"] and told["valid"]
    numbers = [part.rsplit(" ", 1)[1] for part in told["note"].split(", ")]
    assert numbers and set(numbers) == {"0"}


def test_score_names_the_anomalies_of_a_broken_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(print_theory(without_fermion(SM, 2)))
    main(["score", "theory", str(file), "--json"])
    note = json.loads(capsys.readouterr().out)["note"]
    assert note.startswith("SU3^3 3, SU3^2 U1 -1/2, witten SU2 0, SU2^2 U1 0, U1^3 -1/3, grav^2 U1 -3; ")


def test_explain_works_the_sums_out(capsys: pytest.CaptureFixture[str]) -> None:
    main(["score", "theory", str(KNOWN / "standard-model.txt"), "--explain"])
    told = capsys.readouterr().out
    assert "F1: 3 generations x 3 x 2 x (1/6)^3 = +1/12" in told
    assert "F2: -3 generations x T(3) 1/2 x (2/3) = -1" in told
    assert "3 from F4 F5: 1.73948 GeV, electric charge 1" in told
    assert "Consistent; 5 kinds of chiral multiplets." in told


def start_run(out: Path) -> GRPOTrainer:
    """A small run whose policy already knows SU(5), so that it finds something."""
    config = GRPOConfig(
        world="theory",
        world_options={"prompts": "BOS GAUGE_GROUPS NUM_GAUGE num_1 SU5"},
        curriculum="world",
        width=32, depth=2, heads=2, threads=1, workers=1,
        steps=4, prompts_per_step=2, group_size=16, cold_start_steps=0, save_every=2, out=str(out),
        temperature=0.7, novelty_coef=0.5,
    )  # fmt: skip
    trainer = GRPOTrainer(config)
    text = print_theory(known_theories()["su5"]).split()[5:]
    known = Example(trainer.world.tasks("train")[0], " ".join(text))
    for _ in range(60):
        trainer.engine.imitate([known] * 4, 1e-2)
    return trainer


@pytest.fixture(scope="module")
def theory_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = start_run(tmp_path_factory.mktemp("theories") / "run")
    with trainer.scorer:
        trainer.train()
    assert trainer.run is not None
    return trainer.run.path


def test_a_resumed_run_knows_what_it_found(theory_run: Path, tmp_path: Path) -> None:
    trainer = start_run(tmp_path / "run")
    trainer.watchers.append(lambda phase, done, total, metrics: trainer.stop() if done == 2 else None)
    with trainer.scorer:
        trainer.train()
    run = RunFolder.open(tmp_path / "run")
    again = GRPOTrainer(trainer.config, run=run)
    with again.scorer:
        assert again.resume()
        assert again.discoveries.counts == trainer.discoveries.counts != {}
        again.train()
    assert (run.path / "theories.jsonl").read_text() == (theory_run / "theories.jsonl").read_text()


def test_what_a_run_finds_is_cataloged_once(theory_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [json.loads(line) for line in (theory_run / "theories.jsonl").read_text().splitlines()]
    forms = [entry["identity"] for entry in entries]
    assert forms and len(forms) == len(set(forms))
    for entry in entries:
        theory = parse_theory(entry["theory"])
        assert canonical_form(theory) == entry["identity"]
        assert set(entry["anomalies"].values()) == {"0"}
        assert len(entry["fields"]) == len(theory.fermions) + len(theory.scalars)
    assert main(["theories", str(theory_run), "--groups", "SU5"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == min(len(entries), 40)
    assert main(["theories", str(theory_run), "--groups", "SU4"]) == 0
    assert capsys.readouterr().out == ""


def test_a_found_theory_is_shown_and_written(
    theory_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["theories", str(theory_run), "--show", "1", "--to", str(tmp_path / "found.m")]) == 0
    assert "Consistent" in capsys.readouterr().out
    assert 'Model`Name = "Found";' in (tmp_path / "found.m").read_text()
    assert main(["theories", str(theory_run), "--show", "9999"]) == 2
    assert "there is no number 9999" in capsys.readouterr().err


def test_eval_only_judges_so_many_answers(theory_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--checkpoint", str(theory_run), "--eval_only", "--eval_episodes", "8", "--width", "32", "--depth", "2"]
    assert main(["train", "theory", *options, "--heads", "2", "--threads", "1", "--workers", "1"]) == 0
    told = capsys.readouterr().out
    assert "8 answers" in told and "success" in told


@pytest.mark.parametrize(("end", "holds"), [(".md", "| F1 |"), (".tex", r"\begin{tabular}"), (".m", "FermionFields")])
def test_a_theory_is_exported(end: str, holds: str, tmp_path: Path) -> None:
    assert main(["export", str(KNOWN / "left-right.txt"), "--to", str(tmp_path / f"x{end}")]) == 0
    assert holds in (tmp_path / f"x{end}").read_text()


def test_an_unknown_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(KNOWN / "su5.txt"), "--to", str(tmp_path / "x.doc")]) == 2
    assert "end it in .md, .tex, .m, .txt" in capsys.readouterr().err


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_random_theory_breaks_the_judge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    theory = dream(products()[0][int(rng.integers(len(products()[0])))], rng)
    [score] = TheoryWorld().score(ANY, [print_theory(theory)])
    assert np.isfinite(score.total) and score.valid
    assert score.success == bool(score.identity)


def test_begin_remembers_where_a_prompt_leads() -> None:
    tokens, state, count = begin("BOS GAUGE_GROUPS NUM_GAUGE num_2 SU2 U1")
    assert len(tokens) == 6 and count == 0 and state > 0


@given(random_theories, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_any_relabeling_leaves_the_canonical_form(theory: Theory, seed: int) -> None:
    """Shuffled fields, conjugated factors, scaled charges, equal factors exchanged, scalars called by conjugates."""
    rng = np.random.default_rng(seed)
    simple = theory.simple
    bars = rng.random(len(simple)) < 0.5
    scales = rng.choice([-3, -1, 2], theory.num_abelian)
    order = [int(i) for i in rng.permutation(len(simple))]
    order = order if all(simple[i] == simple[j] for i, j in enumerate(order)) else list(range(len(simple)))
    swap = [int(u) for u in rng.permutation(theory.num_abelian)]

    def told(reps: tuple[str, ...], charges: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        names = [conjugate_name(n, r) if bar else r for n, r, bar in zip(simple, reps, bars, strict=True)]
        numbers = [int(q * s) for q, s in zip(charges, scales, strict=True)]
        return tuple(names[i] for i in order), tuple(numbers[u] for u in swap)

    fermions, scalars = [], []
    for f in theory.fermions:
        reps, charges = told(f.reps, f.charges)
        fermions.append(f._replace(reps=reps, charges=charges))
    for s in theory.scalars:
        reps, charges = told(s.reps, s.charges)
        if rng.random() < 0.5:
            reps, charges = conjugated(reps, charges, simple)
        scalars.append(s._replace(reps=reps, charges=charges))
    shuffled = tuple(fermions[i] for i in rng.permutation(len(fermions)))
    same = theory._replace(fermions=shuffled, scalars=tuple(scalars), terms=())
    assert canonical_form(same) == canonical_form(theory)
