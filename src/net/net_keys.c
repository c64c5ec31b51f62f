/* net_keys.c - the keys of those who may ask. */
#include "base/file.h"
#include "net/net_keys.h"

enum { MAX_FILE_BYTES = 1 << 20 };

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static str trim(str s)
{
    while (s.n && is_space(s.at[0]))
        s = (str){s.at + 1, s.n - 1};
    while (s.n && is_space(s.at[s.n - 1]))
        s.n--;
    return s;
}

static mpk_status add_line(mpk_context *cx, net_keys *to, str line)
{
    line = trim(line);
    if (!line.n || line.at[0] == '#')
        return MPK_OK;
    const char *key = arena_copy(&to->arena, line.at, line.n);
    CHECK(cx, key, MPK_ENOMEM, "out of memory for the keys");
    CHECK(cx, strlen(key) == line.n, MPK_EFORMAT, "%s: a key holds a NUL", to->path);
    PUSH(cx, &to->arena, &to->lines, key);
    return MPK_OK;
}

static mpk_status add_lines(mpk_context *cx, net_keys *to)
{
    str source;
    TRY(file_read(cx, &to->arena, to->path, MAX_FILE_BYTES, &source));
    while (source.n) {
        const char *end = memchr(source.at, '\n', source.n);
        const size_t n = end ? (size_t)(end - source.at) : source.n;
        TRY(add_line(cx, to, (str){source.at, n}));
        source = (str){source.at + n + (end != NULL), source.n - n - (end != NULL)};
    }
    CHECK(cx, to->lines.n, MPK_EFORMAT, "%s: there is no key in it; write one on each line", to->path);
    return MPK_OK;
}

mpk_status net_keys_read(mpk_context *cx, net_keys *k)
{
    net_keys fresh = {.path = k->path};
    if (!k->path)
        return MPK_OK;
    mpk_status status = add_lines(cx, &fresh);
    if (status == MPK_OK) {
        pthread_mutex_lock(&k->mutex);
        arena old = k->arena;
        k->arena = fresh.arena;
        k->lines.at = fresh.lines.at;
        k->lines.n = fresh.lines.n;
        k->lines.capacity = fresh.lines.capacity;
        pthread_mutex_unlock(&k->mutex);
        fresh.arena = old;
    }
    arena_free(&fresh.arena);
    return status;
}

/* Takes as long for a key that is nearly right as for one that is not. */
static bool is_key(const char *given, const char *key)
{
    const size_t n = strlen(key);
    volatile unsigned difference = strlen(given) != n;
    for (size_t i = 0, at = 0; i < n; i++) {
        difference |= (unsigned char)given[at] ^ (unsigned char)key[i];
        at += given[at] != 0;
    }
    return difference == 0;
}

bool net_keys_needed(const net_keys *k)
{
    return k->one || k->path;
}

bool net_keys_has(net_keys *k, const char *given)
{
    bool found = k->one && is_key(given, k->one);
    pthread_mutex_lock(&k->mutex);
    for (size_t i = 0; i < k->lines.n; i++)
        found |= is_key(given, k->lines.at[i]);
    pthread_mutex_unlock(&k->mutex);
    return found;
}

void net_keys_close(net_keys *k)
{
    arena_free(&k->arena);
    pthread_mutex_destroy(&k->mutex);
}
