"""`agentrl serve`: a model on this machine with the HTTP endpoints of SGLang, or of OpenAI and Anthropic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeAlias

import typer

from agentrl._util.signals import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import PlayConfig
from agentrl.cli.models import OpenModel, check_model, import_slow, open_model
from agentrl.cli.options import Device, DeviceName, EngineName, ModelName
from agentrl.errors import ConfigError

WIRES = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/NAME:generateContent", "/v1/models")
ENDPOINTS = ("/generate", "/health", "/model_info", "/server_info", "/workers", "/v1/loads", "/abort_request")


def serve(
    model: ModelName,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.", min=0, max=65535)] = 30000,
    device: Device = DeviceName.AUTO,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Answer only requests with 'Authorization: Bearer KEY'.",
            envvar="AGENTRL_API_KEY",
            show_envvar=True,
        ),
    ] = None,
    openai: Annotated[
        bool, typer.Option("--openai", help="Serve the APIs of OpenAI and Anthropic instead, for their clients.")
    ] = False,
    engine: EngineName = "local",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="engine_config.KEY=VALUE, limits.context=TOKENS, special_tokens=as_text.",
        ),
    ] = None,
) -> None:
    """Serve a model with SGLang's HTTP protocol, until Ctrl-C.

    With --openai it serves Chat Completions, Responses and Anthropic's
    Messages instead, as an agent meets them in training: each request is
    independent, streamed or not, with tools and reasoning.

    Without a key, everyone who reaches the port may use it: generate, abort,
    change the weights. By default that is this machine's users.
    Web pages are refused, and so are names that are not this machine's.
    With a key, everything but /health needs it. agentrl's client sends the
    key in AGENTRL_API_KEY; slime and SGLang's router send none, so keep
    their ports in a private network. See docs/serve.md.
    """
    with one_line_errors(lambda: "the server has ended"):
        from agentrl.engine.sglang.access import Access  # aiohttp takes 0.2 s to import

        Access(host, api_key)  # refuses wrong options before a model is loaded
        config = PlayConfig.parse(settings or (), with_engine=True)
        if config.special_tokens != "keep" and not openai:
            raise ConfigError("--set special_tokens: SGLang's protocol has tokens, not messages; add --openai")
        check_model(model, engine, config.engine_config)
        import_slow(weights=engine == "local")
        run(_serve(model, host, port, device, engine, config, _openai if openai else _sglang, api_key))


_Serve: TypeAlias = "Callable[[OpenModel, str, str, int, PlayConfig, str | None], Awaitable[None]]"


async def _serve(
    model: str,
    host: str,
    port: int,
    device: DeviceName,
    engine: str,
    config: PlayConfig,
    serve_with: _Serve,
    api_key: str | None,
) -> None:
    async with open_model(model, device, engine, config.engine_config) as opened:
        try:
            await serve_with(opened, model, host, port, config, api_key)
        except OSError as exc:
            raise ConfigError(
                f"cannot listen at {host}:{port}: {exc.strerror}; choose another --host or --port"
            ) from exc


async def _sglang(opened: OpenModel, model: str, host: str, port: int, config: PlayConfig, api_key: str | None) -> None:
    from agentrl.engine.sglang.server import serve as serve_engine

    await serve_engine(
        opened.engine,
        host,
        port,
        model_name=model,
        encode=lambda text: opened.tokenizer.encode(text, add_special_tokens=False),
        decode=opened.renderer.decode,
        api_key=api_key,
        on_ready=lambda url: _ready(model, url, ENDPOINTS),
    )


async def _openai(opened: OpenModel, model: str, host: str, port: int, config: PlayConfig, api_key: str | None) -> None:
    from agentrl._util.signals import stopping
    from agentrl.chat.tokens.writer import prove_for_agents
    from agentrl.gateway.serving.standalone import Standalone, running_server

    prove_for_agents(opened.renderer)
    answering = Standalone(opened.engine, opened.renderer, config.limits, special_tokens=config.special_tokens)
    with stopping() as stop:
        async with running_server(answering, host, port, model_name=model, api_key=api_key) as url:
            _ready(model, url, WIRES)
            await stop.wait()


def _ready(model: str, url: str, endpoints: Sequence[str]) -> None:
    typer.echo(f"{model} at {url}, Ctrl-C ends it: {' '.join(endpoints)}")
