#!/usr/bin/env bash
# The contract with a real framework of slime's line: miles, from PyPI, in a virtual environment of its own.
#
#   .ci/miles.sh FOLDER [pytest arguments]        (default: tests/slime/contract)
#
# FOLDER keeps the environment and miles' source (2 GB, made once: one to three minutes). Needs Python 3.11+ and a
# package registry; the project is installed into it from this tree. SLIME_SRC and SLIME04_SRC add slime, whose needs are among these.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/miles.sh FOLDER [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/slime/contract

miles=miles-rl==0.0.2
# What its rollout imports besides the project's own extras; the contract's hosts.py says what is stood in for.
needs=(ray==2.60.0 sglang-router==0.3.2 pybase64==1.5.1 pylatexenc==2.11 straw-queue==0.1.6)
python=$folder/venv/bin/python
installed=$folder/installed.txt
wanted=$(pwd; echo "$miles" "${needs[@]}"; cat pyproject.toml constraints.txt)

if ! echo "$wanted" | cmp -s - "$installed"; then
    echo "miles: installing the project and ${needs[*]} into $folder/venv (once; one to three minutes)"
    rm -rf "$folder/venv" "$folder/source"
    "${PYTHON:-python3}" -m venv "$folder/venv"
    "$python" -m pip install --quiet -c constraints.txt -e '.[train,search,rewards,dev]' "${needs[@]}"
    echo "miles: $miles into $folder/source"
    "$python" -m pip install --quiet --no-deps --target "$folder/source" "$miles"
    echo "$wanted" > "$installed"
fi

echo "miles: pytest $*"
MILES_SRC=$folder/source AGENTRL_REQUIRE=miles OMP_WAIT_POLICY=passive exec "$python" -m pytest "$@"
