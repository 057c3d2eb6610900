"""Resuming: slime sends an aborted sample again, with the ticket of the parked episode in its metadata."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.env.env import close_env
from agentrl.episode.parking import Parking
from agentrl.episode.state import Parked
from agentrl.errors import ResumeError
from agentrl.slime.host import HostArgs
from agentrl.slime.sample import episode_metadata
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, StopReason

log = logging.getLogger("agentrl")


@dataclass(slots=True)
class Resumption:
    """The resume state of a sample during one call of `adapt`."""

    parking: Parking
    park_s: float
    sample: str = ""
    """A name that the sample keeps over its aborts; see `sample_name`."""
    resumes: int = 0
    """How often the episode continued where it had stopped."""
    restarts: int = 0
    """How often it started over although a part had been played."""
    restart_reason: str = ""
    """The reason of the last restart."""
    ticket: Mapping[str, JSON] | None = None

    async def take(self, flags: HostArgs, sample: Any) -> Parked | None:
        """Fetch the parked episode of the sample's ticket, with slime's masking applied. None: it has to start over.

        The caller owns `parked.env` and must close it, so the caller may not await before it does so.
        """
        earlier, noted = _earlier(sample), self.parking.noted(self.sample)
        self.resumes, self.restarts = earlier.get("resumes", 0), earlier.get("restarts", 0)
        self.restart_reason = earlier.get("restart_reason", "")
        ticket = earlier.get("resume")
        if not isinstance(ticket, Mapping) and noted is not None:
            _warn_of_lost_ticket()
            ticket = noted
        if not isinstance(ticket, Mapping):
            if earlier and (reason := _reason_not_parked(earlier)):
                self.restarted(reason)
            return None
        try:
            parked = await self.parking.take(ticket)
        except ResumeError as exc:
            self.restarted(str(exc))
            return None
        if _apply_mask_of(flags, sample, parked.episode.trajectory):
            self.resumes += 1
            return parked
        if parked.env is not None:
            await close_env(parked.env)
        self.restarted("its tokens are not those that were parked")
        return None

    def cannot_resume(self, reason: str) -> None:
        """Count the episode that `take` returned as a restart instead of a resume."""
        self.resumes -= 1
        self.restarted(reason)

    def restarted(self, reason: str) -> None:
        self.restarts, self.restart_reason = self.restarts + 1, reason

    async def park(self, parked: Parked) -> None:
        self.ticket = await self.parking.park(parked, self.park_s)
        self.parking.note(self.sample, self.ticket, self.park_s)

    def metadata(self) -> dict[str, JSON]:
        """Its entries for metadata["agentrl"]. Empty for an episode that was played without an abort."""
        said = {
            "resume": self.ticket,
            "resumes": self.resumes,
            "restarts": self.restarts,
            "restart_reason": self.restart_reason,
        }
        return {name: value for name, value in said.items() if value}


def sample_name(sample: Any) -> str:
    """The sample's session, or its number in the run: slime keeps both over aborts. "" if it has neither."""
    session, index = getattr(sample, "session_id", None), getattr(sample, "index", None)
    return session or ("" if index is None else f"index {index}")


def _earlier(sample: Any) -> Mapping[str, JSON]:
    """What was written about the sample before. Empty for a row that an earlier run has written."""
    found, session = episode_metadata(sample), getattr(sample, "session_id", None)
    return {} if session and found.get("session_id", session) != session else found


@cache
def _warn_of_lost_ticket() -> None:
    log.warning(
        "an aborted sample came back without metadata['agentrl'], so a hook has replaced its metadata; the episode is "
        "resumed all the same, but its counts of resumes and restarts are lost: let the hook keep that key"
    )


def _reason_not_parked(earlier: Mapping[str, JSON]) -> str:
    """The reason why nothing was parked. "" if there was nothing to park."""
    if failure := earlier.get("failure"):
        return f"it failed in {failure['boundary']}: {failure['error']}"
    if problem := earlier.get("info", {}).get("not_parked"):
        return f"it was not parked: {problem}"
    nothing = earlier.get("stop") == StopReason.ABORTED and not earlier.get("turns")
    return "" if nothing else "it was not parked: park_s is 0, or slime did not say that it would send it back"


def _apply_mask_of(flags: HostArgs, sample: Any, trajectory: Trajectory) -> bool:
    """Mask the tokens that slime has masked in `sample.loss_mask`. False if the sample has other tokens by now.

    The sample holds the last segment. slime masks all that older weights sampled, so the segments before it, too.
    """
    length, mask = trajectory.response_length, sample.loss_mask
    if sample.tokens[: trajectory.length] != trajectory.tokens or (length and mask and len(mask) != length):
        return False
    if length and mask:
        trajectory.mask_where(mask, "off_policy" if flags.masks_off_policy else "host")
    if flags.masks_off_policy and not any(mask or ()):
        trajectory.mask("off_policy")
    return True
