#!/usr/bin/env bash
# Runs tests on versions other than the pinned ones, each set in its own environment, kept outside
# the repository. Needs uv, and Java for Spark.
#
#   dev/test_matrix.sh [VERSION…]   the tests that need Spark and no other server, on each of these
#                                   PySpark versions: among them the quickstart, which is killed
#                                   and resumed
#   dev/test_matrix.sh lowest       what `make check` tests, and some tests with Spark, on the
#                                   lowest versions that pyproject.toml allows, of Python too
#
# NOT_UNIT are the markers that `make check` leaves out.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
cache="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}"
PATH="$PATH:$cache/uv/bin" # Where CI installs it if there is no other.
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.5.9 4.0.5 4.1.4 4.3.0)
uv --version >/dev/null 2>&1 || { echo "test-matrix: uv is needed, and not on the PATH" >&2; exit 1; }

# Everything but pyspark stays at the tested version; an override replaces the pin of dev.in.
install_with_pyspark() {
    local version=$1 venv=$2
    mkdir -p "$venv" || return
    uv venv --quiet --allow-existing --python .venv/bin/python "$venv" || return
    echo "pyspark==$version" >"$venv/override.txt"
    uv pip install --quiet --python "$venv/bin/python" -r requirements/dev.in \
        --constraint <(grep -oE '^[a-z0-9-]+==[^ ]+( ;[^\\]*)?' requirements/dev.txt \
            | grep -v '^pyspark==\|^py4j==') \
        --override "$venv/override.txt"
}

# A version manager leaves commands on the PATH that only say "not installed": try each one.
find_python() {
    local path
    for path in $(type -ap "python$1") "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        "$path" --version >/dev/null 2>&1 && { echo "$path"; return; }
    done
    return 1
}

install_lowest() {
    local venv=$1 python
    if ! python=$(find_python 3.10); then
        python=.venv/bin/python
        echo "Python 3.10, the lowest that is allowed, is missing: $($python --version) instead"
    fi
    mkdir -p "$venv" || return
    uv venv --quiet --allow-existing --python "$python" "$venv" || return
    # Unlike `install`, it removes what an earlier lock asked for.
    uv pip sync --quiet --python "$venv/bin/python" --require-hashes requirements/lowest.txt
}

print_versions() {
    "$1" --version
    "$1" - <<'EOF'
import re
from importlib.metadata import requires, version
names = {re.match(r"[\w.-]+", line)[0] for line in requires("holdfast")}
print(*(f"{name} {version(name)}" for name in sorted(names)), sep=", ")
EOF
}

run_pytest() {
    local python=$1
    shift
    PYSPARK_PYTHON="$python" PYSPARK_DRIVER_PYTHON="$python" PYTHONPATH="$PWD" \
        SPARK_LOCAL_IP=127.0.0.1 "$python" -m pytest -q -p no:cacheprovider "$@"
}

test_lowest() {
    local python=$1 failed=0
    run_pytest "$python" -m "not (${NOT_UNIT:?})" tests/unit tests/contract tests/property bench/tests || failed=1
    if java -version >/dev/null 2>&1; then
        run_pytest "$python" -m "spark and not (stack or crash or slow)" \
            tests/spark/test_quickstart.py tests/spark/test_doctor.py tests/spark/test_progress.py \
            || failed=1
    else
        echo "lowest: no Java found, so nothing was run with PySpark"
    fi
    return "$failed"
}

run_tests() {
    print_versions "$2"
    if [ "$1" = lowest ]; then
        test_lowest "$2"
    else
        run_pytest "$2" -m "spark and not (stack or crash or slow or bench)" tests
    fi
}

install() {
    if [ "$1" = lowest ]; then install_lowest "$2"; else install_with_pyspark "$1" "$2"; fi || return
    uv pip install --quiet --python "$2/bin/python" --no-deps --no-build-isolation --editable .
}

results=()
failed=0
for version in "${versions[@]}"; do
    venv="$cache/matrix/spark-$version"
    [ "$version" != lowest ] || venv="$cache/matrix/lowest"
    echo "== $version"
    if ! install "$version" "$venv"; then
        results+=("$version: could not be installed")
        failed=1
    elif run_tests "$version" "$venv/bin/python"; then
        results+=("$version: passed")
    else
        results+=("$version: FAILED")
        failed=1
    fi
done
echo "== summary"
printf '%s\n' "${results[@]}"
exit "$failed"
