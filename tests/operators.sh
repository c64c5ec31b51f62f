#!/usr/bin/env bash
# docs/operators.md is what tools/operators.py writes from the records of today.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec python3 tools/operators.py --check
