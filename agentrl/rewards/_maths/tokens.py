"""Splits a mathematical text, LaTeX or plain, into tokens. No character is dropped except white space and marks of
formatting."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .nodes import UnreadableError
from .units import is_plain_unit

_FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp"
FUNCTIONS = set(_FUNCTIONS.split())
_GREEK_TEXT = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi
varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar
"""
GREEK = set(_GREEK_TEXT.split())
_PLAIN = FUNCTIONS | GREEK | {"pi", "sqrt", "infty", "infinity", "inf", "abs", "floor", "ceil"}
_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
    "≤": r"\le ", "≈": r"\approx ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ",
    "°": r"^\circ ", "²": "^{2}", "³": "^{3}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "∅": r"\emptyset ", "−": "-", "–": "-", "∗": "*", "′": "'", "’": "'", "½": r"\frac{1}{2}", "⟨": r"\langle ",
    "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
}  # fmt: skip
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "le": "<=", "leq": "<=",
    "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "lt": "<", "gt": ">",
    "lvert": "|", "rvert": "|", "vert": "|", "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]",
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "colon": ":", "varnothing": "emptyset", "degree": "circ",
    "imath": "i", "backslash": "setminus", "infinity": "infty", "inf": "infty",
}  # fmt: skip
_REWRITES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?<=\d)(?:\\[,;! ]|,\\!|\{,\}|[\u00a0\u2009\u202f])\s*(?=\d{3}(?!\d))", ""),  # separators of thousands
    (r"(?<!\\)\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\.?", ""),
    (r"\\(?:displaystyle|textstyle|limits|nolimits|strut|boldmath)(?![a-zA-Z])|\\!", ""),
    (r"(?<!\\)\\(?:[,;: \n]|q?quad|[hv]?space\{[^{}]*\})|~|[\u00a0\u2009\u202f]", " "),
    (r"\{\s*\\(?:rm|bf|it)\b\s*([^{}]*)\}", r"\\mathrm{\1}"),
    (r"(?s)^\s*(\*\*|__|`)(.*)\1\s*$", r"\2"),  # Markdown
    (r"\*\*", "^"),
    (r'^\s*"([^"]*)"\s*$', r"\1"),
    (r"(?<!\\)(?:\$|\\[()\[\]])", " "),
    (r"(?<=[^.])[.,;]\s*$", ""),
    (r"(?<=\d)(\s+|\s*\\text\{\s*)\(\s*([A-Za-z]{2}[A-Za-z ]*)\)", r"\1 \2"),  # 9 (apples)
    (r"(?<!\d)(\d+\.\d*)\s*\\(?:overline|bar|dot|overset\{\.\})\s*(?:\{(\d+)\}|(\d))", r"\1r\2\3"),
    (r"\^\s*(?:\{(?:\s*\\prime)+\s*\}|\\prime(?![a-z]))", lambda match: "'" * match[0].count("prime")),
    (r"\b([ap])\.\s?m\b\.?", r"\1m"),
    (r"^\s*-?\d{1,3}(?: \d{3})+(?:\.\d+)?\s*$", lambda match: match[0].replace(" ", "")),
    (r"(?<![\d./])(\d+) +(\d+)/(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),  # 3 1/2
    (r"^\s*(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)\s*$", r"\1 \\times 10^{\2}"),
)
"""(pattern, replacement) pairs, in the order in which they are applied."""
_TEXT = re.compile(
    r"\\(text|mbox|hbox|textbf|textit|textrm|textnormal|texttt|textsf|operatorname\*?|mathrm|mathbf|mathit|mathsf|mathbb|"
    r"mathcal|boldsymbol|bm)\s*\{"
)
_TOKEN = re.compile(
    r"(?P<space>\s+)|\\begin\{(?P<begin>[a-zA-Z]+)\*?\}(?:\{[lcr| ]*\})?|\\end\{(?P<end>[a-zA-Z]+)\*?\}|"
    r"\\(?P<command>[a-zA-Z]+)|(?P<escaped>\\[{}%$|&_#\\])|(?P<number>\d+\.\d*r\d+|\d+(?:\.\d+)?|\.\d+)|"
    r"(?P<letters>[^\W\d_]+)|(?P<sign><=|>=|!=|[^\\])",
    re.DOTALL,
)
_THOUSANDS = re.compile(r"(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?")
_WORDS = {"all", "any", "are", "for", "is", "no", "not", "odd", "of", "one", "per", "six", "ten", "the", "two", "yes"}
"""The words of up to three letters. Any other run of up to three letters is a product of variables."""
_OPEN, _CLOSE = {"(", "[", r"\{"}, {")", "]", r"\}"}


