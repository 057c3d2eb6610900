"""mini-swe-agent, as the command `mini`."""

from __future__ import annotations

from agentrl import Endpoint
from agentrl_envs.agents.coding import CodingAgent
from agentrl_envs.agents.start import PATIENCE_S, Start
from agentrl_envs.agents.versions import CLIENTS


def command(endpoint: Endpoint, instruction: str, *options: str, program: str = "mini") -> Start:
    """The command that runs mini-swe-agent on an instruction. The agent runs bash in the container of the program, and
    stops when the model asks to stop."""
    patience = ["-c", "mini.yaml", "-c", f"model.model_kwargs.timeout={PATIENCE_S}"]
    return Start(
        [program, "-y", "--exit-immediately", *patience, "-m", f"openai/{endpoint.model}", "-t", instruction, *options],
        {
            **endpoint.variables(),
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",  # the price of a model of one's own is not known
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",  # with ten, it would send requests after its session's end
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else each start first looks up prices on the network
        },
    )


class MiniSweAgent(CodingAgent):
    """A coding task, solved by mini-swe-agent. The image has `mini` on its PATH, from the package mini-swe-agent."""

    program = "mini"
    tested = (CLIENTS["mini-swe-agent"].version,)

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        return command(endpoint, instruction, program=self.path)
