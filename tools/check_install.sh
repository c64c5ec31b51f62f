#!/usr/bin/env bash
# Check what a user gets from cmake --install: check_install.sh BUILD_FOLDER
# Libraries export mpk_ names only, public headers stand alone in C17 and C++, pkg-config finds the library, and every
# example builds against it, shared and static; the static and the shared command line answer --help.
set -euo pipefail
build=$1
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

fail() {
    printf 'check_install: %s\n' "$*" >&2
    exit 1
}

check_exports() { # FILE NM_OPTION
    local strangers
    nm "$2" --defined-only "$1" | awk 'NF == 3 && $2 ~ /[A-Z]/ && $3 !~ /^mpk_/ { print $3 }' >"$prefix/strangers"
    strangers=$(sort -u "$prefix/strangers" | head -n 20 | tr '\n' ' ')
    [ -z "$strangers" ] || fail "$1 exports $strangers"
    [ "$(nm "$2" --defined-only "$1" | grep -c ' T mpk_')" -gt 0 ] || fail "$1 exports no mpk_ function"
}

check_headers() {
    local header name
    for header in "$prefix"/include/mpk/*.h; do
        name=mpk/${header##*/}
        echo "#include <$name>" >"$prefix/one.c"
        gcc -std=c17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$prefix/include" "$prefix/one.c" ||
            fail "$name does not stand alone in C17"
        clang++ -std=c++17 -x c++ -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" "$prefix/one.c" ||
            fail "$name does not stand alone in C++"
    done
}

# Each example, against the shared library and against libmpk.a; -static only chooses what pkg-config names.
check_examples() {
    local source name flags libraries n=0
    flags=$(pkg-config --cflags mpk)
    for source in examples/*.c; do
        [ -e "$source" ] || fail "no examples"
        name=$(basename "$source" .c)
        # Word splitting of what pkg-config prints is wanted.
        # shellcheck disable=SC2046,SC2086
        gcc -std=c17 -Wall -Wextra -Werror $flags -o "$prefix/$name" "$source" $(pkg-config --libs mpk) -lm
        libraries=$(pkg-config --static --libs mpk)
        # shellcheck disable=SC2086
        gcc -std=c17 -Wall -Wextra -Werror $flags -o "$prefix/$name-static" "$source" \
            ${libraries/-lmpk/-l:libmpk.a} -lm
        ldd "$prefix/$name" >"$prefix/needs" # grep -q on a pipe would end ldd early, and pipefail the check
        grep -q "$prefix.*libmpk" "$prefix/needs" || fail "$name does not find libmpk.so: $(cat "$prefix/needs")"
        ldd "$prefix/$name-static" >"$prefix/needs"
        ! grep -q libmpk "$prefix/needs" || fail "$name-static still wants libmpk.so"
        n=$((n + 1))
    done
    printf '%d examples built, shared and static\n' "$n"
}

cmake --install "$build" --prefix "$prefix" >"$prefix/log" || fail "$(cat "$prefix/log")"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name mpk.pc)")
export PKG_CONFIG_PATH
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export LD_LIBRARY_PATH
check_exports "$LD_LIBRARY_PATH/libmpk.so" -D
check_exports "$LD_LIBRARY_PATH/libmpk.a" -g
check_headers
check_examples
"$prefix/bin/mpk" --help >/dev/null || fail "the installed mpk does not answer --help"
printf 'install: ok\n'
