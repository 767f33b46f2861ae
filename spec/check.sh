#!/usr/bin/env bash
# Check the models with spin: as they are, and with each guard removed.
#
#   spec/check.sh            everything
#   spec/check.sh commit     only lines with "commit"; a guard's name works too
#
# Exit: 0 all as expected; 1 a full model has an error, or a removed guard does no harm; 3 no spin.
set -u

here=$(cd "$(dirname "$0")" && pwd)
only=${1:-}
command -v spin >/dev/null || { echo "spin is not installed (apt-get install spin)"; exit 3; }
command -v gcc >/dev/null || { echo "gcc is not installed"; exit 3; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# Build one verifier and run it: model, switches, time limit in seconds. Leaves $work/run/out.
verify() {
  rm -rf "$work/run" && mkdir "$work/run" && cd "$work/run" || exit 1
  cp "$here/$1.pml" . || exit 1
  # shellcheck disable=SC2086 # The switches are words.
  spin -a $2 "$1.pml" >spin.out 2>&1 && [ -f pan.c ] || { cat spin.out; return 1; }
  # Exhaustive: COLLAPSE packs states without loss. Kills leave processes anywhere, so -E.
  gcc -O2 -w -DSAFETY -DNOCLAIM -DCOLLAPSE -DVECTORSZ=2048 -DMEMLIM=11000 -o pan pan.c || return 1
  timeout "$3" ./pan -E -m20000 -w24 >out 2>&1
}

number() { sed -n "s/$1/\\1/p" "$work/run/out" | head -1; }

full() { # model, name, switches
  case "$1 $2" in *"$only"*) ;; *) return ;; esac
  verify "$1" "$3" 900
  local out="$work/run/out" errors
  errors=$(number '.*errors: \([0-9]*\).*')
  # A search that was cut short has proved nothing.
  if [ "$errors" != 0 ] || grep -qE "search depth too small|out of memory|not completed" "$out"; then
    failed=1; errors="${errors:-none counted, but the search did not end}"
  fi
  printf '%-15s %-42s states %s, transitions %s, memory %s MB, %s s, errors: %s\n' "$1" "$2" \
    "$(number ' *\([0-9.e+]*\) states, stored.*')" "$(number ' *\([0-9.e+]*\) transitions.*')" \
    "$(number ' *\([0-9.]*\).*total actual memory usage')" \
    "$(number 'pan: elapsed time \([0-9.e+-]*\) seconds')" "$errors"
  # What no configuration reaches; each leaves out some of what others have. Processes that never
  # end have an end that is never reached.
  grep -E '^\s+[a-z_]+\.pml:[0-9]+, state' "$out" | grep -v -e '"-end-"' \
    | sed 's/^\s*//; s/, state [0-9]*//' | sort -u >"$work/new"
  if [ -f "$work/$1.unreached" ]; then
    comm -12 "$work/$1.unreached" "$work/new" >"$work/both" && mv "$work/both" "$work/$1.unreached"
  else
    mv "$work/new" "$work/$1.unreached"
  fi
}

without() { # model, guard, switches
  case "$1 $2" in *"$only"*) ;; *) return ;; esac
  verify "$1" "$3 -D$2" 600
  local depth
  depth=$(number 'pan:1: assertion violated.*(at depth \([0-9]*\))')
  if [ -n "$depth" ]; then
    printf '%-15s %-20s counterexample found, depth %s\n' "$1" "$2" "$depth"
  else
    printf '%-15s %-20s NO COUNTEREXAMPLE\n' "$1" "$2"; failed=1
  fi
}

hole() { # model, switch, switches: what the protocol does not survive; see README.md
  case "$1 $2" in *"$only"*) ;; *) return ;; esac
  verify "$1" "$3 -D$2" 600
  printf '%-15s %-20s known hole, depth %s\n' "$1" "$2" \
    "$(number 'pan:1: assertion violated.*(at depth \([0-9]*\))')"
}

one_place="-DROWS_0=3 -DROWS_1=0 -DMOVES=0"
two_places="-DROWS_0=1 -DROWS_1=2"

all="-DACTS=1 -DTRIES=1"
given_up="-DACTS=2 -DTRIES=1 -DUNSWEPT"
swept="-DACTS=2 -DTRIES=1 -DONE_START -DUNSENT"
posts="-DACTS=3 -DTRIES=2 -DSTARTS_ONLY"

