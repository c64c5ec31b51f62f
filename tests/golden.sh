#!/usr/bin/env bash
# golden.sh - passes on text give the text that is kept: tests/golden/NAME.in -> NAME.out by `mpk opt`.
#
# The first line of an input is a comment with the options: "#: --pass=NAME ...".  Names begin with the paper's section.
# MPK_GOLDEN_UPDATE=1 writes the outputs anew: read the difference before you commit it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/golden"
mpk=${MPK_BUILD:-../../build}/mpk
failed=0
count=0
for input in *.in; do
    read -r _ options <"$input"
    # shellcheck disable=SC2086 # the options are words
    if ! result=$("$mpk" opt $options "$input" 2>&1); then
        printf '%s: %s\n' "$input" "$result"
        failed=1
    elif [ "${MPK_GOLDEN_UPDATE:-}" ]; then
        printf '%s\n' "$result" >"${input%.in}.out"
    elif ! diff -u "${input%.in}.out" - <<<"$result"; then
        failed=1
    fi
    count=$((count + 1))
done
printf '%d goldens\n' "$count"
[ "$count" -ge 10 ]
exit $failed
