"""Stands in for torch_memory_saver, which moves a sleeping trainer's memory off the GPU. Here nothing moves.

slime/backends/megatron_utils/actor.py calls `pause`, `resume` and `disable`. slime/ray/actor_group.py preloads a
library that lies beside the package, into each Megatron actor. So `__file__` names a folder of the rehearsal, which has
a link to the C library under that name: the C library is in every process anyway.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_LIBRARY = "torch_memory_saver_hook_mode_preload.abi3.so"


def _place() -> str:
    folder = Path(os.environ["AGENTRL_REHEARSAL"], "preload")
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / _LIBRARY).symlink_to(_c_library())
    return str(folder / "torch_memory_saver" / "__init__.py")


def _c_library() -> str:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        file = line.rpartition(" ")[2]
        if Path(file).name.startswith(("libc.so", "libc-", "ld-musl")):
            return file
    raise OSError("no C library in /proc/self/maps")


class _Saver:
    _impl: Any = None

    def pause(self, *tags: Any, **options: Any) -> None:
        pass

    def resume(self, *tags: Any, **options: Any) -> None:
        pass

    @contextmanager
    def disable(self) -> Iterator[None]:
        yield

    @contextmanager
    def region(self, *tags: Any, **options: Any) -> Iterator[None]:
        yield

    def get_cpu_backup(self, tensor: Any, zero_copy: bool = False) -> None:
        """No tensor is moved, so no tensor has a copy."""


torch_memory_saver = _Saver()
if os.environ.get("AGENTRL_REHEARSAL"):
    __file__ = _place()
