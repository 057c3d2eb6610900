"""Episodes that an API model plays: the options, and the episodes with results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import urlsplit

import typer

from agentrl._util.concurrency import gather
from agentrl.cli.episodes import PlayConfig, progress
from agentrl.cli.models import open_renderer
from agentrl.cli.results import Place, Results
from agentrl.env.env import is_agent
from agentrl.env.factory import EnvFactory
from agentrl.episode.options import RewardFn
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.chat.client import ChatModel
    from agentrl.rollout.play.episodes import Rollout
    from agentrl.trajectory.trajectory import Trajectory
    from agentrl.types import SamplingParams, Task

ApiUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--api", metavar="URL", help="An OpenAI-compatible endpoint plays: http://host/v1. --model names it."),
]
ApiKey: TypeAlias = Annotated[
    str, typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the API's key.")
]
Tokenizer: TypeAlias = Annotated[
    str | None,
    typer.Option(help="With --api: the local model whose tokens record the episodes. Default: tiny."),
]
Concurrency: TypeAlias = Annotated[int, typer.Option(help="With --api: episodes played at once.", min=1)]
Prices: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="IN,OUT", help="With --api: the price of a million prompt tokens, and that of a million answer tokens."
    ),
]
Temperature: TypeAlias = Annotated[
    float | None, typer.Option(help="0 is greedy. Default: 0; with --api, the API's own default.", min=0.0)
]
Samples: TypeAlias = Annotated[int, typer.Option(help="Episodes of each task.", min=1)]

EPISODES = 32
_KNOCK_S = 5.0
_PATIENCE_S = (0.5, 1.0, None)
"""Seconds between attempts to connect to a server that refuses connections; None: give up."""
_SECONDS = 600.0
"""The time limit of a reply of the API, in seconds: a model may think for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A model that plays through an HTTP API, and the options of the requests to the API."""

    url: str
    model: str
    key: str
    tokenizer: str
    concurrency: int
    temperature: float | None
    config: PlayConfig

    def chat(self) -> ChatModel:
        """The client of the API. Raises ConfigError for a wrong URL or option."""
        from agentrl.chat.client import ChatModel

        return ChatModel(
            base_url=self.url,
            model=self.model,
            key=self.key,
            seconds=_SECONDS,
            concurrency=self.concurrency,
            options=self.config.engine_config,
        )

    def about(self, env: str) -> Mapping[str, object]:
        """The settings that two episodes of a task must share to be comparable."""
        limits = {name: getattr(self.config.limits, name) for name in self.config.limits.__slots__}
        settings = {"env_config": self.config.env_config, "limits": limits, "engine_config": self.config.engine_config}
        reward = {} if self.config.reward is None else {"reward": self.config.reward}
        return {
            "env": env,
            "api": self.url.partition("?")[0],
            "model": self.model,
            "tokenizer": self.tokenizer,
            "settings": {**settings, **reward, "temperature": self.temperature},
        }


def api_of(
    url: str,
    model: str,
    key: str,
    tokenizer: str | None,
    concurrency: int,
    temperature: float | None,
    config: PlayConfig,
) -> Api:
    """The Api that the command's flags describe. Raises ConfigError if the URL is wrong."""
    api = Api(
        url=url,
        model=model,
        key=key,
        tokenizer=tokenizer or "tiny",
        concurrency=concurrency,
        temperature=temperature,
        config=config,
    )
    api.chat()
    return api


def refuse_agents(envs: EnvFactory) -> None:
    """Raises ConfigError for an Env that is an agent."""
    if is_agent(envs.cls):
        raise ConfigError(
            f"{envs.cls.__name__} is an agent that asks its model itself: give its own client the API's address, "
            "or evaluate an environment that is played turn by turn"
        )


def check_samples(samples: int, temperature: float | None) -> None:
    """Raises ConfigError for several samples at temperature 0: the samples would be equal."""
    if samples > 1 and temperature == 0:
        raise ConfigError(f"--samples {samples}: all samples are equal at --temperature 0; add --temperature 1")


def read_prices(prices: str | None) -> tuple[float, float] | None:
    """The price of a million tokens of prompts, and the price of a million tokens of replies. Raises ConfigError."""
    if prices is None:
        return None
    try:
        prompt, answer = map(float, prices.split(","))
    except ValueError:
        raise ConfigError(f"--prices {prices}: write two numbers, such as 0.4,1.6") from None
    return prompt, answer


