/* str.c - the text builder. */
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Room for n more bytes and the final NUL. */
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

void text_add(text *t, const char *bytes, size_t n)
{
    if (!reserve(t, n))
        return;
    if (n)
        memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = 0;
}

void text_print(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !reserve(t, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(t->at + t->n, (size_t)n + 1, format, args);
    va_end(args);
    t->n += (size_t)n;
}

void text_free(text *t)
{
    free(t->at);
    *t = (text){0};
}
