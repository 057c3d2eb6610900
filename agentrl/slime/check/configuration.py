"""Checks the files, functions and the chat template in agentrl's configuration, and lists the requirements of the
Env."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl._util.findings import Finding, error, note, unchecked, warning
from agentrl.env.config import validated_config
from agentrl.env.env import tools_of
from agentrl.errors import ConfigError, one_line
from agentrl.slime.check.memory import episodes_at_once
from agentrl.slime.check.setup import Setup
from agentrl.slime.config import SlimeConfig

if TYPE_CHECKING:
    from agentrl.render import Certificate


def paths(setup: Setup) -> Iterator[Finding]:
    """Check the files and functions in agentrl's configuration."""
    if setup.config is None:
        return
    setup.config.reward_function()
    nodes = setup.args.actor_num_nodes
    path = (setup.config.env or "").partition(":")[0]
    if nodes and nodes > 1 and path.endswith(".py") and not path.startswith("/"):
        yield note(f"{path} is looked for in the folder that Ray runs in; on {nodes} nodes give its whole path")


def template(setup: Setup) -> Iterator[Finding]:
    """Check whether conversations in the model's chat template can be continued token by token."""
    if setup.config is None:
        return
    if setup.model_folder is None:
        yield unchecked(
            "the chat template",
            f"{setup.model_path or 'the model'} is not a folder here; agentrl check template MODEL does it",
        )
        return
    from agentrl.models.tokenizer import RemoteCodeError  # transformers takes seconds to import

    try:
        certificate = _certificate(setup, setup.config, setup.model_folder)
    except RemoteCodeError:
        yield unchecked(
            "the chat template", f"{setup.model_folder}: its tokenizer is Python code, which is not run here"
        )
        return
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError) as exc:
        yield error(f"{setup.model_folder}: its tokenizer cannot be loaded: {' '.join(str(exc).split())}")
        return
    if setup.has_tools and not certificate.capabilities.get("tools", True):
        yield warning("the chat template does not show tools to the model: describe them in a system message")
    yield note(f"the chat template is {certificate.level}: {len(certificate.proved)} cases proved")


def _certificate(setup: Setup, config: SlimeConfig, folder: Path) -> Certificate:
    """The result of the checks of the chat template. The Env's own messages are checked, too."""
    from agentrl.models.tokenizer import load_tokenizer
    from agentrl.render import PROBE_TOOL, load_renderer

    renderer = load_renderer(
        load_tokenizer(str(folder), chat_template=config.template_text()),
        chat_template_kwargs=config.template_kwargs(setup.args),
    )
    renderer = config.options().renderer(renderer)
    if setup.env is not None:
        setup.env._agentrl_prove(renderer)
        if setup.has_tools and not tools_of(setup.env):
            renderer.bind([PROBE_TOOL])
    return renderer.certificate


def needs(setup: Setup) -> Iterator[Finding]:
    """Findings about the requirements of the Env on the node where slime plays its episodes."""
    if setup.env is None or setup.config is None:
        return
    name = setup.env.__name__
    config = validated_config(setup.env, setup.config.env_config_of(setup.config.env or ""))
    try:
        lines = list(setup.env.needs(config, episodes_at_once(setup) or 1))
    except Exception as exc:  # noqa: BLE001 - the boundary of a hook
        yield error(f"{name}.needs failed: {one_line(exc)}")
        return
    for line in lines:
        yield note(f"{name} needs, on the node of slime's RolloutManager: {line}")
