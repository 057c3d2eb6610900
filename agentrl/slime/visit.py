"""A sample that slime aborts comes back: what each visit finds of the one before, and leaves for the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.env import close_env
from agentrl.errors import ResumeError
from agentrl.parking import Parked, Parking
from agentrl.slime.host import HostArgs
from agentrl.slime.sample import METADATA_KEY
from agentrl.slime.task import metadata_of
from agentrl.trajectory import Trajectory
from agentrl.types import JSON, StopReason


@dataclass(slots=True)
class Visit:
    """One call of `adapt` for one sample."""

    parking: Parking
    park_s: float
    resumes: int = 0
    """How often the episode went on where it had stopped."""
    restarts: int = 0
    """How often it began anew though something of it had been played."""
    restart_reason: str = ""
    """Of the last restart."""
    ticket: Mapping[str, JSON] | None = None

    async def take(self, flags: HostArgs, sample: Any) -> Parked | None:
        """The episode that the sample's ticket stands for, its mask as slime left it; None if it is to start anew.

        Whoever gets a parked Env here is to close it: go on without another await.
        """
        earlier = metadata_of(sample).get(METADATA_KEY)
        if not isinstance(earlier, Mapping):
            return None
        self.resumes, self.restarts = earlier.get("resumes", 0), earlier.get("restarts", 0)
        self.restart_reason = earlier.get("restart_reason", "")
        ticket = earlier.get("resume")
        if not isinstance(ticket, Mapping):
            if reason := _why_no_ticket(earlier):
                self.restarted(reason)
            return None
        try:
            parked = await self.parking.take(ticket)
        except ResumeError as exc:
            self.restarted(str(exc))
            return None
        if _keep_zeros(flags, sample, parked.episode.trajectory):
            self.resumes += 1
            return parked
        if parked.env is not None:
            await close_env(parked.env)
        self.restarted("its tokens are not those that were parked")
        return None

    def cannot_resume(self, reason: str) -> None:
        """What was taken turned out to be of no use."""
        self.resumes -= 1
        self.restarted(reason)

    def restarted(self, reason: str) -> None:
        self.restarts, self.restart_reason = self.restarts + 1, reason

    async def park(self, parked: Parked) -> None:
        self.ticket = await self.parking.park(parked, self.park_s)

    def account(self) -> dict[str, JSON]:
        """What metadata["agentrl"] says of it; nothing of an episode that was played in one go."""
        said = {
            "resume": self.ticket,
            "resumes": self.resumes,
            "restarts": self.restarts,
            "restart_reason": self.restart_reason,
        }
        return {name: value for name, value in said.items() if value}


def _why_no_ticket(earlier: Mapping[str, JSON]) -> str:
    """Why nothing was parked; "" if there was nothing to park."""
    if failure := earlier.get("failure"):
        return f"it failed in {failure['boundary']}: {failure['error']}"
    if problem := earlier.get("info", {}).get("not_parked"):
        return f"it was not parked: {problem}"
    nothing = earlier.get("stop") == StopReason.ABORTED and not earlier.get("turns")
    return "" if nothing else "it was not parked: park_s is 0, or slime did not say that it would send it back"


def _keep_zeros(flags: HostArgs, sample: Any, trajectory: Trajectory) -> bool:
    """Mask what slime has masked, by zeros in `sample.loss_mask`; False if the sample has other tokens by now."""
    length, mask = trajectory.response_length, sample.loss_mask
    if sample.tokens[: trajectory.length] != trajectory.tokens or (length and mask and len(mask) != length):
        return False
    if length and mask:
        trajectory.mask_where(mask, "off_policy" if flags.masks_off_policy else "host")
    return True
