#!/usr/bin/env bash
# Start the day's job until it has landed, a few times at most. For cron: see README.md.
#
# usage: run_daily.sh [DAY]      by default today, in UTC
# Environment: PYTHON, LAKE, ATTEMPTS, PAUSE_S.
# Exit codes: 0 landed, or another start is at work; 75 not yet, the next start resumes;
# 143 stopped by a signal; any other: a further start would fail the same way.

set -u # Not -e: exit codes are checked below.

# Set once: an attempt after midnight must not become another run.
day="${1:-$(date -u +%F)}"
python="${PYTHON:-python3}"
lake="${LAKE:-lake}"
attempts="${ATTEMPTS:-5}"
pause_s="${PAUSE_S:-60}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

say() { echo "$(date -u +%FT%TZ) products-$day: $*"; }

mkdir -p "$lake"
# The job inherits the lock, so it is held as long as either process runs.
exec 9>> "$lake/products.lock"
if ! flock --nonblock 9; then
    say "another start is at work"
    exit 0
fi

job="" stopped=""
stop() {
    stopped=yes
    [[ -n "$job" ]] && kill -TERM "$job" 2> /dev/null
}
trap stop TERM INT

for ((attempt = 1; attempt <= attempts; attempt++)); do
    say "attempt $attempt of $attempts"
    # In the background, because bash handles a signal only when its foreground job has ended.
    "$python" "$here/../scheduled_job/product_job.py" --run "products-$day" --lake "$lake" &
    job=$!
    wait "$job"
    code=$?
    # A signal ends the wait, not the job, which then stops cleanly.
    while kill -0 "$job" 2> /dev/null; do
        wait "$job"
        code=$?
    done
    job=""
    if [[ -n "$stopped" ]]; then
        say "stopped; what is done is kept"
        exit 143
    fi
    if ((code == 0)); then
        exit 0
    fi
    # 75 means "start me again"; above 128, a signal has ended the job.
    if ((code != 75 && code <= 128)); then
        say "failed with $code, for good"
        exit "$code"
    fi
    say "ended with $code, what is done is kept"
    if ((attempt < attempts)); then
        sleep "$pause_s" &
        wait $!
        [[ -n "$stopped" ]] && exit 143
    fi
done
exit 75
