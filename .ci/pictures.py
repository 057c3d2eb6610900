"""The pictures of README and docs: a run, one episode of it, light and dark, and its reward curve.

.venv/bin/python .ci/pictures.py RUN      (README's quickstart: weather/runs/first; needs chromium: .ci/browser.sh)
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))

from agentrl.view.files import outlines
from agentrl.view.server import ViewServer
from agentrl.view.sources import Run, open_source
from tests.view.browser import Browser, chromium

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COLOURS = 64
"""A palette: a third of the bytes, and text looks the same."""


async def main(folder: Path) -> None:
    run = open_source(folder)
    if not isinstance(run, Run):
        sys.exit(f"{folder} is no run's folder")
    small(Image.open(folder / "reward.png")).save(IMAGES / "reward.png", optimize=True)
    server = ViewServer([run])
    await server.start()
    try:
        async with chromium() as browser:
            await browser.goto(server.link)
            address = of_an_episode(run)
            for dark in (False, True):
                await browser.dark(dark)
                await photograph(browser, address, "episode", 620, dark)
                await photograph(browser, "#/0/run", "run", 900, dark)
    finally:
        await server.close()


def of_an_episode(run: Run) -> str:
    """The address of a token of the latest episode that called a tool, won, and taught something."""
    for name in sorted((name for name in run.listing() if name.startswith("step_")), reverse=True):
        for number, outline in outlines(run.file(name)):
            told = "offset" in outline and outline.get("gap") is not None
            if told and outline["reward"] == 1 and outline.get("calls") and outline["advantage"]:
                prompt = outline["tokens"] - sum(outline[kind] for kind in ("sampled", "observation", "scaffold"))
                return f"#/0/episode/{name}/{number}?t={prompt + 12}"
    sys.exit(f"{run.path}: no such episode")


async def photograph(browser: Browser, address: str, view: str, height: int, dark: bool) -> None:
    await browser.size(1200, height)
    await browser.visit(address, view)
    await browser.js("document.fonts.ready.then(() => 1)")
    with tempfile.TemporaryDirectory() as taken:
        file = Path(taken, "taken.png")
        await browser.screenshot(file)
        picture = small(Image.open(file))
    name = f"view-{view}{'-dark' if dark else ''}.png"
    picture.save(IMAGES / name, optimize=True)
    print(IMAGES / name, (IMAGES / name).stat().st_size)


def small(picture: Image.Image) -> Image.Image:
    return picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(Path(sys.argv[1])))
