"""Events around slime's and miles' own functions, in whatever process these run.

Ray pickles a decorated class such as RolloutManager with its methods, wrapped ones included. A wrapper refers to this
package by name only, so a worker that unpickles a wrapper writes the events of its own process.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn
from unittest import mock

from agentrl.rehearse.standins import events
from agentrl.rehearse.standins.imports import after

Function = Callable[..., Any]
Wrapper = Callable[[Function], Function]
Rollout = Callable[[tuple[Any, ...], Mapping[str, Any]], int | None]
"""Reads the number of slime's rollout from the arguments of a function."""


def _no_rollout(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """For stages that belong to no rollout."""


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """slime's `rollout_id`, the first argument of a method."""
    rollout: int | None = kwargs.get("rollout_id", args[1] if len(args) > 1 else None)
    return rollout


def _of_manager(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """slime's `rollout_id`, which a RolloutManager keeps."""
    return getattr(args[0], "rollout_id", None)


def within(context: Callable[[int | None], AbstractContextManager[None]], rollout: Rollout = _no_rollout) -> Wrapper:
    """A decorator that runs a function, or a coroutine to its end, within a context."""

    def decorate(function: Function) -> Function:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with context(rollout(args, kwargs)):
                    return await function(*args, **kwargs)

            return awaited

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with context(rollout(args, kwargs)):
                return function(*args, **kwargs)

        return wrapped

    return decorate


def during(name: str, rollout: Rollout = _no_rollout) -> Wrapper:
    """A decorator that logs a stage from the function's call to its return."""
    return within(functools.partial(events.stage, name), rollout)


def errors_of(name: str) -> Wrapper:
    """A decorator that logs only an error of the function, under a stage."""
    return within(functools.partial(events.only_errors, name))


def logging_arguments(parse_args: Function) -> Function:
    """A decorator for `parse_args`. argparse would end the process with the number 2 and no reason."""

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

    return wrapped


def joining_ray(create_placement_groups: Function) -> Function:
    """A decorator that joins the cluster first, as the first use of Ray would do within the function."""

    @functools.wraps(create_placement_groups)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        import ray

        with events.stage("ray"):
            if not ray.is_initialized():
                ray.init()
        with events.stage("placement"):
            return create_placement_groups(*args, **kwargs)

    return wrapped


def logging_metrics(log: Function) -> Function:
    """A decorator for slime's `log`, which gets all metrics, whether or not a tracker is configured."""

    @functools.wraps(log)
    def wrapped(args: Any, metrics: Mapping[str, Any], step_key: str = "", **options: Any) -> Any:
        events.log(stage_of(step_key), "data", step=metrics.get(step_key), metrics=metrics)
        return log(args, metrics, step_key, **options)

    return wrapped


def stage_of(step_key: str) -> str:
    """The stage that logs under a key of slime: train/step, rollout/step or eval/step."""
    return {"train": "training", "eval": "evaluation"}.get(step_key.partition("/")[0], "rollout")


def logging_samples(split: Function) -> Function:
    """A decorator for the function that splits the training data of all samples. The samples are logged."""

    @functools.wraps(split)
    def wrapped(manager: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        rollout = _of_manager((manager,), {})
        with events.stage("conversion", rollout):
            events.log_samples(rollout, data)
            return split(manager, data, *args, **kwargs)

    return wrapped


_ACTOR: Mapping[str, Wrapper] = {
    "MegatronTrainRayActor.init": during("actors"),
    "MegatronTrainRayActor.train": during("training", _argument),
    "MegatronTrainRayActor.save_model": during("checkpoint", _argument),
    "MegatronTrainRayActor.update_weights": during("weights"),
}
HOOKS: Mapping[str, Mapping[str, Wrapper]] = {
    "slime.utils.arguments": {"parse_args": logging_arguments},
    "slime.ray.placement_group": {"create_placement_groups": joining_ray},
    # slime and miles see only that the process of the router ended
    "sglang_router.launch_router": {"launch_router": errors_of("router")},
    "slime.ray.rollout": {
        "_start_router": during("router"),
        "RolloutManager._get_rollout_data": during("rollout", _argument),
        "RolloutManager._convert_samples_to_train_data": during("conversion", _of_manager),
        "RolloutManager._split_train_data_by_dp": logging_samples,
        "RolloutManager.generate": errors_of("rollout"),
        "RolloutManager.save": errors_of("checkpoint"),
        "RolloutManager.eval": during("evaluation", _argument),
    },
    "slime.backends.sglang_utils.sglang_engine": {"SGLangEngine.init": during("engines")},
    "slime.backends.megatron_utils.actor": _ACTOR,
    "slime.observability.logging_utils": {"log": logging_metrics},
    "miles.utils.arguments": {"parse_args": logging_arguments},
    "miles.ray.placement_group": {"create_placement_groups": joining_ray},
    "miles.ray.rollout.router_manager": {"start_router": during("router")},
    "miles.ray.rollout.train_data_conversion": {
        "convert_samples_to_train_data": during("conversion"),
        "split_train_data_by_dp": logging_samples,
    },
    "miles.ray.rollout.rollout_manager": {
        "RolloutManager._get_rollout_data": during("rollout", _argument),
        "RolloutManager.generate": errors_of("rollout"),
        "RolloutManager.save": errors_of("checkpoint"),
        "RolloutManager.eval": during("evaluation", _argument),
    },
    "miles.backends.sglang_utils.sglang_engine": {"SGLangEngine.init": during("engines")},
    "miles.backends.megatron_utils.actor": _ACTOR,
    "miles.utils.tracking_utils.tracking": {"log": logging_metrics},
}
"""Module -> function or method -> its wrapper."""


def apply(module: Any, wrappers: Mapping[str, Wrapper]) -> None:
    """Wrap functions of a module. A version of the module without a function keeps its other hooks."""
    for path, wrapper in wrappers.items():
        owner, _, name = path.rpartition(".")
        holder = plain_class(getattr(module, owner, None)) if owner else module
        if callable(function := getattr(holder, name, None)):
            setattr(holder, name, wrapper(function))


def plain_class(actor: Any) -> Any:
    """The class behind a class that `@ray.remote` decorates, or the class itself."""
    metadata = getattr(actor, "__ray_metadata__", None)
    return actor if metadata is None else metadata.modified_class


for _name, _wrappers in HOOKS.items():
    after(_name)(functools.partial(apply, wrappers=_wrappers))
