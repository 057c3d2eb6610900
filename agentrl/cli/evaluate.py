"""`agentrl eval`: how well a model does in an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from agentrl._util.files import only_writer
from agentrl._util.loading import source_of
from agentrl._util.signals import run
from agentrl.cli._errors import failed_document, one_line_errors, only_the_document
from agentrl.cli.api import (
    EPISODES,
    Api,
    ApiKey,
    ApiUrl,
    Concurrency,
    Prices,
    Samples,
    Temperature,
    Tokenizer,
    api_of,
    check_samples,
    departures,
    out_file,
    play_all,
    read_prices,
    refuse_silence,
)
from agentrl.cli.episodes import PlayConfig, check_out, progress, refuse_all_failed, refuse_finished, write_trajectories
from agentrl.cli.figures import ReportOptions, report
from agentrl.cli.models import OpenModel, check_model, import_slow, open_model, run_config, weights_digest
from agentrl.cli.options import (
    Device,
    DeviceName,
    EngineName,
    EnvPath,
    Episodes,
    EpisodeSettings,
    Limit,
    MaybeData,
    ModelName,
    Out,
)
from agentrl.cli.results import Results, how_to_resume, unfinished
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError
from agentrl.monitor.by_key import value_of

if TYPE_CHECKING:
    from agentrl.episode.options import EpisodeOptions
    from agentrl.rollout.data.own_tasks import Split
    from agentrl.rollout.play.remote import EpisodeOrder
    from agentrl.trajectory.trajectory import Trajectory
    from agentrl.types import SamplingParams, Task

MinReward: TypeAlias = Annotated[
    float, typer.Option(help="An episode with this reward passes, for pass@k and --demonstrations.")
]
Demonstrations: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Play training tasks, not held-out ones, and write the episodes that pass here, for --warm-start.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _EvaluateJob:
    env: str
    model: str
    data: Path | None
    episodes: int | None
    limit: int | None
    out: Path | None
    samples: int
    sampling_params: SamplingParams
    device: DeviceName
    engine: str
    config: PlayConfig
    thinking: Literal["keep", "strip"]
    by: str | None
    demonstrations: Path | None
    min_reward: float

    @property
    def split(self) -> Split:
        return "eval" if self.demonstrations is None else "train"

    @property
    def file(self) -> Path | None:
        """The file of finished episodes, from which the command resumes: `out`, else `demonstrations`."""
        return self.out or self.demonstrations

    def demonstrated(self, groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
        """The episodes that are good enough to be imitated."""
        episodes = [episode for group in groups for episode in group if episode.is_valid]
        return [episode for episode in episodes if episode.reward is not None and episode.reward >= self.min_reward]


def evaluate(
    env: EnvPath,
    model: ModelName,
    data: MaybeData = None,
    episodes: Episodes = None,
    limit: Limit = None,
    out: Out = None,
    api: ApiUrl = None,
    api_key_env: ApiKey = "OPENAI_API_KEY",
    tokenizer: Tokenizer = None,
    concurrency: Concurrency = EPISODES,
    prices: Prices = None,
    temperature: Temperature = None,
    samples: Samples = 1,
    min_reward: MinReward = 1.0,
    demonstrations: Demonstrations = None,
    device: Device = DeviceName.AUTO,
    engine: EngineName = "local",
    settings: EpisodeSettings = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A row for each value of this key of the metadata, and their average."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")] = False,
) -> None:
    """Play held-out tasks with a model, and print how well it did.

    For a run's folder, the limits, `thinking` and `special_tokens` of its training are used and, for the Env it was
    trained in, its env_config and reward. --set reward=FILE.py:function scores with another function.

    Each episode is kept as it ends: the same command resumes after Ctrl-C or a kill. With --api, an API model plays,
    and episodes in --out are never played again. Such episodes cannot be trained by reinforcement, but
    --demonstrations can be imitated. See docs/evaluating.md.
    """
    temperature = 0.0 if api is None and temperature is None else temperature
    document = failed_document if as_json else None
    with (
        one_line_errors(lambda: _how_to_resume(out, demonstrations, uses_api=api is not None), document),
        only_the_document(as_json),
    ):
        check_samples(samples, temperature)
        title = f"{model} in {env} on {data or 'its own tasks'}"
        report_options = ReportOptions(
            title=title, by=by, least=min_reward, prices=read_prices(prices), as_json=as_json
        )
        trained_with = _trained_with(model, env) if api is None else {}
        thinking = trained_with.pop("thinking", "keep")
        job = _EvaluateJob(
            env=env,
            model=model,
            data=data,
            episodes=episodes,
            limit=limit,
            out=out,
            samples=samples,
            sampling_params={} if temperature is None else {"temperature": temperature},
            device=device,
            engine=engine,
            config=PlayConfig.parse(
                settings or (), trained_with, with_engine=True, with_reward=True, with_workers=api is None
            ),
            thinking=thinking,
            by=by,
            demonstrations=demonstrations,
            min_reward=min_reward,
        )
        if api is None:
            groups = _play(job)
        else:
            _refuse_engine(engine)
            groups = _ask(job, api_of(api, model, api_key_env, tokenizer, concurrency, temperature, job.config))
    report(groups, report_options)
    if demonstrations is not None:
        _report_demonstrations(job.demonstrated(groups), groups, demonstrations, err=as_json)
    with one_line_errors(lambda: "fix that, and run the command again"):
        refuse_all_failed([trajectory for group in groups for trajectory in group])


def _how_to_resume(out: Path | None, demonstrations: Path | None, *, uses_api: bool) -> str:
    return out_file(out or unfinished(demonstrations)) if uses_api else how_to_resume(out or demonstrations)


def _report_demonstrations(
    demonstrations: Sequence[Trajectory], groups: Sequence[Sequence[Trajectory]], file: Path, *, err: bool
) -> None:
    """Print how many episodes may be imitated. `err`: print on stderr."""
    won, episodes = {episode.task.id for episode in demonstrations}, sum(map(len, groups))
    typer.echo(
        f"{file}: {len(demonstrations)} of {episodes} episodes, of {len(won)} of {len(groups)} tasks; "
        f"look at the first with: agentrl show {quote(str(file))}",
        err=err,
    )
    for reason, count in departures(demonstrations).items():
        typer.echo(
            f"masked in {count} episodes, from the first turn that the tokens cannot represent: {reason}", err=err
        )
    if (rest := unfinished(file)) is not None and rest.exists():
        typer.echo(f"the same command plays again what failed; the others are in {rest}", err=err)


def _play(job: _EvaluateJob) -> list[list[Trajectory]]:
    """Play with a model that runs on this machine, and return the episodes by task."""
    check_model(job.model, job.engine, job.config.engine_config)
    envs, reward, tasks = _prepare(job)
    with only_writer(job.file):
        seats = len(envs.cls.seats) if envs.cls.seats and "policy" in job.config.opponents else 1
        results = Results(tasks, _about(job, envs), unfinished(job.file), seats=seats)
        results.load_same()
        results.tell()
        import_slow(weights=job.engine == "local")
        groups = run(_evaluate(job, envs, reward, results))
        results.finish(job.out, [trajectory for group in groups for trajectory in group])
        results.finish(job.demonstrations, job.demonstrated(groups))
    return groups


def _about(job: _EvaluateJob, envs: EnvFactory) -> Mapping[str, Any]:
    """The settings that two runs of the command must share, if the second is to resume the first."""
    return {
        "env": job.env,
        "code": {"env": source_of(envs.cls)[1], "reward": source_of(job.config.reward_function())[1]},
        "model": job.model,
        "weights": weights_digest(job.model),
        "engine": job.engine,
        "settings": {
            **asdict(replace(job.config, workers=0)),
            "split": job.split,
            "thinking": job.thinking,
            "sampling_params": job.sampling_params,
        },
    }


def _refuse_engine(engine: str) -> None:
    if engine != "local":
        raise ConfigError(f"--api and --engine {engine}: one model plays at a time; leave one of them out")


def _ask(job: _EvaluateJob, api: Api) -> list[list[Trajectory]]:
    """Play with an API model, and return the episodes by task, including those in --out. Raises as `play_all` does."""
    envs, _, tasks = _prepare(job)
    file = job.out or unfinished(job.demonstrations)
    if job.out is None and not (file and file.exists()):
        refuse_finished(job.demonstrations)
    with only_writer(job.file):
        results = Results(tasks, {**api.about(job.env), "split": job.split}, file, code=envs.cls)
        results.load()
        results.tell()
        import_slow(weights=False)
        groups = run(play_all(api, envs, results, job.samples, "eval", trained=job.split == "train"))
        if job.out is not None:
            write_trajectories(job.out, results.in_order())
        if job.demonstrations is not None:
            write_trajectories(job.demonstrations, job.demonstrated(groups))
            if file not in (None, job.out) and all(episode.is_valid for group in groups for episode in group):
                file.unlink(missing_ok=True)
    return groups


def _prepare(job: _EvaluateJob) -> tuple[EnvFactory, Any, list[Task]]:
    """The Env, the reward function and the tasks. Raises ConfigError. Writes no file, and loads no model."""
    from agentrl.episode.scoring import check_of
    from agentrl.rollout import tasks_of

    envs, reward = EnvFactory(job.env, job.config.env_config), job.config.reward_function()
    job.config.check_opponents(envs.cls)

    grade = check_of(reward)

    def check(task: Task) -> None:
        if job.by is not None:
            value_of(task, job.by)
        if grade is not None:
            grade(task)

    tasks = tasks_of(envs, job.data, job.split, episodes=job.episodes, check=check, columns=job.config.columns)
    tasks = tasks[: job.limit]
    check_out(job.out, job.data)
    check_out(job.demonstrations, job.data, "--demonstrations")
    if job.out is not None and job.out == job.demonstrations:
        raise ConfigError(f"--demonstrations {job.out} is the file of --out; name another file")
    return envs, reward, tasks


async def _evaluate(job: _EvaluateJob, envs: EnvFactory, reward: Any, results: Results) -> list[list[Trajectory]]:
    """Episodes by task. Episodes in `results` are not played again; new episodes are added to `results` one by one."""
    from agentrl.episode.scoring import is_relative
    from agentrl.rollout import Rollout, run_groups
    from agentrl.rollout.play.opponents import open_opponents
    from agentrl.rollout.play.remote import with_workers

    if isinstance(url := job.config.engine_config.get("url"), str):
        await refuse_silence(url, "engine_config.url")
    async with (
        open_model(job.model, job.device, job.engine, job.config.engine_config) as model,
        AsyncExitStack() as stack,
    ):
        options, vocabulary = job.config.options(job.thinking), model.tokenizer.get_vocab()
        here = Rollout(
            envs=envs,
            engine=model.engine,
            renderer=model.renderer,
            options=options,
            reward=None if is_relative(reward) else reward,
            opponents=open_opponents(job.config.opponents, stack, vocabulary, device="cpu", dtype="float32"),
        )
        finished = results.by_place(job.samples)
        with progress("episodes", len(results.tasks) * job.samples) as on_episode:
            for episode in finished.values():
                on_episode(episode)
            async with with_workers(job.config.workers, here, _order(job, options, model)) as rollout:
                return await run_groups(
                    rollout,
                    results.tasks,
                    job.samples,
                    sampling_params=job.sampling_params,
                    name="eval",
                    on_episode=on_episode,
                    keep_unscored=True,
                    finished=finished,
                    keep=lambda episode, place: results.add(episode, (results.keys[place[0]], place[1])),
                )


def _order(job: _EvaluateJob, options: EpisodeOptions, model: OpenModel) -> EpisodeOrder:
    """The settings from which worker processes play the episodes."""
    from agentrl.rollout.play.remote import EpisodeOrder

    return EpisodeOrder(
        env=job.env,
        env_config=job.config.env_config,
        options=options,
        tokenizer=model.tokenizer,
        vision=model.renderer.vision,
        engine=job.engine,
        engine_config=job.config.engine_config,
        reward=job.config.reward,
    )


def _trained_with(model: str, env: str) -> dict[str, Any]:
    """The settings of the run in folder `model`, as defaults; empty if the folder is not a run's."""
    run = run_config(model)
    if run is None:
        return {}
    of_env = {"env_config": run.env_config, "reward": run.reward} if run.env == env else {}
    return {"limits": run.limits, "thinking": run.thinking, "special_tokens": run.special_tokens, **of_env}
