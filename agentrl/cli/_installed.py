"""Commands of installed packages: the entry points `agentrl.commands`.

    [project.entry-points."agentrl.commands"]
    weather = "weather.cli:weather"

After that, `agentrl weather` calls the function, or the Typer, wherever the package is installed. The name
`slime.weather` makes it a command of the group `slime`: `agentrl slime weather`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import typer

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError

GROUP = "agentrl.commands"


def installed_commands() -> dict[str, Any]:
    """The commands by name. A command that fails to import is left out, with a warning on stderr.

    A command whose module does not exist is left out without a warning: its package was removed.
    """
    commands = {}
    for point in entry_points(group=GROUP):
        try:
            if find_spec(point.module) is not None:
                commands[point.name] = load_object(point.value)
        except ModuleNotFoundError:  # of a parent package
            continue
        except ConfigError as exc:
            typer.echo(f"warning: no command {point.name}: {exc}", err=True)
    return commands
