"""README's quickstart and the guide's episode, verbatim: their files are written and run in an empty folder.

.venv/bin/python .ci/quickstart.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
PROMISED_S = 180
"""What README means by two minutes, on two quiet cores. Told, not enforced: machines are noisy."""
GAIN = 0.2


def main() -> None:
    began = time.monotonic()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        file, source = re.search(r"```python\n# (\w+\.py)\n(.*?)```", README, re.DOTALL).groups()
        Path(folder, file).write_text(source, encoding="utf-8")
        commands = re.search(r"```bash\n(.*?)```", README, re.DOTALL)[1]
        in_python = re.search(r"## Episodes in Python\n.*?```python\n(.*?)```", GUIDE, re.DOTALL)[1]
        for command in (*commands.replace("\\\n", " ").splitlines(), None):
            print(f"\n$ {command or 'python one_episode.py'}", flush=True)
            if command is None:
                Path(folder, "one_episode.py").write_text(in_python, encoding="utf-8")
            subprocess.run(
                command or "python one_episode.py", shell=True, check=True, cwd=folder, env={**os.environ, "PATH": path}
            )
        lines = Path(folder, "runs/first/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards, seconds = [json.loads(line)["reward_mean"] for line in lines], time.monotonic() - began
    print(f"\nquickstart: mean reward {rewards[0]:.3f} in the first step, {rewards[-1]:.3f} in the last")
    slow = "" if seconds < PROMISED_S else f": more than the {PROMISED_S} s that README's two minutes may take"
    print(f"quickstart: {seconds:.0f} s{slow}")
    if rewards[-1] < rewards[0] + GAIN:
        sys.exit(f"quickstart: the mean reward rose by less than {GAIN}; README promises a policy that learns")


if __name__ == "__main__":
    main()
