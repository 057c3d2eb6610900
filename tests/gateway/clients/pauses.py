"""Pauses."""

from __future__ import annotations

import os

from tests.gateway.clients.installed import ALL

PAUSE_S = float(os.environ.get("AGENTRL_PAUSE_S") or (60 if ALL else 5))
"""Seconds of a pause in the middle of a session."""
