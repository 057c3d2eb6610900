"""The subcommands of `agentrl`: those of the core, and those of installed packages, which are the entry points
`agentrl.commands`.

    [project.entry-points."agentrl.commands"]
    weather = "weather.cli:weather"

After that, `agentrl weather` calls the function, or the Typer, wherever the package is installed. The name
`slime.weather` makes it a command of the group `slime`: `agentrl slime weather`. A command's module is imported when
the command runs, or when its help is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

GROUP = "agentrl.commands"
CORE = {
    "data": "agentrl.cli.data:data",
    "envs": "agentrl.cli.envs:envs",
    "eval": "agentrl.cli.evaluate:evaluate",
    "merge": "agentrl.cli.merge:merge",
    "play": "agentrl.cli.play:play",
    "serve": "agentrl.cli.serve:serve",
    "slime": "agentrl.cli.slime:slime",
}
"""Name -> path of a subcommand that the core has itself. All other subcommands are entry points of packages, so that
the core works without these packages."""


class Commands(Mapping[str, Any]):
    """Name -> command of typer, imported when it is asked for."""

    def __init__(self, prefix: str = "") -> None:
        """With the prefix `slime.`: the commands that packages add to the group `slime`."""
        self._prefix = prefix
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            full_name = self._prefix + name
            command = _imported(full_name, self._paths[name])
            self._imported[name] = None if command is None else _built(full_name, command)
        if self._imported[name] is None:
            raise KeyError(name)
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def importable(self) -> dict[str, Any]:
        """The commands that can be imported."""
        return {name: command for name in self if (command := self.get(name)) is not None}

    @cached_property
    def _paths(self) -> dict[str, str]:
        from importlib.metadata import entry_points

        paths = {**{point.name: point.value for point in entry_points(group=GROUP)}, **CORE}
        names = {name.removeprefix(self._prefix): name for name in paths if name.startswith(self._prefix)}
        return {name: paths[names[name]] for name in sorted(names) if "." not in name}


class CommandGroup(TyperGroup):
    """A group of typer whose commands are imported when they are asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands.importable())


def _imported(name: str, path: str) -> Any:
    """The command at a path. None, with a warning on stderr, if its import fails; None without a warning if the module
    does not exist: its package was removed."""
    from importlib.util import find_spec

    from agentrl._util.loading import load_object
    from agentrl.errors import ConfigError

    try:
        return load_object(path) if find_spec(path.partition(":")[0]) is not None else None
    except ModuleNotFoundError:  # of a parent package
        return None
    except ConfigError as exc:
        typer.echo(f"warning: no command {name}: {exc}", err=True)
        return None


def _built(full_name: str, command: Any) -> Any:
    """The command of typer for a function, or for a Typer with its own subcommands and those of other packages."""
    app, name = typer.Typer(), full_name.rpartition(".")[2]
    if not isinstance(command, typer.Typer):
        app.command(name)(command)
        return get_group(app).commands[name]
    app.add_typer(command, name=name)
    group: Any = get_group(app).commands[name]
    group.commands.update(Commands(f"{full_name}.").importable())
    return group