full commit "two starts, abort, sweep, 1 act of others" "$all"
full commit "two starts, abort, 2 acts" "$given_up"
full commit "one start, abort, sweep, 2 acts" "$swept"
full commit "two starts that post twice, 3 acts" "$posts"
full commit "the same with posts not sent, 2 acts" "-DACTS=2 -DTRIES=2 -DSTARTS_ONLY -DUNSENT"
full schema "three starts, 5 changes of others" ""
full schema "the same without the first check" "-DNO_FIRST_CHECK"
full tasks_and_seal "a second attempt, 2 rows" "$one_place -DCLAIMS=2 -DTWINS=1 -DLOSSES=0"
full tasks_and_seal "a lost object, 2 rows, 4 claims" "$one_place -DCLAIMS=4 -DTWINS=0 -DLOSSES=1"
full tasks_and_seal "two places, 3 claims" "$two_places -DCLAIMS=3 -DTWINS=0 -DLOSSES=0 -DMOVES=0"
full tasks_and_seal "2+1 rows, input moves, a loss, one start" "-DONE_START -DCLAIMS=4 -DTWINS=1 -DLOSSES=1 -DMOVES=1"
full tasks_and_seal "two places, a replay is dealt anew" "$two_places -DCLAIMS=3 -DTWINS=1 -DLOSSES=0 -DMOVES=1 -DREPLAYS_ONLY"

for model in commit schema tasks_and_seal; do
  [ ! -f "$work/$model.unreached" ] || sed 's/^/unreached: /' "$work/$model.unreached"
done

without commit NO_FENCE "$posts"
without commit NO_ABORT_FENCE "$given_up"
without commit NO_LOOK "$posts"
without commit NO_REMOVED_CHECK "$posts"
without commit NO_HORIZON "$posts"
without commit NO_ATOMIC_MARK "$posts"
without commit NO_UUID "$posts"
without commit NO_REF_CONDITION "$posts"
without commit NO_SEQ_CONDITION "$posts"
without commit NO_FIRST_EMPTY "$given_up"
without commit NO_FRESH_INTENT "-DACTS=1 -DTRIES=2 -DUNSWEPT"
without commit NO_MARK_RECEIPT "$posts"
without commit NO_RESOLVE "$given_up"
without commit NO_TOLD_ABORTED "$given_up"
without commit NO_EMPTY_POST "$given_up"
without commit NO_SWEEP_WAITS "$swept"
without commit NO_KEEP_LANDED "$swept"
without commit NO_REFUSED "$swept"
without commit NO_REFUSED_LOOK "$posts"
without commit NO_REFUSED_SETTLED "$swept"
without commit NO_FAIL_CLOSED "$swept -DRENAMED"
without commit NO_KEEP_DOUBT "$swept"
without schema NO_SCHEMA_CHECK ""
without schema NO_SCHEMA_ASSERT ""
without schema NO_REPLAY_BY_ID "-DNO_FIRST_CHECK"

quiet="-DTWINS=0 -DLOSSES=0"
moving="$two_places -DTWINS=1 -DLOSSES=0 -DMOVES=1"
without tasks_and_seal NO_FENCE "$one_place $quiet -DCLAIMS=2"
without tasks_and_seal NO_WORKER_LOOK "$one_place $quiet -DCLAIMS=2"
without tasks_and_seal NO_ONE_LOG "$one_place -DCLAIMS=2 -DTWINS=1 -DLOSSES=0"
without tasks_and_seal NO_PREFIX "$one_place $quiet -DCLAIMS=3"
without tasks_and_seal NO_SUPERSEDES "$one_place $quiet -DCLAIMS=3"
without tasks_and_seal NO_TAKEN "$moving -DCLAIMS=3 -DREPLAYS_ONLY"
without tasks_and_seal NO_THROUGH "$one_place -DCLAIMS=2 -DTWINS=1 -DLOSSES=0"
without tasks_and_seal NO_SEAL_FIRST "$one_place -DCLAIMS=3 -DTWINS=1 -DLOSSES=0"
without tasks_and_seal NO_ANTI_JOIN "$one_place $quiet -DCLAIMS=2"
without tasks_and_seal NO_SUMS "$one_place -DCLAIMS=2 -DTWINS=1 -DLOSSES=0"
without tasks_and_seal NO_REPLAY "$one_place $quiet -DCLAIMS=2"
without tasks_and_seal NO_DUPLICATE_CHECK "$moving -DCLAIMS=3 -DMOVES_FIRST"
without tasks_and_seal NO_DROP_WHOLE "$moving -DCLAIMS=3 -DMOVES_FIRST"
without tasks_and_seal NO_WITHDRAW "$one_place -DCLAIMS=2 -DTWINS=0 -DLOSSES=1"
without tasks_and_seal NO_STAND_AGAIN "$one_place -DCLAIMS=3 -DTWINS=0 -DLOSSES=1"

hole commit HOLE_REWIND "$posts"

exit $failed
