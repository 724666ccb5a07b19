"""A theory's verdict worked out line by line, for a person to check by hand."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from coterie.worlds.theory.anomalies import Anomaly, factor_names
from coterie.worlds.theory.breaking import break_symmetry
from coterie.worlds.theory.groups import cubic_anomaly, dimension, find_rep, twice_index
from coterie.worlds.theory.invariants import Form
from coterie.worlds.theory.masses import Particle, charged_fermions, charged_scalars
from coterie.worlds.theory.reward import Verdict, examine
from coterie.worlds.theory.sarah import distinct_forms
from coterie.worlds.theory.tables import markdown_table, say_term
from coterie.worlds.theory.theory import TERMS, Term, Theory, left_handed, without_idle_groups


def work_out(theory: Theory, threshold: float) -> str:
    """The fields, every anomaly summand by summand, every interaction, and the masses of what stays charged."""
    verdict = examine(theory, threshold)
    return "\n".join(
        [
            markdown_table(theory),
            "Anomalies. Every field counts as left-handed: a right-handed one has the opposite sign.",
            *(line for anomaly in verdict.anomalies for line in _sum(theory, anomaly)),
            "",
            "Interactions. * marks a conjugate; fermions are left-handed Weyl fields.",
            *_interactions(theory, verdict),
            "",
            *_spectrum(theory, verdict, threshold),
            "",
            _conclusion(verdict),
            "",
        ]
    )


def _sum(theory: Theory, anomaly: Anomaly) -> Iterator[str]:
    equals = "even" if anomaly.modulus and not anomaly.total else "odd" if anomaly.modulus else str(anomaly.value)
    yield f"  {anomaly.name}: {_rule(anomaly.name)}"
    for i, number in enumerate(anomaly.terms):
        if number:
            shown = Fraction(number, anomaly.denominator)
            yield f"    F{i + 1}: {_factors(theory, i, anomaly)} = {'+' if number > 0 else ''}{shown}"
    if not any(anomaly.terms):
        yield "    no field contributes"
    yield f"    sum {Fraction(sum(anomaly.terms), anomaly.denominator)}: {equals}"


def _rule(name: str) -> str:
    if name.startswith("witten"):
        return "sum of 2T x multiplicity, which must be even"
    if name.startswith("grav"):
        return "sum of dimension x charge"
    if name.startswith("SU"):
        return "sum of A(R) x multiplicity" if name.endswith("^3") else "sum of T(R) x charge x multiplicity"
    return "sum of dimension x product of charges"


def _factors(theory: Theory, index: int, anomaly: Anomaly) -> str:
    """What is multiplied for one field: sign, generations, then each factor's number."""
    fermion = theory.fermions[index]
    sign = "" if fermion.left or anomaly.modulus else "-"
    parts = [f"{sign}{fermion.generations} generations"]
    squared = anomaly.name.removeprefix("witten ").split("^")[0] if "SU" in anomaly.name else ""
    reps, charges = iter(fermion.reps), iter(fermion.charges)
    for n, name in zip(theory.groups, factor_names(theory.groups), strict=True):
        if n == 1:
            charge = theory.charge(next(charges))
            power = _power(anomaly.name, name)
            parts += [f"({charge})" + (f"^{power}" if power > 1 else "")] if power else []
            continue
        rep_name = next(reps)
        rep = find_rep(n, rep_name)
        if name != squared:
            parts += [str(dimension(n, rep))] if dimension(n, rep) > 1 else []
        elif anomaly.modulus:
            parts.append(f"2T({rep_name}) {twice_index(n, rep)}")
        elif anomaly.name.endswith("^3"):
            parts.append(f"A({rep_name}) {cubic_anomaly(n, rep)}")
        else:
            parts.append(f"T({rep_name}) {Fraction(twice_index(n, rep), 2)}")
    return " x ".join(parts)


def _power(anomaly: str, factor: str) -> int:
    for word in anomaly.split():
        name, _, power = word.partition("^")
        if name == factor:
            return int(power or 1)
    return 0


def _interactions(theory: Theory, verdict: Verdict) -> Iterator[str]:
    for number, (term, forms) in enumerate(zip(theory.terms, verdict.forms, strict=True), 1):
        shown = [_product(term, form) for form in distinct_forms(term, forms)]
        told = f"invariant as {', '.join(shown)}" if shown else _why_not(theory, term)
        yield f"  {number}. {say_term(term)}: {told}"
    if not theory.terms:
        yield "  none"


def _product(term: Term, form: Form) -> str:
    fields = zip(TERMS[term.kind][0], term.fields, form, strict=True)
    return " ".join(f"{kind}{i + 1}{'*' if bar else ''}" for kind, i, bar in fields)


def _why_not(theory: Theory, term: Term) -> str:
    kinds = TERMS[term.kind][0]
    contents = [
        left_handed(theory.fermions[i], theory.simple) if kind == "F" else theory.scalars[i][:2]
        for kind, i in zip(kinds, term.fields, strict=True)
    ]
    told = "; ".join(
        f"{kind}{i + 1} ({', '.join((*reps, *(str(theory.charge(q)) for q in charges)))})"
        for kind, i, (reps, charges) in zip(kinds, term.fields, contents, strict=True)
    )
    return f"NOT gauge invariant: {told}"


def _spectrum(theory: Theory, verdict: Verdict, threshold: float) -> Iterator[str]:
    idle = len(theory.groups)
    theory = without_idle_groups(theory)
    if idle > len(theory.groups):
        yield "Groups under which nothing transforms are left out below."
    breaking = break_symmetry(theory.groups, theory.vevs, theory.unit)
    if not breaking.unbroken:
        yield "After symmetry breaking no gauge charge is left: nothing is charged."
        return
    parts = [f"SU({len(block)})" for _, block in breaking.blocks]
    abelian = len(breaking.unbroken) - sum(len(block) - 1 for _, block in breaking.blocks)
    parts += ["U(1)"] * abelian
    yield f"Charged particles. Unbroken: {' x '.join(parts)}. Only quarks and leptons may be below {threshold:g} GeV."

    def told(p: Particle) -> str:
        charge = f", electric charge {Fraction(p.electric, breaking.electric[1])}" if breaking.electric else ""
        color = {(0, 0): "", (1, 0): ", color 3", (0, 1): ", color 3bar"}.get(p.color, f", color {list(p.color)}")
        return f"  {p.number} from {' '.join(p.fields)}: {f'{p.mass:g} GeV' if p.mass else 'massless'}{color}{charge}"

    fermions, scalars = (charged(theory, verdict.forms, breaking) for charged in (charged_fermions, charged_scalars))
    yield from map(told, [*fermions, *scalars])
    if not fermions and not scalars:
        yield "  none"
    if verdict.exotics:
        yield "Light charged exotics:"
        yield from map(told, verdict.exotics)


def _conclusion(verdict: Verdict) -> str:
    kinds = len(verdict.chiral)
    if verdict.consistent:
        return f"Consistent; {kinds} kinds of chiral multiplets" + ("." if kinds else ": trivially so.")
    wrong = [f"{a.name} is {a.value}" for a in verdict.anomalies if a.total]
    if not all(verdict.forms):
        wrong.append("an interaction is not gauge invariant")
    if verdict.exotics:
        wrong.append("there are light charged exotics")
    return f"Not consistent: {', '.join(wrong)}."
