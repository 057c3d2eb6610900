"""Plays episodes with images against a real SGLang, and scores them with transformers: with arguments FOLDER URL.

Runs in SGLang's own environment, because its image processor is the one that a trainer beside it has, too. Prints one
JSON object: what a request of each form is answered with, and of each episode the largest difference of a log-prob.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Sequence

sys.path.append(os.environ["AGENTRL_PROJECT_PACKAGES"])  # what SGLang's environment lacks, after what it has

import aiohttp
import numpy as np
import torch
from PIL import Image as Pillow
from transformers import AutoModelForImageTextToText

from agentrl import (
    Env,
    Generation,
    Image,
    Limits,
    StepResult,
    Task,
    Trajectory,
    load_renderer,
    resume_episode,
    run_episode,
    tool,
)
from agentrl.engine import ScriptedEngine, SGLangEngine
from agentrl.engine.local import LocalEngine
from agentrl.engine.sglang import client
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.testing import call

FOLDER, URL = sys.argv[1:3]
KEEPS_IDS = sys.argv[3:] != ["again"]
"""Whether the server reads the ids as they are sent. One that tokenises again reads other prompts than LocalEngine."""
VISION = load_vision(FOLDER)
RENDERER = load_renderer(load_tokenizer(FOLDER), vision=VISION)


def picture(width: int, height: int, seed: int) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    written = io.BytesIO()
    Pillow.fromarray(pixels).save(written, format="PNG")
    return Image.of(written.getvalue())


A, B, C = picture(120, 90, 0), picture(200, 70, 1), picture(60, 130, 2)


class Screens(Env):
    """An image in the prompt, one from a tool, and one in an observation."""

    deterministic = True

    async def reset(self, task):
        self.steps = 0
        return [{"role": "user", "content": ["Open the page.", A]}]

    @tool
    async def look(self) -> object:
        """The page."""
        return ["here:", B]

    async def step(self, action):
        self.steps += 1
        if self.steps == 1:
            return await super().step(action)
        last = [{"role": "user", "content": [C, "And now?"]}]
        return StepResult(last if self.steps == 2 else (), done=self.steps > 2)

    def score(self, trajectory):
        return 1.0


class FirstScripted(SGLangEngine):
    """Samples the first turn's tokens by a script, and has the server score the rest.

    `stop` ends the turns of the server alone. An episode cuts each turn at the stop strings of its own options.
    """

    def __init__(self, url: str, first, stop: Sequence[str] = ()) -> None:
        super().__init__(url)
        self._stop = list(stop)
        self._script = ScriptedEngine([first], RENDERER)
        self._asked = False

    async def generate(self, input_ids, params, **more):
        if not self._asked:
            self._asked = True
            return await self._script.generate(input_ids, params, **more)
        return await super().generate(input_ids, {**params, "stop": self._stop}, **more)


@torch.no_grad()
def worst(model, t: Trajectory) -> float:
    """The largest difference between a log-prob that SGLang gave and that of one forward pass over the whole sample."""
    ids, images = torch.tensor([t.tokens]), VISION.tensors(t.segment.images, "float32")
    logits = model(input_ids=ids, mm_token_type_ids=(ids == VISION.pad).int(), **images).logits[0]
    logits[:, list(VISION.forbidden)] -= 1e4
    scores = logits.log_softmax(-1)
    pairs = zip(range(t.prompt_length, len(t.tokens)), t.log_probs, t.segment.sources, strict=True)
    found = [abs(float(scores[at - 1, t.tokens[at]]) - x) for at, x, source in pairs if source == "sampled"]
    return max(found[sum(span.stop - span.start for span in t.segment.spans[:1]) if SCRIPTED in t.info else 0 :])


SCRIPTED = "scripted"
RAISED = 0.12
OPTIONS = EpisodeOptions(sampling_params={"temperature": 1.0}, limits=Limits(max_tokens_per_turn=200))


async def played(first) -> Trajectory:
    async with FirstScripted(URL, first, stop=["e", "a", "o"]) as engine:
        t = await run_episode(Screens(), Task(), engine=engine, renderer=RENDERER, options=OPTIONS)
    t.info[SCRIPTED] = True
    return t


async def resumed() -> Trajectory:
    """An episode that is aborted inside its second turn, and continued."""
    parked, flag = [], [False]

    async def park(one):
        parked.append(one)

    hooks = EpisodeHooks(aborted=lambda: flag[0], park=park)
    options = EpisodeOptions(sampling_params={"temperature": 1.0}, limits=Limits(max_tokens_per_turn=700))
    async with FirstScripted(URL, call("look")) as engine:
        playing = asyncio.create_task(
            run_episode(Screens(), Task(), engine=engine, renderer=RENDERER, options=options, hooks=hooks)
        )
        await asyncio.sleep(1.0)
        flag[0] = True
        await engine.abort()
        t = await playing
        cut = len(t.segment.turn_tokens)
        flag[0] = False
        if parked:
            t = await resume_episode(
                parked[0], Screens(), engine=engine, renderer=RENDERER, options=options, hooks=EpisodeHooks()
            )
    t.info |= {"cut": cut, SCRIPTED: True}
    return t


async def answered(ids: Sequence[int], images: Sequence[Image]) -> str:
    """The number of prompt tokens that the server counts, its status, or "no answer"."""
    sampling = {"max_new_tokens": 4, "ignore_eos": True, "logit_bias": {str(pad): -1e4 for pad in VISION.forbidden}}
    body = {"input_ids": list(ids), "sampling_params": sampling, "return_logprob": True}
    body |= {"image_data": [image.uri for image in images]} if images else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(45)) as session,
            session.post(f"{URL}/generate", json=body) as answer,
        ):
            if answer.status != 200:
                return f"status {answer.status}"
            return str((await answer.json())["meta_info"]["prompt_tokens"])
    except TimeoutError:
        return "no answer"


def single_pads(tokens: Sequence[int]) -> list[int]:
    """What an engine gets: one pad for each image."""
    return [token for i, token in enumerate(tokens) if token != VISION.pad or tokens[i - 1] != token]


async def forms() -> dict[str, list[str]]:
    """The reference's table: what is sent, what is answered, and the length that a trainer reads."""
    rendered = RENDERER.prompt([{"role": "user", "content": ["one", A, "two", B]}])
    single = single_pads(rendered.tokens)
    sent = {
        "one pad an image": (single, [A, B]),
        "pads expanded": (rendered.tokens, [A, B]),
        "more pads than images": (single, [A]),
        "more images than pads": (single, [A, B, C]),
        "pads without images": (single, []),
    }
    return {name: [await answered(*request), str(len(rendered.tokens))] for name, request in sent.items()}


