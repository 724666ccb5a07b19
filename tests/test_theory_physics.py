"""Theories: groups, anomalies, invariants, breaking and masses against numbers worked out by hand or by others."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import sqrt

import anomalies.anomaly as others
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.worlds.theory.anomalies import anomalies_of
from coterie.worlds.theory.breaking import break_symmetry
from coterie.worlds.theory.conjectures import dream
from coterie.worlds.theory.groups import REPS, cubic_anomaly, dimension, find_rep, raising, twice_index, weights
from coterie.worlds.theory.invariants import count_invariants, count_trivial, coupled, forms_of, invariant_tensors
from coterie.worlds.theory.known import known_theories, without_fermion
from coterie.worlds.theory.masses import Particle, charged_fermions, forms_of_all, light_exotics
from coterie.worlds.theory.reward import examine
from coterie.worlds.theory.theory import Fermion, Theory, conjugated
from written import random_theories, theory_of


def values_of(theory: Theory) -> dict[str, Fraction]:
    return {a.name: a.value for a in anomalies_of(theory)}


def wrong_in(theory: Theory) -> dict[str, str]:
    return {name: str(value) for name, value in values_of(theory).items() if value}


@pytest.mark.parametrize(
    ("n", "rep", "size", "twice", "cubic"),
    [
        (2, (1,), 2, 1, 0),
        (2, (2,), 3, 4, 0),
        (2, (3,), 4, 10, 0),
        (3, (1, 0), 3, 1, 1),
        (3, (2, 0), 6, 5, 7),
        (3, (1, 1), 8, 6, 0),
        (3, (3, 0), 10, 15, 27),
        (3, (2, 1), 15, 20, 14),
        (3, (4, 0), 15, 35, 77),
        (4, (0, 1, 0), 6, 2, 0),
        (4, (2, 0, 0), 10, 6, 8),
        (4, (1, 0, 1), 15, 8, 0),
        (5, (0, 1, 0, 0), 10, 3, 1),
        (5, (2, 0, 0, 0), 15, 7, 9),
        (5, (1, 0, 0, 1), 24, 10, 0),
    ],
)
def test_representations_have_the_tabulated_numbers(
    n: int, rep: tuple[int, ...], size: int, twice: int, cubic: int
) -> None:
    assert (dimension(n, rep), twice_index(n, rep), cubic_anomaly(n, rep)) == (size, twice, cubic)
    assert (twice_index(n, rep[::-1]), cubic_anomaly(n, rep[::-1])) == (twice, -cubic)


@pytest.mark.parametrize(("n", "name"), [(n, name) for n, reps in REPS.items() for name in reps])
def test_raising_operators_have_the_weights_and_the_algebra(n: int, name: str) -> None:
    operators, found = raising(n, find_rep(n, name))
    assert sorted(found) == sorted(weights(n, find_rep(n, name)))
    for i in range(n - 1):
        # [E, F] is diagonal and reads the weight.
        up, down = operators[i], operators[i].T
        assert np.allclose(up @ down - down @ up, np.diag([w[i] for w in found]))


@pytest.mark.parametrize("name", known_theories())
def test_known_theories_are_right(name: str) -> None:
    theory = known_theories()[name]
    verdict = examine(theory, 100)
    assert wrong_in(theory) == {}
    assert verdict.consistent and verdict.chiral


BROKEN = {
    # Three generations each. Without the right-handed electron: -(-1)^3 and -(-1), three times, are missing.
    ("standard-model", 4): {"U1^3": "-3", "grav^2 U1": "-3"},
    # Without the up quark: 3 A, 3/2 * 2/3, 9 * 8/27, 9 * 2/3.
    ("standard-model", 1): {"SU3^3": "3", "SU3^2 U1": "1", "U1^3": "8/3", "grav^2 U1": "6"},
    ("standard-model", 2): {"SU3^3": "3", "SU3^2 U1": "-1/2", "U1^3": "-1/3", "grav^2 U1": "-3"},
    # Without the lepton doublet: an odd number of doublets.
    ("standard-model", 3): {"witten SU2": "1", "SU2^2 U1": "3/4", "U1^3": "3/4", "grav^2 U1": "3"},
    ("standard-model", 0): {
        "SU3^3": "-6",
        "SU3^2 U1": "-1/2",
        "witten SU2": "1",
        "SU2^2 U1": "-3/4",
        "U1^3": "-1/12",
        "grav^2 U1": "-3",
    },
    ("standard-model-neutrinos", 5): {},  # a neutrino without charge has no part in any sum
    ("gauged-b-l", 5): {"U1_2^3": "-3", "grav^2 U1_2": "-3"},
    ("left-right", 1): {
        "SU3^3": "6",
        "SU3^2 U1": "1",
        "witten SU2_2": "1",
        "SU2_2^2 U1": "3/2",
        "U1^3": "2/3",
        "grav^2 U1": "6",
    },
    ("pati-salam", 1): {"SU4^3": "6"},
    ("su5", 0): {"SU5^3": "3"},
    ("su5", 1): {"SU5^3": "-3"},
    ("two-higgs-doublets", 4): {"U1^3": "-3", "grav^2 U1": "-3"},
}


@pytest.mark.parametrize(("name", "gone"), BROKEN, ids=str)
def test_a_theory_without_a_field_is_wrong_in_just_its_anomalies(name: str, gone: int) -> None:
    assert wrong_in(without_fermion(known_theories()[name], gone)) == BROKEN[name, gone]


def test_one_generation_without_its_electron_is_minus_one() -> None:
    theory = known_theories()["standard-model"]
    single = theory._replace(fermions=tuple(f._replace(generations=1) for f in theory.fermions))
    assert wrong_in(single) == {}
    assert wrong_in(without_fermion(single, 4)) == {"U1^3": "-1", "grav^2 U1": "-1"}


def test_witten_counts_generations_and_higher_representations() -> None:
    one, three = (theory_of("SU2", f"FERMION LEFT x{n} 2") for n in (1, 3))
    assert wrong_in(one) == wrong_in(three) == {"witten SU2": "1"}
    assert wrong_in(theory_of("SU2", "FERMION LEFT x2 2")) == {}
    assert wrong_in(theory_of("SU2", "FERMION RIGHT x1 4")) == {}  # 2T = 10
    assert wrong_in(theory_of("SU2", "FERMION LEFT x1 3")) == {}  # 2T = 4


@given(random_theories)
@settings(max_examples=100, deadline=None)
def test_conjugating_every_field_flips_every_sign_but_wittens(theory: Theory) -> None:
    flipped = []
    for f in theory.fermions:
        reps, charges = conjugated(f.reps, f.charges, theory.simple)
        flipped.append(f._replace(reps=reps, charges=charges))
    there, here = values_of(theory._replace(fermions=tuple(flipped))), values_of(theory)
    assert there == {name: value if "witten" in name else -value for name, value in here.items()}
    # Calling every field by its other chirality as well brings back the same theory.
    again = tuple(f._replace(left=not f.left) for f in flipped)
    assert values_of(theory._replace(fermions=again)) == here


@given(random_theories, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_vector_like_pair_changes_nothing(theory: Theory, seed: int) -> None:
    more = dream(theory.groups, np.random.default_rng(seed)).fermions
    pairs = [g for f in more for g in (f, f._replace(left=not f.left))]
    assert values_of(theory._replace(fermions=(*theory.fermions, *pairs))) == values_of(theory)


@pytest.mark.parametrize(
    "numbers", [([-1, 1], [4, -2]), ([1, 2], [-3, 1]), ([-2, 1, 3], [1, -1, 2]), ([4, 1], [2, -5])]
)
def test_charges_of_the_anomalies_package_are_consistent_until_one_is_moved(
    numbers: tuple[list[int], list[int]],
) -> None:
    charges = [int(q) for q in others.free(*numbers)]
    assert charges
    lines = [f"FERMION LEFT x1 q={q}" for q in charges]
    assert wrong_in(theory_of("U1", *lines)) == {}
    lines[0] = f"FERMION LEFT x1 q={charges[0] + 1}"
    moved = (charges[0] + 1) ** 3 - charges[0] ** 3
    assert wrong_in(theory_of("U1", *lines)) == {"U1^3": str(moved), "grav^2 U1": "1"}


def test_mixed_anomalies_of_several_abelian_groups_by_hand() -> None:
    theory = theory_of("U1 U1 U1", "FERMION LEFT x2 q=1 q=2 q=3", "FERMION RIGHT x1 q=1/2 q=0 q=-1")
    found = values_of(theory)
    assert found["U1_1 U1_2 U1_3"] == 12
    assert found["U1_1^2 U1_3"] == 2 * 3 + Fraction(1, 4)
    assert found["U1_1 U1_3^2"] == 18 - Fraction(1, 2)
    assert found["grav^2 U1_3"] == 6 + 1
    assert len(found) == 13


@pytest.mark.parametrize(
    ("n", "names", "count"),
    [
        (3, ("3", "3", "3"), 1),
        (3, ("8", "8", "8"), 2),
        (3, ("3", "3"), 0),
        (5, ("10", "10", "5"), 1),
        (5, ("10", "5bar", "5bar"), 1),
        (2, ("2", "2", "2", "2"), 2),
        (2, ("2", "2", "2"), 0),
        (4, ("6", "4", "4"), 1),
        (4, ("6", "6"), 1),
    ],
)
def test_invariants_are_counted_as_in_the_tables(n: int, names: tuple[str, ...], count: int) -> None:
    assert count_trivial(n, tuple((name, 1) for name in names)) == count
    if len(names) == 3:
        a, b, c = names
        assert len(invariant_tensors(n, (a, b, c))) == count


def test_equal_fields_are_symmetrized() -> None:
    assert count_invariants((3,), ((("3",), 1, 3),)) == 0  # the determinant is antisymmetric
    assert count_invariants((3,), ((("3",), 3, 3),)) == 1  # in three generations
    assert count_invariants((3,), ((("8",), 1, 3),)) == 1  # d, not f
    assert count_invariants((2,), ((("2",), 1, 2),)) == 0
    assert count_invariants((2,), ((("2",), 2, 2),)) == 1
    assert count_invariants((2, 2), ((("2", "2"), 1, 2),)) == 1  # antisymmetric twice


def test_terms_are_invariant_in_the_forms_of_the_textbook() -> None:
    theory = known_theories()["standard-model"]
    forms = {term.fields: forms_of(theory, term) for term in theory.terms if term.kind == "YUKAWA"}
    assert forms[0, 1, 0] == ((False, False, False),)  # q u^c H
    assert forms[0, 2, 0] == ((False, False, True),)  # q d^c H*
    wrong = theory.terms[2]._replace(fields=(0, 4, 0))
    assert forms_of(theory, wrong) == ()


def test_electric_charge_is_found_where_it_hides() -> None:
    for name, unbroken in (("standard-model", 3), ("left-right", 3), ("pati-salam", 3), ("su5", 3), ("gauged-b-l", 3)):
        theory = known_theories()[name]
        breaking = break_symmetry(theory.groups, theory.vevs, theory.unit)
        assert len(breaking.unbroken) == unbroken
        assert breaking.color is not None and breaking.electric is not None
        unit = breaking.electric[1]
        found = {
            (p.color, abs(Fraction(p.electric, unit))) for p in charged_fermions(theory, forms_of_all(theory), breaking)
        }
        assert found == {((0, 0), 1), ((1, 0), Fraction(2, 3)), ((1, 0), Fraction(1, 3))}, name


def test_what_breaks_all_leaves_nothing_charged() -> None:
    theory = theory_of("SU2 U1", "FERMION LEFT x1 2 q=1", vevs=("VEV v=246 2.low q=1/2", "VEV v=246 2.low q=1"))
    assert break_symmetry(theory.groups, theory.vevs, theory.unit).unbroken == []
    assert light_exotics(theory, forms_of_all(theory), 100) == []


def spectrum(theory: Theory) -> list[Particle]:
    breaking = break_symmetry(theory.groups, theory.vevs, theory.unit)
    return sorted(charged_fermions(theory, forms_of_all(theory), breaking), key=lambda p: p.mass)


def test_a_yukawa_gives_c_v_over_root_two() -> None:
    masses = {p.fields: p.mass for p in spectrum(known_theories()["standard-model"])}
    assert masses["F4", "F5"] == pytest.approx(0.01 * 246 / sqrt(2))
    assert masses["F1", "F3"] == pytest.approx(0.1 * 246 / sqrt(2))
    assert masses["F1", "F2"] == pytest.approx(246 / sqrt(2))


def test_a_charged_field_without_a_partner_is_massless() -> None:
    theory = without_fermion(known_theories()["standard-model"], 4)
    [lonely] = [p for p in spectrum(theory) if p.mass == 0]
    assert (lonely.fields, lonely.number) == (("F4",), 3)
    assert light_exotics(theory, forms_of_all(theory), 100) == [lonely]


def test_a_bare_mass_decides_what_is_light() -> None:
    pair = ("FERMION LEFT x1 q=2", "FERMION RIGHT x1 q=2")
    heavy = theory_of("U1", *pair, "MASS F1 F2 m=1000")
    light = theory_of("U1", *pair, "MASS F1 F2 m=10")
    assert light_exotics(heavy, forms_of_all(heavy), 100) == []
    assert [p.mass for p in light_exotics(light, forms_of_all(light), 100)] == [10]
    electron = theory_of("U1", "FERMION LEFT x1 q=1", "FERMION RIGHT x1 q=1", "MASS F1 F2 m=10")
    assert light_exotics(electron, forms_of_all(electron), 100) == []  # a charged lepton may be light
    four = theory_of("U1", "FERMION LEFT x4 q=1", "FERMION RIGHT x4 q=1", "MASS F1 F2 m=10")
    assert [p.number for p in light_exotics(four, forms_of_all(four), 100)] == [1]  # but not a fourth


def test_an_invariant_that_does_not_couple_two_components_gives_them_no_mass() -> None:
    """Triplets and an adjoint couple by the cross product: with the VEV along the third axis, not 3 with 3."""
    theory = theory_of(
        "SU2 U1",
        "FERMION LEFT x1 3 q=1",
        "FERMION LEFT x1 3 q=-1",
        "YUKAWA F1 F2 S1 c=1",
        vevs=("VEV v=1000 3.1 q=0",),
    )
    found = [(p.mass, p.number) for p in spectrum(theory)]
    assert found == [(0.0, 1), (pytest.approx(1000 / sqrt(2)), 1), (pytest.approx(1000 / sqrt(2)), 1)]
    assert coupled(2, "3", "3", "3", "1") == ((0, 2), (2, 0))


def test_two_by_two_mass_matrix_by_hand() -> None:
    """[[0, y v], [y v, M]] between (F1, F3) and (F2, F4) has determinant (y v)^2: a seesaw of charged fields."""
    theory = theory_of(
        "SU2 U1",
        "FERMION LEFT x1 1 q=1",
        "FERMION LEFT x1 1 q=-1",
        "FERMION LEFT x1 1 q=1",
        "FERMION LEFT x1 1 q=-1",
        "YUKAWA F1 F4 S1 c=1",
        "YUKAWA F3 F2 S1 c=1",
        "MASS F3 F4 m=10000",
        vevs=("VEV v=1000 1 q=0",),
    )
    light, heavy = (p.mass for p in spectrum(theory))
    assert light * heavy == pytest.approx(1000**2 / 2)
    assert heavy > 10_000


def test_generations_that_differ_leave_only_the_zeros_they_must() -> None:
    fields = ("FERMION LEFT x3 q=1", "FERMION LEFT x2 q=-1", "FERMION LEFT x1 q=-1")
    both = theory_of("U1", *fields, "MASS F1 F2 m=1000", "MASS F1 F3 m=1000")
    assert all(p.mass > 1 for p in spectrum(both))
    one = theory_of("U1", *fields, "MASS F1 F2 m=1000")
    assert sum(p.number for p in spectrum(one) if p.mass == 0) == 1


def test_an_antisymmetric_mass_leaves_an_odd_generation_massless() -> None:
    """Doublets of one kind, coupled to each other and a singlet scalar: epsilon is antisymmetric."""
    for generations, massless in ((2, 0), (3, 1)):
        theory = theory_of(
            "SU2 U1",
            f"FERMION LEFT x{generations} 2 q=1/2",
            "YUKAWA F1 F1 S1 c=1",
            vevs=("VEV v=1000 1 q=-1",),
        )
        found = spectrum(theory)
        assert sum(p.number for p in found if p.mass == 0) == massless


def test_a_charged_scalar_is_as_heavy_as_its_terms_make_it() -> None:
    bare = theory_of("U1", "SCALAR q=2")
    assert [p.mass for p in light_exotics(bare, [], 100)] == [0]
    heavy = theory_of("U1", "SCALAR q=2", "PHI2 S1 S1 m=1000")
    assert light_exotics(heavy, forms_of_all(heavy), 100) == []
    for coupling, mass in ((0.1, 316.2), (0.001, 31.62)):  # sqrt(c) * 1000 GeV
        lines = ("SCALAR q=2 q=0", f"PHI4 S1 S1 S2 S2 c={coupling}")
        portal = theory_of("U1 U1", *lines, vevs=("VEV v=1000 q=0 q=1",))
        light = light_exotics(portal, forms_of_all(portal), 100)
        assert [p.mass for p in light] == ([pytest.approx(mass, 1e-3)] if mass < 100 else [])


def test_groups_that_nothing_feels_do_not_matter() -> None:
    theory = known_theories()["standard-model"]
    more = theory._replace(
        groups=(5, *theory.groups),
        fermions=tuple(f._replace(reps=("1", *f.reps)) for f in theory.fermions),
        scalars=tuple(s._replace(reps=("1", *s.reps), directions=("", *s.directions)) for s in theory.scalars),
    )
    assert examine(more, 100).consistent


def test_physics_never_depends_on_the_order_of_the_fields() -> None:
    theory = known_theories()["gauged-b-l"]
    for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 97):
        places = {old: new for new, old in enumerate(order)}
        shuffled: list[Fermion] = [theory.fermions[i] for i in order]
        terms = [
            t._replace(fields=(*(places[f] for f in t.fields[:2]), t.fields[2])) if t.kind == "YUKAWA" else t
            for t in theory.terms
        ]
        assert examine(theory._replace(fermions=tuple(shuffled), terms=tuple(terms)), 100).consistent
