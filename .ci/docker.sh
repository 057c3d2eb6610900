#!/usr/bin/env bash
# The tests that need a container engine: a Docker Engine started from nothing, on a socket of its own, and bubblewrap.
#
#   .ci/docker.sh [pytest arguments]     (default: the tests of sandboxes, and of environments that use them)
#   .ci/docker.sh -- command             (any command, beside the engine; docker_engine.py says what it finds)
#
# Needs Debian or Ubuntu, root, and a package registry for what is not installed yet. Nothing is left behind but those
# packages, and the base image's tar file in .cache/docker. It fails if the engine does not start. A test that fails is
# run once more, alone (again.py): both runs are printed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/sandbox tests/envs/coding tests/envs/agents tests/hosts/test_killed.py -n 2

missing=()
for package in docker.io bubblewrap busybox-static openssh-server git patch procps python3-pytest; do
    dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "docker: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null; }
fi

python=${VENV:-.venv}/bin/python
if [ "$1" = -- ]; then
    shift
else
    set -- "$python" .ci/again.py "$@"
fi
exec "$python" .ci/docker_engine.py "$@"