async def beside_local(model) -> float:
    """Two turns, played greedily by the server and by LocalEngine: the largest difference of a log-prob."""
    bias = {str(pad): -1e4 for pad in VISION.forbidden}
    params = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True, "logit_bias": bias}
    first = RENDERER.prompt([{"role": "user", "content": ["one", A, "two", B]}])
    more = RENDERER.prompt([{"role": "user", "content": ["three", C]}])
    apart, ids, images = 0.0, list[int](), list[Image]()
    async with SGLangEngine(URL) as server, LocalEngine(model, load_tokenizer(FOLDER), vision=VISION) as local:
        for new, shown in ((first, [A, B]), (more, [C])):
            ids, images = [*ids, *single_pads(new.tokens)], [*images, *shown]
            theirs = await server.generate(ids, params, session_id="s", images=images)
            ours = await local.generate(ids, params, session_id="s", images=images)
            assert list(theirs.tokens) == list(ours.tokens), (theirs.tokens, ours.tokens)
            assert theirs.meta["prompt_tokens"] == ours.meta["prompt_tokens"]
            apart = max(apart, *(abs(x - y) for x, y in zip(theirs.log_probs, ours.log_probs, strict=True)))
            ids += theirs.tokens
        assert ours.cached_tokens > 0, "the second turn reuses the first"
    return apart


@torch.no_grad()
async def under_grammar(model) -> dict[str, object]:
    """Two words that a grammar demands, then free text: SGLang's flags, and by how much transformers' log-probs differ.

    The model has logits for more tokens than the tokenizer has, some 10 % of the probability, which a grammar excludes
    everywhere. So the bound of what counts as changed is raised to between these differences.
    """
    client.GRAMMAR_CHANGED = RAISED
    rendered = RENDERER.prompt([{"role": "user", "content": ["one", A, "two", B]}])
    free = {"type": "any_tokens", "exclude_tokens": sorted(VISION.forbidden)}
    form = {"type": "sequence", "elements": [{"type": "const_string", "value": "no no"}, free]}
    tag = json.dumps({"type": "structural_tag", "format": form})
    params = {"max_new_tokens": 24, "temperature": 1.0, "structural_tag": tag}
    params["logit_bias"] = {str(pad): -1e4 for pad in VISION.forbidden}
    flags, far, images = list[bool](), list[float](), VISION.tensors([A, B], "float32")
    async with SGLangEngine(URL) as server:
        for _ in range(3):
            found = await server.generate(single_pads(rendered.tokens), params, images=[A, B])
            ids = torch.tensor([[*rendered.tokens, *found.tokens]])
            logits = model(input_ids=ids, mm_token_type_ids=(ids == VISION.pad).int(), **images).logits[0].float()
            rows = logits[len(rendered.tokens) - 1 : -1].log_softmax(-1)
            own = rows.gather(1, torch.tensor(found.tokens)[:, None])[:, 0].tolist()
            flags += found.constrained
            far += [held - one - RAISED for held, one in zip(found.log_probs, own, strict=True)]
    return {"flags": flags, "far": far}


async def main() -> None:
    model = AutoModelForImageTextToText.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="sdpa").eval()
    look = call("look")
    turn = RENDERER.encode({"role": "assistant", "content": "X", "tool_calls": look["tool_calls"]})
    # Decoding and encoding this turn again makes "the" of t, h and e.
    spelled = [token for letter in "the" for token in RENDERER.encode({"role": "assistant", "content": letter})[:1]]
    drifting = Generation([*spelled, *turn[1:]], [-1.0] * (len(turn) + 2), "stop", matched=turn[-1])
    found = {"episodes": [], "forms": await forms()}
    for name, t in {
        "scripted call": await played(look),
        "drifting turn": await played(drifting),
        "resumed": await resumed(),
    }.items():
        about = {"name": name, "failure": t.failure and t.failure.error, "images": len(t.segment.images)}
        scored = t.failure is None and len(t.turns) > 1
        about |= {"turns": len(t.turns), "cut": t.info.get("cut"), "worst": worst(model, t) if scored else None}
        found["episodes"].append(about)
    if KEEPS_IDS:
        found["local"] = await beside_local(model)
        found["grammar"] = await under_grammar(model)
    print(json.dumps(found))


asyncio.run(main())
