"""Resuming: slime sends an aborted sample again. The metadata of the sample has a ticket, by which the saved state of
the episode (the parked episode) is looked up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.env.env import close_env
from agentrl.episode.host_config import ParkingConfig
from agentrl.episode.parking import Parking, key_of
from agentrl.episode.saved import OwnedEpisodeError
from agentrl.episode.state import EpisodeState, Parked
from agentrl.errors import ResumeError, one_line
from agentrl.slime.host import HostArgs, session_of
from agentrl.slime.sample import NO_TOKEN, episode_metadata
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, StopReason

log = logging.getLogger("agentrl")


@dataclass(slots=True)
class Resumption:
    """The state of a sample's resumption during a call of `adapt`."""

    parking: Parking
    config: ParkingConfig
    sample: str = ""
    """A name of the sample that stays the same after each abort; see `sample_name`."""
    session_id: str = ""
    key: str = ""
    """The key of the file with the episode's state, while this call may own the file."""
    resumes: int = 0
    """How many times the episode continued where it had stopped."""
    restarts: int = 0
    """How many times the episode restarted although a part had been played."""
    restart_reason: str = ""
    """The reason of the last restart."""
    ticket: Mapping[str, JSON] | None = None

    async def take(self, flags: HostArgs, sample: Any, stopped: Callable[[], bool] | None = None) -> Parked | None:
        """Fetch the parked episode of the sample's ticket, and mask the tokens that slime has masked. Returns None if
        the episode restarts.

        If the parking folder is shared, the episode of a sample without a ticket is looked up by the session, because
        the process of the episode may have died. The caller owns `parked.env` and must close it. So the caller may not
        await before the close is guaranteed.
        """
        earlier, remembered = _earlier(sample), self.parking.noted(self.sample)
        self.resumes, self.restarts = earlier.get("resumes", 0), earlier.get("restarts", 0)
        self.restart_reason = earlier.get("restart_reason", "")
        ticket = earlier.get("resume")
        if not isinstance(ticket, Mapping) and remembered is not None:
            _warn_of_lost_ticket()
            ticket = remembered
        self.key = self.parking.key(self.session_id)
        try:
            parked = await self._found(ticket, stopped)
        except ResumeError as exc:
            if isinstance(exc, OwnedEpisodeError) and isinstance(ticket, Mapping) and stopped is not None and stopped():
                self.ticket = ticket  # slime stops its episodes: the sample takes the ticket along
                return None
            self.key = self.parking.key("")
            self.restarted(str(exc))
            return None
        if parked is None:
            if earlier and (reason := _reason_not_parked(earlier)):
                self.restarted(reason)
            return None
        if _apply_mask_of(flags, sample, parked.episode.trajectory, later=isinstance(ticket, Mapping)):
            self.resumes += 1
            return parked
        if parked.env is not None:
            await close_env(parked.env)
        self.restarted("its tokens are not those that were parked")
        return None

    async def _found(self, ticket: Any, stopped: Callable[[], bool] | None) -> Parked | None:
        """The parked episode of a ticket. Without a ticket, the parked episode of the session, if left by a process
        that died.

        Raises ResumeError.
        """
        if isinstance(ticket, Mapping):
            parked = await self.parking.take(ticket, self.config.keep_s, stopped)
            if parked.env is None:
                self.key = key_of(ticket)
            return parked
        if not self.session_id or not self.parking.shared:
            return None
        try:
            return await self.parking.take_key(self.key, self.config.keep_s, stopped)
        except OwnedEpisodeError:
            raise
        except ResumeError:
            return None

    def cannot_resume(self, reason: str) -> None:
        """Count the episode that `take` returned as a restart, not as a resume."""
        self.resumes -= 1
        self.restarted(reason)

    def restarted(self, reason: str) -> None:
        self.restarts, self.restart_reason = self.restarts + 1, reason

    async def park(self, parked: Parked) -> None:
        self.ticket = await self.parking.park(parked, self.config.keep_s, self.key)
        self.parking.note(self.sample, self.ticket, self.config.keep_s)

    async def save(self, parked: Parked) -> None:
        await self.parking.save(self.key, parked, self.config.keep_s)

    async def hold(self, trajectory: Trajectory) -> None:
        """Park an episode that has ended during an abort, and mark the episode as aborted. Otherwise slime would lose
        the prompt.

        When slime sends the sample again, the ended episode is returned. A failed episode is not parked, because it
        will be played again.
        """
        if trajectory.stop in (StopReason.ABORTED, StopReason.FAILED):
            return
        try:
            await self.park(_end_of(trajectory))
            trajectory.stop = StopReason.ABORTED
        except Exception as exc:  # noqa: BLE001 - pickle raises anything: the episode has ended well all the same
            trajectory.info["not_saved"] = one_line(exc)

    async def ended(self, trajectory: Trajectory) -> None:
        """Release the episode's file, now that the episode is parked or has ended."""
        parked = trajectory.stop is StopReason.ABORTED
        if parked and self.ticket is not None:
            return
        self.ticket = None
        if parked or trajectory.stop is StopReason.FAILED or not self.config.every_turn:
            await self.parking.ended(self.key)
            return
        try:
            await self.parking.ended(self.key, _end_of(trajectory), self.config.keep_s)
        except Exception as exc:  # noqa: BLE001 - pickle raises anything: the episode has ended well all the same
            trajectory.info["not_saved"] = one_line(exc)

    async def give_back(self) -> None:
        """Let any process take an episode that this call took, and has neither parked nor ended."""
        await self.parking.give_back(self.key)

    def metadata(self) -> dict[str, JSON]:
        """The entries of metadata["agentrl"] about resumption. Empty for an episode without an abort."""
        entries = {
            "resume": self.ticket,
            "resumes": self.resumes,
            "restarts": self.restarts,
            "restart_reason": self.restart_reason,
        }
        return {name: value for name, value in entries.items() if value}


