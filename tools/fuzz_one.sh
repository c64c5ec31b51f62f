#!/usr/bin/env bash
# Run one fuzzer for some seconds: fuzz_one.sh SECONDS build-fuzz/tests/NAME_fuzz
# It starts from tests/corpus/NAME and from what earlier runs kept in .cache/fuzz/NAME; a crash leaves its input there.
set -euo pipefail
seconds=$1 program=$2
name=${program##*/}
name=${name%_fuzz}
kept=.cache/fuzz/$name
mkdir -p "$kept/corpus"
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
if "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=1048576 -print_final_stats=1 \
    -artifact_prefix="$kept/" "$kept/corpus" "tests/corpus/$name" >"$kept/log" 2>&1; then
    printf '%-20s clean: %s runs in %s s\n' "$name" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$kept/log")" "$seconds"
else
    printf '%-20s FAILED: see %s\n' "$name" "$kept/log"
    tail -n 40 "$kept/log"
    exit 1
fi
