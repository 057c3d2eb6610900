#!/usr/bin/env bash
# What a run saves, read by transformers 4.57 as by the project's own: the same greedy text, to its end.
#
#   .ci/transformers.sh FOLDER [pytest arguments]      (default: tests/models/test_portable.py)
#
# FOLDER keeps transformers 4.57 with its tokenizers and huggingface-hub (installed once, 60 MB). Torch and the rest are
# those of the project ($VENV, default .venv).
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/transformers.sh FOLDER [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/models/test_portable.py

python=${VENV:-.venv}/bin/python
if [ ! -f "$folder/installed" ]; then
    echo "transformers: installing 4.57 into $folder (once)"
    "$python" -m pip install --quiet --no-deps --target "$folder/packages" \
        transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.2
    touch "$folder/installed"
fi
export AGENTRL_TRANSFORMERS_457=$folder/packages
AGENTRL_REQUIRE=$(echo "${AGENTRL_REQUIRE:-},transformers457" | sed 's/^,//') exec "$python" -m pytest "$@"
