"""Events around slime's own functions, in whatever process slime runs them.

Ray pickles a decorated class such as RolloutManager with its methods, wrapped ones included. A wrapper refers to this
package by name only, so a worker that unpickles a wrapper writes the events of its own process.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from unittest import mock

from agentrl.rehearse.standins import events
from agentrl.rehearse.standins.imports import after

HOSTS = ("slime", "miles")


def modules(name: str) -> list[str]:
    """A module's name in slime and in miles."""
    return [f"{host}.{name}" for host in HOSTS]


@after(*modules("utils.arguments"))
def arguments(module: Any) -> None:
    """`parse_args` of slime/utils/arguments.py; the arguments are logged. argparse would end the process with the
    number 2 and no reason."""
    parse_args = module.parse_args

    @functools.wraps(parse_args)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        error = argparse.ArgumentParser.error

        def logged(parser: argparse.ArgumentParser, message: str) -> NoReturn:
            events.log("arguments", "error", error=ValueError(message))
            error(parser, message)

        with events.stage("arguments"), mock.patch.object(argparse.ArgumentParser, "error", logged):
            parsed = parse_args(*args, **kwargs)
        events.log("arguments", "data", args=vars(parsed))
        return parsed

    module.parse_args = wrapped


@after(*modules("ray.placement_group"))
def placement(module: Any) -> None:
    """`create_placement_groups` of slime/ray/placement_group.py. The first use of Ray would join the cluster there."""
    create = module.create_placement_groups

    @functools.wraps(create)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        import ray

        with events.stage("ray"):
            if not ray.is_initialized():
                ray.init()
        with events.stage("placement"):
            return create(*args, **kwargs)

    module.create_placement_groups = wrapped


@after(*modules("utils.http_utils"))
def router_process(module: Any) -> None:
    """`run_router` of slime/utils/http_utils.py, the router's process, of which slime sees only the end."""
    _wrap(module, "run_router", errors_of("router"))


@after(*modules("ray.rollout"))
def rollout_manager(module: Any) -> None:
    """The router's start and the methods of RolloutManager, in slime/ray/rollout.py."""
    _wrap(module, "_start_router", during("router"))
    manager = plain_class(module.RolloutManager)
    _wrap(manager, "_get_rollout_data", during("rollout", rollout_of_keyword))
    _wrap(manager, "_convert_samples_to_train_data", during("conversion", rollout_of_manager))
    _wrap(manager, "_split_train_data_by_dp", logging_samples)
    _wrap(manager, "generate", errors_of("rollout"))
    _wrap(manager, "eval", during("evaluation", rollout_of_keyword))


@after(*modules("backends.sglang_utils.sglang_engine"))
def engine(module: Any) -> None:
    """`SGLangEngine.init` of slime/backends/sglang_utils/sglang_engine.py, which waits for the server."""
    _wrap(module.SGLangEngine, "init", during("engines"))


@after(*modules("backends.megatron_utils.actor"))
def training_actor(module: Any) -> None:
    """The methods of MegatronTrainRayActor in slime/backends/megatron_utils/actor.py."""
    actor = module.MegatronTrainRayActor
    _wrap(actor, "init", during("actors"))
    _wrap(actor, "train", during("training", rollout_of_keyword))
    _wrap(actor, "save_model", during("checkpoint", rollout_of_keyword))
    _wrap(actor, "update_weights", during("weights"))


@after("slime.observability.logging_utils", "slime.utils.logging_utils", "miles.utils.tracking_utils")
def metrics(module: Any) -> None:
    """`log` of slime/observability/logging_utils.py, which gets all metrics, whether or not a tracker is configured."""
    if not hasattr(module, "log"):
        return
    log = module.log

    @functools.wraps(log)
    def wrapped(args: Any, metrics: Mapping[str, Any], step_key: str = "", **options: Any) -> Any:
        events.log(stage_of(step_key), "data", step=metrics.get(step_key), metrics=metrics)
        return log(args, metrics, step_key, **options)

    module.log = wrapped


def stage_of(step_key: str) -> str:
    """The stage that logs under a key of slime: train/step, rollout/step or eval/step."""
    return {"train": "training", "eval": "evaluation"}.get(step_key.partition("/")[0], "rollout")


def plain_class(actor: Any) -> Any:
    """The class behind a class that `@ray.remote` decorates, or the class itself."""
    metadata = getattr(actor, "__ray_metadata__", None)
    return actor if metadata is None else metadata.modified_class


def rollout_of_keyword(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """slime's `rollout_id`, the first argument of a method."""
    rollout: int | None = kwargs.get("rollout_id", args[1] if len(args) > 1 else None)
    return rollout


def rollout_of_manager(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """slime's `rollout_id`, which a RolloutManager keeps."""
    return getattr(args[0], "rollout_id", None)


def no_rollout(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """For stages that belong to no rollout."""


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def during(name: str, rollout: Callable[[tuple[Any, ...], Mapping[str, Any]], int | None] = no_rollout) -> Wrapper:
    """A decorator that logs a stage from the function's call to its return."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with events.stage(name, rollout(args, kwargs)):
                return function(*args, **kwargs)

        return wrapped

    return decorate


def errors_of(name: str) -> Wrapper:
    """A decorator that logs only an error of the function, under a stage."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with events.only_errors(name):
                return function(*args, **kwargs)

        return wrapped

    return decorate


def logging_samples(split: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for `_split_train_data_by_dp`, which gets the training data of all samples, and logs the samples."""

    @functools.wraps(split)
    def wrapped(manager: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        rollout = rollout_of_manager((manager,), {})
        with events.stage("conversion", rollout):
            events.log_samples(rollout, data)
            return split(manager, data, *args, **kwargs)

    return wrapped


def _wrap(owner: Any, name: str, wrapper: Wrapper) -> None:
    """Replace a function of a module or a class. A version of slime without the function keeps its other hooks."""
    if callable(function := getattr(owner, name, None)):
        setattr(owner, name, wrapper(function))
