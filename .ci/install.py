"""Installs packages for this Python with uv, which takes a fifth of pip's time, or with pip where uv fails.

    .venv/bin/python .ci/install.py -e '.[train]'

uv reads neither pip's configuration nor pip's environment variables, so their indexes and certificates are passed on.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PIP = (sys.executable, "-m", "pip")
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""A key of pip's configuration -> uv's environment variable."""
LARGE = re.compile(r"\s*(?:Downloading|Using cached) (.*\d ?Mi?B\))")
LAST = re.compile(r"Installing collected packages|Installed \d+ packages?.*")


def main() -> None:
    packages = ("-c", "constraints.txt", *sys.argv[1:])
    uv = uv_for_this_python()
    if uv is not None and briefly([uv, "pip", "install", "--python", sys.executable, *packages], uv_environment()):
        return
    print("      pip installs, because uv did not: this takes a minute longer", flush=True)
    # A module is compiled when it is imported first: few of those installed are.
    if not briefly([*PIP, "install", "--no-compile", "--progress-bar", "off", *packages], dict(os.environ)):
        sys.exit(1)


def uv_for_this_python() -> str | None:
    """The path of uv: the user's, or the one beside this Python. If both are missing, pip installs uv. None if pip
    fails."""
    uv = Path(sys.executable).with_name("uv")
    if (users := shutil.which("uv")) is not None:
        return users
    if not uv.exists():
        subprocess.run([*PIP, "install", "--quiet", "--no-compile", "-c", "constraints.txt", "uv"], check=False)
    return str(uv) if uv.exists() else None


def uv_environment() -> dict[str, str]:
    """The environment with pip's settings for uv. Variables that the user has set for uv have precedence."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout
    settings = {key.rpartition(".")[2]: value for key, _, value in (row.partition("=") for row in listed.splitlines())}
    values = {SETTINGS[key]: str(ast.literal_eval(value)) for key, value in settings.items() if key in SETTINGS}
    if "UV_FIND_LINKS" in values:
        values["UV_FIND_LINKS"] = ",".join(values["UV_FIND_LINKS"].split())
    # As pip does: the best version of all indexes, not of the first index that has the package.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **values, **os.environ}


def briefly(command: Sequence[str], environment: dict[str, str]) -> bool:
    """Run an installer, and print the large downloads and its last step; after a failure, all lines. Returns whether
    the installer succeeded."""
    lines = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line)
            if (shown := LARGE.match(line) or LAST.match(line)) is not None:
                print("     ", shown[shown.lastindex or 0], flush=True)
    if running.returncode:
        print("".join(lines), end="", flush=True)
    return running.returncode == 0


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
