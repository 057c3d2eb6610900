"""A host that is agentrl itself: what its episodes look like from outside."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl import EpisodeOptions, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn


class RecordedEngine(ScriptedEngine):
    """Keeps each turn as a host would."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.turns: list[HostTurn] = []

    async def generate(self, input_ids, sampling_params, **request):
        said = await super().generate(input_ids, sampling_params, **request)
        self.turns.append(HostTurn([*input_ids], said.tokens, said.log_probs, said.finish_reason))
        return said


async def played(env, task, script: Sequence, renderer, options: EpisodeOptions) -> HostEpisode:
    engine = RecordedEngine(script, renderer)
    trajectory = await run_episode(env, task, engine=engine, renderer=renderer, options=options)
    valid = trajectory.is_valid
    rows = [
        HostRow(
            segment.tokens,
            [0] * segment.prompt_length + (segment.loss_mask if valid else [0] * segment.response_length),
            [0.0] * segment.prompt_length + segment.log_probs,
        )
        for segment in trajectory.segments
    ]
    return HostEpisode(task, engine.turns, rows, trajectory.reward if valid else None, trajectory.stop)
