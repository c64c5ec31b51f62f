/* str.h - text: borrowed slices and a builder. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"

/* Borrowed bytes, not NUL-terminated.  printf("%.*s", STR_ARG(s)). */
typedef struct str {
    const char *at;
    size_t n;
} str;

#define STR_ARG(s) (int)(s).n, (s).at
/* The first bytes of a text that came from outside, as a message quotes it. */
#define STR_SHOWN(s, most) (int)((s).n < (most) ? (s).n : (most)), (s).n ? (s).at : ""
#define STR(literal) ((str){(literal), sizeof(literal) - 1})

static inline str str_from(const char *text)
{
    return (str){text, strlen(text)};
}
static inline bool str_equal(str a, str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}
static inline bool str_is(str a, const char *text)
{
    return str_equal(a, str_from(text));
}
/* Does a begin, or end, with the other text?  Every text does with an empty one. */
static inline bool str_begins(str a, str with)
{
    return a.n >= with.n && (with.n == 0 || memcmp(a.at, with.at, with.n) == 0);
}
static inline bool str_ends(str a, str with)
{
    return a.n >= with.n && (with.n == 0 || memcmp(a.at + a.n - with.n, with.at, with.n) == 0);
}
/* A truth as JSON and C++ spell it. */
static inline const char *str_bool(bool truth)
{
    return truth ? "true" : "false";
}

/* The value of a hexadecimal digit in either case; -1: it is none. */
int str_hex_digit(char c);
/* Bytes of the character that begins with `first`, in valid UTF-8. */
size_t str_char_bytes(char first);
/* Write the UTF-8 of a character; returns its bytes. */
size_t str_put_char(char to[4], uint32_t c);

/* The decimal number that s spells as a whole, with a point in any locale of the program; false if
 * it is none. */
bool str_read_double(str s, double *out);

/* A growing text on the heap; zero-initialise, free with text_free.  After a failed allocation it
 * keeps what it had, sets failed and ignores further additions: check once, at the end. */
typedef struct text {
    char *at; /* NUL-terminated when n > 0; NULL when nothing was added */
    size_t n, capacity;
    bool failed;
} text;

/* What was added so far, borrowed until the next addition; its `at` is never NULL. */
static inline str text_str(const text *t)
{
    return (str){t->at ? t->at : "", t->n};
}
/* A NUL-terminated copy of it; NULL: an addition failed, or the system has no memory. */
char *text_copy(const text *t, arena *a);

void text_add(text *t, const char *bytes, size_t n);
/* As in the C locale: a file has the same bytes under a host program that writes commas for
 * points. */
void text_print(text *t, const char *format, ...) BASE_PRINTF(2, 3);
/* The fewest digits that str_read_double turns into the same number. */
void text_add_double(text *t, double x);
/* n zeroed bytes at the end, to be written over; NULL: there are none. */
char *text_room(text *t, size_t n);
void text_free(text *t);

#endif
