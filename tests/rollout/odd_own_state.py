"""Envs that keep their state where it is shared on purpose: on the class, in the module, in `shared`, in a default."""

from __future__ import annotations

from functools import lru_cache

from pydantic import BaseModel

from agentrl import Env, StepResult

MODULE_LOG: list[str] = []


class Once(Env):
    """Rewards what is said the first time only."""

    async def step(self, action):
        log = self.log()
        log.append(action.content)
        return StepResult(f"{len(log)} said", reward=float(len(log) == 1), done=True)


class OnClass(Once):
    said: list[str] = []  # noqa: RUF012 - the mistake under test

    def log(self):
        return self.said


class OnModule(Once):
    def log(self):
        return MODULE_LOG


class OnDefault(Once):
    def log(self, kept=[]):  # noqa: B006 - the mistake under test
        return kept


@lru_cache
def log_of(task_id):
    return []


class OnCache(Once):
    def log(self):
        return log_of(self.task.id)


def _logging():
    kept = []
    return lambda: kept


LOG_OF_CLOSURE = _logging()


class OnClosure(Once):
    def log(self):
        return LOG_OF_CLOSURE()


class OnShared(Once):
    @classmethod
    def share(cls, config):
        return {"log": []}

    def log(self):
        return self.shared["log"]


class OnDictConfig(Once):
    config: dict[str, object]

    def log(self):
        return self.config["game"]["log"]


class GameConfig(BaseModel):
    log: list[str] = []


class OnModelConfig(Once):
    config: GameConfig

    def log(self):
        return self.config.log


def says_go(task):
    yield "go"
