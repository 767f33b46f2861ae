#!/usr/bin/env bash
# Lints .github: with actionlint, which go installs into HOLDFAST_CACHE, and with zizmor
# as strictly as it can be. Neither asks the network what is there now, so that a result can be had
# again. `make check-workflows` runs it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=1.7.12
folder="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}/actionlint-$version"

if [ ! -x "$folder/actionlint" ]; then
    go version >/dev/null 2>&1 || { echo "check-workflows: go is needed, to install actionlint" >&2; exit 1; }
    GOBIN="$folder" go install "github.com/rhysd/actionlint/cmd/actionlint@v$version"
fi
"$folder/actionlint" -no-color
echo "actionlint $version: no findings"
.venv/bin/zizmor --offline --quiet --no-progress --strict-collection --persona auditor .github
