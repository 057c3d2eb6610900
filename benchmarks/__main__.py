"""python -m benchmarks: every quick benchmark, one after the other. Each prints ratios measured side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for script in sorted(Path(__file__).parent.glob("bench_*.py")):
    print(f"\n== {script.name}", flush=True)
    if code := subprocess.run([sys.executable, str(script)], check=False).returncode:
        sys.exit(code)
