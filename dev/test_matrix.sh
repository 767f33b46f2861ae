#!/usr/bin/env bash
# Runs the tests that need Spark and no other server on several PySpark versions, each in an
# environment of its own, kept outside the repository: among them the quickstart, which is killed
# and goes on. Usage: dev/test_matrix.sh [VERSION…]; needs uv and Java.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
cache="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}/matrix"
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.5.9 4.0.5 4.1.4 4.3.0)
command -v uv >/dev/null || { echo "test-matrix: uv is needed, and not on the PATH" >&2; exit 1; }

# Everything but pyspark stays at the tested version; an override replaces the pin of dev.in.
prepare() {
    local version=$1 venv=$2
    mkdir -p "$venv" || return
    uv venv --quiet --allow-existing --python .venv/bin/python "$venv" || return
    echo "pyspark==$version" >"$venv/override.txt"
    uv pip install --quiet --python "$venv/bin/python" -r requirements/dev.in \
        --constraint <(grep -oE '^[a-z0-9-]+==[^ ]+( ;[^\\]*)?' requirements/dev.txt \
            | grep -v '^pyspark==\|^py4j==') \
        --override "$venv/override.txt" || return
    uv pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation --editable .
}

run_tests() {
    local python=$1/bin/python
    PYSPARK_PYTHON="$python" PYSPARK_DRIVER_PYTHON="$python" PYTHONPATH="$PWD" \
        "$python" -m pytest -q -p no:cacheprovider \
        -m "spark and not (stack or crash or slow or bench)" tests
}

results=()
failed=0
for version in "${versions[@]}"; do
    venv="$cache/spark-$version"
    echo "== PySpark $version"
    if ! prepare "$version" "$venv"; then
        results+=("$version: could not be installed")
        failed=1
    elif run_tests "$venv"; then
        results+=("$version: passed")
    else
        results+=("$version: FAILED")
        failed=1
    fi
done
echo "== summary"
printf '%s\n' "${results[@]}"
exit "$failed"
