#!/usr/bin/env bash
# Install the emulators of clouds that tests/emulators starts, into a cache outside the repository:
# fake-gcs-server (needs go), Azurite (needs npm) and moto. What is there in the right version is
# left alone.
#
#   dev/emulators.sh                  all of them
#   dev/emulators.sh azurite moto     these two
#
# HOLDFAST_CACHE moves the cache. A version that is changed here was run with `make emulators` first.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}/emulators"
parts=("$@")
((${#parts[@]})) || parts=(fake-gcs-server azurite moto)

install_fake_gcs_server() {
    GOBIN="$1" go install "github.com/fsouza/fake-gcs-server@v$2"
}
install_azurite() {
    npm install --prefix "$1" --no-audit --no-fund --silent "azurite@$2"
}
install_moto() {
    "${PYTHON:-.venv/bin/python}" -m venv "$1"
    "$1/bin/python" -m pip install --quiet "moto[server,glue,sts]==$2"
}

for part in "${parts[@]}"; do
    case $part in
    fake-gcs-server) version=1.56.1 ;;
    azurite) version=3.35.0 ;;
    moto) version=5.2.5 ;;
    *) echo "emulators.sh: $part is not one of fake-gcs-server, azurite, moto" >&2; exit 2 ;;
    esac
    folder="$cache/$part"
    if [[ -f $folder/version && $(<"$folder/version") == "$version" ]]; then
        printf '%-16s there\n' "$part"
        continue
    fi
    printf '%-16s installing %s\n' "$part" "$version"
    rm -rf -- "${folder:?}"
    "install_${part//-/_}" "$folder" "$version"
    printf '%s' "$version" >"$folder/version"
done
