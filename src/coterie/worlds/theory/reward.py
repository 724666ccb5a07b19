"""The parts of a theory's reward, and its verdict."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from coterie.rollouts import Score
from coterie.worlds.base import LanguageError
from coterie.worlds.theory.anomalies import Anomaly, anomalies_of
from coterie.worlds.theory.canonical import canonical_form
from coterie.worlds.theory.masses import Forms, Particle, forms_of_all, light_exotics
from coterie.worlds.theory.theory import Theory, conjugated, left_handed, parse_theory

LENGTH_PENALTY = -300.0
FULL_KINDS = 5  # kinds of chiral multiplets that earn all of that half of `content`; the Standard Model has five
TRIVIAL = -1.0  # content of a theory without any chiral field: worse than a chiral one that fails
CROWD = 3.0  # massless exotics that cost 1 - 1/e of the whole penalty
ENOUGH = 12  # of them: one more would cost next to nothing


@dataclass(frozen=True)
class Weights:
    """Of the parts in the total."""

    anomalies: float = 1.0
    exotics: float = 1.0
    invariance: float = 0.5
    content: float = 0.5
    length: float = 1.0


class Verdict(NamedTuple):
    """What the physics says."""

    anomalies: list[Anomaly]
    forms: Forms
    exotics: list[Particle]
    chiral: dict[tuple[tuple[str, ...], tuple[int, ...]], int]  # left-handed content without vector-like pairs

    @property
    def consistent(self) -> bool:
        return all(self.forms) and not self.exotics and not any(a.total for a in self.anomalies)


def examine(theory: Theory, threshold: float, enough: int | None = None) -> Verdict:
    """Anomalies, invariance of each term, light charged exotics (or `enough` of them), chiral content."""
    forms = forms_of_all(theory)
    exotics = light_exotics(theory, forms, threshold, enough)
    return Verdict(anomalies_of(theory), forms, exotics, chiral_content(theory))


def chiral_content(theory: Theory) -> dict[tuple[tuple[str, ...], tuple[int, ...]], int]:
    """How many more there are of each left-handed multiplet than of its conjugate; a real one is never chiral."""
    simple, net = theory.simple, Counter[tuple[tuple[str, ...], tuple[int, ...]]]()
    for fermion in theory.fermions:
        content = left_handed(fermion, simple)
        opposite = conjugated(*content, simple)
        if content < opposite:
            net[content] += fermion.generations
        elif content > opposite:
            net[opposite] -= fermion.generations
    return {
        content if count > 0 else conjugated(*content, simple): abs(count) for content, count in net.items() if count
    }


def log_reward(value: int, bonus: float) -> float:
    """Falls with the logarithm of an anomaly; the bonus is for zero alone."""
    return -math.log10(1 + abs(value)) if value else bonus


def square_threshold_reward(mass: float, threshold: float) -> float:
    """0 from the threshold on, -1 for a massless particle."""
    return -((1 - mass / threshold) ** 2) if mass < threshold else 0.0


def anomaly_part(verdict: Verdict) -> float:
    """The mean over the anomalies that fields contribute to; without chiral fields they cancel of themselves."""
    bonus = 1.0 if verdict.chiral else 0.0
    met = [a for a in verdict.anomalies if any(a.terms)]
    # In whole numbers of the common charge: 1/216 is no nearer to a cancellation than 1.
    return sum([log_reward(a.total // a.unit, bonus) for a in met]) / len(met) if met else 0.0


def exotics_part(verdict: Verdict, threshold: float) -> float:
    """The thresholds that light exotics miss, together at most -1."""
    missed = sum([p.number * square_threshold_reward(p.mass, threshold) for p in verdict.exotics])
    return math.expm1(missed / CROWD)


def content_part(theory: Theory, verdict: Verdict) -> float:
    """How many kinds of chiral multiplets there are, and under how many of the groups they transform."""
    if not verdict.chiral:
        return TRIVIAL
    kinds = min(len(verdict.chiral) / FULL_KINDS, 1.0)
    met = set[int]()
    for reps, charges in verdict.chiral:
        met |= {i for i, name in enumerate(reps) if name != "1"}
        met |= {len(reps) + i for i, q in enumerate(charges) if q}
    return (kinds + len(met) / len(theory.groups)) / 2


def judge(text: str, weights: Weights, threshold: float, least_chiral: int) -> Score:
    """The score of a whole theory's text."""
    try:
        theory = parse_theory(text)
    except LanguageError as error:  # cut at the length limit, or, in a file, misspelled
        parts = {"length": LENGTH_PENALTY}
        return Score(weights.length * LENGTH_PENALTY, parts, valid=False, note=str(error))
    verdict = examine(theory, threshold, enough=ENOUGH)
    wrong = sum(not forms for forms in verdict.forms)
    parts = {
        "anomalies": anomaly_part(verdict),
        "exotics": exotics_part(verdict, threshold),
        "invariance": -wrong / len(theory.terms) if theory.terms else 0.0,
        "content": content_part(theory, verdict),
        "length": 0.0,
    }
    success = verdict.consistent and len(verdict.chiral) >= least_chiral
    return Score(
        total=weights.anomalies * parts["anomalies"]
        + weights.exotics * parts["exotics"]
        + weights.invariance * parts["invariance"]
        + weights.content * parts["content"],
        parts=parts,
        success=success,
        note=say(verdict),
        identity=canonical_form(theory) if success else "",
    )


def say(verdict: Verdict) -> str:
    """Every anomaly as an exact number, then what else is wrong."""
    told = ", ".join([f"{a.name} {a.value if a.total else 0}" for a in verdict.anomalies]) or "no anomaly is possible"
    wrong = [str(i + 1) for i, forms in enumerate(verdict.forms) if not forms]
    if wrong:
        told += f"; not gauge invariant: interaction {', '.join(wrong)}"
    for p in verdict.exotics[:3]:
        mass = f"of {p.mass:g} GeV" if p.mass else "without mass"
        told += f"; {p.number} light charged from {' '.join(p.fields)} {mass}"
    return told