@dataclass(frozen=True)
class Token:
    kind: str
    """The kind of the token: number, name, word, command, sign, begin or end."""
    text: str
    spaced: bool = False
    """Whether white space precedes the token."""
    roman: bool = False
    r"""Whether the token stood in \text or \mathrm."""

    @property
    def word(self) -> str:
        """The word in small letters; "" for a token that is no word."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def sign(self) -> str:
        r"""The text of a token; "" for a word, because the word "cup" is not the sign \cup."""
        return "" if self.kind == "word" else self.text


def clean(text: str) -> str:
    """The text with ASCII digits and a single spelling of each sign, and without marks of formatting."""
    text = "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else _SIGNS.get(sign, sign) for sign in text)
    if "matrix" not in text and "array" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z{}])", r"\\", text)  # escaped twice, as in JSON
    text = re.sub(r"\s+", " ", text).strip().rstrip("\\").strip()
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    return text


def tokens(text: str) -> list[Token]:
    """The tokens of a cleaned text. Raises UnreadableError."""
    only_words = bool(re.search(r"[^\W\d_]{3}", text)) and not re.search(r"[\d\\+*/^=<>|_{}]", text)
    return list(_Lexer(text, only_words).read())


class _Lexer:
    def __init__(self, text: str, only_words: bool) -> None:
        self.text, self.only_words = text, only_words
        self.position, self.depth, self.spaced = 0, 0, False
        self.after_number = False

    def read(self) -> Iterator[Token]:
        while self.position < len(self.text):
            for token in self._next():
                yield replace(token, spaced=self.spaced)
                self.spaced = False
                in_unit = token.kind == "word" and self.after_number
                self.after_number = token.kind == "number" or token.text == ")" or in_unit
                self.depth += (token.text in _OPEN) - (token.text in _CLOSE)

    def _next(self) -> Iterator[Token]:
        if match := _TEXT.match(self.text, self.position):
            yield from self._roman(match[1], match.end())
            return
        if self.depth <= 0 and (match := _THOUSANDS.match(self.text, self.position)):
            self.position = match.end()
            yield Token("number", match[0].replace(",", ""))
            return
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise UnreadableError("a lone backslash")
        self.position = match.end()
        kind, text = match.lastgroup or "", match[match.lastgroup or 0]
        if kind == "space":
            self.spaced = True
        elif kind == "command":
            yield _command(text)
        elif kind == "letters":
            yield from self._letters(text)
        elif kind == "escaped":
            yield Token("sign", text[1] if text in (r"\%", r"\_", r"\&", r"\#") else text)
        else:
            yield Token(kind, text)

    def _roman(self, command: str, start: int) -> Iterator[Token]:
        """Yield the words inside a text command."""
        end, depth = start, 1
        while end < len(self.text) and depth:
            depth += {"{": 1, "}": -1}.get(self.text[end], 0)
            end += 1
        if depth:
            raise UnreadableError("a brace that never ends")
        inner, self.position = self.text[start : end - 1], end
        if command in ("mathbb", "mathcal"):
            yield Token("name", f"{command} {inner.strip()}")
        elif re.fullmatch(r"\s*(?:[ie]|[A-Z]{2,3})\s*", inner) and inner.strip() not in ("AM", "PM"):
            yield from (Token("name", letter) for letter in inner.strip())
        elif command in ("mathbf", "boldsymbol", "bm", "mathit") and not re.fullmatch(
            r"\s*\(?[A-Za-z]{2,}\)?\s*", inner
        ):
            yield from tokens(inner)
        else:
            yield from _words(inner)

    def _letters(self, run: str) -> Iterator[Token]:
        if run in _PLAIN:
            yield _command(run)
        elif run.lower() in ("and", "or") or self._is_word(run):
            yield Token("word", run)
        elif run.startswith(("pi", "sqrt")):
            command = "pi" if run.startswith("pi") else "sqrt"
            self.position -= len(run) - len(command)
            yield _command(command)
        else:
            yield from (Token("name", letter) for letter in run)

    def _is_word(self, run: str) -> bool:
        """Whether the letters are a word. Otherwise they are a product of variables."""
        if run.lower() in _WORDS and not run.isupper():
            return True
        if self.after_number:
            return is_plain_unit(run) or (self.spaced and len(run) > 3)
        return len(run) > 3 or (self.only_words and len(run) > 1) or (len(run) > 2 and is_plain_unit(run))


def _command(text: str) -> Token:
    text = _SAME.get(text, text)
    if text in GREEK:
        return Token("name", text)
    if text in ("pi", "i"):
        return Token("name", text)
    return Token("command" if text.isalpha() else "sign", text)


def _words(text: str) -> Iterator[Token]:
    """Yield the content of a text command: words, numbers and signs."""
    spaced = False
    for match in re.finditer(rf"\s+|{_THOUSANDS.pattern}|\d+(?:\.\d+)?|[^\W\d_]+(?:['-][^\W\d_]+)*|\S", text):
        if match[0].isspace():
            spaced = True
            continue
        kind = "number" if match[0][0].isdigit() else "word" if match[0][0].isalpha() else "sign"
        yield Token(kind, match[0].replace(",", "") if kind == "number" else match[0], spaced, roman=True)
        spaced = False
