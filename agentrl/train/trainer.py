"""The embedded trainer: give the weights to the engine, play groups of episodes, learn from them, and repeat."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from rich.console import Console
from torch.optim import Optimizer

from agentrl._util.signals import run
from agentrl.engine.base import TrainedEngine
from agentrl.env.factory import EnvFactory
from agentrl.episode.options import RewardFn
from agentrl.errors import BugError, CanaryError, ConfigError, EngineError
from agentrl.models import SEEDED, save_model, set_ends
from agentrl.monitor import Canaries, NumericsWatch, RolloutMetrics
from agentrl.render import load_renderer
from agentrl.render.base import Renderer
from agentrl.render.ends import turn_ends
from agentrl.rollout.loop.drawing import Drawn
from agentrl.rollout.loop.journal import Journal
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.evaluate import Evaluation, evaluate
from agentrl.rollout.play.remote import with_workers
from agentrl.train import lora
from agentrl.train.async_order import half_the_threads
from agentrl.train.batch import Row
from agentrl.train.bill import Bill, billed
from agentrl.train.config import TrainConfig
from agentrl.train.credit import uncredited_groups
from agentrl.train.data import evaluation_tasks, limit_prompts, training_tasks
from agentrl.train.engine_choice import with_engine_chosen
from agentrl.train.fingerprint import fingerprint, write_fingerprint
from agentrl.train.halves import two_halves
from agentrl.train.handover import HandOver
from agentrl.train.harm import HarmWatch
from agentrl.train.learner import DivergedError, Schedule, random_states, set_learning_rate
from agentrl.train.order import Groups
from agentrl.train.progress import Position, Progress
from agentrl.train.records import RunRecords
from agentrl.train.report import (
    KNOWS_NOTHING,
    StepReport,
    Summary,
    after_warm_start,
    held_out_metrics,
    say_causes,
    summarise,
    told_evaluation,
)
from agentrl.train.rollouts import open_drawer, open_order, open_trained_engine, order_of, run_opponents
from agentrl.train.rows import buffer_of, normaliser, rows_to_learn
from agentrl.train.run_folder import RunFolder, model_folder, step_name
from agentrl.train.teacher import Teacher, open_teacher
from agentrl.train.trackers import Trackers
from agentrl.train.warm_start import (
    demonstration_batches,
    keep_apart,
    make_optimizers,
    read_demonstrations,
    warm_start_schedule,
    warnings_by_heart,
)
from agentrl.train.weights import load_learner, load_reference, save_random_base
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON


class Trainer:
    """A run: `async with Trainer(config) as trainer: await trainer.run()`. Subclasses may override every method."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        resume: bool | str = False,
        accept_changed_data: bool = False,
        console: Console | None = None,
    ) -> None:
        self.config = config
        self.console = console or Console()
        self.folder = RunFolder(config.out, config.keep)
        self.records = RunRecords(config.out)
        self.position = Position()
        self.canaries = Canaries(config.canaries) if config.canaries else None
        self.numerics = NumericsWatch(config.numerics) if config.numerics else None
        self._resume, self._accept_changed_data, self._created = resume, accept_changed_data, False
        self._progress_saved: tuple[int, int, bool] | None = None
        """The position in the last checkpoint: steps of RL, steps of the warm start, and whether RL has begun."""
        self.teacher: Teacher | None = None
        self._drawn: dict[int, Drawn] = {}
        """Step -> the report of the rollout, for steps that are played and not yet learned."""
        self._stack = AsyncExitStack()
        self.bill = Bill(config.usd_per_hour)

    async def __aenter__(self) -> Self:
        try:
            await self.setup()
        except BaseException as exc:
            await self._close(exc)
            raise
        return self

    async def __aexit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        await self._close(exc)

    async def _close(self, exc: BaseException | None) -> None:
        """Close engine, workers and files. After a ConfigError or BugError before any learned step, empty the run
        folder, so that the next attempt can use it."""
        await self._stack.aclose()
        nothing_learned = self.position.step == self.position.warm_steps == 0
        if isinstance(exc, ConfigError | BugError) and self._created and nothing_learned:
            self.folder.discard()
        self.folder.unlock()

    @billed("start")
    async def setup(self) -> None:
        """Load and check model, tasks and settings, then make the run folder. Raises ConfigError."""
        self.folder.check(self.config, resume=bool(self._resume))
        engine_of_run = self.folder.begun_with().engine if self._resume else None
        config = self.config = with_engine_chosen(self.config, engine_of_run, self._say)
        self._trackers = Trackers(config, self._warn)
        envs, reward = EnvFactory(config.env, config.env_config), config.reward_function()
        source, self.eval_tasks = training_tasks(config, envs), evaluation_tasks(config, envs)
        checkpoint = self.folder.lock_and_find(self._resume, self._warn) if self._resume else None
        self._fingerprint = fingerprint(config, envs.cls, source, self.eval_tasks)
        self.buffer = buffer_of(config, source, self._open_journal() if checkpoint is not None else None)
        state = self._read_state(checkpoint) if checkpoint is not None else None
        self.tokenizer, self.learner = load_learner(config, checkpoint, self.folder.base, self._say)
        self.teacher = await open_teacher(config, self.tokenizer, self.learner.device, self.learner.vision)
        if self.teacher is not None:
            self._stack.push_async_callback(self.teacher.close)
        renderer = config.options().renderer(load_renderer(self.tokenizer, vision=self.learner.vision))
        await self._prepare_warm_start(renderer)
        set_ends(self.learner.model, turn_ends(renderer))
        limit_prompts(config, source, renderer, self._warn)
        envs.prove(renderer)
        await self._open_rollout(envs, reward, renderer)
        if checkpoint is not None and state is not None:
            self._restore(checkpoint, state)
        self._note_step_end()
        self._make_folder(checkpoint)
        limits = self.rollout.options.limits  # an engine may start here, and write to the run folder
        self.length = limits.tokens or min(limits.context or math.inf, await self.engine.context_length())
        self._trackers.start(self.folder.path, self.position.step)
        self._stack.callback(self._trackers.close)

    async def _prepare_warm_start(self, renderer: Renderer) -> None:
        """Read the demonstrations, unless reinforcement learning has begun."""
        config = self.config
        self.warm_optimizers: list[Optimizer] = []
        if config.warm_start is None or self.position.started:
            return
        self.demonstrations = await read_demonstrations(config, self.learner.text_config, renderer, self.console)
        if config.canaries is not None:
            read = self.demonstrations
            read.rows, read.apart = keep_apart(read.rows, config.warm_start, config.seed)
        self.warm_optimizers = make_optimizers(
            self.learner.model, self.learner.masters, config.warm_start, config.optimizer
        )

    async def _open_rollout(self, envs: EnvFactory, reward: RewardFn | None, renderer: Renderer) -> None:
        """Open the engine, the workers and the order of the steps."""
        config = self.config
        self.engine = self._open_engine(renderer)
        self._stack.push_async_callback(self.engine.close)
        self.handover = HandOver(self.engine, self.learner)
        opponents, self.eval_opponents = run_opponents(config, envs.cls, self.tokenizer, self._stack)
        rollout = Rollout(
            envs=envs,
            engine=self.engine,
            renderer=renderer,
            options=config.options(),
            reward=reward,
            concurrency=config.concurrency,
            opponents=opponents,
        )
        with_processes = with_workers(config.workers, rollout, order_of(config, self.tokenizer, self.learner.vision))
        rollout = await self._stack.enter_async_context(with_processes)
        self.drawer, self.rollout = open_drawer(config, rollout, self.buffer, self._warn)
        self._stack.push_async_callback(self.drawer.stop)
        if config.staleness and self.learner.device.type == "cpu":
            self._stack.enter_context(half_the_threads())
        self.order = open_order(config, self.drawer, self.handover, self.collect)
        self._stack.push_async_callback(self.order.stop)

    def _make_folder(self, checkpoint: Path | None) -> None:
        """Make the run folder and begin the records, or remove the records of steps that are played again."""
        config = self.config
        self.folder.create(config)
        self._created = not self._resume
        write_fingerprint(self.folder.path, self._fingerprint, self._warn)
        if checkpoint is None:
            self.buffer.begin(self._open_journal())
        self.bill.keep_in(self.folder.bill, on_gpu=self.learner.device.type == "cuda", seconds=self.position.seconds)
        self._stack.callback(self.records.begin(self.folder.path))
        if self.warm_optimizers:
            self.folder.write_skipped(self.demonstrations.listed())
            self.records.demonstrations(self.demonstrations.episodes, self.demonstrations.unrewarded)
        save_random_base(config, self.learner, self.tokenizer, self.folder)
        if self._resume:
            self.folder.rewind(self.position.step if checkpoint else -1, started=self.position.started)
            self.records.rewind(self.position.step, self.position.warm_steps)
            self._say(f"resuming {self._where()}" if checkpoint else "no checkpoint yet: beginning anew")
        self.harm = HarmWatch(config, self.folder, self.position)

    async def run(self) -> Summary:
        """Run from the present position to the end. If the run is interrupted, or loses the engine, a checkpoint is
        written first."""
        try:
            return await self._run()
        except (asyncio.CancelledError, EngineError):
            await self.order.stop()
            self._checkpoint_if_new()
            raise
        except CanaryError:
            say_causes(self.folder, self._say)
            raise

    async def _run(self) -> Summary:
        config, position = self.config, self.position
        if not position.started:
            if config.model in SEEDED and config.warm_start is None:
                self._say(KNOWS_NOTHING)
            if self.folder.result("start") is None:
                await self._evaluate_and_keep("start")
            if config.warm_start is not None:
                await self.warm_start()
                await self._evaluate_and_keep("warm")
            self._begin_rl()
        with Progress(self.console, "rl", config.steps, done=position.step) as progress:
            while position.step < config.steps:
                report = await self.step(position.step + 1)
                if report.step == 1 and config.warm_start is not None and config.compares_within_groups:
                    self._say(after_warm_start(report.rollout, self.folder.result("warm")))
                await self._finish_step(report, progress)
        await self._evaluate_and_keep("final")
        self.folder.save_model(self.folder.model, position.step, self._save_model)
        self.bill.write()
        return summarise(self.folder, config.out, self.bill, self._say)

    @billed("warm_start")
    async def warm_start(self) -> None:
        """Imitate the demonstrations."""
        config = self.config.warm_start
        assert config is not None
        self._note_step_end()
        await self.handover.rest()
        tokens, began, done = 0, time.monotonic(), self.position.warm_steps
        with Progress(self.console, "warm start", config.steps, done=done) as progress, two_halves(self.learner):
            batches = demonstration_batches(self.demonstrations.rows, config, self.config.seed)
            for step, rows in enumerate(islice(batches, done, None), done + 1):
                for optimizer in self.warm_optimizers:
                    set_learning_rate(optimizer, warm_start_schedule(step, config.steps))
                loss = self.learner.imitate(rows, self.warm_optimizers, self.config.warm_start_tokens)
                tokens += sum(len(row.tokens) for row in rows)
                self.position.warm_steps = step
                self.bill.count(imitated=sum(len(row.tokens) for row in rows))
                self.records.imitated(step, loss)
                progress.show(step, loss=loss, tokens_s=tokens / (time.monotonic() - began))
                await asyncio.sleep(0)  # lets Ctrl-C in
        for warning in warnings_by_heart(self.learner, self.demonstrations, self.config):
            self._warn(warning)
        self.warm_optimizers = []

    async def step(self, step: int) -> StepReport:
        """Do an RL step: play groups, and learn from them. With `staleness`, rollouts of later steps are played at the
        same time."""
        rollout = await self.order.rollout(step)
        if self.numerics is not None:
            self.handover.compare(rollout.trajectories, self.numerics, step, self._warn)
        drawn = self._drawn.pop(step, Drawn(rollout.groups))
        metrics = RolloutMetrics.of_groups([*rollout.groups, *drawn.replaced])
        update = {**await self.order.learn(rollout, self.update), **drawn.metrics}
        self.buffer.trained(step, drawn.pending)
        self.bill.add("hand_over", rollout.hand_over_s)
        uncredited = uncredited_groups(rollout.groups) if self.config.credit == "turn" else 0
        equal = update.pop("zero_advantage_groups") + len(drawn.replaced)
        metrics = replace(metrics, zero_advantage_groups=equal, uncredited_groups=uncredited)
        stored = self.records.write_step(step_name(step), step, rollout.groups, self.config.keep.groups)
        self._trackers.add_episodes(step, "train", stored)
        return StepReport(
            step, metrics, update, rollout.hand_over_s, rollout.rollout_s, rollout.train_s, rollout.async_report
        )

    @billed("rollout")
    async def collect(self, step: int) -> Groups:
        """Give the engine the newest weights, play the step's episodes, and mask episodes that must not be trained."""
        await self.handover.give()  # the order of the steps has done so; a caller of this method has not
        self._drawn[step] = drawn = await self.drawer.draw(step)
        for trajectory in (trajectory for group in drawn.groups for trajectory in group):
            if self.config.mask_overlong and trajectory.truncated:
                trajectory.mask("overlong")
        if self.teacher is not None:
            await self.teacher.ask([trajectory for group in drawn.groups for trajectory in group])
        return drawn.groups

    @billed("train")
    def update(self, groups: Groups, step: int) -> dict[str, Any]:
        """Learn from the groups, and return metrics. The version of the new weights is the step.

        With `staleness` this method runs in a thread, while episodes of later steps are played.
        """
        rows, zero_advantage_groups = self.rows(groups)
        trajectories = [trajectory for group in groups for trajectory in group]
        try:
            update = self.learner.learn(rows, step=step, normaliser=self.normaliser(trajectories))
        except DivergedError as exc:
            raise DivergedError(f"step {step}: {exc}. The last good weights: {model_folder(self.folder.path)}") from exc
        self.handover.changed(str(step))
        self.records.learned(rows, update.looked_at)
        taught = self.teacher.metrics(trajectories) if self.teacher else {}
        return {"zero_advantage_groups": zero_advantage_groups, **taught, **update.metrics()}

    def rows(self, groups: Groups) -> tuple[list[Row], int]:
        """The rows to learn from, and the number of groups that teach nothing."""
        return rows_to_learn(groups, self.config, self.teacher)

    def normaliser(self, trajectories: Sequence[Trajectory]) -> float:
        """The divisor of the sum of a step's losses that gives the mean of `reduction`."""
        return normaliser(trajectories, self.config, self.length)

    @billed("evaluation")
    async def evaluate(self, name: str) -> Evaluation:
        """Play the held-out tasks greedily, and write the episodes to the run folder."""
        await self.handover.give()
        evaluation = await evaluate(replace(self.rollout, opponents=self.eval_opponents), self.eval_tasks)
        self.folder.add_evaluation(name, self.position.step, evaluation)
        self._trackers.add_episodes(self.position.step, "eval", [evaluation.trajectories])
        self.bill.count(evaluated=evaluation.metrics.sampled_tokens)
        return evaluation

    async def _evaluate_and_keep(self, name: str) -> None:
        if not self.eval_tasks:
            return
        async with self.order.paused():
            evaluation = await self.evaluate(name)
        self.folder.settle()
        self.console.print(told_evaluation(name, evaluation.metrics), highlight=False)

    async def _finish_step(self, report: StepReport, progress: Progress) -> None:
        config, step, metrics = self.config, report.step, report.to_json()
        last = step == config.steps
        due = config.eval_every and step % config.eval_every == 0 and self.eval_tasks and not last
        if due:
            self.folder.evaluating = step
        try:
            metrics |= await self.order.evaluate(step, partial(self._held_out, step) if due else None, last=last)
        finally:  # the weights have changed, so the step is done, even if its evaluation was interrupted
            self._record(report, metrics, progress)
        warn = partial(self._note, step=step, progress=progress)
        if await self.harm.after_step(self.learner, self.handover, self.order, warn):
            self._note_step_end()
            await self.order.aside(self.checkpoint)
        if step % config.checkpoint_every == 0 or last or self.folder.is_wanted(step):
            await self.order.aside(self.checkpoint)
        self.folder.settle()

    async def _held_out(self, step: int) -> Mapping[str, JSON]:
        return held_out_metrics((await self.evaluate(step_name(step))).metrics)

    def _record(self, report: StepReport, metrics: dict[str, Any], progress: Progress) -> None:
        step = report.step
        self.folder.append_metrics(metrics)
        self._trackers.add(step, metrics)
        self.bill.count(sampled=metrics["sampled_tokens"], trained=metrics["read_tokens"])
        warnings = self.canaries.watch(step, report.rollout) if self.canaries else []
        if self.numerics is not None and report.same_weights:
            warnings += self.numerics.watch(f"step {step}", metrics["logprob_diff_mean"], metrics["logprob_diff_max"])
        for warning in warnings:
            self._note(warning, step, progress)
        self.position.step = step
        self._note_step_end()
        progress.show(step, **report.shown())

    def _note(self, warning: str, step: int, progress: Progress) -> None:
        progress.note(f"warning: {warning}")
        self.records.event("canary", warning, step)

    # Coming back

    def checkpoint(self) -> None:
        """Save the state for an exact continuation, completely or not at all."""

        def write(path: Path) -> None:
            self._save_model(path)
            warm = [optimizer.state_dict() for optimizer in self.warm_optimizers]
            torch.save({**self.learner.state_dict(), **self._random_states, "warm": warm}, path / "optimizer.pt")
            state = {"position": asdict(self.position), "data": self._data_state}
            state["schedule"] = asdict(self.learner.schedule)
            (path / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")

        self.folder.save_checkpoint(self.position.step, write)
        self.buffer.saved(self._data_state)
        self._progress_saved = self._progress_made()

    def _note_step_end(self) -> None:
        """Record the untrained groups and the random states now, because the checkpoint of this step may be written
        later."""
        self._data_state, self._random_states = self.buffer.state(), random_states(self.learner.device)

    def _open_journal(self) -> Journal:
        journal = Journal(self.folder.path / "journal.db")
        self._stack.callback(journal.close)
        return journal

    def _checkpoint_if_new(self) -> None:
        """Write a checkpoint if a step was learned since the last checkpoint."""
        if self._progress_made() not in (self._progress_saved, (0, 0, False)):
            self.checkpoint()
            self._say(f"checkpoint written {self._where()}")

    def _progress_made(self) -> tuple[int, int, bool]:
        return self.position.step, self.position.warm_steps, self.position.started

    def _where(self) -> str:
        warm, position = self.config.warm_start, self.position
        if position.started or warm is None:
            return f"after step {position.step}"
        return f"in the warm start, after {position.warm_steps} of {warm.steps} steps"

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def _warn(self, text: str) -> None:
        self._say(f"warning: {text}")
        self.records.event("warning", text, self.position.step)

    def _read_state(self, checkpoint: Path) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        self.position = Position.restore(state["position"])
        self.buffer.restore(state["data"], accept_changes=self._accept_changed_data)
        return state

    def _open_engine(self, renderer: Renderer) -> TrainedEngine:
        run = self.folder.path.absolute()
        return open_trained_engine(self.config, run, self.learner, self.tokenizer, renderer, self._say)

    def _save_model(self, path: Path) -> None:
        save_model(self.learner.model, self.tokenizer, path, self.learner.vision)

    def _begin_rl(self) -> None:
        """Store the present weights as the reference of KL, and write the first checkpoint."""
        if self.config.kl_coef > 0:
            if not lora.changes_nothing(self.learner.model):
                self.folder.save_model(self.folder.reference, 0, self._save_model)
            load_reference(self.config, self.learner, self.folder)
        self.position.started = True
        self._note_step_end()
        self.checkpoint()

    def _restore(self, checkpoint: Path, state: dict[str, Any]) -> None:
        self.rollout.scored.any = self.position.step > 0
        if "schedule" in state:
            self.learner.schedule = Schedule(**state["schedule"]).until(self.config.steps, step=self.position.step)
        learned = torch.load(checkpoint / "optimizer.pt", weights_only=True)
        self.learner.load_state_dict(learned)
        for optimizer, of_warm_start in zip(self.warm_optimizers, learned.get("warm", ()), strict=False):
            optimizer.load_state_dict(of_warm_start)
        self._progress_saved = self._progress_made()
        if self.config.kl_coef > 0 and self.position.started:
            load_reference(self.config, self.learner, self.folder)
        self.handover.changed(str(self.position.step))


def train(
    config: TrainConfig,
    *,
    resume: bool | str = False,
    accept_changed_data: bool = False,
    trainer: type[Trainer] | None = None,
    console: Console | None = None,
) -> Summary:
    """Run to the end, and return a summary.

    Raises ConfigError before anything is written, BugError for a bug in the Env, and DivergedError for a loss that is
    not finite. Raises CanaryError if nothing can be learned, or if engine and trainer disagree. After such an error, or
    after a kill, `resume` continues from the last checkpoint, after Ctrl-C and SIGTERM at the step where the run
    stopped. With a text (`best`, or the number of a step) the run returns to this checkpoint, and later steps are
    removed. A run that fails before the first step leaves no folder, or only the engine's log. `accept_changed_data`:
    continue even if tasks have changed.
    """

    async def whole() -> Summary:
        kind = trainer or Trainer
        async with kind(config, resume=resume, accept_changed_data=accept_changed_data, console=console) as running:
            return await running.run()

    return run(whole())
