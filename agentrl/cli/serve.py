"""`agentrl serve`: a model behind SGLang's HTTP endpoints, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl._interrupts import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.models import import_slow, open_model
from agentrl.cli.options import Device, DeviceName, ModelName
from agentrl.errors import ConfigError

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
) -> None:
    """Serve a model with SGLang's HTTP protocol, until Ctrl-C.

    Without a key, everyone who reaches the port may use it: generate, abort,
    change the weights. By default that is this machine's users.
    Web pages are refused, and so are names that are not this machine's.
    With a key, everything but /health needs it. agentrl's client sends the
    key in AGENTRL_API_KEY; slime and SGLang's router send none, so keep
    their ports in a private network. docs/serve.md says more.
    """
    with one_line_errors(lambda: "the server has ended"):
        from agentrl.engine.sglang.access import Access  # aiohttp takes 0.2 s to import

        Access(host, api_key)  # refuses wrong options before a model is loaded
        import_slow(weights=True)
        run(_serve(model, host, port, device, api_key))


async def _serve(model: str, host: str, port: int, device: DeviceName, api_key: str | None) -> None:
    from agentrl.engine.sglang.server import serve as serve_engine

    async with open_model(model, device) as opened:
        try:
            await serve_engine(
                opened.engine,
                host,
                port,
                model_name=model,
                encode=lambda text: opened.tokenizer.encode(text, add_special_tokens=False),
                decode=opened.renderer.decode,
                api_key=api_key,
                on_ready=lambda url: typer.echo(f"{model} at {url}, Ctrl-C ends it: {' '.join(ENDPOINTS)}"),
            )
        except OSError as exc:
            raise ConfigError(f"cannot listen at {host}:{port}: {exc.strerror}; choose another --port") from exc
