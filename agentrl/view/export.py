"""An episode as a single HTML file: the same page, with script, style and data inside, without any download."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping

from agentrl.types import JSON

CSP = "default-src 'none'; sandbox"
"""The Content-Security-Policy of the response with the exported file: the browser must not run any part of it."""
_IMPORT = re.compile(r"^import (\{[^}]*\}|\* as \w+) from \"\./([\w.]+)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class|let) )", re.MULTILINE)
ENTRY = "exported.js"


def export_page(data: JSON, static: Mapping[str, tuple[bytes, str]]) -> str:
    """The HTML file. Its Content-Security-Policy allows only its own script and style, by hashes, and its own
    images."""
    script = bundle(ENTRY, static)
    style = static["style.css"][0].decode()
    allowed = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'"
    json_text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        json_text = json_text.replace(character, f"\\u{ord(character):04x}")
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name=viewport content='width=device-width'><title>agentrl: one episode</title>"
        f"<style>{style}</style></head><body><main id=main></main>"
        f'<script type="application/json" id=data>{json_text}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def bundle(entry: str, static: Mapping[str, tuple[bytes, str]]) -> str:
    """The modules that `entry` imports as a single script. Names of exports are unique among the page's modules."""
    parts, added = list[str](), set[str]()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        source = static[name][0].decode()
        for statement in _IMPORT.finditer(source):
            add(statement[2])
        parts.append(_EXPORT.sub("", _IMPORT.sub("", source)))

    add(entry)
    return "(() => {\n" + "\n".join(parts) + "})();"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
