"""Long beginnings whose tokens are remembered: the same tokens as without, whatever the tokenizer does."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import AddedToken

from agentrl.render import beginnings, load_renderer
from agentrl.render.beginnings import BeginningEncoder, TokenMemory, markers_in, remembering
from agentrl.render.raw import encoder_of
from agentrl.render.template import Template
from tests.render.conftest import chatml_tokenizer, llama_tokenizer, sentencepiece_tokenizer
from tests.render.markers import TOOL, template_files, tokenizer_of

PIECES = (
    "The 12 quick brown foxes\n\n",
    " \n",
    "\t\u00a0",
    "naïve e\u0301 晴れ 🚆",
    "<|im_end|>",
    "<|im_start|>user\n",
    "<|eot_id|>",
    "<|im_",
    "end|>",
    "word " * 30,
    "\ud83d",
    "</s>",
)


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    made = TokenMemory(1 << 20)
    monkeypatch.setattr(beginnings, "_memory", made)
    return made


def taught(tokenizer):
    """The tokenizer's own encoder, and the one that remembers."""
    own = encoder_of(tokenizer)
    return own, remembering(own, tokenizer, tokenizer.chat_template, str(id(tokenizer)))


def chats(count, seed):
    chance = random.Random(seed)
    return ["".join(chance.choices(PIECES, k=chance.randint(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("make", [chatml_tokenizer, llama_tokenizer, sentencepiece_tokenizer])
def test_any_text_has_the_tokens_that_it_has_without(make, monkeypatch):
    monkeypatch.setattr(beginnings, "_LONG", 40)
    own, remembered = taught(make())
    assert isinstance(remembered, BeginningEncoder)
    for text in chats(60, 1):
        text = text.encode("utf-8", "replace").decode()
        assert remembered(text) == own(text)
        assert remembered(text) == own(text), "from memory"


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_what_a_real_template_writes_has_the_same_tokens(path, monkeypatch):
    monkeypatch.setattr(beginnings, "_LONG", 30)
    tokenizer = tokenizer_of(path)
    own, remembered = taught(tokenizer)
    for task in ("Why?", " \n Spaces around. \n", "<|im_end|>forged</s>" * 3):
        for told in ([], [{"role": "assistant", "content": "Because. " * 5}, {"role": "user", "content": task}]):
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": task}, *told], add_generation_prompt=True, tokenize=False
            )
            assert remembered(text) == own(text) == remembered(text)


def test_prompts_with_the_same_tools_share_them(memory, monkeypatch):
    monkeypatch.setattr(beginnings, "_LONG", 100)
    renderer = load_renderer(chatml_tokenizer(), tools=[TOOL])
    template, prompts = renderer.turns.template, []
    for task in ("Why?", "When?"):
        messages = [{"role": "system", "content": "Be brief. " * 30}, {"role": "user", "content": task}]
        prompts.append(list(renderer.prompt(messages).tokens))
        assert prompts[-1] == template.encode(template.render(messages, generation_prompt=True))
    assert prompts[0] != prompts[1]
    assert len(memory.entries) == 1


def test_the_episodes_of_a_group_share_the_tokens_of_their_prompt(monkeypatch):
    seen = []

    def counting(encode, *rest):
        return lambda text: seen.append(text) or encode(text)

    monkeypatch.setattr("agentrl.render.renderer.remembering", counting)
    renderer = load_renderer(chatml_tokenizer(), tools=[TOOL])
    prompts = [renderer.prompt(task) for task in ("Why is that?", "Why is that?", "When was that?")]
    assert prompts[0] == prompts[1] != prompts[2]
    assert [text.count("Why is that?") for text in seen if "is that?" in text] == [1]


def test_a_beginning_is_encoded_once(monkeypatch):
    seen = []
    tokenizer = chatml_tokenizer()
    own = encoder_of(tokenizer)

    def counting(text):
        seen.append(len(text))
        return own(text)

    remembered = remembering(counting, tokenizer, tokenizer.chat_template, "once")
    head, tails = "tools " * 2000 + "<|im_end|>\n", [f"<|im_start|>user\ntask {n}" for n in range(20)]
    seen.clear()
    for tail in tails:
        assert remembered(head + tail) == own(head + tail)
    assert len([size for size in seen if size > 4096]) == 1


def test_a_special_token_that_another_one_swallows_is_no_cut(monkeypatch):
    monkeypatch.setattr(beginnings, "_LONG", 8)
    tokenizer = chatml_tokenizer()
    tokenizer.add_tokens([AddedToken("x<|im", normalized=False)])
    own, remembered = taught(tokenizer)
    for text in ("y" * 20 + "x<|im_end|>" + "\n\n  z", "y" * 20 + "x<|im_end|><|im_end|> z"):
        assert remembered(text) == own(text)


@pytest.mark.parametrize("wrong", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
def test_a_token_that_takes_what_is_beside_it_is_no_cut(wrong):
    tokenizer = chatml_tokenizer()
    tokenizer.add_tokens([AddedToken("<|odd|>", special=True, **wrong)], special_tokens=True)
    assert "<|odd|>" not in markers_in(tokenizer, tokenizer.chat_template + "<|odd|>")


def test_a_token_within_another_is_no_cut():
    tokenizer = chatml_tokenizer()
    tokenizer.add_tokens(["<|im_end|>\n"])
    assert "<|im_end|>" not in markers_in(tokenizer, tokenizer.chat_template)


def test_an_encoder_that_does_not_cut_there_is_taken_as_it_is():
    tokenizer = chatml_tokenizer()

    def joining(text):
        return [len(text)]

    assert remembering(joining, tokenizer, tokenizer.chat_template, "joins") is joining


def test_memory_is_bounded_and_drops_the_oldest(monkeypatch):
    memory = TokenMemory(10)
    for number in range(5):
        memory.get(str(number).encode(), lambda n=number: [n] * 4)
    assert sorted(memory.entries) == [b"3", b"4"]
    memory.get(b"3", list)
    memory.get(b"5", lambda: [5] * 4)
    assert sorted(memory.entries) == [b"3", b"5"]
    assert len(memory.get(b"huge", lambda: [1] * 11)) == 11
    assert sorted(memory.entries) == [b"3", b"5"]
    assert memory.size == 8


def test_threads_share_it(memory):
    tokenizer = chatml_tokenizer()
    own, remembered = taught(tokenizer)
    texts = [f"{'tools ' * 900}{n % 3}<|im_end|>\ntask {n}" for n in range(60)]
    start = threading.Barrier(4)

    def encode(part):
        start.wait()
        return [remembered(text) for text in texts[part::4]]

    with ThreadPoolExecutor(4) as pool:
        for part, found in enumerate(pool.map(encode, range(4))):
            assert found == [own(text) for text in texts[part::4]]
    assert len(memory.entries) == 3
    assert memory.size == sum(map(len, memory.entries.values()))


@pytest.mark.parametrize("clock", ["", "{{- strftime_now('%Y') -}}"], ids=["group", "with a clock"])
def test_the_episodes_of_a_group_share_the_text_of_their_prompt(clock, monkeypatch):
    tokenizer = chatml_tokenizer()
    renderer = load_renderer(tokenizer, chat_template=clock + tokenizer.chat_template)
    texts, render = [], Template.render
    monkeypatch.setattr(Template, "render", lambda *args, **how: texts.append(render(*args, **how)) or texts[-1])
    question = [{"role": "user", "content": "Which river?"}]
    prompts = [renderer.prompt([dict(message) for message in question]) for _ in range(3)]
    assert len(set(prompts)) == 1
    assert len(texts) == (6 if clock else 2)
    assert renderer.prompt([{"role": "user", "content": "Which lake?"}]) != prompts[0]
