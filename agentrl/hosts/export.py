"""The scripts of `agentrl export`: short programs that a host's trainer runs with an Env."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from agentrl.errors import ConfigError, did_you_mean
from agentrl.hosts.turned import HostedEnv

_TRL = '''"""{name} in TRL's GRPOTrainer: pip install trl=={version}, then python {file}"""

from trl import GRPOConfig, GRPOTrainer

from agentrl.hosts.trl import TRLRollouts

MODEL = {model}

if __name__ == "__main__":
    rollouts = TRLRollouts({settings})
    trainer = GRPOTrainer(
        MODEL,
        reward_funcs=rollouts.reward,
        rollout_func=rollouts,
        train_dataset=rollouts.dataset(),
        args=GRPOConfig(
            output_dir="runs/trl",
            max_steps=100,
            num_generations=8,
            per_device_train_batch_size=8,
            max_completion_length=1024,  # of an episode: all turns and all that the Env answers
            logging_steps=1,
        ),
    )
    trainer.train()
    trainer.save_model()
'''

_TINKER = '''"""{name} on Tinker: pip install tinker-cookbook=={version}, then python {file}

The key is read from TINKER_API_KEY. For a server of your own, such as SkyRL's, set base_url below.
"""

import asyncio

from tinker_cookbook.rl import train
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure

from agentrl.hosts.tinker import TinkerRollouts

MODEL = {model}

if __name__ == "__main__":
    rollouts = TinkerRollouts({settings}, model=MODEL, batch_size=16, group_size=8)
    config = train.Config(
        model_name=MODEL,
        recipe_name="{name}",
        dataset_builder=rollouts,
        rollout_error_tolerance=RetryOnFailure(max_retries=3),  # for episodes whose environment fails
        learning_rate=4e-5,
        max_tokens=1024,  # of a turn
        log_path="runs/tinker",
        base_url=None,
    )
    asyncio.run(train.main(config))
'''

_VERIFIERS = '''"""{name} in verifiers: pip install verifiers=={version}, then in this folder

    vf-eval {module} --env.agent.harness.id {module} --env.agent.runtime.type subprocess -m {model}
"""

from agentrl.hosts.verifiers import environment

Taskset, Harness = environment({settings})
__all__ = ["Harness", "Taskset"]
'''

_OPENENV = '''"""{name} as a server of OpenEnv: pip install openenv=={version}, then uvicorn {module}:app --port 8000"""

from agentrl.hosts.openenv import create_app

app = create_app({settings})
'''


_VERL = '''"""{name} in verl {version}: a file loops.yaml in this folder, and two flags of verl

    - name: agentrl
      _target_: {module}.AgentRLLoop

    actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml
    actor_rollout_ref.model.path={model}

The rows of verl's data need the columns agent_name ("agentrl") and task_id: python {file} prints the ids.
"""

from agentrl.hosts.turned import HostedEnv
from agentrl.hosts.verl import agent_loop

if __name__ == "__main__":
    print("\\n".join(task.id for task in HostedEnv({settings}).tasks()))
else:
    AgentRLLoop = agent_loop({settings})
'''


@dataclass(frozen=True, slots=True)
class HostScript:
    """The script of a host."""

    file: str
    """The usual name of the file."""
    text: str
    """The program, with fields in braces: name, version, file, module, model and settings."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits that the door requires."""


SCRIPTS: Mapping[str, HostScript] = {
    "trl": HostScript("train_trl.py", _TRL),
    "tinker": HostScript("train_tinker.py", _TINKER, {"context": 32768}),
    "verifiers": HostScript("env_vf.py", _VERIFIERS),
    "openenv": HostScript("serve_openenv.py", _OPENENV),
    "verl": HostScript("verl_loop.py", _VERL),
}


def script(env: str, host: str, *, model: str, file: str, settings: Mapping[str, Any]) -> str:
    """A program that trains a model on an Env in a host. `settings` are keys of `DoorConfig`.

    Raises ConfigError for an unknown host, and for an Env or settings that no door takes.
    """
    if host not in SCRIPTS:
        raise ConfigError(f"there is no door to {host}{did_you_mean(host, SCRIPTS, '; the doors are {}')}")
    template = SCRIPTS[host]
    limits = {**template.limits, **settings.get("limits", {})}
    settings = {**settings, "limits": limits} if limits else settings
    hosted = HostedEnv(env, **settings)
    hosted.tasks()  # also refuses an Env without tasks
    written = ", ".join([_literal(env), *(f"{key}={_literal(value)}" for key, value in settings.items())])
    version = import_module(f"agentrl.hosts.{host}").VERSION
    name = hosted.factory().cls.__name__
    module = file.removesuffix(".py")
    model = _literal(model)
    return template.text.format(name=name, version=version, file=file, module=module, model=model, settings=written)


def _literal(value: Any) -> str:
    """A value as Python code, with double quotes around text."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
