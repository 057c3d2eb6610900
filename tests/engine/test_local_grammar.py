"""LocalEngine under a grammar: what may follow is found here by trying each token, one answer at a time."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys

import pytest

from tests.engine.inside import worker_of

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
pytest.importorskip("xgrammar", reason="grammars need the package xgrammar")

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.local import grammar as local_grammar  # noqa: E402
from agentrl.engine.local.grammar import Grammars, allowed  # noqa: E402
from agentrl.engine.local.sampling import Sampling, uniform  # noqa: E402
from agentrl.errors import RequestError  # noqa: E402
from agentrl.models import tiny_model, tiny_tokenizer  # noqa: E402

TOKENIZER, MODEL = tiny_tokenizer(), tiny_model()
EOS, OPEN, CLOSE = 2, 3, 4
TEXTS = [TOKENIZER.decode([token]) for token in range(len(TOKENIZER))]
MARKS = range(7)
PROMPT = [11, 300, 42]


def tag(*elements):
    """A structural tag: a number is a token, a string is text."""
    kinds = {int: lambda one: {"type": "token", "token": one}, str: lambda one: {"type": "const_string", "value": one}}
    found = [kinds.get(type(one), lambda one: one)(one) for one in elements]
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": found}})


def regex(pattern):
    return {"type": "regex", "pattern": pattern}


class Texts:
    """A grammar of finitely many texts, between two marks."""

    tag = tag(OPEN, regex("(yes|no|(na|ab){1,3}!?)"), CLOSE)
    stems = tuple("".join(some) for count in (1, 2, 3) for some in itertools.product(("na", "ab"), repeat=count))
    texts = ("yes", "no", *stems, *(stem + "!" for stem in stems))

    def allows(self, said, token):
        if not said:
            return token == OPEN
        if CLOSE in said:
            return token == EOS
        text = "".join(TEXTS[one] for one in said[1:])
        if token in MARKS:
            return token == CLOSE and text in self.texts
        return any(one.startswith(text + TEXTS[token]) for one in self.texts)


class Thought:
    """Any tokens but marks, then a mark and a word: in its first part the grammar excludes next to nothing."""

    tag = tag({"type": "any_tokens", "exclude_tokens": list(MARKS)}, CLOSE, "no")

    def allows(self, said, token):
        if CLOSE not in said:
            return token == CLOSE or token not in MARKS
        word = "".join(TEXTS[one] for one in said[said.index(CLOSE) + 1 :])
        if token in MARKS:
            return token == EOS and word == "no"
        return bool(TEXTS[token]) and "no".startswith(word + TEXTS[token])


def free_logits(ids):
    with torch.inference_mode():
        return MODEL(torch.tensor([ids])).logits[0, -1].double()


def expected(grammar, seed, count, temperature=1.0, ids=PROMPT):
    """Tokens, log-probs, and by how much the grammar raised these: cumulative sums over the allowed tokens."""
    said, log_probs, rises = [], [], []
    while len(said) < count and EOS not in said:
        logits = free_logits([*ids, *said]) / temperature
        may = torch.tensor([grammar.allows(said, token) for token in range(len(logits))])
        probs = torch.where(may, logits.softmax(-1), 0.0)
        upto = probs.cumsum(0)
        said.append(int(torch.searchsorted(upto, uniform(seed, len(ids) + len(said)) * upto[-1], right=True)))
        log_probs.append(float((probs[said[-1]] / upto[-1]).log()))
        rises.append(-float(upto[-1].log()))
    return said, log_probs, rises


def check(answer, wanted):
    said, log_probs, rises = wanted
    assert list(answer.tokens) == said
    assert list(answer.log_probs) == pytest.approx(log_probs, abs=1e-4)
    assert len(answer.constrained) == len(said)
    for flag, rise in zip(answer.constrained, rises, strict=True):
        assert flag == (rise >= 0.02) or abs(rise - 0.02) < 1e-4


@pytest.fixture
async def engine():
    engine = LocalEngine(MODEL, TOKENIZER)
    yield engine
    await engine.close()


@pytest.mark.thorough
@pytest.mark.parametrize("grammar", [Texts(), Thought()], ids=["texts", "thought"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_tokens_log_probs_and_flags_are_those_of_the_constrained_distribution(engine, grammar, temperature):
    params = {"structural_tag": grammar.tag, "max_new_tokens": 24, "temperature": temperature}
    answers = await asyncio.gather(*(engine.generate(PROMPT, {**params, "sampling_seed": seed}) for seed in range(6)))
    for seed, answer in enumerate(answers):
        check(answer, wanted := expected(grammar, seed, 24, temperature))
        ended = wanted[0][-1] == EOS
        assert (answer.finish_reason, answer.matched) == (("stop", EOS) if ended else ("length", None))
    flags = {flag for answer in answers for flag in answer.constrained}
    assert isinstance(grammar, Texts) in flags


async def test_constrained_and_free_answers_share_a_batch(engine):
    """Each is what it is alone."""
    forms = [
        {},
        {"structural_tag": Texts.tag},
        {"structural_tag": Thought.tag},
        {"top_k": 3, "structural_tag": Texts.tag},
    ]

    def params(seed):
        return {**forms[seed % len(forms)], "max_new_tokens": 8, "sampling_seed": seed}

    together = await asyncio.gather(*(engine.generate([7 + seed, 300], params(seed)) for seed in range(12)))
    for seed, answer in enumerate(together):
        alone = await engine.generate([7 + seed, 300], params(seed))
        assert (answer.tokens, list(answer.constrained)) == (alone.tokens, list(alone.constrained))
        assert list(answer.log_probs) == pytest.approx(list(alone.log_probs), abs=1e-4)
        assert len(answer.constrained) == (len(answer.tokens) if "structural_tag" in params(seed) else 0)


async def test_the_greedy_token_is_the_likeliest_that_may_follow(engine):
    answer = await engine.generate(PROMPT, {"structural_tag": Texts.tag, "temperature": 0, "max_new_tokens": 8})
    for at, token in enumerate(answer.tokens):
        said = list(answer.tokens[:at])
        logits = free_logits([*PROMPT, *said])
        may = [one for one in range(len(logits)) if Texts().allows(said, one)]
        assert token == max(may, key=lambda one, logits=logits: float(logits[one]))


async def test_a_limit_a_stop_string_or_a_stop_token_cuts_the_form_off(engine):
    form = {"structural_tag": tag(OPEN, "nano yes"), "sampling_seed": 1}
    whole = await engine.generate(PROMPT, {**form, "ignore_eos": True})
    assert (whole.finish_reason, whole.matched, whole.tokens[-1]) == ("stop", EOS, EOS)  # nothing else may follow
    said = "".join(TEXTS[token] for token in whole.tokens[1:-1])
    assert said == "nano yes"
    cut = await engine.generate(PROMPT, {**form, "max_new_tokens": 2})
    assert (cut.finish_reason, len(cut.tokens), len(cut.constrained)) == ("length", 2, 2)
    stopped = await engine.generate(PROMPT, {**form, "stop": ["no"]})
    assert (stopped.finish_reason, stopped.matched) == ("stop", "no")
    for seed in range(4):
        other = await engine.generate(PROMPT, {**form, "stop_token_ids": [1, 6], "sampling_seed": seed})
        assert other.tokens[-1] in (EOS, 1, 6)  # each ends the answer, but only where it may end
        assert "".join(TEXTS[token] for token in other.tokens[1:-1]) == "nano yes"
    for part in (TOKENIZER.encode("n", add_special_tokens=False)[0], OPEN):  # these are parts of the form
        early = await engine.generate(PROMPT, {"structural_tag": tag(OPEN, "n", OPEN), "stop_token_ids": [part]})
        assert (early.matched, early.tokens[-1]) == (part, part)


async def test_a_turn_after_another_one_begins_the_grammar_anew(engine):
    first = await engine.generate(PROMPT, {"sampling_seed": 3, "max_new_tokens": 5}, session_id="s")
    ids = [*PROMPT, *first.tokens, 1, 9]
    answer = await engine.generate(
        ids, {"structural_tag": Texts.tag, "sampling_seed": 4, "max_new_tokens": 9}, session_id="s"
    )
    assert answer.cached_tokens > len(PROMPT)
    check(answer, expected(Texts(), 4, 9, ids=ids))


ENDLESS = tag({"type": "any_tokens", "exclude_tokens": list(MARKS)}, CLOSE)
"""The rarest of its tokens ends it."""


async def begun(engine, **more):
    """A long answer that has some tokens."""
    params = {"structural_tag": ENDLESS, "sampling_seed": 3, "max_new_tokens": 400, **more}
    asked = asyncio.ensure_future(engine.generate(PROMPT, params, rid="r"))
    async with asyncio.timeout(20):
        while not any(len(row.log_probs) > 3 for row in worker_of(engine).batch.requests):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return asked


async def test_an_abort_returns_the_flags_of_the_tokens_so_far(engine):
    asked = await begun(engine)
    await engine.abort("r")
    answer = await asked
    assert answer.finish_reason in ("abort", "stop")
    assert 3 < len(answer.tokens) == len(answer.constrained) == len(answer.log_probs)


async def test_a_cancelled_answer_leaves_the_engine_well(engine):
    asked = await begun(engine)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    check(await engine.generate(PROMPT, {"structural_tag": Texts.tag, "sampling_seed": 0}), expected(Texts(), 0, 99))


async def test_weights_that_change_in_the_middle_change_the_probabilities_but_not_the_form():
    model = tiny_model()
    engine = LocalEngine(model, TOKENIZER)
    asked = await begun(engine)
    silent = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    engine.load_weights(silent, "next")  # all tokens are equally likely now
    answer = await asked
    await engine.close()
    assert answer.weight_version == "next"
    ended = answer.finish_reason == "stop"
    assert not ended or (list(answer.tokens[-2:]), answer.constrained[-1]) == ([CLOSE, EOS], True)
    within = -3 if ended else -1  # six of 1024 tokens were excluded there
    assert answer.log_probs[within] == pytest.approx(-math.log(len(TOKENIZER) - len(MARKS) + 1), abs=1e-4)
    assert answer.constrained[within] is False


BAD = [
    ("{}", "must have a format field"),
    ("no json", "Failed to parse JSON"),
    (tag({"type": "json_schema", "json_schema": {"type": "colour"}}), 'Unsupported type "colour"'),
    (tag(99_999), "Token id 99999 in the grammar is out of the vocabulary"),
    (tag(regex("(")), "The parenthesis is not closed"),
    (3, "structural_tag must be text, not 3"),
    (tag({"type": "exclude_token", "exclude_tokens": list(range(len(TOKENIZER)))}), "no token of this model"),
]


@pytest.mark.parametrize(("given", "words"), BAD)
async def test_a_grammar_that_cannot_be_obeyed_is_refused_and_others_go_on(engine, given, words):
    good, bad = await asyncio.gather(
        engine.generate(PROMPT, {"structural_tag": Texts.tag, "sampling_seed": 1}),
        engine.generate(PROMPT, {"structural_tag": given, "sampling_seed": 1}),
        return_exceptions=True,
    )
    assert isinstance(bad, RequestError)
    assert words in str(bad)
    assert good.finish_reason == "stop"


async def test_without_xgrammar_the_command_is_named_that_installs_it(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(RequestError, match=r"not installed: pip install 'agentrl-sdk\[grammar\]'"):
        await engine.generate(PROMPT, {"structural_tag": Texts.tag})
    assert (await engine.generate(PROMPT, {"max_new_tokens": 1})).tokens


async def test_a_mark_is_part_of_no_text(engine):
    """The reader of an answer takes each of its tokens for a mark, wherever it is."""
    form = {"structural_tag": tag({"type": "json_schema", "json_schema": {"type": "string"}}), "max_new_tokens": 60}
    answers = await asyncio.gather(*(engine.generate([9], {**form, "sampling_seed": seed}) for seed in range(40)))
    whole = [answer.tokens[:-1] for answer in answers if answer.finish_reason == "stop"]
    assert whole
    assert not set(itertools.chain(*whole)) & set(MARKS)
    assert all(isinstance(json.loads(TOKENIZER.decode(tokens)), str) for tokens in whole)


LIKE = [tag(OPEN, regex("(yes|no)"), CLOSE), tag(5, regex("(yes|no)"), 6), tag(OPEN, CLOSE), tag(CLOSE, OPEN)]
"""Forms that differ in their marks alone: xgrammar's own cache takes one for another."""


