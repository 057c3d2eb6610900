"""Values as trees: numbers, expressions, lists in brackets, matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .nodes import CONSTANTS, MathNode, UnreadableError, free_names, name, number
from .tokens import FUNCTIONS, Token

_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "langle": "rangle"}
_CLOSERS = {")", "]"}
_ENCLOSED = {"lfloor": ("floor", "rfloor"), "lceil": ("ceil", "rceil")}
_VALUES = dict.fromkeys(("sum", "prod", "frac", "sqrt", "binom", "infty", "langle", "angle", "triangle", "abs"))
_CURRENCIES = {r"\$": "$", "€": "€", "£": "£", "¥": "¥", "₹": "₹"}
_DECORATIONS = {"overline", "bar", "vec", "hat", "widehat", "tilde", "overrightarrow", "dot", "ddot"}
_MATRICES = {"matrix", "pmatrix", "bmatrix", "array", "smallmatrix"}
_FIXED = {
    "infty": MathNode("inf"),
    "angle": name("angle"),
    "triangle": name("triangle"),
    "emptyset": MathNode("words", text="none"),
}
_MOST_DIGITS = 2000
_END = Token("end", "")


class ExpressionReader:
    """Reads values from tokens, in the order of precedence: ratios, sums, products, factors, atoms."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.position = tokens, 0
        self.bars = 0
        self.brackets: dict[int, tuple[MathNode, str, int]] = {}

    @property
    def next(self) -> Token:
        return self.tokens[self.position] if self.position < len(self.tokens) else _END

    @property
    def second(self) -> Token:
        """The token after the next token."""
        return self.tokens[self.position + 1] if self.position + 1 < len(self.tokens) else _END

    def take(self) -> Token:
        token = self.next
        self.position += 1
        return token

    def skip(self, *texts: str) -> str:
        """Take the next token if its text is among `texts`. Returns the text, or "" if no token is taken."""
        return self.take().text if self.next.sign in texts and self.next is not _END else ""

    def expect(self, text: str) -> None:
        token = self.take()
        if token.sign != text or (not text and token.kind == "word"):
            raise UnreadableError(f"no {text or 'end'} where it is needed")

    def items(self, closing: str) -> MathNode:
        """A list up to a closing bracket."""
        raise NotImplementedError

    def relation(self) -> MathNode:
        """Read an equation, an inequality or an expression."""
        raise NotImplementedError

    def ratio(self) -> MathNode:
        parts = [self.sum()]
        while self.skip(":"):
            parts.append(self.sum())
        return MathNode("ratio", tuple(parts)) if len(parts) > 1 else parts[0]

    def sum(self) -> MathNode:
        node = self.signed()
        while sign := self.skip("+", "-", "pm", "mp"):
            node = MathNode("+", (node, _with_sign(sign, self.product())))
        return node

    def signed(self) -> MathNode:
        sign = self.skip("+", "-", "pm", "mp")
        return _with_sign(sign, self.product()) if sign else self.product()

    def product(self) -> MathNode:
        node = self.factor()
        while True:
            if sign := self.skip("*", "/"):
                right = _with_sign("-", self.factor()) if self.skip("-") else self.factor()
                node = MathNode(sign, (node, right))
            elif self._begins() and not (self.next.kind == "number" and _ends_in_number(node)):
                node = _next_to(node, self.factor())
            else:
                return node

    def _begins(self) -> bool:
        """Whether the next token begins a factor."""
        token = self.next
        if token.kind in ("number", "name", "begin"):
            return True
        if token.kind == "command":
            return token.text in FUNCTIONS or token.text in _DECORATIONS or token.text in _ENCLOSED | _VALUES
        return token.sign in ("(", "[", r"\{", "{", *_CURRENCIES) or (token.sign == "|" and not self.bars)

    def factor(self) -> MathNode:
        """Read an atom with its suffixes: powers, factorials, percent, degrees."""
        node = self.atom()
        while True:
            if self.next.sign == "^":
                node = self.powered(node)
            elif self.next.sign == "!" and self.skip("!"):
                node = MathNode("!", (node,))
            elif self.next.sign == "%" and self.skip("%"):
                node = MathNode("percent", (node,))
            elif self.next.sign == "_" and self.skip("_"):
                node = self.subscripted(node)
            elif self.next.sign == "'" and node.kind == "name" and self.skip("'"):
                node = name(node.text + "'")
            elif self._brackets_follow() and node.kind == "name" and (arguments := self.called(node)):
                node = MathNode("call", arguments, node.text)
            else:
                return node

    def powered(self, node: MathNode) -> MathNode:
        self.take()
        braced = bool(self.next.sign == "{" and self.second.sign == "circ")
        if braced:
            self.take()
        if self.skip("circ"):
            if braced:
                self.expect("}")
            return MathNode("degree", (node,))
        power = self.argument(whole=True)
        if node.kind == "name" and power == _MINUS_ONE and node.text[0] in "fghFGH" and self._brackets_follow():
            return name(f"{node.text}^-1")
        return MathNode("^", (node, power))

    def subscripted(self, node: MathNode) -> MathNode:
        start = self.position
        if self.next.sign == "{":
            self._to_partner()
        else:
            self.take()
        index = "".join(token.text for token in self.tokens[start : self.position] if token.text not in ("{", "}"))
        if node.kind == "name":
            return name(f"{node.text}_{index.lower()}")
        if node.kind == "number" and node.text.isdigit() and index.lower().removeprefix("base") in _BASES:
            return MathNode("based", text=f"{node.text.lstrip('0')}_{_BASES[index.lower().removeprefix('base')]}")
        raise UnreadableError("a subscript of no name")

    def _to_partner(self) -> None:
        depth = 0
        while True:
            token = self.take()
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return
            if token is _END:
                raise UnreadableError("a brace that never ends")

    def _brackets_follow(self) -> bool:
        return self.next.sign == "(" or (self.next.sign == "{" and self.second.sign == "(")

    def called(self, node: MathNode) -> tuple[MathNode, ...]:
        """The arguments of a function call. Empty for a variable that stands before a factor in brackets.

        f, g and h are functions. Any other letter is a function before a number, a list or a relation: I(0), F(x, y),
        P(X = 1).
        """
        start = self.position
        braced = self.skip("{")
        inside, closing = self.inside("(")
        if braced:
            self.expect("}")
        is_function = node.text[0] in "fgh" or "^" in node.text or inside.kind in ("number", "relation", "list")
        if is_function and closing == ")" and node.text not in CONSTANTS:
            return inside.parts if inside.kind == "list" else (inside,)
        self.position = start
        return ()

    def inside(self, opening: str) -> tuple[MathNode, str]:
        """The content of the brackets that begin here, and the closing bracket.

        The result is cached: brackets after a name are read first as arguments, and then perhaps as a factor.
        """
        start = self.position
        if start not in self.brackets:
            self.expect(opening)
            bars, self.bars = self.bars, 0
            items = self.items(_CLOSING[opening])
            self.bars = bars
            self.brackets[start] = items, self.take().text, self.position
        items, closing, self.position = self.brackets[start]
        return items, closing

    def atom(self) -> MathNode:
        token = self.take()
        readers: dict[str, Callable[[Token], MathNode]] = {
            "begin": self.matrix,
            "command": self.command,
            "sign": self.bracketed,
        }
        if token.kind == "number":
            return number(token.text) if len(token.text) <= _MOST_DIGITS else _refuse("a number too long to compare")
        if token.kind == "name" or (token.kind == "word" and len(token.text) == 1):
            return name(token.text)
        if token.kind in readers:
            return readers[token.kind](token)
        raise UnreadableError(f"{token.text or 'the end'} is no value")

    def bracketed(self, token: Token) -> MathNode:
        if token.text in _CURRENCIES:
            value = _with_sign("-", self.factor()) if self.skip("-") else self.factor()
            return MathNode("currency", (value,), _CURRENCIES[token.text])
        if token.text == "{":
            self.position -= 1
            return self.braced()
        if token.text == "|":
            self.bars += 1
            inside = self.sum()
            self.bars -= 1
            self.expect("|")
            return MathNode("abs", (inside,))
        return self.enclosed(token.text)

    def enclosed(self, opening: str) -> MathNode:
        """A list in brackets, or a value in round or square brackets."""
        if opening not in _CLOSING:
            raise UnreadableError(f"{opening} is no value")
        if opening == r"\{" and (variable := self.such_that()):
            return self.described_set(variable)
        self.position -= 1
        inside, closing = self.inside(opening)
        if closing != _CLOSING[opening] and not {opening, closing} <= {"(", "[", *_CLOSERS}:
            raise UnreadableError(f"{opening} is not closed")
        if inside.kind != "list":
            return inside
        brackets = "()" if opening == "langle" else opening + closing
        return replace(inside, text=brackets) if inside.text == "," else _refuse("a joint in brackets")

    def such_that(self) -> str:
        r"""The variable of a set with a condition, such as x in "\{x | x > 1\}". Takes the variable and the sign after
        it; returns "" for any other set."""
        start = self.position
        variable = self.skip(self.next.sign if self.next.kind == "name" else "")
        if self.skip("in"):
            self.skip(self.next.sign if self.next.kind == "name" else "")
        if variable and self.skip("|", "mid", ":"):
            return variable
        self.position = start
        return ""

    def described_set(self, variable: str) -> MathNode:
        inside = self.items("")
        self.expect(r"\}")
        if variable not in free_names(inside):
            raise UnreadableError("a set of another variable")
        return replace(inside, text="and") if inside.text == "," else inside

    def braced(self) -> MathNode:
        self.expect("{")
        node = self.items("}")
        self.expect("}")
        return node

    def argument(self, *, whole: bool = False) -> MathNode:
        """Read an argument as TeX does: braces, or a single character. `whole`: a longer number is an argument, too,
        also with a minus sign."""
        if self.next.sign == "{":
            return self.braced()
        if whole and (sign := self.skip("-", "+")):
            return _with_sign(sign, self.argument(whole=True))
        token = self.next
        if token.kind != "number" or whole:
            return self.atom()
        if not token.text.isdigit() or len(token.text) > 2:
            raise UnreadableError("it is not clear where the argument ends")
        self.take()
        if len(token.text) == 2:
            self.position -= 1
            self.tokens[self.position] = replace(token, text=token.text[1])
        return number(token.text[0])

    def command(self, token: Token) -> MathNode:
        text = token.text
        if text in FUNCTIONS:
            return self.function(text)
        if text in _ENCLOSED:
            kind, closing = _ENCLOSED[text]
            inside = self.sum()
            self.expect(closing)
            return MathNode(kind, (inside,))
        if text in ("abs", "floor", "ceil"):
            return MathNode(text, (self.inside("(")[0],))
        if text in ("frac", "binom"):
            above = self.argument()
            return MathNode("/" if text == "frac" else "binom", (above, self.argument()), text)
        if text in ("sum", "prod"):
            return self.series(text)
        if text in _DECORATIONS:
            start = self.position
            self.argument()
            return name(f"{text} {' '.join(token.text for token in self.tokens[start : self.position])}")
        if text in _FIXED:
            return _FIXED[text]
        if text == "sqrt":
            return self.root()
        return self.enclosed(text)

    def root(self) -> MathNode:
        index = number("2")
        if self.skip("["):
            index = self.sum()
            self.expect("]")
        if self.next.sign == "(":
            return MathNode("root", (self.atom(), index))
        return MathNode("root", (self.argument(whole=self.next.text.isdigit()), index))

    def function(self, text: str) -> MathNode:
        base = number("10")
        power: MathNode | None = None
        if text == "log" and self.skip("_"):
            base = self.argument(whole=True)
        if self.skip("^"):
            power = self.argument(whole=True)
        if text in ("log", "lg", "ln"):
            inside = (self._function_argument(), name("e") if text == "ln" else base)
            node = MathNode("log", inside)
        else:
            node = MathNode(text, (self._function_argument(),))
        if power is None:
            return node
        if power == _MINUS_ONE:
            return MathNode("arc" + text, node.parts) if text in ("sin", "cos", "tan") else _refuse("an inverse")
        return MathNode("^", (node, power))

    def series(self, text: str) -> MathNode:
        """A sum or a product over an index."""
        self.expect("_")
        self.expect("{")
        index = self.take()
        self.expect("=")
        first = self.sum()
        self.expect("}")
        self.expect("^")
        last = self.argument(whole=True)
        if index.kind != "name":
            raise UnreadableError("an index of no name")
        return MathNode(text, (first, last, self.product()), index.text)

    def _function_argument(self) -> MathNode:
        if self.next.sign in ("(", "{"):
            return self.atom()
        node = self.signed_factor()
        while self._begins() and self.next.sign not in FUNCTIONS and self.next.sign not in ("(", "["):
            if self.next.kind == "number":
                break
            node = _next_to(node, self.factor())
        return node

    def signed_factor(self) -> MathNode:
        return _with_sign("-", self.factor()) if self.skip("-") else self.factor()

    def matrix(self, token: Token) -> MathNode:
        if token.text not in _MATRICES:
            raise UnreadableError(f"{token.text} is not read")
        rows, row = [], [self.relation()]
        while True:
            sign = self.take()
            if sign.text == "&":
                row.append(self.relation())
            elif sign.text == r"\\" and self.next.kind != "end":
                rows.append(MathNode("row", tuple(row)))
                row = [self.relation()]
            elif sign.kind == "end" and sign.text == token.text:
                return MathNode("matrix", (*rows, MathNode("row", tuple(row))))
            elif sign.text != r"\\":
                raise UnreadableError("a matrix that never ends")


