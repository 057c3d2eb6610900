"""The fast BPE beside the tokenizers' own: the same tokens? And how many times as fast?

AGENTRL_TEST_DATA=/path/to/data python -m benchmarks.same_tokens [FOLDER...]

Each FOLDER holds a tokenizer; those of the test data are compared too. The texts are passages, this repository's own
files, and both with random changes: other characters, spaces, marks and emoji, letters that repeat.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentrl.render import fast_bpe
from agentrl.render.fast_bpe import VARIABLE, fast_encoder_of
from benchmarks.peers import save
from tests.render.markers import data_folder

ROOT = Path(__file__).parent.parent
MUTATED, PLAIN = 1500, 300


def texts() -> Iterator[str]:
    """Passages and files, changed at random and as they are."""
    pick, given = random.Random(11), data_folder()
    corpus = given / "search_qa" / "corpus.jsonl" if given else None
    lines = corpus.read_text(encoding="utf-8").splitlines() if corpus and corpus.is_file() else []
    files = [
        path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("agentrl/**/*.py")) if path.stat().st_size > 200
    ]
    passages = [json.loads(line)["contents"] for line in lines] or files
    for source in (passages, files):
        for text in pick.choices(source, k=MUTATED):
            start = pick.randrange(max(1, len(text) - 3000))
            yield mutated(pick, text[start : start + pick.randrange(50, 3000)])
    yield from pick.choices(passages, k=PLAIN)
    yield from pick.choices(files, k=PLAIN // 5)


def mutated(pick: random.Random, text: str) -> str:
    """The text after up to 30 changes."""
    chars = list(text)
    for _ in range(pick.randrange(1, 30)):
        at = pick.randrange(len(chars))
        chars[at] = pick.choice(
            (
                chr(pick.choice([pick.randrange(0xD7FF), pick.randrange(0xE000, 0x1FFFF)])),
                pick.choice([" ", "\n", "\t", "\r\n", "\u00a0", "  "]) * pick.randrange(1, 9),
                chars[at].swapcase() + pick.choice(["'S", "'ll", "\u0301", "\u200d", "\U0001f686"]),
                "",
                chars[at] * pick.randrange(2, 40),
            )
        )
    return "".join(chars)


def compared(tokenizer: Any, corpus: list[str]) -> dict[str, Any]:
    """How many of the texts differ, and how much CPU time both took."""
    before = time.process_time()
    fast_encoder_of(tokenizer)
    bpe = fast_bpe._KEPT[tokenizer]
    row: dict[str, Any] = {"tokens": len(tokenizer), "load s": round(time.process_time() - before, 1), "off": bpe.off}
    if bpe.off:
        return row
    bpe.every, different, spent = 10**9, 0, [0.0, 0.0]
    for text in corpus:
        times = [time.process_time()]
        found = bpe.encode(text)
        times.append(time.process_time())
        expected = bpe.reference(text)
        spent = [spent[0] + times[1] - times[0], spent[1] + time.process_time() - times[1]]
        different += found != expected
    return {**row, "texts": len(corpus), "different": different, "times as fast": round(spent[1] / spent[0], 1)}


def main() -> None:
    os.environ[VARIABLE] = "on"
    given, corpus, rows = data_folder(), list(texts()), list[dict[str, Any]]()
    folders = [*map(Path, sys.argv[1:]), *(sorted((given / "tokenizers").iterdir()) if given else ())]
    print(f"{len(corpus)} texts, {sum(map(len, corpus)):,} characters, load {os.getloadavg()[0]:.1f}")
    for folder in folders:
        row = {"tokenizer": folder.name, **compared(PreTrainedTokenizerFast.from_pretrained(folder), corpus)}
        print("  " + ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    save("same_tokens", rows)


if __name__ == "__main__":
    main()
