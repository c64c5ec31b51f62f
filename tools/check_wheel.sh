#!/usr/bin/env bash
# Check a wheel of mpk: check_wheel.sh FILE.whl
# It names the glibc that it needs, brings every other library along and no debugging symbols.  Installed alone into an
# empty environment, it compiles a model from its configuration and generates with made-up weights.
set -euo pipefail
wheel=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fail() {
    printf 'check_wheel: %s\n' "$*" >&2
    exit 1
}

[[ $wheel == *manylinux_2_* ]] || fail "${wheel##*/} names no glibc: auditwheel has not repaired it"
python3 -m venv "$root/empty"
"$root/empty/bin/pip" install -q --no-index --no-deps "$wheel"
library=$(find "$root/empty" -name libmpk.so)
[ -n "$library" ] || fail "it has no libmpk.so"
ldd "$library" >"$root/needs"
known='(linux-vdso|libc|libm|libdl|libpthread)\.so|/ld-linux|mpk\.libs/'
strangers=$(grep -vE "$known" "$root/needs" || true)
[ -z "$strangers" ] || fail "it does not bring along: $strangers"
readelf -S "$library" >"$root/sections" # grep -q on a pipe would end readelf early, and pipefail the check
! grep -q '\.debug_info' "$root/sections" || fail "it carries debugging symbols"
mkdir "$root/model"
cat >"$root/model/config.json" <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 72, "vocab_size": 131,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "attention_bias": false, "torch_dtype": "bfloat16", "bos_token_id": 1,
 "eos_token_id": 2}
END
cd "$root"
env -i HOME="$root" PATH=/usr/bin:/bin MPK_DEVICE=cpu "$root/empty/bin/python" - "$root/model" <<'END'
import sys

import mpk

with mpk.LLM(sys.argv[1], random_weights=True) as llm:
    answer = llm.generate([[5, 6, 7]], mpk.SamplingParams(max_tokens=8, ignore_eos=True))[0]
assert len(answer.token_ids) == 8, answer
END
printf '%s: ok\n' "${wheel##*/}"
