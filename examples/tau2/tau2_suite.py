"""A domain of the installed package tau2, in agentrl's types. Only this file imports the package."""

from __future__ import annotations

import copy
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeAlias

from agentrl.errors import CallError, ConfigError, ToolError, one_line
from agentrl.types import JSON, ToolSpec

DomainName: TypeAlias = Literal["retail", "airline"]
Changes: TypeAlias = Mapping[str, Mapping[str, JSON]]

_PACKAGE = "inspect_evals.tau2"
_KIND = {"retail": "RetailAgentTools", "airline": "AirlineAgentTools"}
_WITHOUT_STATE = ("calculate", "transfer_to_human_agents")
"""Tools that neither read nor change the database."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A task of the suite."""

    id: str
    instruction: str
    """The user's instructions."""
    actions: Sequence[Mapping[str, JSON]]
    """The right calls: name and arguments."""
    facts: Sequence[str]
    """The information that the agent must give to the user."""


@dataclass(slots=True)
class Domain:
    """A domain, loaded once for all episodes."""

    name: DomainName
    policy: str
    guidelines: str
    """Instructions for the simulated user."""
    specs: Sequence[ToolSpec]
    scenarios: Mapping[str, Scenario]
    splits: Mapping[str, Sequence[str]]
    kind: Callable[..., Any]
    database: Any
    stateless: Mapping[str, Callable[..., Any]]
    refusal: type[Exception]
    """The type of errors of the suite's tools that the model reads."""
    _expected: dict[str, Changes] = field(default_factory=dict)

    def world(self) -> World:
        """The original database, with the tools over the database."""
        return World(self)

    def expected(self, scenario: Scenario) -> Changes:
        """The changes of the right actions, as computed by the suite's scorer. A refused action changes no
        row."""
        if scenario.id not in self._expected:
            world = self.world()
            for action in scenario.actions:
                if action["name"] not in _WITHOUT_STATE:
                    world.replay(action["name"], action["arguments"])
            self._expected[scenario.id] = world.changes()
        return self._expected[scenario.id]


class Rows(dict[str, Any]):
    """A table of an episode. A row is copied on first access; rows from `values` and `items` are read-only.

    A copy of a whole database takes a second, and an episode touches some ten rows of thousands.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self.changed: set[str] = set()
        """The rows that may differ from the original rows."""

    def __getitem__(self, key: str) -> Any:
        row = super().__getitem__(key)
        if key not in self.changed:
            row = copy.deepcopy(row)
            self[key] = row
        return row

    def __setitem__(self, key: str, row: Any) -> None:
        super().__setitem__(key, row)
        self.changed.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - `dict.get` does not call __getitem__


class World:
    """An episode's database."""

    def __init__(self, domain: Domain, changes: Changes | None = None) -> None:
        from inspect_ai.util import Store

        self._domain, database = domain, domain.database
        self._tables = {name: Rows(getattr(database, name)) for name in type(database).model_fields}
        for name, rows in (changes or {}).items():
            kind = type(next(iter(getattr(database, name).values())))
            for key, row in rows.items():
                self._tables[name][key] = kind.model_validate(row)
        self.tools = domain.kind(store=Store(), instance=uuid.uuid4().hex)
        self.tools.initialized = True
        self.tools.db = type(database).model_construct(**self._tables)

    def changes(self) -> Changes:
        """The new or changed rows: table -> key -> row. Two worlds are equal if these rows are equal."""
        changed_rows: dict[str, dict[str, JSON]] = {}
        for name, table in self._tables.items():
            original = getattr(self._domain.database, name)
            for key in sorted(table.changed):
                if key not in original or table[key] != original[key]:
                    changed_rows.setdefault(name, {})[key] = table[key].model_dump(mode="json")
        return changed_rows

    async def call(self, name: str, arguments: Mapping[str, JSON]) -> JSON:
        """Call a tool. Raises ToolError if the suite refuses or breaks, CallError for missing or unknown arguments."""
        tool = self._domain.stateless.get(name) or getattr(self.tools, name)
        try:
            inspect.signature(tool).bind(**arguments)
        except TypeError as exc:
            raise CallError(f"{name}: {exc}") from exc
        try:
            result = tool(**arguments)
            return await result if inspect.isawaitable(result) else result
        except self._domain.refusal as exc:
            raise ToolError(str(exc)) from exc
        except Exception as exc:  # tau2's own environment, too, shows the agent whatever its tools raise
            raise ToolError(one_line(exc)) from exc

    def replay(self, name: str, arguments: Mapping[str, JSON]) -> None:
        """Call a tool as the suite's own scorer does."""
        with suppress(self._domain.refusal):
            getattr(self.tools, name)(**arguments)


def load_domain(name: DomainName) -> Domain:
    """Read a domain of the installed suite, in a second or two. Raises ConfigError if the suite is not installed."""
    try:
        from inspect_ai.tool import ToolDef
        from inspect_ai.tool import ToolError as Refusal

        agents, tools = import_module(f"{_PACKAGE}.{name}.agents"), import_module(f"{_PACKAGE}.{name}.tools")
        kind = getattr(import_module(f"{_PACKAGE}.{name}.{_KIND[name]}"), _KIND[name])
        common, suite = import_module(f"{_PACKAGE}.common.tools"), import_module(f"{_PACKAGE}.utils")
    except ImportError as exc:
        raise ConfigError(f"tau2's tasks are not installed ({exc}): pip install inspect-evals==0.26.0") from exc
    from inspect_ai.util import Store

    folder = suite.TAU2_DATA_DIR / "domains" / name
    loaded = kind(store=Store(), instance="database")
    loaded.initialize()
    tool_defs = [ToolDef(make()) for make in getattr(tools, f"all_{name}_tools")]
    scenarios = [_scenario(row) for row in suite.load_file(folder / "tasks.json")]
    return Domain(
        name=name,
        policy=agents.get_domain_policy(),
        guidelines=suite.USER_SIMULATOR_GUIDELINES,
        specs=[_spec(tool) for tool in tool_defs],
        scenarios={scenario.id: scenario for scenario in scenarios},
        splits=suite.load_file(folder / "split_tasks.json"),
        kind=kind,
        database=loaded.db,
        stateless={tool: getattr(common, tool)() for tool in _WITHOUT_STATE},
        refusal=Refusal,
    )


def _scenario(row: Mapping[str, JSON]) -> Scenario:
    task = import_module(f"{_PACKAGE}.data_model.tasks").Task.model_validate(row)
    criteria = task.evaluation_criteria
    actions = [{"name": action.name, "arguments": action.arguments} for action in criteria.actions or []]
    return Scenario(str(task.id), str(task.user_scenario), actions, list(criteria.communicate_info or []))


def _spec(tool: Any) -> ToolSpec:
    parameters = tool.parameters.model_dump(exclude_none=True)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
