"""The run of an agent with its session. The host (the trainer) may pause and resume the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from agentrl._util.activity import doing
from agentrl._util.boundary import FailedError, at_boundary
from agentrl._util.texts import texts_in
from agentrl.chat.request import RefusedError
from agentrl.env.env import Env, runtime
from agentrl.errors import AgentRLError, Failure, InfraError, ResumeError, one_line
from agentrl.gateway.endpoint import Endpoint
from agentrl.gateway.session.session import Session
from agentrl.plain import to_json
from agentrl.trajectory.spans import MaskReason
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, MaybeAwait, StopReason, Task

if TYPE_CHECKING:
    from agentrl.episode.run import Episode

log = logging.getLogger("agentrl")

_Run: TypeAlias = Callable[[Task, Endpoint], MaybeAwait[JSON]]

_LOOK_S = 0.1
"""Seconds between two checks of the host's abort flag."""
_STILL_S = 5.0
"""Maximum number of seconds to wait until the engine has ended the agent's unfinished requests."""
_WARNED: set[str] = set()
"""Names of agent classes for which a warning about refused requests was logged."""
_ANSWERED_OTHERWISE: set[str] = set()
"""Names of agent classes for which a warning was logged about a result that is no reply's text."""
_LAST_WORDS_S = 1.0
"""Maximum number of seconds to wait until a paused agent ends by itself, if the episode is not resumed."""


