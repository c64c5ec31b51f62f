/* limits_file.h - a text that a test makes, against the file in tests that says what it should be.
 *
 * For body_limits_test, what bodies take, limit by limit, and plans_test, what models become.
 * Where the text differs the new one is left in the build folder, to be read, and copied if the
 * change is meant. */
#ifndef TESTS_LIMITS_FILE_H
#define TESTS_LIMITS_FILE_H

#include "check.h"

#include <string.h>

#include "base/str.h"

static inline size_t limits_line_of(const char *words, size_t at)
{
    size_t n = 1;
    for (size_t i = 0; i < at; i++)
        n += words[i] == '\n';
    return n;
}

/* Fail unless tests/NAME holds this text, which is freed. */
static inline void check_limits(const char *name, text *made)
{
    static char expected[1 << 20];
    const char *folder = getenv("MPK_BUILD");
    char path[512];
    assert_false(made->failed);
    snprintf(path, sizeof path, "tests/%s", name);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(expected, 1, sizeof expected - 1, f) : 0, same = 0;
    if (f)
        fclose(f);
    while (same < n && same < made->n && expected[same] == made->at[same])
        same++;
    if (same < n || same < made->n) {
        snprintf(path, sizeof path, "%s/%s", folder ? folder : "build", name);
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(made->at, 1, made->n, f), made->n);
        fclose(f);
        fail_msg("tests/%s differs from line %zu on; what it would be now is in %s", name,
                 limits_line_of(made->at, same), path);
    }
    text_free(made);
}

#endif
