#!/usr/bin/env bash
# Rewrite .ci/constraints.txt with the exact versions installed in the given environments, without URLs.
#   .ci/freeze.sh .venv [.venv-train ...]     if versions differ, the first environment wins
set -euo pipefail
cd "$(dirname "$0")/.."
for env in "$@"; do "$env/bin/python" -m pip freeze --exclude-editable --exclude mbt-cli; done |
  sed 's|+cpu$||' | grep -E '^[A-Za-z0-9._-]+==' | awk -F == '!seen[tolower($1)]++' | sort -f > .ci/constraints.txt
wc -l .ci/constraints.txt
