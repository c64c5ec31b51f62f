/* str.c - the text builder, numbers in the C locale, and characters in UTF-8.
 *
 * A text that has failed (no memory) ignores all that is added, so callers ask once, at the end.
 * Called from everywhere; the locale is changed for the calling thread alone.
 */
#include "base/str.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBER_BYTES = 128 };

/* Enter the C locale in this thread alone.  The C library has it ready: nothing is allocated. */
typedef struct c_locale {
    locale_t c, before;
} c_locale;

static bool enter_c_locale(c_locale *l)
{
    l->c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (l->c)
        l->before = uselocale(l->c);
    return l->c;
}

static void leave_c_locale(c_locale *l)
{
    uselocale(l->before);
    freelocale(l->c);
}

/* 0 to 15, or -1 for any other character. */
int str_hex_digit(char c)
{
    const char low = (char)(c | 0x20);
    if (c >= '0' && c <= '9')
        return c - '0';
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* By the first byte alone; of bytes that begin no character the answer means nothing, though it is
 * 1 to 4. */
size_t str_char_bytes(char first)
{
    const unsigned char c = (unsigned char)first;
    return 1 + (c >= 0x80) + (c >= 0xe0) + (c >= 0xf0);
}

/* The bytes written, 1 to 4; c is a code point. */
size_t str_put_char(char to[4], uint32_t c)
{
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    const size_t size = 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    for (size_t i = size; i-- > 1; c >>= 6)
        to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(lead[size] | c);
    return size;
}

/* Read in the C locale: a program that sets LC_NUMERIC would otherwise read "1.5" as 1. */
bool str_read_double(str s, double *out)
{
    char digits[NUMBER_BYTES + 1], *end = digits;
    c_locale l;
    if (!s.n || s.n > NUMBER_BYTES || !enter_c_locale(&l))
        return false;
    memcpy(digits, s.at, s.n);
    digits[s.n] = 0;
    *out = strtod(digits, &end);
    leave_c_locale(&l);
    return end == digits + s.n;
}

/* Room for n more bytes and the final NUL.  The bound on n keeps the doubling from overflowing. */
static bool reserve(text *t, size_t n)
{
    if (t->failed || n >= SIZE_MAX / 4 - t->n) {
        t->failed = true;
        return false;
    }
    if (t->n + n + 1 <= t->capacity)
        return true;
    size_t capacity = t->capacity ? t->capacity * 2 : 256;
    while (capacity < t->n + n + 1)
        capacity *= 2;
    char *at = realloc(t->at, capacity);
    if (!at) {
        t->failed = true;
        return false;
    }
    t->at = at;
    t->capacity = capacity;
    return true;
}

/* There is always a zero after the text, so that it can be passed on as a C string. */
void text_add(text *t, const char *bytes, size_t n)
{
    if (!reserve(t, n))
        return;
    if (n)
        memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = 0;
}

/* Numbers are written with a point, whatever the process's locale says.  A failure is remembered in
 * the text; callers look once, at the end. */
void text_print(text *t, const char *format, ...)
{
    va_list args;
    c_locale l;
    if (!enter_c_locale(&l)) {
        t->failed = true;
        return;
    }
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && reserve(t, (size_t)n)) {
        va_start(args, format);
        vsnprintf(t->at + t->n, (size_t)n + 1, format, args);
        va_end(args);
        t->n += (size_t)n;
    }
    leave_c_locale(&l);
}

/* The fewest digits that read back as the same number. */
void text_add_double(text *t, double x)
{
    size_t before = t->n;
    double back = 0;
    for (int digits = 1; digits <= 17; digits++) {
        t->n = before;
        text_print(t, "%.*g", digits, x);
        if (t->failed ||
            (str_read_double((str){t->at + before, t->n - before}, &back) && back == x))
            break;
    }
}

/* n zero bytes at the end of the text, to be overwritten.  The address holds until the text grows
 * again. */
char *text_room(text *t, size_t n)
{
    static const char zeros[4096];
    const size_t at = t->n;
    for (size_t left = n, some; left && !t->failed; left -= some) {
        some = left < sizeof zeros ? left : sizeof zeros;
        text_add(t, zeros, some);
    }
    return t->failed || !n ? NULL : t->at + at;
}

/* NULL: the text has failed, or the arena has no memory. */
char *text_copy(const text *t, arena *a)
{
    const str all = text_str(t);
    return t->failed ? NULL : arena_copy(a, all.at, all.n);
}

/* Leaves an empty text that may be used again. */
void text_free(text *t)
{
    free(t->at);
    *t = (text){0};
}