def walked(grammars, form):
    """What may follow at each place of an answer, by the bits and by trying each token; the first one goes on."""
    state, found = grammars.begin(Sampling(0, structural_tag=form)), []
    while not state.ended:
        _, bits = allowed([state], torch.zeros(1, len(TOKENIZER)))
        tried = [
            token
            for token in range(len(TOKENIZER))
            if state.matcher.accept_token(token) and state.matcher.rollback() is None
        ]
        found.append((bits[0].nonzero()[:, 0].tolist(), tried))
        state.take(tried[0])
    return found


def test_a_form_is_not_mixed_up_with_those_compiled_before():
    grammars = Grammars(TOKENIZER, len(TOKENIZER), frozenset({EOS}))
    for form in [*LIKE, *LIKE[::-1]]:
        found = walked(grammars, form)
        assert len(found) > 2
        assert all(bits == tried for bits, tried in found), form


def test_the_forms_used_last_are_kept_within_a_bound(monkeypatch):
    grammars = Grammars(TOKENIZER, len(TOKENIZER), frozenset({EOS}))
    sizes = [grammars.compiled(grammars.tools(), form).memory_size_bytes for form in LIKE]
    monkeypatch.setattr(local_grammar, "CACHE_BYTES", sizes[0] + sizes[2] + sizes[3] + 100)
    first = grammars.compiled(grammars.tools(), LIKE[0])
    assert grammars.compiled(grammars.tools(), LIKE[0]) is first
    grammars.begin(Sampling(0, structural_tag=tag(CLOSE, CLOSE)))
    assert LIKE[1] not in grammars.cache
    assert LIKE[0] in grammars.cache
    assert sum(one.memory_size_bytes for one in grammars.cache.values()) <= local_grammar.CACHE_BYTES
