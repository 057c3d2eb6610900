"""The option that a text chooses: a small grammar of statements about letters.

A mention is a letter, or several joined letters: "C", "(c)", "A or B". Words around a mention make a statement: denied
("not A", "unlike B", "C is wrong"), or affirmed with a rank:

    ANSWER      "the answer is C", "Answer: (C)", "C is the correct option", a line with the letter alone
    CONCLUDED   "so C", "I choose C", "C is correct", "option C fits best", a text that begins with "C."
    NAMED       the letter alone, in any other sentence

The last statement of the highest rank decides. A mention of two letters chooses neither letter. A correction ("Wait,
...") voids the statements before it. A rejection ("C is wrong") voids earlier choices of the same letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Rank(IntEnum):
    """How clearly a statement says that its letters are the answer, from unclear to clear."""

    NONE = 0
    """A question, a hypothesis, or an entry in a list of options."""
    NAMED = 1
    CONCLUDED = 2
    ANSWER = 3


@dataclass(frozen=True, slots=True)
class Statement:
    """A mention of letters, and whether the text around the mention affirms or denies these letters."""

    letters: frozenset[str]
    rank: Rank
    denied: bool
    rejected: bool
    """Whether the text says that the letter itself is wrong. Then an earlier choice of the letter is void."""
    start: int


_MARKUP = re.compile(
    r"\\(?:text|mathrm|mathbf|mbox|boxed|fbox|rm|bf)(?:bf|rm|it|sf|tt)?\b\s*|\\[()\[\]]|[$*`{}\"“”]|__"
)
_QUOTED = re.compile(r"(?<!\w)['‘]([A-Za-z])['’](?!\w)")
_LETTER = re.compile(
    r"(?<!\w)[(\[]\s*([A-Za-z])\s*[)\]]"  # (a)
    r"|(?<![\w'’.\\-])([A-Za-z])(?![\w'’+#]|-\w|\.\w)\)?"  # A, a)
)
_OPTION = r"(?:option|choice|answer|letter|statement|alternative)s?"
_JOIN = re.compile(rf"\s*(,?\s*(?:and|&)|,?\s*n?or|,|/|vs\.?|versus)\s*(?:(?:also|both|either|{_OPTION})\s+)*", re.I)
_SINGULAR = re.compile(
    r"\s+(?:is|isn['’]t|was|has|does|doesn['’]t|cannot|can['’]t|must|should|would|could|seems|looks|fits|works|matches"
    r"|holds|wins|follows|violates|contradicts|fails|ignores)\b",
    re.I,
)
_FILLER = (
    rf"(?:\W|\b(?:clearly|definitely|therefore|thus|likely|probably|simply|just|indeed|obviously|actually|only|the"
    rf"|more|most|either|both|{_OPTION})\b)*$"
)
_STATES = re.compile(
    rf"\b(?:answers?|(?:correct|right|best|final)\s+(?:{_OPTION}|one)|final)\b"
    rf"(?:[^.;!?\n]{{0,40}}?\b(?:is|are|be)\b|[^.;!?\n\w]*[:=→])?{_FILLER}",
    re.I,
)
_CONCLUDES = re.compile(
    r"(?:[→⇒]|[-=]>|\b(?:so|hence|thus|therefore|conclude|wait|actually|sorry|instead|rather|but|choos\w+|chose|pick\w*"
    r"|select\w*|mark|prefer|leav(?:es|ing)(?:\s+us)?(?:\s+with)?|left\s+with|go(?:ing)?\s+(?:with|for)|opt\s+for"
    rf"|guess|\w+est\s+is|(?:must|has\s+to|should)\s+be|(?:it|this|that|which|{_OPTION})(?:['’]s|\s+is)))"
    rf"(?:\W|\b(?:it|this|that)(?:['’]s|\s+is|\s+must\s+be)?\b)*{_FILLER}",
    re.I,
)
_IS = r"(?:is|are|was|['’]s|be|seems|looks|sounds|remains)"
_IS_ANSWER = re.compile(rf"[^\w\n]*\b{_IS}\s+(?:\w+\s+){{0,2}}?(?:answer|(?:correct|right|best)\s+{_OPTION})\b", re.I)
_IS_RIGHT = re.compile(
    r"\b(?:correct|right|true|best|better|valid|consistent|fits?|match(?:es)?|works|holds|wins|plausible|accurate)\b",
    re.I,
)
_NOT = re.compile(r"\b(?:not|never|cannot|neither|nor|no)\b|n['’]t\b", re.I)
_WRONG = re.compile(
    r"\b(?:incorrect|wrong|false|untrue|invalid|impossible|implausible|unlikely|inconsistent|worse|out|eliminated"
    r"|excluded|rejected|contradict\w*|violat\w*|fails?|ignores?)\b",
    re.I,
)
_AGAINST = re.compile(
    r"\b(?:not|never|cannot|neither|nor|unlike|rul(?:e|es|ed|ing)\s+(?:it\s+)?out|eliminat\w+|exclud\w+|reject\w*"
    r"|discard\w*|dismiss\w*|disprov\w+|rather\s+than|instead\s+of|without|against|(?<!other\s)than|over)\b|n['’]t\b",
    re.I,
)
_DIRECTLY = re.compile(rf"(?:\b(?:not|nor|neither|out)|n['’]t(?:\s+be)?|cannot\s+be|not\s+be){_FILLER}", re.I)
_EXCEPT = re.compile(
    rf"\b(?:except|excepting|other\s+than|besides|apart\s+from|(?:all|every\w*|no\w*)\s+(?:\w+\s+)?but)\b{_FILLER}",
    re.I,
)
_UNTRUE = re.compile(
    r"\b(?:(?:not|n['’]t)\s+(?:true|correct|right|the\s+case|think|believe)|false|wrong|incorrect|untrue|doubt)"
    r"\s+that\b[^,.;]*$",
    re.I,
)
_UNSURE = re.compile(r"\b(?:if|suppose|supposing|assum\w+|were|whether|between)\b", re.I)
_IF = re.compile(r"\W*(?:would|could|might)\b", re.I)
_CORRECTS = re.compile(
    r"\b(?:wait|actually|correction|scratch\s+that|on\s+second\s+thought|my\s+mistake|made\s+(?:a\s+mistake|an\s+error)|hold\s+on|let\s+me\s+re\w+|sorry)\b",
    re.I,
)
_CLAUSE = re.compile(
    r"[.:]\s|[!?;,\n]|\b(?:because|since|that|which|when|while|whereas|although|though|but|so|hence|thus|therefore|and"
    r"|as)\b",
    re.I,
)
_SENTENCE = re.compile(r"[.!?](?=\s|$)|\n")
_NEAR = 120
"""The number of characters before and after a mention that may belong to the statement."""
_MOST = 500
"""The most mentions that are read. A text with more mentions chooses no option, because reading would take long."""


def chosen(text: str, valid: Sequence[str]) -> tuple[str | None, Rank]:
    """The letter that the text chooses, and the rank of its statement. The letter is None if the text chooses no
    letter, or several."""
    text = plain(text)
    statements = [
        statement for statement in _statements(text) if statement.letters & {*valid} or statement.rank is Rank.ANSWER
    ]
    statements = _corrected(text, statements)
    affirmed = _affirmed(statements)
    rank = max((statement.rank for statement in affirmed), default=Rank.NONE)
    highest = [statement.letters for statement in affirmed if statement.rank is rank]
    if rank is Rank.NAMED:  # no statement: the letter must be the only one
        denied = frozenset[str]().union(*(statement.letters for statement in statements if statement.denied))
        highest = [frozenset[str]().union(*highest) & {*valid} - denied]
    letters = highest[-1] if highest else frozenset[str]()
    return (next(iter(letters)) if len(letters) == 1 and letters <= {*valid} else None), rank


def _corrected(text: str, statements: list[Statement]) -> list[Statement]:
    """The statements after the last correction ("wait, no"), if any of these chooses a letter. Otherwise all
    statements."""
    corrected = max((match.start() for match in _CORRECTS.finditer(text)), default=0)
    later = [statement for statement in statements if statement.start > corrected]
    return later if any(_affirms(statement, Rank.CONCLUDED) for statement in later) else statements


def _affirmed(statements: list[Statement]) -> list[Statement]:
    """The statements that affirm letters, unless a later statement rejects the same letters."""
    rejected = {statement.letters: statement.start for statement in statements if statement.rejected}
    return [
        statement
        for statement in statements
        if _affirms(statement, Rank.NAMED) and statement.start > rejected.get(statement.letters, -1)
    ]


def plain(text: str) -> str:
    """The text without quotes and without marks of LaTeX and Markdown around letters."""
    return _QUOTED.sub(r"\1", _MARKUP.sub("", text))


def _affirms(statement: Statement, least: Rank) -> bool:
    return statement.rank >= least and not statement.denied


def _statements(text: str) -> Iterator[Statement]:
    if len(groups := _groups(text)) > _MOST:
        return
    leads = {match[1] or match[2] for group in groups if _leads(text, match := group[0])}
    ends = [0, *(group[-1].end() for group in groups)]
    starts = [*(group[0].start() for group in groups), len(text)]
    for group, last_end, start, end, next_start in zip(groups, ends, starts, ends[1:], starts[1:], strict=False):
        before = text[max(last_end, start - _NEAR) : start]
        after = text[end : min(next_start, end + _NEAR)]
        if end + len(after) == next_start < len(text):  # "A, not B": the denial is that of B
            after = _DIRECTLY.sub("", after)
        letters = frozenset((match[1] or match[2]).upper() for match in group)
        leading, follows = _leads(text, group[0]), _clause(after)
        rank = _rank(text, (start, end), before, follows, leading and len(leads) == 1)
        if rank is Rank.NAMED and (leading or group[0][0].islower()):
            rank = Rank.NONE  # an option of a list; a variable
        yield Statement(letters, rank, *_denial(before, follows), start)


def _denial(before: str, follows: str) -> tuple[bool, bool]:
    """Two facts about letters between the texts `before` and `follows`: whether the text denies the letters, and
    whether the text rejects the letters outright."""
    clause = _last_clause(before)
    wrong = bool(_WRONG.search(follows)) != bool(_NOT.search(follows))
    denied = wrong != bool(_EXCEPT.search(before)) or bool(_AGAINST.search(clause) or _UNTRUE.search(before))
    return denied, denied and (bool(_DIRECTLY.search(clause)) or bool(_WRONG.search(follows)))


def _groups(text: str) -> list[list[re.Match[str]]]:
    """The letters of the text. Letters that are joined, as in "A or B", are in the same list."""
    groups = list[list[re.Match[str]]]()
    for match in _LETTER.finditer(text):
        if _is_word(text, match):
            continue
        between = text[groups[-1][-1].end() : match.start()] if groups else ""
        joined = _JOIN.fullmatch(between)
        begins_clause = (
            joined and joined[1].strip(", ").lower() in ("and", "&", "") and _SINGULAR.match(text, match.end())
        )
        if joined and not begins_clause:
            groups[-1].append(match)
        else:
            groups.append([match])
    return groups


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Whether the letter is a word: an article, a pronoun, or a small letter that names no option."""
    letter = match[1] or match[2]
    if match[1] or letter not in "aAI":
        return False
    follows = re.match(r"[ \t]+([A-Za-z]\w*)", text[match.end() : match.end() + 40])
    if follows is None or match[0].endswith(")"):
        return False
    if letter != "A":
        return True
    begins = re.search(r"(?:^|[.!?:\n])\W*$", text[max(0, match.start() - 10) : match.start()])
    return bool(begins) and not _SUBJECT.match(follows[1])


