"""Python imports this module at the start of every process of a rehearsal.

The hooks are installed at the first import of a package with hooks: Ray starts many processes that import none.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

_HOOKED = {"slime", "megatron", "miles", "sglang_router"}


class _Installer(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in _HOOKED:
            sys.meta_path.remove(self)
            from agentrl.rehearse.standins.hooks import install

            install()
        return None


if os.environ.get("AGENTRL_REHEARSAL"):
    sys.meta_path.insert(0, _Installer())
