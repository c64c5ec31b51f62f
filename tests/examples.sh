#!/usr/bin/env bash
# Build every example against the library in MPK_BUILD and run it on a model made up from a configuration.
set -euo pipefail
build=${MPK_BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
    printf 'examples: %s\n' "$*" >&2
    exit 1
}

for source in examples/*.c; do
    name=$(basename "$source" .c)
    cc -std=c17 -Wall -Wextra -Werror -Iinclude -o "$folder/$name" "$source" -L"$build" -lmpk -lm -Wl,-rpath,"$build"
done

"$folder/graph" | grep -q 'add up to 8.0000' || fail "graph: a wrong sum"
for name in complete batch own_sampler; do
    if "$folder/$name" "$folder/nothing" "a text" >/dev/null 2>"$folder/errors"; then
        fail "$name: no failure without a model"
    fi
    grep -q nothing "$folder/errors" || fail "$name: the message does not name the file"
done

model=${MPK_DEMO_MODEL:-}
if [ ! -f "$model" ]; then
    echo "examples: no demo model, so complete, batch and own_sampler only failed as they should"
    exit 0
fi
"$folder/complete" "$model" "The capital of France is" | grep -q 'France is Paris' || fail "complete: not Paris"
"$folder/batch" "$model" "One two three" "Red green" | grep -q '^\[1\] ends: ' || fail "batch: request 1 has no end"
"$folder/own_sampler" "$model" "The capital of France is" | grep -q '^ Paris|' || fail "own_sampler: not Paris"
