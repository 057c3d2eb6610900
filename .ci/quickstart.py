"""README's quickstart and the guide's episode in Python, verbatim, in an empty folder.

.venv/bin/python .ci/quickstart.py
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from first_hour import ROOT, follow

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def main() -> None:
    commands = re.search(r"## Two minutes.*?```bash\n(.*?)```", README, re.DOTALL)[1]
    in_python = re.search(r"## Episodes in Python\n.*?```python\n(.*?)```", GUIDE, re.DOTALL)[1]
    episode = f"```python\n# one_episode.py\n{in_python}```\n```bash\npython one_episode.py\n```\n"
    with tempfile.TemporaryDirectory() as folder:
        follow("quickstart", f"```bash\n{commands}```\n{episode}", Path(folder), promised=120)


if __name__ == "__main__":
    main()
