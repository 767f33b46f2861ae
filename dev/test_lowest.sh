#!/usr/bin/env bash
# Runs what `make check` tests, and some tests with Spark, on the lowest versions that pyproject.toml
# allows, of Python too, in an environment kept outside the repository. Needs uv, and Java for Spark.
#
# NOT_UNIT are the markers that `make check` leaves out.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
cache="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}"
PATH="$PATH:$cache/uv/bin" # Where CI installs it if there is no other.
uv --version >/dev/null 2>&1 || { echo "test-lowest: uv is needed, and not on the PATH" >&2; exit 1; }

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

venv="$cache/matrix/lowest"
if ! install_lowest "$venv" \
    || ! uv pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation --editable .; then
    echo "test-lowest: the lowest versions could not be installed"
    exit 1
fi
print_versions "$venv/bin/python"
test_lowest "$venv/bin/python"
