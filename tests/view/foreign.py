"""Records of other frameworks, made by their own code, for `tests/view/data`.

    python tests/view/foreign.py verifiers tests/view/data        # pip install verifiers
    python tests/view/foreign.py harbor tests/view/data           # pip install harbor (Python 3.12)
    SLIME_SRC=... python tests/view/foreign.py slime tests/view/data

Each has one episode that keeps its tokens, and one whose first reply came back in other tokens.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SYSTEM, QUESTION = [1, 2, 3], [4, 5, 6]
REPLY, OTHER_REPLY = [100, 101, 102], [100, 110, 111, 102]
RESULT, ANSWER = [7, 8, 9], [200, 201]
GENERATION = [50]
"""The template's generation prompt."""


def verifiers(folder: Path) -> None:
    from verifiers.v1.episode import Episode
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask, WireAgentConfig, WireTaskData
    from verifiers.v1.types import AssistantMessage, Response, ToolCall, ToolMessage, TurnTokens, UserMessage
    from verifiers.v1.utils.trace_store import write_episode

    task = TraceTask(type="Capital", data=WireTaskData(idx=7, prompt="Where?"), key="peru")
    call = AssistantMessage(content="look", tool_calls=[ToolCall(id="c1", name="search", arguments='{"q": "Peru"}')])
    user, result = UserMessage(content="Where?"), ToolMessage(tool_call_id="c1", content="Lima")

    def turn(trace, prompt, message, prompt_ids, spans, completion):
        content = [True] * len(prompt_ids)
        content[-len(GENERATION) :] = [False] * len(GENERATION)
        tokens = TurnTokens(
            prompt_ids=prompt_ids,
            completion_ids=completion,
            completion_logprobs=[-0.5 * (i + 1) for i in range(len(completion))],
            message_spans=spans,
            is_content=content,
        )
        response = Response(
            id="r", created=0, model="m", message=message, finish_reason="stop", usage=None, tokens=tokens
        )
        prepare_turn(trace, prompt).commit(response)

    def episode(again: list[int], reward: float) -> Episode:
        agent = AgentInfo(config=WireAgentConfig.model_validate({"model": "m", "harness": {"id": "h"}}), name="solver")
        trace = Trace(task=task, agent=agent)
        turn(trace, [user], call, [*QUESTION, *GENERATION], [(0, 3)], REPLY)
        before = [*QUESTION, *GENERATION, *again]
        spans = [(0, 3), (3, len(before)), (len(before), len(before) + 3)]
        turn(
            trace,
            [user, call, result],
            AssistantMessage(content="Lima"),
            [*before, *RESULT, *GENERATION],
            spans,
            ANSWER,
        )
        trace.rewards = {"right": Reward(score=reward)}
        trace.stop("agent_completed")
        trace.ok = True
        return Episode(task=task, traces=[trace], ok=True)

    (folder / "traces.jsonl").unlink(missing_ok=True)
    for again, reward in ((REPLY, 1.0), (OTHER_REPLY, 0.0)):
        write_episode(folder, episode(again, reward))
    (folder / "traces.jsonl").rename(folder / "verifiers.jsonl")


def harbor(folder: Path) -> None:
    from harbor.models.trajectories import Agent, Metrics, Observation, ObservationResult, Step, ToolCall, Trajectory

    def made(again: list[int]) -> Trajectory:
        search = ToolCall(tool_call_id="c1", function_name="search", arguments={"q": "Peru"})
        first = Metrics(
            prompt_token_ids=QUESTION, completion_token_ids=REPLY, logprobs=[-0.5] * 3, completion_tokens=len(REPLY)
        )
        prompt = [*QUESTION, *again, *RESULT]
        second = Metrics(prompt_token_ids=prompt, completion_token_ids=ANSWER, logprobs=[-0.1, -0.2])
        steps = [
            Step(step_id=1, source="user", message="Where?", timestamp="2026-01-01T00:00:00Z"),
            Step(
                step_id=2,
                source="agent",
                message="look",
                tool_calls=[search],
                observation=Observation(results=[ObservationResult(source_call_id="c1", content="Lima")]),
                metrics=first,
                timestamp="2026-01-01T00:00:02Z",
            ),
            Step(step_id=3, source="agent", message="Lima", metrics=second, timestamp="2026-01-01T00:00:03Z"),
        ]
        return Trajectory(session_id="s", agent=Agent(name="terminus-2", version="1"), steps=steps)

    for name, again in (("harbor", REPLY), ("harbor_encoded_again", OTHER_REPLY)):
        (folder / f"{name}.json").write_text(json.dumps(made(again).to_json_dict(), indent=1) + "\n")
    text = made(REPLY)
    for step in text.steps:
        step.metrics = None
    (folder / "harbor_text.json").write_text(json.dumps(text.to_json_dict(), indent=1) + "\n")


def slime(folder: Path) -> None:
    sys.path.insert(0, os.environ["SLIME_SRC"])
    from slime.observability.rollout_data_utils import save_debug_rollout_data
    from slime.utils.types import Sample

    from agentrl import Generation, Task, Trajectory
    from agentrl.slime.sample import to_sample
    from agentrl.types import Action, Rendered, RenderedSpan

    def own(index: int, masked: str | None) -> Sample:
        """An episode of agentrl, as `adapt` writes it."""
        trajectory = Trajectory(Task(id="peru"), session_id=f"own-{index}")
        trajectory.append_prompt(Rendered(tuple(QUESTION), ()))
        trajectory.append_model(Generation(REPLY, [-0.5, 0.0, -0.25], "stop"))
        trajectory.append_action(Action(text="look", content="look"))
        spans = (RenderedSpan("observation", 0, 3), RenderedSpan("prompt", 3, 4))
        trajectory.append_observation(Rendered((*RESULT, *GENERATION), spans))
        trajectory.append_model(Generation(ANSWER, [-0.1, -0.2], "stop"))
        trajectory.append_action(Action(text="Lima", content="Lima"))
        from agentrl import StopReason

        trajectory.stop, trajectory.reward = StopReason.DONE, 1.0
        if masked:
            trajectory.mask(masked, turn=0)
        return to_sample(trajectory, Sample(group_index=0, index=index, prompt="Where?"), decode=lambda ids: str(ids))

    def plain(index: int) -> Sample:
        """A rollout of slime's own: tools by hand, the first turn masked."""
        sample = Sample(group_index=1, index=index, prompt="Where?", tokens=list(QUESTION), reward=0.0)
        sample.append_response_tokens(tokens=REPLY, log_probs=[-0.5, -0.3, -0.25], text="look", meta_info=META)
        sample.append_response_tokens(tokens=RESULT, trainable=False, text="Lima")
        sample.append_response_tokens(tokens=ANSWER, log_probs=[-0.1, -0.2], text="Lima", meta_info=META)
        sample.loss_mask[: len(REPLY)] = [0] * len(REPLY)
        sample.status = Sample.Status.COMPLETED
        return sample

    removed = own(2, None)
    removed.remove_sample = True
    samples = [own(0, None), own(1, "malformed"), removed, plain(3)]
    save_debug_rollout_data(str(folder / "slime_{rollout_id}.pt"), samples, rollout_id=5, evaluation=False)


META = {"finish_reason": {"type": "stop"}}

if __name__ == "__main__":
    {"verifiers": verifiers, "harbor": harbor, "slime": slime}[sys.argv[1]](Path(sys.argv[2]))
