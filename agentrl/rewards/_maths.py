"""Whether two mathematical answers are the same, by math-verify.

It runs in a grader's process and is loaded there as a file, so it imports nothing of agentrl.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_UNITS = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "g": "gram",
    "kg": "kilogram",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "day": "",
    "year": "yr",
    "inch": "in",
    "foot": "feet ft",
    "mile": "mi",
    "degree": "",
    "radian": "rad",
    "dollar": "",
    "cent": "",
}
_TINY, _CLOSE = 1e-3, 1e-6
_NAMES = {name: unit for unit, names in _UNITS.items() for name in (unit, *names.split())}
_UNIT = re.compile(r"\d[\s~]*(?:\\[ ,;!])*\\?(?:text|mathrm|mbox|rm)?\{?\s*([A-Za-z]+)\.?\s*\}?(?:\^\{?(\d)\}?)?\s*$")
_BRACKETS = re.compile(r"^\s*\$?\s*(?:\\left)?\s*(\\\{|\(|\[).*?(\\\}|\)|\])\s*\$?\s*$", re.DOTALL)


def same(given: str, rights: list[str]) -> bool:
    """Whether the answer equals one of the right ones."""
    return any(_equal(plain(given), plain(right)) for right in rights)


def plain(text: str) -> str:
    """The text in the form that math-verify reads: ASCII digits, no thousands separators, no mixed numbers."""
    text = "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)
    text = text.replace("−", "-").strip().strip("$").strip()
    text = re.sub(r"(?<=\d)(?:\\[,;! ]|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"^-?\d{1,3}(?: \d{3})+(?:\.\d+)?$", lambda match: match[0].replace(" ", ""), text)
    text = re.sub(r"(?<![\d/])(\d+) +(\d+)/(\d+)(?!\d)", r"\1\\frac{\2}{\3}", text)
    return re.sub(r"^(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)$", r"\1 \\times 10^{\2}", text)


def _equal(given: str, right: str) -> bool:
    if not given or not right:
        return False
    if given == right:
        return True
    if _differ(_brackets(given), _brackets(right)) or _differ(_unit(given), _unit(right)):
        return False
    from math_verify import verify

    wanted, found = _read(right), _read(given)
    return bool(verify(wanted, found, timeout_seconds=None)) and not _tiny_and_apart(wanted, found)


def _tiny_and_apart(wanted: list[Any], found: list[Any]) -> bool:
    """Whether both are small numbers that differ by more than a millionth of themselves.

    math-verify rounds to six places, where all small numbers are equal.
    """
    numbers = [one[0] for one in (wanted, found) if one and getattr(one[0], "is_number", False)]
    if len(numbers) < 2 or not all(one.is_real and 0 < abs(one.evalf()) < _TINY for one in numbers):
        return False
    return bool(abs((numbers[0] / numbers[1]).evalf() - 1) > _CLOSE)


def _read(text: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    return parse(f"\\boxed{{{text}}}", extraction_config=config, parsing_timeout=None)


def _differ(given: str, right: str) -> bool:
    return bool(given and right and given != right)


def _brackets(text: str) -> str:
    r"""The outer brackets of a list, as "(]" or "\{\}"; "" without a comma or without brackets."""
    found = _BRACKETS.match(text)
    return found[1] + found[2] if found and "," in text else ""


def _unit(text: str) -> str:
    """The unit at the end, with its power, if it is a known one."""
    found = _UNIT.search(text)
    if found is None:
        return ""
    name = found[1].lower()
    unit = _NAMES.get(name) or _NAMES.get(name.removesuffix("s")) or _NAMES.get(name.removesuffix("es"))
    return f"{unit}^{found[2] or 1}" if unit else ""
