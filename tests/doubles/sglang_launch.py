"""Stands in for an interpreter that has SGLang: `sglang_launch.py -m sglang.launch_server FLAGS`.

It answers as soon as it listens, and starts one process more, as SGLang does. FAKE_SGLANG in the environment lets it go
wrong: `missing` (not installed), `never` (up), `crash`, `another` (it is not the one that was started).
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import time

FAULT = os.environ.get("FAKE_SGLANG", "")


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = "of somebody else" if FAULT == "another" else flag("--served-model-name")
        self._say(
            503 if FAULT == "never" and self.path == "/health" else 200,
            {"served_model_name": name, "context_length": 99},
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/generate":
            time.sleep(60)
        self._say(200, {"success": True, **body})

    def _say(self, status: int, answer: object) -> None:
        said = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    if sys.argv[1] == "-c":
        sys.exit(FAULT == "missing")
    child = subprocess.Popen(["sleep", "1000"])
    print(f"pids {os.getpid()} {child.pid} {' '.join(sys.argv[3:])}", flush=True)
    print("model", *sorted(os.listdir(flag("--model-path"))), os.environ.get("SGLANG_VLM_CACHE_SIZE_MB"), flush=True)
    if FAULT == "crash":
        print("RuntimeError: no memory\nthis is the last line", flush=True)
        sys.exit(3)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(flag("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
