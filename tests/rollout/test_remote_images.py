"""Episodes with images in workers, and the engine here: the same tokens, each image once, and nothing lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")

from agentrl import EnvFactory, EpisodeOptions, Limits, Task, load_renderer  # noqa: E402
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.image import Image  # noqa: E402
from agentrl.models import load_model, load_tokenizer  # noqa: E402
from agentrl.models.vision import load_vision  # noqa: E402
from agentrl.rollout import Rollout, run_groups  # noqa: E402
from agentrl.rollout.play.remote import EpisodeOrder, with_workers  # noqa: E402
from agentrl.types import StopReason  # noqa: E402
from tests.rollout import picture_env  # noqa: E402

pytestmark = pytest.mark.slow
ENV = f"{picture_env.__file__}:Shown"
WORKERS = 2


class Watched(LocalEngine):
    """Notes how many images the requests had, and is told of the first with three."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.asked: list[int] = []
        self.three = asyncio.Event()

    async def generate(self, input_ids, sampling_params, *, images=(), **request):
        self.asked.append(len(images))
        playing = asyncio.ensure_future(super().generate(input_ids, sampling_params, images=images, **request))
        if len(images) == 3:
            await asyncio.sleep(0)
            self.three.set()
        return await playing


class Setting:
    def __init__(self) -> None:
        self.model, self.vision, tokenizer = load_model("tiny-vl"), load_vision("tiny-vl"), load_tokenizer("tiny-vl")
        self.engine = Watched(self.model, tokenizer, vision=self.vision)
        options = EpisodeOptions(limits=Limits(max_tokens_per_turn=40))
        renderer = load_renderer(tokenizer, vision=self.vision)
        self.rollout = Rollout(envs=EnvFactory(ENV, {}), engine=self.engine, renderer=renderer, options=options)
        self.order = EpisodeOrder(env=ENV, env_config={}, options=options, tokenizer=tokenizer, vision=self.vision)

    @torch.no_grad()
    def worst(self, trajectory) -> float:
        """The largest difference of a sampled log-prob and that of one forward pass over the whole episode."""
        ids, images = torch.tensor([trajectory.tokens]), self.vision.tensors(trajectory.segment.images, "float32")
        logits = self.model(input_ids=ids, mm_token_type_ids=(ids == self.vision.pad).int(), **images).logits[0]
        logits[:, list(self.vision.forbidden)] = -torch.inf
        scores, first = logits.log_softmax(-1), trajectory.prompt_length
        pairs = enumerate(zip(trajectory.response, trajectory.log_probs, trajectory.loss_mask, strict=True))
        return max(abs(float(scores[first + i - 1, token]) - x) for i, (token, x, mask) in pairs if mask)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting()


def strings(trajectories) -> dict[str, set[int]]:
    """The strings that the images of trajectories are, by their content."""
    found = dict[str, set[int]]()
    for trajectory in trajectories:
        for message in trajectory.messages:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part["type"] == "image":
                    found.setdefault(Image(part["image"]).digest, set()).add(id(part["image"]))
        for one in trajectory.segment.images:
            found.setdefault(one.digest, set()).add(id(one.uri))
    return found


@pytest.mark.thorough
async def test_workers_play_what_this_process_plays_and_each_image_is_here_once(setting):
    tasks = [Task(id=str(i)) for i in range(4)]
    async with setting.rollout.envs:
        [alone] = [await run_groups(setting.rollout, tasks, 2, seed=1)]
    async with with_workers(WORKERS, setting.rollout, setting.order) as rollout:
        played = await run_groups(rollout, tasks, 16, seed=1)
    every = [trajectory for group in played for trajectory in group]
    assert [t.failure for t in every] == [None] * 64
    assert {len(t.segment.images) for t in every} == {3}
    for here, group in zip(alone, played, strict=True):
        for one, other in zip(here, group, strict=False):
            assert one.tokens == other.tokens
            assert one.log_probs == pytest.approx(other.log_probs, abs=2e-5)
    assert max(map(setting.worst, every[:8])) < 2e-5
    assert {len(ids) for ids in strings(every).values()} == {1}, "64 episodes share the strings of three images"
    assert len(strings(every)) == 3


@pytest.mark.thorough
async def test_an_episode_that_the_engine_aborts_inside_a_turn_with_images_continues_to_the_same_end(setting):
    task, params = Task(id="0"), {"sampling_seed": 11, "temperature": 1.0}
    async with with_workers(WORKERS, setting.rollout, setting.order) as rollout:
        whole = await rollout.workers.play(task, params, "whole")
        setting.engine.three.clear()
        playing = asyncio.create_task(rollout.workers.play(task, params, "cut"))
        await asyncio.wait_for(setting.engine.three.wait(), 60)
        await setting.engine.abort()
        cut = await playing
    assert whole.tokens == cut.tokens
    assert whole.log_probs == pytest.approx(cut.log_probs, abs=2e-5)
    assert setting.worst(cut) < 2e-5
    assert {len(ids) for ids in strings([whole, cut]).values()} == {1}


@pytest.mark.thorough
async def test_bad_images_and_a_worker_killed_with_one_end_only_their_episodes(setting, tmp_path):
    tasks = [
        Task(id=does, metadata={"does": does, "mark": str(tmp_path / "mark")})
        for does in ("damaged", "bomb", "die once", "nothing")
    ]
    engine = replace(setting.rollout, failures=replace(setting.rollout.failures, again=0))
    async with with_workers(WORKERS, engine, replace(setting.order, failures=engine.failures)) as rollout:
        [[damaged], [bomb], [killed], [other]] = await run_groups(rollout, tasks, 1, seed=2, keep_unscored=True)
    assert (damaged.failure.kind, damaged.failure.boundary) == ("engine", "engine")
    assert "is damaged, or too large to read" in damaged.failure.error
    assert (bomb.stop, bomb.failure, len(bomb.segment.images)) == (StopReason.MAX_IMAGES, None, 1)
    assert len(killed.segment.images) == len(other.segment.images) == 3
    assert "ended by signal SIGKILL" in killed.info["workers_lost"][0]
    for played in (killed, other):
        assert played.failure is None
        assert setting.worst(played) < 2e-5
