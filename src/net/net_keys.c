/* net_keys.c - API keys: from --api-key or from a file, which is read again on SIGHUP
 * (net_keys.h).
 *
 * Exchanges point to the key that they came with, so keys are never freed while the server runs:
 * a key that a new file leaves out stays in the list, but is not valid.  Invariant, under the
 * mutex: each key is in the list once, with one account for its whole life.
 *
 * One thread at a time reads the file.  It alone changes the list, so it may go through it without
 * the mutex.  Cost of reading: linear in the keys, under the mutex too, where requests wait.
 */
#include <stdlib.h>

#include "base/file.h"
#include "base/map.h"
#include "base/thread.h"
#include "net/net_keys.h"

/* A larger file is refused. */
enum { MAX_FILE_BYTES = 1 << 20 };

/* No exchange may hold a key of the list: one that was never taken over, or all keys when the
 * server ends. */
static void free_all(net_key *first)
{
    while (first) {
        net_key *next = first->next;
        free(first);
        first = next;
    }
}

/* ---- the file ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* A line without the white space around it; files of other systems may end lines with a carriage
 * return. */
static str trim(str s)
{
    while (s.n && is_space(s.at[0]))
        s = (str){s.at + 1, s.n - 1};
    while (s.n && is_space(s.at[s.n - 1]))
        s.n--;
    return s;
}

/* Keys that are being read, the latest first, and the characters of all of them. */
typedef struct reading {
    arena *arena;
    map words;
    net_key *first;
} reading;

/* Parse a line, "KEY [limits]", and put the key before the others.  Empty lines and comments are
 * skipped.  A key that is given twice is an error instead of a matter of order. */
static mpk_status add_line(mpk_context *cx, str line, reading *to)
{
    net_limits limits;
    size_t n = 0;
    line = trim(line);
    if (!line.n || line.at[0] == '#')
        return MPK_OK;
    while (n < line.n && !is_space(line.at[n]))
        n++;
    CHECK(cx, !memchr(line.at, 0, line.n), MPK_EFORMAT, "a key holds a NUL");
    TRY(net_limits_read(cx, (str){line.at + n, line.n - n}, &limits));
    net_key *key = calloc(1, sizeof *key + n + 1);
    CHECK(cx, key, MPK_ENOMEM, "out of memory for the keys");
    memcpy(key->words, line.at, n);
    key->next = to->first;
    to->first = key;
    net_limits_set(&key->account, &limits, clock_ns());
    CHECK(cx, !map_get(&to->words, (str){line.at, n}, NULL), MPK_EFORMAT,
          "the same key stands on an earlier line");
    return map_put(cx, to->arena, &to->words, (str){key->words, n}, 0);
}

/* Parse all lines.  A file without any key is refused: it would open the server to everyone, or
 * close it. */
static mpk_status add_lines(mpk_context *cx, const char *path, str source, reading *to)
{
    for (size_t line = 1; source.n; line++) {
        const char *end = memchr(source.at, '\n', source.n);
        const size_t n = end ? (size_t)(end - source.at) : source.n;
        NOTE(cx, add_line(cx, (str){source.at, n}, to), "reading %s, line %zu", path, line);
        source = (str){source.at + n + (end != NULL), source.n - n - (end != NULL)};
    }
    CHECK(cx, to->first, MPK_EFORMAT, "%s: there is no key in it; write one on each line", path);
    return MPK_OK;
}

/* Where the keys of the list are, by their characters. */
static mpk_status find_known(mpk_context *cx, arena *a, net_key *first, map *out)
{
    for (net_key *key = first; key; key = key->next)
        TRY(map_put(cx, a, out, str_from(key->words), (uintptr_t)key));
    return MPK_OK;
}

/* Replace the list, under the mutex: fresh keys are valid, all others are not.  A key that was
 * there before keeps its account. */
static void take_over(net_keys *k, const map *all, net_key *fresh)
{
    for (net_key *old = k->first; old; old = old->next)
        old->valid = false;
    while (fresh) {
        net_key *next = fresh->next;
        uint64_t at;
        if (map_get(all, str_from(fresh->words), &at)) {
            net_key *known = (net_key *)(uintptr_t)at;
            net_limits_set(&known->account, &fresh->account.limits, clock_ns());
            known->valid = true;
            free(fresh);
        } else {
            fresh->valid = true;
            fresh->next = k->first;
            k->first = fresh;
        }
        fresh = next;
    }
}

/* A file that cannot be read, or holds something wrong, leaves the keys as they were. Read and
 * parsed without the lock; only the exchange of the lists is under it, so no request waits for the
 * file. */
mpk_status net_keys_read(mpk_context *cx, net_keys *k)
{
    arena a = {0};
    reading fresh = {.arena = &a};
    map known = {0};
    str source;
    if (!k->path)
        return MPK_OK;
    mpk_status status = file_read(cx, &a, k->path, MAX_FILE_BYTES, &source);
    if (status == MPK_OK)
        status = add_lines(cx, k->path, source, &fresh);
    if (status == MPK_OK)
        status = find_known(cx, &a, k->first, &known);
    if (status == MPK_OK) {
        pthread_mutex_lock(&k->mutex);
        take_over(k, &known, fresh.first);
        pthread_mutex_unlock(&k->mutex);
    } else
        free_all(fresh.first);
    arena_free(&a);
    return status;
}

/* ---- comparing keys ---- */

/* Compare in a time that does not depend on how many characters are right. */
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

/* All keys are compared even if one matches, so the time does not tell which one was nearly
 * right. */
bool net_keys_find(net_keys *k, const char *given, net_key **out)
{
    net_key *found = NULL;
    pthread_mutex_lock(&k->mutex);
    for (net_key *key = k->first; key; key = key->next)
        if (is_key(given, key->words) && key->valid)
            found = key;
    pthread_mutex_unlock(&k->mutex);
    const bool is_one = k->one && is_key(given, k->one);
    *out = is_one ? NULL : found;
    return is_one || found;
}

void net_keys_close(net_keys *k)
{
    free_all(k->first);
    pthread_mutex_destroy(&k->mutex);
}
