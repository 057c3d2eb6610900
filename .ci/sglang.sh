#!/usr/bin/env bash
# The tests that need a real SGLang: two workers on this machine's CPU, the real sglang-router before them.
#
#   .ci/sglang.sh FOLDER [pytest arguments]        (default: the tests that need it)
#   MODEL=folder .ci/sglang.sh FOLDER -- command   (any command, beside servers of that model; sglang_servers.py says
#                                                   what it finds in its environment)
#
# FOLDER keeps a virtual environment of SGLang's own (3.5 GB, made once: some minutes), the model and the logs. Needs
# Python 3.11+ and a package registry; the tests run in the project's own environment ($VENV, default .venv).
# A test that fails is run once more, alone (again.py). AGENTRL_SGLANG_DTYPE=bfloat16 serves that in place of float32:
# for the tests of the router.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/sglang.sh FOLDER [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/engine/test_real_sglang.py tests/engine/test_real_grammar.py tests/engine/test_trained_sglang.py tests/engine/test_real_images.py tests/slime/test_real_router.py

project=${VENV:-.venv}/bin/python
model=${MODEL:-$folder/model}
sglang=$folder/venv/bin/python
installed=$folder/venv/installed.txt

if ! cat .ci/sglang.txt .ci/sgl_kernel_stand_in.py | cmp -s - "$installed"; then
    echo "sglang: installing SGLang into $folder/venv (once; some minutes)"
    rm -rf "$folder/venv"
    "${PYTHON:-python3}" -m venv "$folder/venv"
    "$sglang" -m pip install --quiet "$(grep '^torch==' .ci/sglang.txt)"
    echo "sglang: torch is in; $(grep -c '==' .ci/sglang.txt) packages to go"
    "$sglang" -m pip install --quiet --no-deps -r .ci/sglang.txt
    packages=$("$sglang" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    : > "$packages/torchvision/_meta_registrations.py"
    mkdir "$packages/sgl_kernel"
    cp .ci/sgl_kernel_stand_in.py "$packages/sgl_kernel/__init__.py"
    cat .ci/sglang.txt .ci/sgl_kernel_stand_in.py > "$installed"
fi

# The adapters of LoRA go through memory that only CUDA pins. Done at every start, so that an environment made before this
# line gets it, too.
(cd "$("$sglang" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sglang/srt/lora" &&
    sed -i 's/pin_memory=True/pin_memory=False/; s/\.pin_memory()//' layers.py backend/torch_backend.py)

if [ ! -f "$model/config.json" ]; then
    "$project" -c 'import sys; from agentrl.models import *
save_model(tiny_model(0), tiny_tokenizer(), sys.argv[1])' "$model"
fi

if [ "$1" = -- ]; then
    shift
else
    set -- "$project" .ci/again.py "$@"
fi
exec "$project" .ci/sglang_servers.py "$sglang" "$folder" "$model" "$@"
