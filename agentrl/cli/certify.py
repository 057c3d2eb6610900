"""`agentrl certify`: check that a model's chat template can be continued exactly, and list what it can carry."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl._util.config_errors import check_file
from agentrl.cli._errors import one_line_errors
from agentrl.errors import ConfigError, TemplateError

if TYPE_CHECKING:
    from agentrl.render.base import Certificate

REFUSED, NO_TOOLS = 1, 3
"""Exit codes; 2 is a wrong command. exact and keeps-history are 0."""


def certify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face folder, a Hub name, or tiny.")],
    template: Annotated[Path | None, typer.Option(help="A Jinja file instead of the model's own template.")] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Require tools: exit with 3 if the template cannot offer any.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as one JSON object.")] = False,
) -> None:
    """Prove that the chat template can be continued token for token, and that its output can be parsed.

    Exit 1, and show the case, if the template cannot be used at all. Exit 3 if --tools is given and it works only
    without tools.
    """
    with one_line_errors():
        source, tokenizer = _source(template), _tokenizer(model)
        try:
            certificate, refused, lost = _certificate(tokenizer, source)
        except TemplateError as exc:
            typer.echo(json.dumps({"level": "refused", "reason": str(exc)}) if as_json else f"refused: {exc}")
            raise typer.Exit(REFUSED) from exc
        findings = {**dataclasses.asdict(certificate), "tools_refused": refused, "agents_refused": lost}
        typer.echo(json.dumps(findings) if as_json else _line(certificate, refused, lost))
        if tools and refused:
            raise typer.Exit(NO_TOOLS)


def _line(certificate: Certificate, refused: str, lost: str) -> str:
    carried = [name for name, carries in certificate.capabilities.items() if carries]
    lacking = [name for name, carries in certificate.capabilities.items() if not carries]
    parts = [
        f"{certificate.level}: {len(certificate.proved)} cases proved",
        f"{len(certificate.departures)} departures (--json lists them)" if certificate.departures else "",
        f"carries {', '.join(carried) or 'plain answers only'}",
        f"not {', '.join(lacking)}" if lacking else "",
        f"depends on {', '.join(certificate.depends)}" if certificate.depends else "",
        f"matches results by {certificate.results}" if certificate.results else "",
        *(f"bridges to a {role} rendered ({how[8:]})" for role, how in certificate.bridges.items() if how != "memo"),
        f"{certificate.milliseconds:.0f} ms",
        f"no tools: {refused}" if refused else "",
        f"no AgentEnv: {lost}" if lost else "",
    ]
    return "; ".join(filter(None, parts))


def _tokenizer(model: str) -> Any:
    from agentrl.cli.models import weights_of
    from agentrl.models import NAMES, load_tokenizer

    weights = weights_of(model)
    folder = Path(weights)
    if model in NAMES or not folder.is_dir() or (folder / "config.json").is_file():
        return load_tokenizer(weights)
    from transformers import AutoTokenizer  # a folder may hold a tokenizer and no model

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{folder} holds no tokenizer: {exc}") from exc


def _source(template: Path | None) -> str | None:
    try:
        return template.read_text(encoding="utf-8") if template is not None else None
    except (OSError, UnicodeDecodeError) as exc:
        check_file(Path(str(template)), "name a Jinja file", named_by="--template")
        raise ConfigError(f"--template {template}: {exc}; name a Jinja file that can be read") from exc


def _certificate(tokenizer: Any, source: str | None) -> tuple[Certificate, str, str]:
    """The certificate; why no tools can be offered; why no external agents can be served. Empty if they can."""
    from agentrl.chat.tokens.writer import prove_for_agents
    from agentrl.render import PROBE_TOOL, load_renderer

    renderer, refused, lost = load_renderer(tokenizer, chat_template=source), "", ""
    try:
        renderer.bind([PROBE_TOOL])
    except TemplateError as exc:
        refused = str(exc)
    try:
        prove_for_agents(renderer)
    except TemplateError as exc:
        lost = str(exc)
    return renderer.certificate, refused, lost
