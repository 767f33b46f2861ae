#!/usr/bin/env bash
# What CI only samples, in full: `make nightly`. Needs what `make setup` and `make stack` need, uv,
# spin for the models (apt-get install spin), and go and npm for the emulators.
#
#   dev/nightly.sh [STEP…]     all steps, or some: models lowest matrix guards simulate fuzz emulators
#                              hostile slow crash
#
# HISTORIES and FUZZ_MINUTES set how much is tried, SEED the seed; ARGS_CRASH goes to
# `make crash`, ARGS_GUARDS to `make guards`, ARGS_MODELS to spec/check.sh. Each step's output goes
# to a file in a folder that is printed first. A step that fails does not stop the others. The exit
# code is not zero if any step failed.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export HOLDFAST_CACHE="${HOLDFAST_CACHE:-$HOME/.cache/holdfast}"
PATH="$PATH:$HOLDFAST_CACHE/uv/bin" # Where CI installs it if there is no other.
# A server that does not run is a failure here, not a reason to skip its tests.
export HOLDFAST_REQUIRE_STACK=1
known=(models lowest matrix guards simulate fuzz emulators hostile slow crash)
with_stack=" hostile slow crash "
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=("${known[@]}")
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}
export HOLDFAST_CRASH_SEED=${HOLDFAST_CRASH_SEED:-$SEED}
out="$HOLDFAST_CACHE/nightly/$(date +%Y-%m-%dT%H%M%S)"
mkdir -p "$out" || exit

run_step() {
    case $1 in
    models) spec/check.sh ${ARGS_MODELS:-} ;;
    lowest) make test-lowest ;;
    matrix) make test-matrix ;;
    guards) make guards ARGS="${ARGS_GUARDS:-}" ;;
    simulate) make simulate N="${HISTORIES:-200000}" ARGS="--seed $SEED" ;;
    fuzz) make fuzz MINUTES="${FUZZ_MINUTES:-10}" SEED="$SEED" ;;
    emulators) make emulators ;;
    hostile) make hostile ARGS="${ARGS_HOSTILE:-}" ;;
    slow) make slow ARGS="${ARGS_SLOW:-}" ;;
    crash) make crash ARGS="${ARGS_CRASH:-}" ;;
    *) echo "unknown step $1; the steps are: ${known[*]}"; return 2 ;;
    esac
}

# The servers are stopped again unless they were up before.
stop_stack() { make stack-stop >>"$out/stack.log" 2>&1; }
need_stack() {
    [[ $with_stack == *" $1 "* ]] && [ ! -e "$out/stack.log" ] || return 0
    .venv/bin/python dev/stack/stack.py status >"$out/stack.log" 2>&1 || trap stop_stack EXIT
    make stack WITH="nessie minio" >>"$out/stack.log" 2>&1 || tail -n 30 "$out/stack.log"
}

make setup || exit
echo "nightly: seed $SEED; again: SEED=$SEED dev/nightly.sh ${steps[*]}"
echo "nightly: output in $out"
results=()
failed=0
for step in "${steps[@]}"; do
    need_stack "$step"
    began=$SECONDS result=passed
    run_step "$step" >"$out/$step.log" 2>&1 || { result=FAILED failed=1; }
    took=$((SECONDS - began))
    last=$(grep -v '^make' "$out/$step.log" | tail -n 1 | cut -c -100)
    results+=("$(printf '%-9s %-7s %3d:%02d  %s' "$step" "$result" $((took / 60)) $((took % 60)) "$last")")
    echo "${results[-1]}"
done
printf '\n%s\n' "step      result  min:s  last line"
printf '%s\n' "${results[@]}"
exit "$failed"
