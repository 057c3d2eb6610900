#!/usr/bin/env bash
# The doors to other trainers, proved in the trainers' own loops: TRL, tinker-cookbook, ... from PyPI.
#
#   .ci/hosts.sh FOLDER [HOST...]        (default: all)
#
# FOLDER keeps an environment for each host, because hosts pin versions that contradict each other. An environment sees
# the project's own packages ($VENV, default .venv; made if it is not there). Made once, in a minute. Needs a package
# registry, and no GPU. A test that fails is run once more, alone (again.py).
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/hosts.sh FOLDER [HOST...]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- trl tinker verifiers openenv verl skyrl skyrl_server

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
        skyrl) # its environments in agentrl
            needs=(requests pandas)
            alone=(skyrl-gym==0.4.0 func-timeout omegaconf==2.4.0 antlr4-python3-runtime==4.9.3)
            ;;
        # SkyRL's server of the Tinker API speaks JSON, which later clients do not read. It requires older transformers
        # and peft than the project's, and runs with these.
        skyrl_server)
            needs=(tinker==0.22.0 chz blobfile datasets termcolor tiktoken cloudpickle uv)
            needs+=(jax==0.10.2 flax==0.12.8 optax sqlmodel "sqlalchemy[asyncio]" aiosqlite cloudpathlib fastapi hf_transfer)
            alone=(skyrl==0.3.0 tinker-cookbook==0.5.0)
            ;;
        *) echo ".ci/hosts.sh: no host $host; the hosts are trl, tinker, verifiers, openenv, verl, skyrl, skyrl_server" >&2; exit 2 ;;
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
        [ "$host" != skyrl_server ] || # pydantic refuses typing's TypedDict before Python 3.12
            sed -i 's/^\(from typing import .*\), TypedDict$/\1\nfrom typing_extensions import TypedDict/' \
                "$("$python" -c "$packages")/skyrl/tinker/types.py"
        rm -rf "$("$python" -c "$packages")/tests" # of verl's wheel; they would hide the project's
        echo "$wanted" > "$folder/$host.txt"
    fi
    echo "hosts: pytest tests/hosts -k $host" # its own tests, and its part of the table of Envs and hosts
    files=(tests/hosts/test_"$host"*.py)
    case $host in skyrl) files=(tests/hosts/test_skyrl.py) ;; esac
    AGENTRL_REQUIRE=$host OMP_WAIT_POLICY=passive \
        "$python" .ci/again.py -k "$host" "${files[@]}" tests/hosts/test_table.py tests/hosts/test_killed.py
done
