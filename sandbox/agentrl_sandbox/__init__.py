"""Back ends of `agentrl.sandbox.Sandbox`.

`open_backend` opens a back end by name. The back ends docker and bubblewrap are for code from a model. LocalSandbox
runs trusted code as a plain subprocess. FakeSandbox is for tests: it runs no programs, and replies from a script.
SandboxPool keeps sandboxes ready.
"""

from agentrl_sandbox.backend import Backend, FoundSandbox, open_backend
from agentrl_sandbox.fake.sandbox import ExecCall, FakeSandbox, Script
from agentrl_sandbox.local.sandbox import LocalSandbox
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

__all__ = [
    "Backend",
    "ExecCall",
    "FakeSandbox",
    "FoundSandbox",
    "LocalSandbox",
    "SandboxPool",
    "SandboxSpec",
    "Script",
    "open_backend",
]
