#!/usr/bin/env bash
# The contract with a real framework of slime's line: miles, from PyPI, beside the project's own packages.
#
#   .ci/miles.sh FOLDER [pytest arguments]        (default: all that needs a host or Ray)
#
# FOLDER keeps miles' source, and an environment with Ray that sees the project's own packages ($VENV, default .venv; made
# if it is not there). Made once, in half a minute. Needs a package registry. SLIME_SRC and SLIME04_SRC add slime, whose
# needs are among these; MILES_MAIN_SRC, a checkout of miles, adds its main.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/miles.sh FOLDER [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/slime/contract tests/workers tests/rollout/crash -m "host or ray"

miles=miles-rl==0.0.2
# What its rollout imports besides the project's own extras; the contract's hosts.py says what is stood in for.
needs=(ray==2.60.0 sglang-router==0.3.2 pybase64==1.5.1 pylatexenc==2.11 straw-queue==0.1.6)
project=${VENV:-.venv}/bin/python
python=$folder/venv/bin/python
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
[ -f "${VENV:-.venv}/.installed" ] || make "${VENV:-.venv}/.installed"
seen=$("$project" -c "$packages")
installed=$folder/installed.txt
wanted=$(echo "$seen" "$miles" "${needs[@]}"; cat constraints.txt)

if ! echo "$wanted" | cmp -s - "$installed"; then
    echo "miles: installing ${needs[*]} into $folder/venv (once)"
    rm -rf "$folder/source"
    "$project" -m venv --clear "$folder/venv"
    # addsitedir, unlike a plain path in a .pth file, also follows the project's editable install.
    echo "import site; site.addsitedir('$seen')" > "$("$python" -c "$packages")/project.pth"
    "$python" -m pip install --quiet -c constraints.txt "${needs[@]}"
    echo "miles: $miles into $folder/source"
    "$python" -m pip install --quiet --no-deps --target "$folder/source" "$miles"
    echo "$wanted" > "$installed"
fi

echo "miles: pytest $*"
MILES_SRC=$folder/source AGENTRL_REQUIRE=miles,ray OMP_WAIT_POLICY=passive exec "$python" .ci/again.py "$@"
