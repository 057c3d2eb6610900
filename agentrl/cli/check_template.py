"""`agentrl check template MODEL`: whether a chat template can be continued exactly, and what it can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl._util.config_errors import check_file
from agentrl._util.findings import Finding, Level, Report, note
from agentrl.errors import ConfigError, TemplateError

if TYPE_CHECKING:
    from agentrl.render.base import Certificate


def check_template(words: Sequence[str], options: Mapping[str, Any]) -> Report:
    """Prove that the template can be continued token for token, and that its output can be parsed.

    `words` are the model and, optionally, a Jinja file that replaces the model's template. Raises ConfigError.
    """
    if len(words) not in (1, 2):
        raise ConfigError("check template: name a model, as in `agentrl check template Qwen/Qwen3-4B [FILE.jinja]`")
    source, tokenizer = _source(Path(words[1]) if words[1:] else None), _tokenizer(words[0])
    try:
        certificate, refused, lost = _certificate(tokenizer, source)
    except TemplateError as exc:
        return Report([Finding(Level.ERROR, str(exc), check="template")], figures={"level": "refused"})
    findings = [Finding(Level.WARNING, f"no tools: {refused}", check="tools")] if refused else []
    findings += [note(f"no AgentEnv: {lost}")] if lost else []
    figures = {**asdict(certificate), "tools_refused": refused, "agents_refused": lost}
    return Report(findings, {"template": _line(certificate)}, figures)


def _line(certificate: Certificate) -> str:
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
        check_file(Path(str(template)), "name a Jinja file", named_by="template")
        raise ConfigError(f"{template}: {exc}; name a Jinja file that can be read") from exc


def _certificate(tokenizer: Any, source: str | None) -> tuple[Certificate, str, str]:
    """The template's certificate; why the template takes no tools, or an empty text; why the template cannot serve
    external agents, or an empty text."""
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
