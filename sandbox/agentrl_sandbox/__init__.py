"""Back ends of `agentrl.sandbox.Sandbox`.

LocalSandbox runs trusted code as a plain subprocess; FakeSandbox runs nothing and answers from a script, for tests.
"""

from agentrl_sandbox.fake import ExecCall, FakeSandbox, Script
from agentrl_sandbox.local import LocalSandbox

__all__ = ["ExecCall", "FakeSandbox", "LocalSandbox", "Script"]
