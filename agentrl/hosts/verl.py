"""The door to verl: an agent loop. agentrl plays the episodes on verl's inference servers, and verl trains.

    # my_loop.py
    from agentrl.hosts.verl import agent_loop

    MyLoop = agent_loop("my_env.py:MyEnv", limits={"turns": 4})

    # loops.yaml, named by actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: agentrl
      _target_: my_loop.MyLoop

Written for verl 0.9.1, and tested against its interface: its trainer needs GPUs. A row of the data needs the columns
`agent_name` ("agentrl") and `task_id`, the id of a task.

lost here: images; seats; episodes of several sequences; rewards of single turns; the reason for a mask; failures (a
failed episode counts as the reward 0 in the mean of its group, and none of its tokens is trained).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.engine.base import AsyncClosing
from agentrl.env.env import Env
from agentrl.errors import ConfigError, EngineError, one_line
from agentrl.hosts.turned import HostedEnv, TokenRequest, generation
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import FinishReason, Generation, SamplingParams, Task

VERSION = "0.9.1"


def agent_loop(env: str | type[Env], **settings: Any) -> type:
    """The class of an agent loop that plays an Env. `settings` are the keys of `DoorConfig`. Raises ConfigError."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

    hosted = HostedEnv(env, **settings)
    if hosted.config.splits:
        raise ConfigError(f"verl takes one sequence for each episode: leave out {hosted.config.splits}")

    class HostedLoop(AgentLoopBase):  # type: ignore[misc]
        async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
            """Play the episode of a row. Raises ConfigError, and BugError for a bug of the Env."""
            from agentrl.render import load_renderer

            rollout = self.rollout_config
            lengths = rollout.prompt_length, rollout.response_length
            renderer = load_renderer(
                self.tokenizer,
                chat_template=hosted.config.template_text(),
                chat_template_kwargs=hosted.config.chat_template_kwargs or dict(self.apply_chat_template_kwargs),
            )
            engine = VerlEngine(self.server_manager, sampling_params, sum(lengths))
            task = _task(hosted, row.get("task_id"))
            trajectory = await hosted.play(task, engine, renderer, tokens=lengths[1])
            fields = _output(trajectory, self.tokenizer.eos_token_id, *lengths)
            return AgentLoopOutput(**fields, num_turns=trajectory.turn_count, metrics=AgentLoopMetrics())

    return HostedLoop


class VerlEngine(AsyncClosing):
    """verl's inference servers as an engine: token ids in, token ids and their log-probs out."""

    def __init__(self, servers: Any, sampling_params: Mapping[str, Any], context_length: int) -> None:
        self._servers, self._params, self._context = servers, sampling_params, context_length

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        request = TokenRequest([*input_ids], sampling_params)
        params = {**self._params, "logprobs": True, "max_tokens": sampling_params["max_new_tokens"]}
        params |= {name: sampling_params[name] for name in ("stop", "stop_token_ids") if name in sampling_params}
        try:
            output = await self._servers.generate(
                request_id=session_id, prompt_ids=[*input_ids], sampling_params=params
            )
        except Exception as exc:
            raise EngineError(f"verl's server: {one_line(exc)}") from exc
        reason: FinishReason | None = "abort" if output.stop_reason == "aborted" else None
        return generation(request, output.token_ids, output.log_probs or [], reason)

    async def abort(self, rid: str | None = None) -> None:
        """Do nothing: verl aborts its requests by itself."""

    async def context_length(self) -> int:
        return self._context

    async def close(self) -> None:
        pass


def _task(hosted: HostedEnv, task_id: Any) -> Task:
    if task_id not in hosted.by_id:
        raise ConfigError(f"the row's task_id {task_id!r} is no id of a task: write the column task_id")
    return hosted.by_id[task_id]


def _output(trajectory: Trajectory, end: int, prompt_length: int, response_length: int) -> dict[str, Any]:
    """The fields of verl's output. verl cannot read an empty sequence, so an episode without a turn has the token
    `end`, untrained."""
    if len(trajectory.segments) > 1:
        raise ConfigError(f"{trajectory!r:.120} has several sequences, but verl takes one for each episode: use slime")
    if trajectory.prompt_length > prompt_length:
        raise ConfigError(
            f"the prompt of task {trajectory.task.id} has {trajectory.prompt_length} tokens: raise "
            f"data.max_prompt_length ({prompt_length})"
        )
    response, valid = trajectory.response[:response_length], trajectory.is_valid
    mask = trajectory.loss_mask if valid else [0] * len(response)
    return {
        "prompt_ids": trajectory.tokens[: trajectory.prompt_length] or [end],
        "response_ids": response or [end],
        "response_mask": mask[:response_length] or [0],
        "response_logprobs": trajectory.log_probs[:response_length] or [0.0],
        "reward_score": (trajectory.reward or 0.0) if valid else 0.0,
    }