_SUBJECT = re.compile(
    r"(?:is|isn|are|aren|was|and|or|nor|vs|versus|looks|seems|can|cannot|could|couldn|must|would|wouldn|has|does|doesn"
    r"|fits|works|matches|holds|follows|violates|contradicts|fails|ignores|because|since|as|too|also|only|then|not|but)$"
)
"""The words that may follow a letter "A" at the beginning of a sentence if the letter names an option. Before any other
word, "A" is an article."""


def _leads(text: str, match: re.Match[str]) -> bool:
    """Whether a line begins with the letter as the name of an option: "C. text", "(c) text"."""
    named = match[1] or match[0].endswith(")") or text[match.end() : match.end() + 1] in (".", ":")
    return bool(named) and not _line_before(text, match.start()).strip(" \t#>-")


def _line_before(text: str, position: int) -> str:
    near = text[max(0, position - _NEAR) : position]
    return near[near.rfind("\n") + 1 :]


def _rank(text: str, span: tuple[int, int], before: str, after: str, leads: bool) -> Rank:
    start, end = span
    near = text[end : end + _NEAR]
    if not re.search(r"\w", _line_before(text, start) + near.partition("\n")[0]):
        return Rank.ANSWER
    if ((last := _SENTENCE.search(near)) and last[0] == "?") or _IF.match(after):
        return Rank.NONE
    if _STATES.search(before) or _IS_ANSWER.match(after):
        return Rank.ANSWER
    if _UNSURE.search(_last_clause(before)):
        return Rank.NONE
    return Rank.CONCLUDED if leads or _CONCLUDES.search(before) or _IS_RIGHT.search(after) else Rank.NAMED


def _last_clause(before: str) -> str:
    return before[max((match.end() for match in _CLAUSE.finditer(before)), default=0) :]


def _clause(after: str) -> str:
    after = after.lstrip(":) ")
    end = _CLAUSE.search(after)
    return after[: end.start()] if end else after
