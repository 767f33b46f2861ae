#!/usr/bin/env bash
# Install what some examples need besides the development environment into a cache outside the
# repository, where their tests look for it. Safe to run again: what is there in the right version
# is left alone.
#
#   dev/example_envs.sh                      all of them
#   dev/example_envs.sh airflow model        these two
#
# HOLDFAST_CACHE moves the cache. Versions are those that the examples' READMEs name.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}/examples"
python=${PYTHON:-.venv/bin/python}
parts=("$@")
((${#parts[@]})) || parts=(airflow dagster model)

say() { printf '%-8s %s\n' "$1" "$2"; }

# The pip command of a README, after "pip install": the only place where its versions are named.
asked_for() { grep -oP "pip install \K.*$2.*" "examples/$1/README.md" | head -n 1; }

# A stamp holds what was asked for; if it differs, the environment is made again.
is_there() { [[ -f $cache/$1/installed && $(<"$cache/$1/installed") == "$2" ]]; }

# A scheduler gets its own environment, with the dependencies of this checkout. Its tests put the
# checkout itself in front of what is installed.
scheduler() {
    local name=$1 wanted words
    wanted=$(asked_for "$name" "$name==")
    if is_there "$name" "$wanted"; then say "$name" "there"; return; fi
    say "$name" "installing $wanted"
    rm -rf -- "${cache:?}/$name"
    "$python" -m venv "$cache/$name"
    eval "words=($wanted)"
    "$cache/$name/bin/python" -m pip install --quiet "${words[@]}"
    printf '%s' "$wanted" >"$cache/$name/installed"
}

# The model goes to a folder that is put on the path: the rest is in the development environment.
model() {
    local wanted words
    wanted="$(asked_for embed_to_lance gt-all) $(grep -v '^#\|^numpy' examples/embed_to_lance/requirements.txt | xargs)"
    if is_there model "$wanted"; then say model "there"; return; fi
    say model "installing $wanted"
    rm -rf -- "${cache:?}/model"
    eval "words=($wanted)"
    "$python" -m pip install --quiet --target "$cache/model" "${words[@]}"
    printf '%s' "$wanted" >"$cache/model/installed"
}

for part in "${parts[@]}"; do
    case $part in
    airflow | dagster) scheduler "$part" ;;
    model) model ;;
    *) echo "example_envs.sh: $part is not one of airflow, dagster, model" >&2; exit 2 ;;
    esac
done