def sample_name(sample: Any) -> str:
    """The session of a sample, else its number in the run. Both stay the same after an abort. "" if the sample has
    neither."""
    index = getattr(sample, "index", None)
    return session_of(sample) or ("" if index is None else f"index {index}")


def _end_of(trajectory: Trajectory) -> Parked:
    return Parked("replay", EpisodeState(trajectory, stop=trajectory.stop), None)


def _earlier(sample: Any) -> Mapping[str, JSON]:
    """The entries of metadata["agentrl"] from earlier attempts of this run. Empty for a row that an earlier run has
    written."""
    account, session = episode_metadata(sample), session_of(sample)
    return {} if session and account.get("session_id", session) != session else account


@cache
def _warn_of_lost_ticket() -> None:
    log.warning(
        "an aborted sample came back without metadata['agentrl'], so a hook has replaced its metadata; the episode is "
        "resumed all the same, but its counts of resumes and restarts are lost: let the hook keep that key"
    )


def _reason_not_parked(earlier: Mapping[str, JSON]) -> str:
    """The reason why no episode is parked. "" if there was no episode to park."""
    if failure := earlier.get("failure"):
        return f"it failed in {failure['boundary']}: {failure['error']}"
    if problem := earlier.get("info", {}).get("not_parked"):
        return f"it was not parked: {problem}"
    nothing = earlier.get("stop") == StopReason.ABORTED and not earlier.get("turns")
    return "" if nothing else "it was not parked: parking.keep_s is 0, or slime did not say that it would send it back"


def _apply_mask_of(flags: HostArgs, sample: Any, trajectory: Trajectory, *, later: bool) -> bool:
    """Mask the tokens that slime has masked in `sample.loss_mask`. Returns False if the sample now has other tokens
    than the episode.

    The sample has the tokens of the last segment. slime masks all tokens of older weights, so earlier segments are
    masked, too. `later`: the episode must continue the sample's tokens. The sample may be older than the episode,
    because a process may have played on and then died. Without `later`, the sample must be unplayed: then the process
    that died had played the episode from its first turn.
    """
    length, mask = trajectory.segment.response_length, sample.loss_mask
    if sample.tokens[: trajectory.segment.length] != trajectory.tokens:
        if not (_begins(sample, trajectory) if later else _is_unplayed(sample)):
            return False
        mask = None
    elif length and mask and len(mask) != length:
        return False
    if length and mask:
        trajectory.mask_where(mask, "off_policy" if flags.masks_off_policy else "host")
    if flags.masks_off_policy and not any(mask or ()):
        trajectory.mask("off_policy")
    return True


def _begins(sample: Any, trajectory: Trajectory) -> bool:
    """Whether the sample's tokens are the beginning of a segment."""
    tokens = _own_tokens(sample)
    return bool(tokens) and any(tokens == segment.tokens[: len(tokens)] for segment in trajectory.segments)


def _is_unplayed(sample: Any) -> bool:
    """Whether the sample has no tokens, or only tokens that an abort wrote before the prompt was known."""
    return not sample.tokens or _own_tokens(sample) == [NO_TOKEN]


def _own_tokens(sample: Any) -> list[int]:
    """The sample's tokens, without the placeholder token that stands for an empty response."""
    added = sample.response_length == 1 and not any(sample.loss_mask or ())
    tokens: list[int] = sample.tokens[:-1] if added else sample.tokens
    return tokens