class AgentRun:
    """The run of an agent and its session, from the start of `run` to the end of the Env. An abort only pauses the
    run."""

    result: JSON = None
    """The return value of `run`."""

    def __init__(self, env: Env, run: _Run, session: Session, endpoint: Endpoint, *, leave: Callable[[], None]) -> None:
        self._env, self._run, self._session, self._endpoint, self._leave = env, run, session, endpoint, leave
        self._running: asyncio.Task[JSON] | None = None
        self._paused = False

    @property
    def read(self) -> str | None:
        """The text of the last messages that the agent sent to its model."""
        prompts = self._session.tree.prompts
        messages = [message for message in prompts[-1].messages if message["role"] != "assistant"] if prompts else []
        return "\n".join("".join(texts_in(message["content"])) for message in messages) or None

    async def run_until_pause(self, episode: Episode, seconds: float | None) -> StopReason:
        """Let the agent run until the agent or the session ends, `seconds` have passed, or the host aborts.

        Raises FailedError. Raises ResumeError if the agent did not survive a pause.
        """
        running, trajectory = self._start_or_resume(episode), episode.state.trajectory
        with doing("run"):
            stop = await self._wait(running, episode.hooks.aborted, seconds)
        if stop is StopReason.ABORTED:
            self._paused = True
            self._session.hold()
            await self._session.quiet()
            self._session.write(trajectory)
            return stop
        if stop is None and not running.done():  # the session has ended; the agent's next request will be refused
            await asyncio.wait({running}, timeout=episode.talk.options.limits.close_s)
        await self.end()
        self._note_result(running)
        self._session.write(trajectory)
        _mask_malformed(episode)
        self._warn_of_refusals()
        self._warn_of_result(trajectory)
        return self._outcome(running, trajectory, stop)

    async def end(self) -> None:
        """End the session, and the agent if it is still running. After a pause, clients are first asked to retry
        later."""
        self._session.hold()  # the engine ends the agent's unfinished requests
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_STILL_S, runtime(self._env).limits.close_s / 2)):
                await self._session.quiet()
        if self._paused:
            self._session.close("the episode was not resumed; it begins anew", unavailable=True)
        else:
            self._session.close("the episode is over")
        self._leave()
        running = self._running
        if running is not None and not running.done():
            if self._paused:
                await asyncio.wait({running}, timeout=_LAST_WORDS_S)
            running.cancel()
            await asyncio.wait({running})
            if runtime(self._env).leave_thread():
                log.warning("%s.run still runs in its thread, which nothing can stop", type(self._env).__name__)
        if running is not None and not running.cancelled():
            running.exception()  # retrieved here, so that asyncio does not log it

    def _start_or_resume(self, episode: Episode) -> asyncio.Task[JSON]:
        """Start or resume sampling. The first call also starts the agent."""
        env, talk, trajectory = self._env, episode.talk, episode.state.trajectory
        if self._running is not None and self._running.done() and (error := _error(self._running)) is not None:
            raise ResumeError(f"the agent ended while it waited: {one_line(error)}")
        for reason in _masked_by_host(trajectory):
            self._session.mask(reason)
        self._paused = False
        self._session.play(
            talk.engine,
            talk.renderer,
            talk.options,
            episode.hooks.aborted,
            trajectory.session_id,
            on_turn=episode.hooks.on_turn,
        )
        if self._running is None:
            run = runtime(env).hook(self._run, trajectory.task, self._endpoint)
            self._running = asyncio.create_task(run, name=f"agent {type(env).__name__}")
        return self._running

    async def _wait(
        self, running: asyncio.Task[JSON], aborted: Callable[[], bool] | None, seconds: float | None
    ) -> StopReason | None:
        """Wait until the episode ends or pauses. Returns None if the agent or the session has ended."""
        clock = asyncio.get_running_loop().time
        until = None if seconds is None else clock() + seconds
        ended = asyncio.create_task(self._session.ended.wait())
        try:
            while True:
                waits = [] if until is None else [until - clock()]
                waits += [] if aborted is None else [_LOOK_S]
                await asyncio.wait(
                    {running, ended},
                    timeout=max(0.0, min(waits)) if waits else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if running.done() or ended.done():
                    return None
                if aborted is not None and aborted():
                    return StopReason.ABORTED
                if until is not None and clock() >= until:
                    return StopReason.DEADLINE
        finally:
            ended.cancel()

    def _outcome(self, running: asyncio.Task[JSON], trajectory: Trajectory, stop: StopReason | None) -> StopReason:
        """Keep the agent's result, and return the reason for the episode's end. Raises FailedError."""
        session = self._session
        if session.error is not None:
            raise session.error
        stop = session.stop or stop
        if session.failure is not None:
            raise FailedError(session.failure)
        try:
            with at_boundary("run", hook=self._run):
                self._keep_result(running, trajectory, stop)
        except FailedError as failed:
            refusal = self._refusal()
            too_long = refusal is not None and refusal.kind == "context_full"
            if stop is None and (trajectory.said or not too_long):
                raise FailedError(_naming(failed.failure, refusal)) from failed
            trajectory.info["agent_error"] = failed.failure.error
        if not trajectory.said:
            raise FailedError(Failure.of(self._unanswered(), "run"))
        return stop or StopReason.DONE

    def _unanswered(self) -> AgentRLError:
        """The error for an agent that got no reply. If the last request was refused as invalid, the failure is a bug,
        because each episode would repeat the refusal."""
        problem = f"{type(self._env).__name__}.run ended without a reply of the model"
        refusal = self._refusal()
        if refusal is None:
            return InfraError(f"{problem}: let the agent ask {self._endpoint.openai} with the key of its endpoint")
        error = f"{problem}; the gateway refused its last request: {refusal}"
        return RefusedError("invalid", error) if refusal.kind == "invalid" else InfraError(error)

    def _keep_result(self, running: asyncio.Task[JSON], trajectory: Trajectory, stop: StopReason | None) -> None:
        """Keep the result of `run`, or raise its error. Do nothing if the episode's end has cancelled `run`."""
        if running.cancelled() and stop is not None:
            return
        self.result = to_json(running.result(), f"{type(self._env).__name__}.run")
        if self.result is not None:
            trajectory.info["result"] = self.result

    def _note_result(self, running: asyncio.Task[JSON]) -> None:
        """Pass the agent's result to the session. A result that JSON cannot hold is refused later, as a failure of the
        episode."""
        if not running.cancelled() and running.exception() is None and running.result() is not None:
            with suppress(TypeError, ValueError):
                self._session.returned(to_json(running.result(), "run"))

    def _warn_of_result(self, trajectory: Trajectory) -> None:
        """Warn once per agent class about a result that is no reply's text."""
        agent = type(self._env).__name__
        if "result_differs" in trajectory.info and agent not in _ANSWERED_OTHERWISE:
            _ANSWERED_OTHERWISE.add(agent)
            log.warning(
                "%s.run returned a text that no reply of the model equals or holds, so trajectory.answer is %r: let "
                "the grader read self.result (trajectory.info['result']) if that is the answer. The metric "
                "result_differs counts such episodes; this is logged once",
                agent,
                trajectory.answer[:60],
            )

    def _warn_of_refusals(self) -> None:
        """Warn once per agent class about refused requests. Refusals may have ended the agent, and the agent is still
        scored."""
        refused = [line for line in self._session.log.lines if line["event"] == "refused" and line["kind"] == "invalid"]
        agent = type(self._env).__name__
        if refused and agent not in _WARNED:
            _WARNED.add(agent)
            log.warning(
                "%s: the gateway refused %d requests of an episode, which may have ended the agent; the last: %s. "
                'Each trajectory counts them in info["agent"]; this is logged once',
                agent,
                len(refused),
                refused[-1]["message"],
            )

    def _refusal(self) -> RefusedError | None:
        """The reason why the agent's last request was refused. None if the request got a reply, or came after the
        session's end."""
        for line in reversed(self._session.log.lines):
            if line["event"] == "reply":
                return None
            if line["event"] == "refused" and line["kind"] != "closed":
                target = f"{line['what']}: " if "what" in line else ""
                return RefusedError(line["kind"], f"{target}{line['message']}")
        return None


def _naming(failure: Failure, refusal: RefusedError | None) -> Failure:
    """The failure with the gateway's last refusal added to its text, because an agent may hide the refusal."""
    if refusal is None or str(refusal) in failure.error:
        return failure
    return replace(failure, error=f"{failure.error}; the gateway refused its last request: {refusal}")


def _error(task: asyncio.Task[JSON]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _masked_by_host(trajectory: Trajectory) -> Sequence[MaskReason]:
    """The reasons for which the host has masked all sampled tokens before the pause.

    Raises ResumeError if the host has masked only a part.
    """
    reasons = {span.masked for span in trajectory.segment.spans if span.kind == "sampled"}
    masked: list[MaskReason] = [reason for reason in ("off_policy", "host") if reason in reasons]
    if masked and None in reasons:
        raise ResumeError("the host has masked a part of what was sampled, and an agent's episode is masked as a whole")
    return masked


def _mask_malformed(episode: Episode) -> None:
    """Mask turns with unreadable calls if the Env's BadCallPolicy demands so."""
    trajectory, policy = episode.state.trajectory, episode.policy
    if policy is not None and policy.mask:
        for number, turn in enumerate(trajectory.turns):
            if turn.bad_call == "structural":
                trajectory.mask("malformed", turn=number)
