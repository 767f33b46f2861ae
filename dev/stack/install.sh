#!/usr/bin/env bash
# Install the real servers that the tests use into a cache outside the repository. Safe to run
# again: what is there in the right version is left alone.
#
#   dev/stack/install.sh                     the servers that every test run needs
#   dev/stack/install.sh nessie minio        also these two (or WITH="nessie minio")
#   dev/stack/install.sh lance-spark         not a server: the jars that bench/lance_peers.py needs
#
# HOLDFAST_CACHE moves the cache. Packages come from the registries that apt, go and mvn are
# set up to use on this machine.
set -euo pipefail

readonly VERSITYGW_VERSION=v1.8.0
readonly TOXIPROXY_VERSION=v2.12.0
# MinIO has no usable semantic version as a Go module: this names the commit.
readonly MINIO_VERSION=v0.0.0-20260212201848-7aac2a2c5b7c
readonly MAVEN_DEPENDENCY_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cache=${HOLDFAST_CACHE:-$HOME/.cache/holdfast}
extras=" ${*:-${WITH:-}} "
work=""

say() { printf '%-16s %s\n' "$1" "$2"; }
fail() { printf 'install.sh: %s\n' "$1" >&2; exit 1; }
wants() { [[ $extras == *" $1 "* ]]; }
have() { command -v "$1" >/dev/null 2>&1; }
clean_up() { [[ -z $work ]] || { chmod -R u+w "$work"; rm -rf -- "$work"; }; }
trap clean_up EXIT

# Run a command up to three times: registries fail now and then.
retry() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return 0
    [[ $attempt == 3 ]] || { say retry "attempt $attempt failed: $*"; sleep $((attempt * 5)); }
  done
  return 1
}

go_is_new_enough() {  # Go 1.21 and newer fetch the toolchain that a module asks for.
  have go && [[ $(go env GOVERSION) =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 21))
}

find_postgres() { python3 "$here/locate.py" postgres >/dev/null 2>&1; }
find_java() { python3 "$here/locate.py" java "$1" >/dev/null 2>&1; }

install_packages() {
  local packages=() as_root=()
  find_postgres || packages+=(postgresql)
  { have java && have javac; } || packages+=(default-jdk-headless)
  have mvn || packages+=(maven)
  go_is_new_enough || packages+=(golang-go)
  if ((${#packages[@]})); then
    have apt-get || fail "please install by hand: ${packages[*]}"
    if ((EUID != 0)); then
      have sudo || fail "not root, and no sudo: please install ${packages[*]}"
      as_root=(sudo)
    fi
    say packages "installing ${packages[*]}"
    retry "${as_root[@]}" apt-get -qq update
    retry "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qq -y --no-install-recommends install "${packages[@]}"
  fi
  find_postgres || fail "PostgreSQL's initdb is still not found"
  go_is_new_enough || fail "Go 1.21 or newer is needed; this machine's packages are older"
  if wants nessie && ! find_java 21; then
    fail "Nessie needs Java 21 or newer: install a JDK and set JAVA_HOME_21 to its folder"
  fi
  say packages "ready"
}

# go_tool NAME MODULE VERSION: build a Go program as bin/NAME, via bin/NAME-VERSION.
go_tool() {
  local name=$1 module=$2 version=$3 started=$SECONDS target="$cache/bin/$1-$3"
  if [[ ! -x $target ]]; then
    say "$name" "building $version"
    mkdir -p "$work/go-$name"
    retry env GOBIN="$work/go-$name" GOTOOLCHAIN=auto CGO_ENABLED=0 \
      go install -trimpath "$module@$version" 2>"$work/go-$name.log" \
      || { tail -n 20 "$work/go-$name.log" >&2; fail "$name $version did not build"; }
    mv -- "$work/go-$name/"* "$target"
  fi
  ln -sfn "$name-$version" "$work/$name.link"
  mv -fT -- "$work/$name.link" "$cache/bin/$name"
  say "$name" "ready $version ($((SECONDS - started)) s)"
}

# maven_folder NAME [OPTION…]: copy the jars of NAME/pom.xml to the cache's folder NAME.
maven_folder() {
  local name=$1 started=$SECONDS stamp target="$cache/$1" fresh="$work/$1"
  stamp=$(cat -- "$here/$name"/* | sha256sum | cut -d ' ' -f 1)
  shift
  if [[ $(cat -- "$target/.stamp" 2>/dev/null || true) != "$stamp" ]]; then
    say "$name" "downloading"
    retry mvn --quiet --batch-mode --no-transfer-progress \
      --file "$here/$name/pom.xml" \
      "$MAVEN_DEPENDENCY_PLUGIN:copy-dependencies" -DoutputDirectory="$fresh" "$@"
    # Not every registry publishes checksums.
    if [[ -f $here/$name/SHA256SUMS ]]; then
      (cd -- "$fresh" && sha256sum --check --quiet --strict -- "$here/$name/SHA256SUMS")
    fi
    if compgen -G "$here/$name/*.java" >/dev/null; then
      javac --release 17 -proc:none -cp "$fresh/*" -d "$fresh/classes" "$here/$name"/*.java
    fi
    printf '%s\n' "$stamp" >"$fresh/.stamp"
    rm -rf -- "$target"
    mv -T -- "$fresh" "$target"
  fi
  say "$name" "ready, $(find "$target" -name '*.jar' | wc -l) jars ($((SECONDS - started)) s)"
}

main() {
  mkdir -p "$cache/bin"
  # Inside the cache, so that the last step is a rename on one file system.
  work=$(mktemp -d "$cache/install.XXXXXX")
  install_packages
  maven_folder rest-catalog
  maven_folder spark-jars -DexcludeTransitive=true
  go_tool versitygw github.com/versity/versitygw/cmd/versitygw "$VERSITYGW_VERSION"
  go_tool toxiproxy github.com/Shopify/toxiproxy/v2/cmd/server "$TOXIPROXY_VERSION"
  if wants nessie; then maven_folder nessie -DexcludeTransitive=true; fi
  if wants lance-spark; then maven_folder lance-spark-jars; fi
  if wants minio; then go_tool minio github.com/minio/minio "$MINIO_VERSION"; fi
}

main; exit  # On one line: an edit of this file while it runs changes nothing.
