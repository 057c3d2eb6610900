"""Texts that tokenizers cut into words and tokens in odd places: for comparing two ways to encode."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

_WORDS = (
    *("the", "Paris", "naïve", "don't", "DON'T", "it'\u017f", "I'll've", "O'Neill", "3.14159", "1,000,000", "0x7fFF"),
    *("snake_case", "camelCase", "HTTPServer", "a.b.c()", "x=-1;", "if(x){", "}}", "</div>", "<b>", "&amp;", "C++"),
    *("https://a.b/c?d=e&f=%20#g", "me@x.org", "C:\\new\\table", "**bold**", "```py\n", "# Title\n", "- [ ] item\n"),
    *("晴れ", "北京大学", "ひらがな", "한국어", "\u1112\u1161\u11ab", "ไทย", "العربية", "עברית", "हिन्दी", "ქართული"),
    *("e\u0301", "a\u0308\u0323", "\ufb01", "\u2126", "\u212b", "ﷺ", "½", "²", "Ⅷ", "１２", "ß", "İ", "ı", "\u0345"),
    *(
        "🚆",
        "👩\u200d👩\u200d👧",
        "🏳\ufe0f\u200d🌈",
        "🇫🇷",
        "👍🏽",
        "\u200b",
        "\ufeff",
        "\u00ad",
        "\u202e",
        "\ufffd",
        "\ue000",
    ),
    *(
        '"',
        "'",
        "''",
        "“q”",
        "’s",
        "…",
        "—",
        "--",
        "...",
        "!!!",
        "?!",
        "$5",
        "€",
        "#1",
        "@",
        "~/x",
        "|",
        "\\n",
        "\\u00e9",
    ),
)
_SPACES = (
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        "\t\t",
        " \n",
        "\n ",
        " \n\n  ",
        "\u00a0",
        " \u00a0",
        "\u3000",
    ),
    *("\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u001c", "\u001f", "\u1680", "\u2003", "\u202f", "\u205f", ""),
)
_CODE = '''\
def f(self, *xs: int) -> dict[str, "A"]:
\t"""Doc\\n."""
    return {**{"k": [1, -2.5e-10, None]}, f"{xs!r:>10}": lambda _: _ @ ~_}   # é

#include <stdio.h>
int main(void){for(;;){printf("%d\\n",1<<2&&0xFF);}}
SELECT * FROM "t" WHERE a<>'b''c' AND d>=1;
{"a": [1, 2.50, true, null], "b": "\\u2028\\"\\\\", "c": {}}
diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new
$ ls -la | grep '^d' >/dev/null 2>&1; echo $?
'''
_RUNS = ("a", "A", "0", "=", "-", ".", " ", "\n", "\t", "ab", "é", "晴", "🚆", "\u0301", " x", "\r\n", "01", "_a", "'s")
_RUN_LENGTHS = (2, 3, 5, 16, 33, 260, 2100)
_MIXED = 120
"""How many texts are mixed at random."""
_OF_CATEGORY = 24
"""How many characters of each of Unicode's categories are tried."""
_MARKERS = 64
"""How many added tokens are tried. A tokenizer may have thousands."""


def hard_texts(added: list[str]) -> list[str]:
    """Code, marks, emoji, spaces, long runs, every category of character, and the added tokens of a tokenizer; the same
    at each call."""
    pick = random.Random(0)
    markers = added[: _MARKERS // 2] + added[-_MARKERS // 2 :]
    texts = [_CODE, _CODE.replace("    ", "\t"), "", *_WORDS, *_SPACES]
    texts += [run * length for run in _RUNS for length in _RUN_LENGTHS]
    texts += [f"{run * 9}{word}{run * 4}" for run in _RUNS for word in ("x", " y", "\n")]
    texts += list(_of_categories(pick))
    texts += [f"{marker} a{marker}\n\n{marker}{marker}b {marker}  c" for marker in markers]
    texts += [f" x\n{marker[:-1]} {marker[1:]}{marker.upper()}\n" for marker in markers]
    texts += [_mixed(pick, markers if number % 2 else ()) for number in range(_MIXED)]
    return texts


def _of_categories(pick: random.Random) -> Iterator[str]:
    """Characters of each category between letters, digits, spaces and characters of the same category."""
    by_category = defaultdict[str, list[str]](list)
    for char in map(chr, range(sys.maxunicode + 1)):
        by_category[unicodedata.category(char)].append(char)
    for category in sorted(set(by_category) - {"Cs"}):
        chars = pick.sample(by_category[category], min(_OF_CATEGORY, len(by_category[category])))
        yield "".join(f"a{char}1{char} {char}b" for char in chars)
        yield " ".join(chars) + "".join(chars) + "\n".join(chars)


def _mixed(pick: random.Random, markers: Sequence[str]) -> str:
    """Words, spaces and markers in any order."""
    parts = list[str]()
    for _ in range(pick.randrange(4, 60)):
        parts.append(pick.choice(_WORDS))
        parts += pick.choices(_SPACES, k=pick.randrange(3))
        if markers and not pick.randrange(6):
            parts.append(pick.choice(markers))
    return "".join(parts)
