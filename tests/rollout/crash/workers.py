"""The process that is killed, whose episodes workers play: a rollout loop over a buffer, and the stand-in for the
trainer of program.py.

The engine samples the name of the weights. So an episode's own text says which weights sampled it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl import EnvFactory, Trajectory
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.rollout import Rollout
from agentrl.rollout.loop.buffer import PendingGroup
from agentrl.rollout.loop.loop_drawer import LoopDrawer, LoopSettings
from agentrl.rollout.play.failures import FailurePolicy
from agentrl.rollout.play.remote import EpisodeOrder, with_workers
from agentrl.types import Generation, Limits
from agentrl.workers.pipes import PipeTransport
from tests.rollout.crash import program
from tests.rollout.crash.program import FAULTS, Faulty, Settings

AGAIN = FailurePolicy(again=5, ends_run=True)
"""A worker is killed, and replaced before the next one is: no episode loses two of them."""


class Noted(Faulty):
    """As Faulty. It notes its processes, and gives each episode that ends a name."""

    config: dict[str, Any]

    @classmethod
    def share(cls, config: dict[str, Any]) -> None:
        note(Path(config["folder"]), "workers", f"{os.getpid()} {config['driver']}")

    async def score(self, trajectory: Trajectory) -> float:
        trajectory.info["episode"] = os.urandom(6).hex()
        return 1.0


def note(folder: Path, name: str, line: str) -> None:
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")


@dataclass(kw_only=True)
class LoopRunSettings(Settings):
    ray: str = ""
    """The address of a Ray cluster, for workers that are actors."""


class Run(program.Run):
    """One process of the run, from its newest checkpoint on."""

    settings: LoopRunSettings

    def turn(self, ids: Any) -> Generation:
        tokens = self.renderer.encode({"role": "assistant", "content": self.weights.names[-1]})
        return Generation(tokens, [-0.5] * len(tokens), "stop", weight_version=str(self.version))

    async def run_with(self, tokenizer: Any) -> None:
        self.restore()
        settings, self.engine = self.settings, ScriptedEngine(self.turn, self.renderer, seconds=0.005)
        options = EpisodeOptions(limits=Limits(turns=5))
        config = {"folder": str(settings.folder), "driver": os.getpid()}
        env = f"{__file__}:Noted"
        rollout = Rollout(
            envs=EnvFactory(env, config),
            engine=self.engine,
            renderer=self.renderer,
            options=options,
            concurrency=settings.in_flight,
            failures=AGAIN,
        )
        order = EpisodeOrder(env=env, env_config=config, options=options, tokenizer=tokenizer, failures=AGAIN)
        async with with_workers(2, rollout, order, transport=self.transport()) as playing:
            steps = settings.prompts // settings.batch
            drawer = LoopDrawer(
                playing,
                self.buffer,
                LoopSettings(groups=settings.batch, staleness=settings.staleness, stale="mask", steps=steps),
            )
            try:
                drawer.begin(self.version, self.version)
                while self.version < steps:
                    await self.step(drawer)
            finally:
                await drawer.stop()

    def transport(self) -> Any:
        if not self.settings.ray:
            return PipeTransport
        import ray

        from agentrl.workers.actors import ActorTransport

        ray.init(address=self.settings.ray, log_to_driver=False, logging_level="ERROR")
        return ActorTransport

    async def step(self, drawer: LoopDrawer) -> None:
        drawn = await drawer.draw(self.version + 1)
        await asyncio.sleep(FAULTS.expovariate(1 / 0.01))  # episodes are played meanwhile
        for group in drawn.pending:
            self.look_at(group)
        self.weights.learn(drawn.pending)
        self.buffer.trained(self.version, drawn.pending)
        drawer.loop.advance(self.version)
        if (
            self.version % self.settings.checkpoint_every == 0
            or self.version == self.settings.prompts // self.settings.batch
        ):
            self.checkpoint()

    def look_at(self, group: PendingGroup) -> None:
        """Find out which weights sampled each episode."""
        for member in group.members:
            assert isinstance(member, Trajectory)
            sampled = [self.renderer.decode(action.tokens) for action in member.actions]
            member.info["weights"] = [name for said in sampled for name in re.findall("w[0-9a-f]{12}|w0", said)]
            assert len(member.info["weights"]) >= 3, sampled  # a turn that was cut may say two names
            for lost in member.info.get("workers_lost", []):
                note(self.settings.folder, "lost", lost)


def main(settings: LoopRunSettings, renderer: Any, tokenizer: Any, seed: int) -> int:
    """Run to the end of the data. The exit status of the process; what went wrong is in its file `error`."""
    FAULTS.seed(seed)

    async def run() -> None:
        await Run(settings, renderer).run_with(tokenizer)

    try:
        asyncio.run(run())
    except BaseException:  # noqa: BLE001 - the boundary of the process
        (settings.folder / "error").write_text(traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    tokenizer = load_tokenizer("tiny")
    given = pickle.loads(Path(sys.argv[1]).read_bytes())
    sys.exit(main(given, load_renderer(tokenizer), tokenizer, int(sys.argv[2])))
