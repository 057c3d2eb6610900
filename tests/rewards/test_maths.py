r"""Which answers equal which labels: no wrong one is paid, and right ones are in other spellings.

The rows are "answer -> label". `test_mutations.py` makes thousands more.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl import rewards
from agentrl.rewards._maths import same
from agentrl.rewards.maths import is_same
from agentrl.rewards.workers import shared
from agentrl.trajectory.model_output import ModelOutput
from tests.rewards import held_out

WRONG = {
    "a variable is no unit": r"""
        2 -> 2t; 10 -> 10m; x=3t -> x=3s; 10\text{ s} -> 10x; 5x -> 5; 2 -> 2\mathrm{k}; 2 -> 2\text{t}""",
    "an equation without a variable": "2+2=5 -> 2+2=4, f(0)=0 -> f(2023)=4046, 0=0 -> y=x, 3=3 -> 3=4",
    "a false chain": "2+3=4 -> 4, x=3=4 -> 4, 5+5=11 -> 11, \\sqrt{2}=1.4 -> 1.4",
    "an equation to solve": "x+1=4 -> 4, 2x=8 -> 8, x^2=4 -> 4, 2x=4 -> x=2",
    "an upright letter": "-4 -> 1-5\\mathrm{i}, 2\\mathrm{e} -> 2, 7\\mathrm{i} -> 7, \\mathrm{II} -> \\mathrm{III}",
    "a base": "204 -> 204_5, 54 -> 204_5, 204_6 -> 204_5, 204_5 -> 204",
    "large and near numbers": r"""
        \frac{1}{2^{100}} -> \frac{2^{99}+1}{2^{100}}; 10^{20} -> 10^{20}+1; 2^{66}+1 -> 2^{66};
        e^{1000} -> e^{1000}+1;
        \sqrt{2} -> \sqrt{2}+10^{-30}; e^{\pi\sqrt{163}} -> 262537412640768744; 0.1000000000000000001 -> 0.1;
        12345678901234567890 -> 12345678901234567891; 10^{-30} -> 0; 9^{9^{9}} -> 9^{9^{9}}+1""",
    "several measures": r"""
        5\text{ hours }20\text{ minutes} -> 5\text{ hours }30\text{ minutes};
        5\text{ hours} -> 5\text{ hours }3\text{ min}""",
    "another unit": r"""
        5\text{ m} -> 5\text{ cm}; 5\text{ m} -> 5\text{ m}^2; 5\text{ m/s} -> 5\text{ km/h}; £5 -> \$5;
        5^\circ C -> 5^\circ F;
        10 days -> 10 weeks; 5 cm^2 -> 5 cm^3; \$5 -> 5\text{ cents}; 5\text{ apples} -> 5\text{ pears};
        10 PM -> 10 AM""",
    "a word that changes the number": r"""
        5\text{ million} -> 5; 5 -> 5\text{ million}; 3\text{ dozen} -> 3; \text{not }5 -> 5; 7\text{ or more} -> 7;
        7\text{ mod }9 -> 7; 5\text{ or }6 -> 5; \text{at least }7 -> 7; 7\text{ remainder }2 -> 7;
        3 (approx) -> 3""",
    "percent": r"0.5\% -> 0.5; 50 -> 0.5; 50\% -> 5; 0.5 -> 50; 2.5\% -> 25\%",
    "a part of the text": r"""
        a^2 \oplus b -> a^2 \oplus c; 5 \star 3 -> 5; 5 \ldots -> 5; 1,2,\ldots,9 -> 1,2,9; 5? -> 5; \frac{5} -> 5;
        5- -> 5;
        x \equiv 1 \pmod 3 -> x \equiv 2 \pmod 3; $n$ -> all $n$ with $n > 3$; 45^\circ 30' -> 45^\circ 31'""",
    "never computed": r"""
        48+24 -> 72; \sum_{k=1}^{100}k -> 5050; 6*7 -> 42; 2^{10} -> 1024; \frac{84}{2} -> 42; \sqrt{16} -> 4;
        5! -> 120;
        \binom{5}{2} -> 10; -(-3) -> 3; |-3| -> 3; \log_2 8 -> 3; \lfloor 3.5 \rfloor -> 3; x=2+3 -> x=5;
        (1, 1+1) -> (1, 2);
        0.25+0.25 -> 0.5; \gcd(12,18) -> 6; \int_0^1 2x dx -> 1""",
    "order and brackets": r"""
        (2,1) -> (1,2); \{1,2\} -> (1,2); (1,2] -> [1,2); 2,1 -> x=1,y=2; x=2,y=1 -> x=1,y=2; (1,234) -> 1234;
        1 2 -> 12;
        x>1 \text{ and } x<3 -> x>1 \text{ or } x<3; x<1 -> x<1 \text{ or } x>3; 1<y<3 -> 1<x<3; x<3 -> x>3;
        3:2 -> 2:3;
        \begin{pmatrix}1\\2\end{pmatrix} -> \begin{pmatrix}1&2\end{pmatrix}; 2 -> \pm 2; \pm 2 -> 2;
        a^bc -> a^{bc}""",
    "functions": r"""
        |x| -> x; \sqrt{x^2} -> x; \ln x -> \log x; \sin^{-1} x -> \frac{1}{\sin x}; f(x) -> f(y); f'(x) -> f(x);
        I(0)=0 -> I(1)=0;
        2f(1)=9 -> f(1)=3; I(0)e^{t} -> I(0)e^{-t}; \sin 30^\circ -> \sin 30; \sqrt[3]{x} -> \sqrt{x};
        \delta -> \Delta + \delta;
        \sum_{k=1}^{n} X_i -> \sum_{i=1}^{n} X_i; \sum_{n=2}^{\infty} x^n -> \sum_{n=3}^{\infty} x^n;
        aX+bx -> ax+bX""",
    "approximations": r"""
        3.14 -> \pi; \frac{22}{7} -> \pi; 0.33 -> \frac13; 0.333334 -> \frac13; 2.9999999 -> 3; 3\approx4 -> 3""",
    "words": r"""
        \text{odd} -> \text{even}; dog -> god; ddo -> odd; AB -> A; \text{not odd} -> odd;
        \text{A or B} -> \text{A}""",
}
RIGHT = {
    "plain text": r"""
        pi/2 -> \frac{\pi}{2}; sqrt(3)-1 -> \sqrt{3}-1; 3*pi/4 -> \frac{3\pi}{4}; √3/2 -> \frac{\sqrt3}{2};
        x**2 -> x^2;
        (-inf, 3] -> (-\infty,3]; x<=3 -> x\le3; 2^(10) -> 2^{10}; e^(2) -> e^2; sin(x) -> \sin x; 1/2 -> \frac12""",
    "marks of formatting": r"""
        **73** -> 73; $73$ -> 73; \(73\). -> 73; {73} -> 73; (73) -> 73; `73` -> 73; \boldsymbol{73} -> 73;
        −73 -> -73; \text{73} -> 73;
        \left( 1,2 \right) -> (1,2); \\frac{1}{2} -> \frac12; \displaystyle\frac{1}{2} -> \dfrac12;
        1{,}234 -> 1234; 1\,234 -> 1234""",
    "units": r"""
        10 weeks -> 10; 10 cm^2 -> 10; 10 cm^2 -> 10\text{ cm}^2; 5 square meters -> 5\text{ m}^2;
        18\text{ eggs} -> 18; 60 mph -> 60;
        5 miles per hour -> 5\text{ mph}; 5\text{ m/s} -> 5\text{ meters per second}; 5 dollars -> \$5;
        9 (apples) -> 9; 30° -> 30;
        \$1,234.50 -> 1234.5; 2\text{ hours and }30\text{ minutes} -> 2\text{ h }30\text{ min};
        5 million -> 5000000; 30 -> 30^\circ""",
    "percent": r"5\% -> 5; 5 -> 5\%; 12.5\% -> \frac{1}{8}; 12.5\% -> 0.125; 5\text{ percent} -> 5\%; 0.05 -> 5\%",
    "intervals": r"""
        1<x<3 -> (1,3); x > 3 -> (3,\infty); 3 \le x -> [3, \infty);
        x<1\text{ or }x>2 -> (-\infty,1)\cup(2,\infty); \{x \mid x>1\} -> x>1;
        x\neq 2 -> (-\infty,2)\cup(2,\infty); x \in (1,3) -> (1,3); [1,2)\cup\{5\} -> \{5\}\cup[1,2); -x>-1 -> x<1;
        0<f(x)<1 -> (0,1)""",
    "decimals": r"""
        0.\overline{36} -> \frac{4}{11}; 0.1\overline{6} -> \frac16; 2\frac12 -> 2.5; 2 1/2 -> \frac52;
        1.414214 -> \sqrt2; .5 -> \frac12""",
    "equations": r"""
        4 -> f(3)=4; f(3)=4 -> 4; 48+24=72 -> 72; \angle ABC = 30^\circ -> 30; m+n=12 -> 12;
        2x - y + 1 = 0 -> y=2x+1; y=2x+1 -> 2x+1;
        x=1 \text{ or } x=2 -> \{1,2\}; x=1,2 -> 1,2; x=\pm2 -> 2,-2; \frac13 \approx 0.333 -> \frac13;
        f^{-1}(x)=2x -> 2x; 5=x -> x=5;
        x=2, y=3 -> (2,3); (x,y)=(2,3) -> x=2,y=3; x:y=2:3 -> 2:3; a=2,b=3 -> b=3,a=2; S_{10}=55 -> 55;
        n=\frac{N}{2} -> N/2""",
    "expressions": r"""
        1024 -> 2^{10}; 120 -> 5!; \frac{2}{4} -> \frac12; 5050 -> \sum_{k=1}^{100}k; 3^{100} -> 9^{50};
        (x+1)^2 -> x^2+2x+1; |1-x| -> |x-1|;
        \frac{n(n+1)}{2} -> \sum_{k=1}^{n}k; (-1)^{n+1} -> -(-1)^n; \ln\sqrt{x} -> \frac{1}{2}\ln x;
        f{\left(x \right)} = 2 x -> f(x)=2x;
        e^{i\pi/3} -> \frac12+\frac{\sqrt3}{2}i; P(1+r)^t -> P(r+1)^t; \sin^2 x -> 1-\cos^2 x;
        \log_{10} x -> \log x; 101_{\text{two}} -> 101_2;
        \begin{bmatrix}0.5 & 1\end{bmatrix} -> \begin{pmatrix}\frac12 & 1\end{pmatrix};
        6.02e23 -> 6.02\times10^{23}; 10^{-7} -> 0.0000001""",
    "words": r"""
        \text{No real solutions} -> no real solutions; \textbf{(B)} -> B; \text{Tuesday}. -> Tuesday;
        5:30 PM -> 5:30\text{ p.m.}; B, A -> A, B""",
    "unread, and the same": r"""
        a^2\oplus b -> a^{2} \oplus b; $n \equiv 1\pmod{4}$ -> n\equiv 1 \pmod 4;
        \int_0^1 x\,dx -> \int_{0}^{1} x dx""",
}


def pairs(rows: str) -> list[tuple[str, str]]:
    """Rows are separated by ";", or by ", " where no row has a ";" of its own."""
    separator = ";" if ";" in rows else ", "
    return [tuple(row.strip().split(" -> ")) for row in rows.strip().split(separator)]


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_not_paid(kind):
    assert [pair for pair in pairs(WRONG[kind]) if same(pair[0], [pair[1]])] == []


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_answer_is_paid_in_another_spelling(kind):
    assert [pair for pair in pairs(RIGHT[kind]) if not same(pair[0], [pair[1]])] == []


SLOW = Path(__file__).with_name("slow_graders.py")
FORMS = {"math": r"\boxed{%s}", "deepscaler": r"<think>so</think> \boxed{%s}", "dapo": "So:\nAnswer: %s"}


@pytest.mark.parametrize("name", FORMS)
async def test_answers_that_were_written_before_the_graders(name):
    rows = getattr(held_out, name.upper())
    wrote = [ModelOutput.of_turns([FORMS[name].replace("%s", answer)], label=label) for answer, label, _ in rows]
    grades = await asyncio.gather(*[getattr(rewards, name).grade(one) for one in wrote])
    paid = [getattr(grade, "value", grade) == 1.0 for grade in grades]
    assert len(rows) == 40
    assert [row for row, was_paid in zip(rows, paid, strict=True) if was_paid != row[2]] == []


NASTY = {
    "a tower": "9^{9^{9^9}}",
    "exponentials": r"\exp(\exp(\exp(30)))",
    "brackets": "(" * 5000 + "1" + ")" * 5000,
    "calls": "x(" * 50 + "1" + ")" * 50,
    "terms": "+".join(["1"] * 9000),
    "items": ",".join(map(str, range(3000))),
    "digits": "1." + "3" * 15_000,
    "spaces": "1" + " " * 19_000 + "2",
    "backslashes": "\\" * 19_000 + "1",
    "fractions": r"\frac{1}{" * 1500 + "1" + "}" * 1500,
    "a large binomial": r"\binom{x}{5000}",
    "dollars": "$" * 20_000,
}


@pytest.mark.parametrize("name", NASTY)
def test_an_answer_that_would_take_long_is_refused_soon(name):
    """Each takes less than a second. The time limit of the tests ends one that does not."""
    assert not same(NASTY[name], [r"\sqrt{2}"])


async def test_the_process_needs_neither_agentrl_nor_sympy():
    assert await is_same("pi/2", [r"\frac{\pi}{2}"])
    assert await shared().run(f"{SLOW}:modules", ["agentrl", "sympy", "pydantic", "mpmath"], seconds=10) == ["mpmath"]
