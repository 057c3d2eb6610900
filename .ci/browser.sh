#!/usr/bin/env bash
# The viewer's page in a real browser: the distribution's Chromium, driven through DevTools.
#
#   .ci/browser.sh [pytest arguments]     (default: tests/view)
#
# Needs Debian or Ubuntu, root, and a package registry, unless `chromium` is installed or CHROMIUM names a browser.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || set -- tests/view

if [ -z "${CHROMIUM:-}" ] && ! command -v chromium > /dev/null; then
    echo "browser: installing chromium"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends chromium > /dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null; }
fi
AGENTRL_REQUIRE=browser exec "${VENV:-.venv}/bin/python" .ci/again.py "$@"