async def play_all(
    api: Api, envs: EnvFactory, results: Results, samples: int, title: str, *, trained: bool
) -> list[list[Trajectory]]:
    """Play the episodes that `results` lacks, and return all episodes by task. RL never trains on episodes of an API
    model.

    With `trained`, the episodes may be imitated up to the first turn that tokens cannot represent. Raises as
    `play_episode` does; `results` then has the finished episodes.
    """
    from agentrl.chat.engine import ChatEngine
    from agentrl.rollout.play.episodes import Rollout
    from agentrl.rollout.play.groups import settle_rewards

    reward = own_reward(api.config)
    if results.missing(samples):
        await refuse_silence(api.url)
    renderer, _ = open_renderer(api.tokenizer)
    async with envs, api.chat().kept_open() as chat:
        options, engine = api.config.options(), ChatEngine(chat, renderer)
        rollout = Rollout(envs=envs, engine=engine, renderer=renderer, options=options, reward=reward)
        with progress(title, len(results.tasks) * samples) as on_episode:
            for episode in [episode for group in results.groups(samples) for episode in group]:
                on_episode(episode)
            slots = asyncio.Semaphore(api.concurrency)

            async def play(task: Task, place: Place) -> None:
                async with slots:
                    episode = await _play(rollout, api, task, f"{title}-{place[0]}-{place[1]}")
                mask(episode, trained=trained)
                results.add(episode, place)
                on_episode(episode)

            with _kept(results):
                await gather([play(task, place) for task, place in results.missing(samples)])
    settle_rewards(envs, rollout.scored, [*results.done.values()])
    return results.groups(samples)


def own_reward(config: PlayConfig) -> RewardFn | None:
    """The configured reward function. None without a function, and for a function that only compares episodes.

    Raises ConfigError for a function that scores the episodes of a group together.
    """
    from agentrl.episode.scoring import is_relative
    from agentrl.rollout.play.groups import GroupReward

    reward = config.reward_function()
    if is_relative(reward):
        return None
    if isinstance(reward, GroupReward):
        raise ConfigError(f"--set reward={config.reward} scores groups together; here each episode is scored by itself")
    return reward


async def refuse_silence(url: str, key: str = "--api") -> None:
    """Raises ConfigError if no server listens at the URL that `key` names. A server gets some seconds to start."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    for seconds in _PATIENCE_S:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), _KNOCK_S)
        except ConnectionRefusedError:
            if seconds is None:
                address = f"{parts.hostname}:{port}"
                raise ConfigError(f"nothing listens at {address}; start the server, or correct {key}") from None
            await asyncio.sleep(seconds)
        except (OSError, TimeoutError):  # the requests will report it
            return
        else:
            writer.close()
            return


@contextmanager
def _kept(results: Results) -> Iterator[None]:
    """Within `with`, add to the message of a ConfigError that the finished episodes are stored."""
    try:
        yield
    except ConfigError as exc:
        if results.file is None or not results.done:
            raise
        count = len(results.done)
        raise ConfigError(
            f"{exc}; {count} finished episodes are in {results.file}: run the same command again to resume"
        ) from exc


async def _play(rollout: Rollout, api: Api, task: Task, session_id: str) -> Trajectory:
    from agentrl.rollout.play.episodes import play_episode

    params: SamplingParams = {} if api.temperature is None else {"temperature": api.temperature}
    return await play_episode(rollout, task, params, session_id)


def mask(episode: Trajectory, *, trained: bool) -> None:
    """Mask the turns that may not be imitated. With `trained`, these are the first turn whose tokens differ from the
    message, and all later turns. Without `trained`, these are all turns."""
    if not trained:
        episode.mask("off_policy")
        return
    departures = episode.info.get("player", {}).get("not_carried", {})
    first = min(map(int, departures), default=len(episode.turns))
    for turn in range(first, len(episode.turns)):
        episode.mask("off_policy", turn=turn)


def out_file(out: Path | None) -> str:
    """How to resume the interrupted command: a message for the user."""
    if out is None:
        return "nothing was written; with --out FILE, finished episodes are kept, and the same command resumes"
    return f"finished episodes are in {out}; the same command resumes with the rest"


def departures(episodes: Sequence[Trajectory]) -> Mapping[str, int]:
    """Why tokens cannot represent a reply -> the number of episodes. The first such reply of an episode counts."""
    counts: dict[str, int] = {}
    for episode in episodes:
        reasons = episode.info.get("player", {}).get("not_carried", {})
        if reasons:
            first = reasons[min(reasons, key=int)]
            counts[first] = counts.get(first, 0) + 1
    return counts
