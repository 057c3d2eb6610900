"""A launch configuration: a script, a file of flags, the flags themselves, or the YAML file alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.slime.check.bash import TRAIN_PROGRAMS, Shell, TrainCommand
from agentrl.slime.check.finding import Finding, error, note, warning
from agentrl.slime.check.flags import Flags
from agentrl.slime.check.scanner import Scanner, read_text
from agentrl.slime.check.words import Word


@dataclass(frozen=True, slots=True)
class LaunchFile:
    place: str
    """Where the flags stand, for messages."""
    flags: Flags
    program: str = TRAIN_PROGRAMS[0]
    yaml_only: bool = False
    findings: list[Finding] = field(default_factory=list)
    """What could not be read."""


def read_words(words: Sequence[str]) -> LaunchFile:
    """Flags as the shell has already expanded them; a `python train.py` before them is left out."""
    programs = [i for i, word in enumerate(words) if Path(word).name in TRAIN_PROGRAMS]
    start = programs[0] + 1 if programs else 0
    program = Path(words[programs[0]]).name if programs else TRAIN_PROGRAMS[0]
    return LaunchFile("the command line", Flags([Word(word) for word in words[start:]]), program)


def read_file(file: Path) -> LaunchFile:
    """Raises ConfigError for a file that holds no launch configuration."""
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name the launch script in it")
    if file.suffix in (".yaml", ".yml"):
        flags = Flags([Word("--custom-config-path"), Word(str(file))])
        return LaunchFile(str(file), flags, yaml_only=True)
    text = read_text(file)
    if not text.strip():
        raise ConfigError(f"{file} is empty; give a launch script, or a file of flags")
    shell = Shell(os.environ)
    try:
        shell.read(file)
    except RecursionError as exc:
        raise ConfigError(f"{file}: quotes or brackets are nested too deeply; is it a launch script?") from exc
    if shell.commands:
        return _script(file, shell)
    commands = list(Scanner(text, str(file)).commands())
    if commands and str(commands[0].words[0]).startswith("--"):
        raw = (word for command in commands for word in command.words if isinstance(word, str))
        return LaunchFile(str(file), Flags(shell.expand(raw)))
    raise ConfigError(
        f"{file}: no command in it runs {' or '.join(TRAIN_PROGRAMS)}, and it does not begin with a flag; "
        "give the script that starts slime, or the flags themselves: agentrl slime check -- --flag value ..."
    )


def _script(file: Path, shell: Shell) -> LaunchFile:
    *others, command = shell.commands
    flags = Flags(command.words)
    return LaunchFile(command.place, flags, command.program, findings=_gaps(shell, flags, others, command))


def _gaps(shell: Shell, flags: Flags, others: Sequence[TrainCommand], command: TrainCommand) -> list[Finding]:
    gaps: list[Finding] = []
    if others:
        places = ", ".join(other.place for other in others)
        gaps.append(note(f"several commands run train.py ({places}); the one at {command.place} was checked"))
    gaps += [error(f"{place}: these flags reach no command; end the line before with \\") for place in shell.lost]
    for path, place in shell.unread.items():
        gaps.append(
            note(f"{place}: {path} is not here, so its flags were not read; check from the folder you launch in")
        )
    if shell.missing and not shell.unread:
        gaps.append(
            warning(f"arrays that nothing sets: {', '.join(sorted(shell.missing))}; bash expands them to nothing")
        )
    for cause, names in flags.unknown().items():
        gaps.append(
            note(
                f"{cause} is not set here, so {', '.join(sorted(set(names)))} was not checked; set it as for the script"
            )
        )
    if doubtful := flags.doubtful():
        gaps.append(note(f"set under a condition, the last value was taken: {', '.join(doubtful)}"))
    return gaps
