#!/usr/bin/env bash
# Rewrite .ci/constraints.txt from the environments that are there: exact versions, no addresses.
#   .ci/freeze.sh .venv [.venv-train ...]     the first environment wins where two differ
set -euo pipefail
cd "$(dirname "$0")/.."
for env in "$@"; do "$env/bin/python" -m pip freeze --exclude-editable --exclude mbt-cli; done |
  sed 's|+cpu$||' | grep -E '^[A-Za-z0-9._-]+==' | awk -F == '!seen[tolower($1)]++' | sort -f > .ci/constraints.txt
wc -l .ci/constraints.txt
