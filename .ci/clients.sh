#!/usr/bin/env bash
# Real agents against the gateway: installs them, then plays the sessions of tests/gateway/clients with each.
#
#   .ci/clients.sh FOLDER [all] [pytest arguments]      (default: tests/gateway/clients -n 2)
#
# FOLDER keeps the clients, about a minute of installing, done once: three CLIs and five SDKs, or with "all" every one of
# envs/agentrl_envs/agents/versions.py, which pins them, and the long sessions too (a stall of a minute). Needs a
# registry of Python and one of npm. The clients reach nothing but the gateway: there is no model and no account.
# Coding agents in sandboxes are among the tests beside a Docker Engine: .ci/docker.sh -- .ci/clients.sh FOLDER
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ $# -ge 1 ] || { echo "usage: .ci/clients.sh FOLDER [all] [pytest arguments]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."

which=quick
if [ "${1:-}" = all ]; then
    which=all
    shift
fi
[ $# -ge 1 ] || set -- tests/gateway/clients -n 2

project=${VENV:-.venv}/bin/python
"$project" .ci/clients.py "$folder" $which
export AGENTRL_CLIENTS=$folder AGENTRL_CLIENTS_PLAYED=$which
AGENTRL_REQUIRE=$(echo "${AGENTRL_REQUIRE:-},clients" | sed 's/^,//') exec "$project" .ci/again.py "$@"
