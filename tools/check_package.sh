#!/usr/bin/env bash
# Check a Debian package of mpk: check_package.sh FILE.deb
# Unpacked into an empty folder, with no other libmpk to be found, its command answers, compiles a model's program and
# names its version; it depends on the libraries that it loads; the library, its headers and mpk.pc are there.
set -euo pipefail
deb=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fail() {
    printf 'check_package: %s\n' "$*" >&2
    exit 1
}

version=$(sed -n 's/^project(mpk VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ "$(dpkg-deb -f "$deb" Version)" = "$version" ] || fail "the package is not of version $version"
depends=$(dpkg-deb -f "$deb" Depends)
for library in libc6 libpcre2-8-0 libutf8proc2 libmicrohttpd12; do
    [[ $depends == *"$library"* ]] || fail "it does not depend on $library: $depends"
done
dpkg-deb -x "$deb" "$root"
lib=$(dirname "$(find "$root/usr/lib" -name libmpk.so)")
[ -n "$lib" ] || fail "it has no libmpk.so"
for file in usr/include/mpk/mpk.h usr/share/mpk/models/qwen3-0.6b/config.json "${lib#"$root"/}/pkgconfig/mpk.pc"; do
    [ -e "$root/$file" ] || fail "it has no /$file"
done
run() { env -i HOME="$root" PATH=/usr/bin:/bin LD_LIBRARY_PATH="$lib" MPK_DEVICE=cpu "$root/usr/bin/mpk" "$@"; }
[[ $(run --version) == *"$version"* ]] || fail "mpk --version does not say $version"
run doctor >/dev/null || fail "mpk doctor fails"
run inspect "$root/usr/share/mpk/models/qwen3-0.6b" --stats | grep -q "operators" || fail "mpk inspect fails"
printf '%s: ok\n' "${deb##*/}"