_MINUS_ONE = MathNode("neg", (number("1"),))
_DIGIT_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {str(base): str(base) for base in range(2, 37)}
_BASES |= {word: str(base) for base, word in enumerate(_DIGIT_WORDS, 2)}


def _refuse(why: str) -> MathNode:
    raise UnreadableError(why)


def _with_sign(sign: str, node: MathNode) -> MathNode:
    return node if sign == "+" else MathNode({"-": "neg", "pm": "±", "mp": "∓"}[sign], (node,))


def _ends_in_number(node: MathNode) -> bool:
    return node.kind == "number" or (
        node.kind in ("*", "+", "/") and _ends_in_number(node.parts[-1]) and node.text != "frac"
    )


def _next_to(first: MathNode, second: MathNode) -> MathNode:
    """The node of two factors without a sign between them: a mixed number, or a product."""
    whole = first.kind == "number" and first.text.isdigit()
    if whole and second.kind == "/" and second.text == "frac" and all(_is_integer(part) for part in second.parts):
        if int(second.parts[0].text) >= int(second.parts[1].text):
            raise UnreadableError("a mixed number, or a product")
        return MathNode("+", (first, second), "mixed")
    return MathNode("*", (first, second))


def _is_integer(node: MathNode) -> bool:
    return node.kind == "number" and node.text.isdigit()
