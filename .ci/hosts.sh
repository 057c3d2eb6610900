#!/usr/bin/env bash
# The doors to other trainers, proved in the trainers' own loops: TRL, tinker-cookbook, ... from PyPI.
#
#   .ci/hosts.sh FOLDER [HOST...]        (default: all)
#
# FOLDER keeps an environment for each host, because hosts pin versions that contradict each other. An environment sees
# the project's own packages ($VENV, default .venv; made if it is not there). Made once, in a minute. Needs a package
# registry, and no GPU.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/hosts.sh FOLDER [HOST...]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- trl tinker verifiers openenv verl

project=${VENV:-.venv}/bin/python
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
[ -f "${VENV:-.venv}/.installed" ] || make "${VENV:-.venv}/.installed"
seen=$("$project" -c "$packages")

for host; do
    alone=() # packages whose requirements are not installed
    case $host in
        trl) needs=(trl==1.16.0) ;;
        # The cookbook requires tml-renderers 0.4.1, which is not there for Python 3.11. Its RL does not need it.
        tinker)
            needs=(tinker==0.38.0 tml-renderers==0.2.1 chz blobfile datasets pyrage termcolor tiktoken cloudpickle)
            alone=(tinker-cookbook==0.6.1)
            ;;
        verifiers) needs=(verifiers==0.4.0) ;;
        openenv) needs=(openenv==0.10.0 "fastmcp<4") ;;
        # verl requires an older transformers, wandb and more, which its agent loops do not need. hydra requires an older
        # antlr4 than the project's tests.
        verl)
            needs=(ray==2.60.0 datasets accelerate cachetools codetiming torchdata fastapi pylatexenc)
            alone=(verl==0.9.1 tensordict==0.10.0 pyvers orjson importlib_metadata cloudpickle)
            alone+=(hydra-core==1.3.8 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3)
            ;;
        *) echo ".ci/hosts.sh: no host $host; the hosts are trl, tinker, verifiers, openenv, verl" >&2; exit 2 ;;
    esac
    python=$folder/$host/bin/python
    wanted=$(echo "$seen" "${needs[@]}" "${alone[@]}"; cat constraints.txt)
    if ! echo "$wanted" | cmp -s - "$folder/$host.txt"; then
        echo "hosts: installing $host into $folder/$host (once)"
        "$project" -m venv --clear "$folder/$host"
        # addsitedir, unlike a plain path in a .pth file, also follows the project's editable install.
        echo "import site; site.addsitedir('$seen')" > "$("$python" -c "$packages")/project.pth"
        constraints=(-c constraints.txt)
        case $host in verifiers | openenv) constraints=() ;; esac # they pin other versions than the project's tests
        "$python" -m pip install --quiet "${constraints[@]}" "${needs[@]}"
        [ ${#alone[@]} -eq 0 ] || "$python" -m pip install --quiet --no-deps "${alone[@]}"
        rm -rf "$("$python" -c "$packages")/tests" # of verl's wheel; they would hide the project's
        echo "$wanted" > "$folder/$host.txt"
    fi
    echo "hosts: pytest tests/hosts -k $host" # its own tests, and its part of the table of Envs and hosts
    AGENTRL_REQUIRE=$host OMP_WAIT_POLICY=passive \
        "$python" -m pytest -k "$host" tests/hosts/test_"$host"*.py tests/hosts/test_table.py
done
