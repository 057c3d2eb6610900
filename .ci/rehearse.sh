#!/usr/bin/env bash
# The tests of rehearsals that need Ray and Megatron: the layers against transformers, and, with SLIME_SRC (a checkout of
# slime), slime's own train.py from launch to the second start.
#
#   .ci/rehearse.sh FOLDER [pytest arguments]        (default: tests/rehearse -n 2)
#
# FOLDER keeps the environment that `agentrl slime rehearse` makes for $VENV (default .venv): once, 1.6 GB.
set -euo pipefail
export OMP_WAIT_POLICY=passive
[ $# -ge 1 ] || { echo "usage: .ci/rehearse.sh FOLDER [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
XDG_CACHE_HOME=$(cd "$1" && pwd)
export XDG_CACHE_HOME
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/rehearse -n 2

prepare='
import sys
from agentrl.rehearse.packages import prepare
packages = prepare(lambda line: print("rehearse:", line, file=sys.stderr))
print(packages.python, *packages.paths)
'
read -r python MILES <<< "$("${VENV:-.venv}/bin/python" -c "$prepare")"
export MILES
exec "$python" .ci/again.py "$@"
