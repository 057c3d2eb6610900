r"""Labels in the style of public sets of mathematics, answers that equal them and answers that do not.

A maker builds numbers, lists or words, and changes one part. So an answer is wrong because its parts differ: no grader
and no algebra decides. Nothing is copied from a public set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random

Rows = tuple[str, list[str], list[str]]
"""A label, answers that equal it in other spellings, and wrong answers."""


@dataclass(frozen=True)
class Pair:
    kind: str
    label: str
    answer: str
    right: bool


def pairs(labels: int, seed: int = 0) -> Iterator[Pair]:
    """Each kind with so many labels, and the answers to each."""
    for kind, make in KINDS.items():
        random = Random(f"{kind} {seed}")
        for _ in range(labels):
            label, rights, wrongs = make(random)
            yield from (Pair(kind, label, answer, True) for answer in rights)
            yield from (Pair(kind, label, answer, False) for answer in wrongs)


def _integer(random: Random) -> Rows:
    n = random.randint(1000, 99_999) * random.choice((1, -1))
    swapped = str(n)[:-2] + str(n)[-1] + str(n)[-2]
    rights = [
        f"{n:,}",
        f"{n:,}".replace(",", "{,}"),
        f"{n}.0",
        f"x = {n}",
        f"{n}\\text{{ cm}}",
        f"**{n}**",
        f"\\({n}\\)",
    ]
    a = random.randint(1, 900)
    computed = [f"{n - a}+{a}", f"{2 * n}/2", f"\\frac{{{3 * n}}}{{3}}", f"\\sqrt{{{n * n}}}", f"{n}\\cdot 1"]
    wrongs = [f"{n + 1}", f"{-n}", f"{n}t", f"{n}_7", f"{n}\\mathrm{{i}}", f"{n}!", f"{n}0", f"{n}\\text{{ million}}"]
    return str(n), rights, wrongs + computed + ([swapped] if swapped != str(n) else [])


def _decimal(random: Random) -> Rows:
    n = random.randint(101, 99_999)
    n += n % 10 == 0
    value = Fraction(n, 1000)
    text = f"{n / 1000:.3f}"
    rights = [
        f"{text}0",
        f"\\frac{{{value.numerator}}}{{{value.denominator}}}",
        f"{value.numerator}/{value.denominator}",
    ]
    wrongs = [f"{(n + 1) / 1000:.3f}", f"-{text}", text.replace(".", ""), text[:-1], f"{text}x", f"{n / 10000:.4f}"]
    return text, rights, [*wrongs, f"\\frac{{{value.numerator + 1}}}{{{value.denominator}}}"]


def _parts(random: Random) -> tuple[int, int]:
    """A reduced fraction that is no integer."""
    while True:
        value = Fraction(random.randint(1, 60), random.randint(2, 60))
        if value.denominator > 1 and value.numerator != value.denominator:
            return value.numerator, value.denominator


def _fraction(random: Random) -> Rows:
    p, q = _parts(random)
    rights = [f"{p}/{q}", f"\\dfrac{{{p}}}{{{q}}}", f"\\frac{{{2 * p}}}{{{2 * q}}}", f"k=\\tfrac{{{p}}}{{{q}}}"]
    wrongs = [f"\\frac{{{p + 1}}}{{{q}}}", f"\\frac{{{q}}}{{{p}}}", f"-\\frac{{{p}}}{{{q}}}", f"{p}", f"{p}{q}"]
    return f"\\frac{{{p}}}{{{q}}}", rights, [*wrongs, f"\\frac{{{p}}}{{{q}}}y", f"\\frac{{{p}y}}{{{q}}}", f"{p}+{q}"]


_ROOTS = 2, 3, 5, 6, 7, 10, 11, 13


def _radical(random: Random) -> Rows:
    a, b, c = random.randint(2, 30), random.choice(_ROOTS), random.randint(1, 20)
    rights = [
        f"{c}+\\sqrt{{{a * a * b}}}",
        f"{c}+{a}sqrt({b})",
        f"{a}\\sqrt{{{b}}}+{c}",
        f"{c} + {a} \\cdot \\sqrt {b}",
    ]
    wrongs = [
        f"{c}-{a}\\sqrt{{{b}}}",
        f"{c + 1}+{a}\\sqrt{{{b}}}",
        f"{c}+{a + 1}\\sqrt{{{b}}}",
        f"{c}+{a}\\sqrt{{{b + 1}}}",
    ]
    return f"{c}+{a}\\sqrt{{{b}}}", rights, [*wrongs, f"{c}+{a}", f"{a}\\sqrt{{{b}}}", f"{c}+{a}\\sqrt[3]{{{b}}}"]


def _pi(random: Random) -> Rows:
    p, q = _parts(random)
    rights = [f"{p}\\pi/{q}", f"{p}pi/{q}", f"\\frac{{{p}}}{{{q}}}\\pi", f"{p}π/{q}", f"\\dfrac{{{p} \\pi}}{{{q}}}"]
    wrongs = [
        f"\\frac{{{p}}}{{{q}}}",
        f"\\frac{{{p + 1}\\pi}}{{{q}}}",
        f"-\\frac{{{p}\\pi}}{{{q}}}",
        f"\\frac{{{p}\\pi}}{{{q + 1}}}",
    ]
    return (
        f"\\frac{{{p}\\pi}}{{{q}}}",
        rights,
        [*wrongs, f"\\frac{{{p}\\pi^2}}{{{q}}}", f"\\frac{{{p}}}{{{q}\\pi}}", f"{p}\\pi"],
    )


def _tuple(random: Random) -> Rows:
    a, b, c = random.sample(range(-20, 40), 3)
    rights = [f"( {a}, {b}, {c} )", f"\\left({a},{b},{c}\\right)", f"({a},\\ {b},\\ {c})", f"(x,y,z)=({a},{b},{c})"]
    wrongs = [f"({b}, {a}, {c})", f"({a}, {b})", f"({a}, {b}, {c + 1})", f"\\{{{a}, {b}, {c}\\}}", f"[{a}, {b}, {c}]"]
    return f"({a}, {b}, {c})", rights, [*wrongs, f"({a}, {b}, {c}, 0)", f"({a}, {b}, {c}t)", str(a)]


def _interval(random: Random) -> Rows:
    a = random.randint(-30, 20)
    b = a + random.randint(2, 20)
    rights = [f"\\left({a}, {b}\\right]", f"{a} < x \\le {b}", f"({a},{b}]", f"x \\in ({a}, {b}]", f"{b} \\geq x > {a}"]
    wrongs = [f"({a}, {b})", f"[{a}, {b}]", f"[{a}, {b})", f"({a}, {b + 1}]", f"({a - 1}, {b}]", f"({a}, \\infty)"]
    return f"({a},{b}]", rights, [*wrongs, f"{a} \\le x \\le {b}", f"{a} < x < {b}", f"x > {a}"]


def _set(random: Random) -> Rows:
    a, b, c = random.sample(range(-20, 40), 3)
    rights = [
        f"\\{{{c}, {a}, {b}\\}}",
        f"\\left\\{{{b},{a},{c}\\right\\}}",
        f"{a}, {c}, {b}",
        f"{a}, {b} \\text{{ and }} {c}",
    ]
    wrongs = [
        f"\\{{{a}, {b}\\}}",
        f"\\{{{a}, {b}, {c + 100}\\}}",
        f"({a}, {b}, {c})",
        f"\\{{{a}, {b}, {c}, 99\\}}",
        str(b),
    ]
    return f"\\{{{a}, {b}, {c}\\}}", rights, [*wrongs, f"\\{{{a}, {b}, {c}s\\}}", f"\\{{{a}, {b}, {-c - 50}\\}}"]


def _line(random: Random) -> Rows:
    a, b = random.randint(2, 30), random.randint(1, 30)
    rights = [f"y = {b}+{a}x", f"{a}x - y + {b} = 0", f"{a}x+{b}", f"{a}x + {b} = y", f"y={a} \\cdot x+{b}"]
    wrongs = [f"y={a}x-{b}", f"y={a + 1}x+{b}", f"x={a}x+{b}", f"y={a}t+{b}", f"y={a}x", f"y={b}", f"y={a}x+{b}z"]
    return f"y={a}x+{b}", rights, [*wrongs, f"y > {a}x+{b}", f"y={a}x^2+{b}", "0=0", f"{a}={a}"]


def _solution(random: Random) -> Rows:
    a = random.randint(2, 40)
    letter, other = random.sample("stuvw", 2)
    rights = [f"x = {a} {letter}", f"x={a}\\cdot {letter}", f"{a}{letter}"]
    wrongs = [
        f"x={a}{other}",
        f"x={a}",
        f"x={a + 1}{letter}",
        f"y={a}{letter}",
        f"x={letter}",
        f"{a}",
        f"x={a}{letter}^2",
    ]
    return f"x={a}{letter}", rights, wrongs


def _polynomial(random: Random) -> Rows:
    a, b, c = random.randint(2, 15), random.randint(1, 15), random.randint(1, 15)
    rights = [f"{c}+{a}x^2+{b}x", f"{a}x^{{2}} + {b} x + {c}", f"x({a}x+{b})+{c}", f"{a}*x^2+{b}*x+{c}"]
    wrongs = [f"{a}x^2-{b}x+{c}", f"{a}x^3+{b}x+{c}", f"{a}x^2+{b}x", f"{a}x^2+{b}x+{c + 1}", f"{a}y^2+{b}y+{c}"]
    return f"{a}x^2+{b}x+{c}", rights, [*wrongs, f"{a + b}x^2+{c}", f"{a}x^2+{b}+{c}", f"{a}x^2", f"{a}X^2+{b}x+{c}"]


def _rational(random: Random) -> Rows:
    a, b = random.sample(range(2, 20), 2)
    rights = [f"({a}x+1)/(x+{b})", f"\\frac{{1+{a}x}}{{{b}+x}}", f"{a}+\\frac{{{1 - a * b}}}{{x+{b}}}"]
    wrongs = [f"\\frac{{{a}x-1}}{{x+{b}}}", f"\\frac{{{a}x+1}}{{x-{b}}}", f"\\frac{{x+{b}}}{{{a}x+1}}", f"{a}x+1"]
    return (
        f"\\frac{{{a}x+1}}{{x+{b}}}",
        rights,
        [*wrongs, f"\\frac{{{b}x+1}}{{x+{a}}}", f"\\frac{{{a}x+1}}{{{b}}}", f"{a}"],
    )


def _value(random: Random) -> Rows:
    n, m = random.sample(range(5, 9000), 2)
    rights = [f"{m}", f"f({n}) = {m}", f"f({n})={m}.0"]
    wrongs = [
        f"f({n})={m + 1}",
        f"f({n + 1})={m}",
        f"g({n})={m}",
        "f(0)=0",
        f"{n}",
        f"{m + 1}",
        f"{n}={m}",
        f"f({m})={n}",
    ]
    return f"f({n})={m}", rights, wrongs


def _matrix(random: Random) -> Rows:
    a, b, c, d = random.sample(range(-20, 40), 4)

    def write(rows: str, name: str = "pmatrix") -> str:
        return f"\\begin{{{name}}}{rows}\\end{{{name}}}"

    right = f"{a} & {b} \\\\ {c} & {d}"
    rights = [write(right, "bmatrix"), write(f"{a}&{b}\\\\{c}&{d}"), f"\\left({write(right, 'matrix')}\\right)"]
    wrongs = [f"{a} & {c} \\\\ {b} & {d}", f"{a} & {b} \\\\ {c} & {d + 1}", f"{a} & {b}", f"{a} & {b} & {c} & {d}"]
    more = [f"{a} & {b} \\\\ {d} & {c}", f"{a} & {b} \\\\ {c} & {d}t", f"{a + 1} & {b} \\\\ {c} & {d}"]
    return write(right), rights, [write(rows) for rows in wrongs + more] + [write(right, "vmatrix"), str(a)]


_UNITS = {"cm": "centimeters", "km": "kilometers", "kg": "kilograms", "hours": "hour", "feet": "ft", "meters": "m"}


def _unit(random: Random) -> Rows:
    n = random.randint(2, 900)
    unit, other = random.sample(list(_UNITS), 2)
    rights = [
        f"{n}",
        f"{n}\\text{{ {_UNITS[unit]}}}",
        f"{n} \\mathrm{{~{unit}}}",
        f"{n} {unit}",
        f"{n}\\,\\text{{{unit}}}",
    ]
    wrongs = [
        f"{n}\\text{{ {other}}}",
        f"{n + 1}\\text{{ {unit}}}",
        f"{n}\\text{{ {unit}}}^2",
        f"-{n}\\text{{ {unit}}}",
    ]
    return (
        f"{n}\\text{{ {unit}}}",
        rights,
        [*wrongs, f"{n} {other}", f"{n}\\%", f"{n}x", f"{n}\\text{{ {unit} {other}}}"],
    )


def _bare(random: Random) -> Rows:
    """Labels without a unit, answered with one."""
    n = random.randint(2, 900)
    rights = [
        f"{n} weeks",
        f"{n} cm^2",
        f"{n}\\text{{ cm}}^2",
        f"{n}\\text{{ students}}",
        f"{n}^\\circ",
        f"\\${n}",
        f"{n} dollars",
    ]
    wrongs = [
        f"{n + 1} weeks",
        f"{n}\\text{{ thousand}}",
        f"{n}w",
        f"{n}^2",
        f"{n} or {n + 1}",
        f"{n}\\text{{ and }}{n + 2}",
    ]
    return (
        str(n),
        rights,
        [*wrongs, f"{n}\\text{{ dozen}}", f"\\text{{not }}{n}", f"{n}\\mathrm{{e}}", f"{n}\\text{{ weeks }}3"],
    )


def _duration(random: Random) -> Rows:
    a, b = random.randint(1, 20), random.randint(1, 59)

    def write(hours: int, minutes: int) -> str:
        return f"{hours}\\text{{ hours }}{minutes}\\text{{ minutes}}"

    rights = [
        f"{a} \\text{{ hours }} {b} \\text{{ minutes}}",
        f"{a}\\text{{ h }}{b}\\text{{ min}}",
        f"{a} hours {b} minutes",
    ]
    wrongs = [write(a, b + 1), write(a + 1, b), f"{a}\\text{{ hours}}", f"{b}\\text{{ minutes}}", str(a), str(b)]
    return (
        write(a, b),
        rights,
        [*wrongs, f"{a}\\text{{ hours }}{b}\\text{{ seconds}}", f"{a}\\text{{ days }}{b}\\text{{ minutes}}"],
    )


def _percent(random: Random) -> Rows:
    n = random.randint(2, 99)
    rights = [f"{n}%", f"{n} \\%", f"{n}", f"{n}\\text{{ percent}}", f"{n / 100:.2f}", f"{n} percent"]
    wrongs = [
        f"{n + 1}\\%",
        f"0.{n:02d}\\%",
        f"{n}0\\%",
        f"-{n}\\%",
        f"{n / 1000:.3f}",
        f"{n}\\text{{ cm}}",
        f"{n}x\\%",
    ]
    return f"{n}\\%", rights, wrongs


def _base(random: Random) -> Rows:
    base = random.randint(4, 9)
    digits = "".join(str(random.randint(1, base - 1)) for _ in range(random.randint(3, 6)))
    rights = [f"{digits}_{{{base}}}", f"{digits} _ {base}", f"({digits})_{base}"]
    wrongs = [
        digits,
        f"{digits}_{{{base + 1}}}",
        f"{digits[::-1]}0_{base}",
        f"{digits}1_{base}",
        f"{digits}\\cdot {base}",
    ]
    return f"{digits}_{base}", rights, [*wrongs, f"{base}_{{{digits}}}", f"{int(digits, base)}", f"{digits}^{base}"]


def _complex(random: Random) -> Rows:
    a, b = random.randint(1, 40), random.randint(2, 40)
    rights = [f"{b}i+{a}", f"{a} + {b} i", f"{a}+{b}\\mathrm{{i}}", f"{a}+i\\cdot {b}"]
    wrongs = [
        f"{a}-{b}i",
        f"{a}+{b}",
        f"{a}",
        f"{b}i",
        f"{a + 1}+{b}i",
        f"{a}+{b + 1}i",
        f"{a}+{b}j",
        f"{a + b}\\mathrm{{i}}",
    ]
    return f"{a}+{b}i", rights, [*wrongs, f"{a - b}", f"{a}+{b}\\mathrm{{e}}"]


def _power(random: Random) -> Rows:
    n, k = random.randint(66, 300), random.randint(1, 9)
    rights = [f"{2**n}", f"2^{{{n}}}", f"2\\cdot 2^{{{n - 1}}}", f"\\frac{{2^{{{n + 1}}}}}{{2}}"]
    wrongs = [f"{2**n + k}", f"2^{{{n + 1}}}", f"2^{{{n}}}-{k}", f"{n}^2", f"-2^{{{n}}}", f"2^{{{n}}}+10^{{-20}}"]
    if n % 2 == 0:
        rights.append(f"4^{{{n // 2}}}")
    return f"2^{{{n}}}", rights, [*wrongs, f"2\\cdot {n}", f"(2^{{{n}}}+{k})", f"\\frac{{1}}{{2^{{{n}}}}}"]


def _probability(random: Random) -> Rows:
    n = random.randint(66, 200)
    rights = [f"1-2^{{-{n}}}", f"\\frac{{2^{{{n}}}-1}}{{2^{{{n}}}}}", f"1-\\frac{{1}}{{2^{{{n}}}}}"]
    wrongs = [
        f"1-\\frac{{1}}{{2^{{{n + 1}}}}}",
        "1",
        f"\\frac{{1}}{{2^{{{n}}}}}",
        f"1+\\frac{{1}}{{2^{{{n}}}}}",
        "0.999999999",
    ]
    return f"1-\\frac{{1}}{{2^{{{n}}}}}", rights, wrongs


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WORDS = ("even", "odd", "neither", "increasing", "decreasing", "ellipse", "parabola", "hyperbola", "Evelyn", "Carla")


def _word(random: Random) -> Rows:
    label, *others = random.sample(_DAYS + _WORDS, 4)
    rights = [
        f"\\text{{{label}}}",
        label.lower(),
        f"\\mathrm{{{label}}}",
        f"\\text{{ {label} }}",
        f"\\textbf{{{label}}}",
        f"{label}.",
    ]
    return (
        label,
        rights,
        [*others, f"\\text{{not {label}}}", f"{label} or {others[0]}", f"\\text{{{others[0]}}}", label[0]],
    )


def _choice(random: Random) -> Rows:
    label, *others = random.sample("ABCDE", 5)
    rights = [
        f"\\text{{{label}}}",
        f"({label})",
        f"\\text{{({label})}}",
        f"\\mathrm{{{label}}}",
        f"\\textbf{{({label})}}",
    ]
    wrongs = [
        *others,
        f"({others[0]})",
        f"{label}{others[0]}",
        f"\\text{{{label} or {others[0]}}}",
        f"{label}, {others[1]}",
        f"2{label}",
    ]
    return label, rights, wrongs


def _time(random: Random) -> Rows:
    hour, minute = random.randint(1, 11), random.randint(10, 58)
    rights = [
        f"{hour}:{minute} p.m.",
        f"{hour}:{minute}\\text{{ pm}}",
        f"{hour}:{minute} PM",
        f"{hour}\\!:\\!{minute}\\text{{ p.m.}}",
    ]
    wrongs = [
        f"{hour}:{minute}\\text{{ a.m.}}",
        f"{hour}:{minute + 1}\\text{{ p.m.}}",
        f"{hour + 1}:{minute}\\text{{ p.m.}}",
    ]
    return (
        f"{hour}:{minute}\\text{{ p.m.}}",
        rights,
        [*wrongs, f"{minute}:{hour}\\text{{ p.m.}}", f"{hour}", f"{minute}\\text{{ p.m.}}"],
    )


def _money(random: Random) -> Rows:
    n, cents = random.randint(1000, 9000), random.randint(10, 98)
    rights = [
        f"{n}.{cents}",
        f"\\${n:,}.{cents}",
        f"${n}.{cents}",
        f"{n}.{cents}\\text{{ dollars}}",
        f"\\$ {n}.{cents}",
    ]
    wrongs = [
        f"\\${n}.{cents + 1}",
        f"\\${n}",
        f"{n}{cents}",
        f"{n}.{cents}\\text{{ cents}}",
        f"€{n}.{cents}",
        f"\\${n},{cents}",
    ]
    return f"\\${n}.{cents}", rights, wrongs


def _sentence(random: Random) -> Rows:
    a, b = random.sample(range(2, 90), 2)
    rights = [f"$a={a}$ and $b={b}$", f"a = {a}, b = {b}", f"b={b}, a={a}", f"a={a} \\text{{ and }} b={b}"]
    wrongs = [
        f"$a={a}$",
        f"b={b}",
        f"$a={b}$ and $b={a}$",
        f"$a={a}$ and $b={b + 1}$",
        f"{a}",
        f"$a={a}$ or not $b={b}$",
    ]
    return f"$a={a}$ and $b={b}$", rights, wrongs


def _described(random: Random) -> Rows:
    a, b = random.sample(range(3, 90), 2)
    label = f"all integers $n$ with $n \\equiv {a} \\pmod{{{a + b}}}$"
    rights = [
        label.replace(" \\equiv ", "\\equiv "),
        label.replace("$", ""),
        f"All integers $n$ with $n \\equiv {a} \\pmod{{{a + b}}}$.",
    ]
    wrongs = [
        label.replace(f"{a} ", f"{a + 1} "),
        label.replace("integers", "primes"),
        "n",
        f"n \\equiv {a}",
        f"{a}",
        "$n$",
    ]
    return (
        label,
        rights,
        [*wrongs, label.replace(f"{a + b}", f"{a + b + 1}"), f"$n$ with $n \\equiv {a} \\pmod{{{a + b}}}$"],
    )


def _unparsed(random: Random) -> Rows:
    """LaTeX that is hardly ever parsed: only the same text is right."""
    a, b = random.sample(range(2, 90), 2)
    label = f"{a}x^2 \\oplus {b} \\star y"
    wrongs = [
        f"{a}x^2",
        f"{a}x^2 \\oplus {b + 1} \\star y",
        f"{a}x^2 \\oplus {b}",
        f"{a}x^2 \\oplus {b} \\star z",
        f"{a}",
    ]
    return label, [f"{a} x^2\\oplus{b}\\star y", f"${label}$"], wrongs


KINDS: dict[str, Callable[[Random], Rows]] = {
    make.__name__.lstrip("_"): make
    for make in (
        _integer, _decimal, _fraction, _radical, _pi, _tuple, _interval, _set, _line, _solution, _polynomial,
        _rational, _value, _matrix, _unit, _bare, _duration, _percent, _base, _complex, _power, _probability, _word,
        _choice, _time, _money, _sentence, _described, _unparsed,
    )
}  # fmt: skip
