#!/usr/bin/env bash
# The tests that need Megatron-Core: the weight map always; with SLIME_SRC (the root of slime's source) the whole chain
# of examples/slime_on_one_device on slime's own code, its training actor included.
#
#   .ci/megatron.sh FOLDER [pytest arguments]        (default: tests/chain)
#
# FOLDER keeps a small virtual environment (made once) that sees the project's own packages ($VENV, default .venv).
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_WAIT_POLICY=passive
[ $# -ge 1 ] || { echo "usage: .ci/megatron.sh FOLDER [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/chain

project=${VENV:-.venv}/bin/python
python=$folder/venv/bin/python
packages='import sysconfig; print(sysconfig.get_path("purelib"))'

if [ ! -f "$folder/megatron" ]; then
    echo "megatron: installing Megatron-Core into $folder (once)"
    "$project" -m venv --clear "$folder/venv"
    # addsitedir, unlike a plain path in a .pth file, also follows the project's editable install.
    echo "import site; site.addsitedir('$("$project" -c "$packages")')" > "$("$python" -c "$packages")/project.pth"
    "$python" -m pip install --quiet --no-deps megatron-core==0.16.1
    touch "$folder/megatron"
fi

if [ -n "${SLIME_SRC:-}" ]; then
    if [ ! -f "$folder/slime" ]; then
        echo "megatron: installing what slime imports, and miles-rl for its megatron.training (once)"
        "$python" -m pip install --quiet ray httpx aiohttp sympy pylatexenc tqdm pillow requests six
        "$python" -m pip install --quiet --no-deps triton
        "$python" -m pip install --quiet --no-deps --target "$folder/miles" miles-rl==0.0.2
        touch "$folder/slime"
    fi
    export MILES=$folder/miles
fi

exec "$python" -m pytest "$@"
