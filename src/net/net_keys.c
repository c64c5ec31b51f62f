/* net_keys.c - API keys: from --api-key or from a file, which is read again on SIGHUP
 * (net_keys.h).
 *
 * Exchanges point to the key that they came with, so keys are never freed while the server runs:
 * a key that a new file leaves out stays in the list, but is not valid.  Invariant, under the
 * mutex: each key is in the list once, with one account for its whole life.
 */
#include <stdlib.h>

#include "base/file.h"
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

/* The key with these characters, valid or not; NULL: none. */
static net_key *find_words(net_key *first, const char *words)
{
    while (first && strcmp(first->words, words) != 0)
        first = first->next;
    return first;
}

/* Parse a line, "KEY [limits]", and put the key before *to.  Empty lines and comments are skipped.
 * The key is looked for among the lines before, so that a key that is given twice is an error
 * instead of a matter of order. Quadratic, over a file of bounded size, at a start or a reload. */
static mpk_status add_line(mpk_context *cx, str line, net_key **to)
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
    key->next = *to;
    *to = key;
    net_limits_set(&key->account, &limits, clock_ns());
    CHECK(cx, !find_words(key->next, key->words), MPK_EFORMAT,
          "the same key stands on an earlier line");
    return MPK_OK;
}

/* Parse all lines.  A file without any key is refused: it would open the server to everyone, or
 * close it. */
static mpk_status add_lines(mpk_context *cx, const char *path, str source, net_key **to)
{
    for (size_t line = 1; source.n; line++) {
        const char *end = memchr(source.at, '\n', source.n);
        const size_t n = end ? (size_t)(end - source.at) : source.n;
        NOTE(cx, add_line(cx, (str){source.at, n}, to), "while reading %s, line %zu", path, line);
        source = (str){source.at + n + (end != NULL), source.n - n - (end != NULL)};
    }
    CHECK(cx, *to, MPK_EFORMAT, "%s: there is no key in it; write one on each line", path);
    return MPK_OK;
}

/* Replace the list, under the mutex: fresh keys are valid, all others are not.  A key that was
 * there before keeps its account. */
static void take_over(net_keys *k, net_key *fresh)
{
    for (net_key *old = k->first; old; old = old->next)
        old->valid = false;
    while (fresh) {
        net_key *next = fresh->next, *known = find_words(k->first, fresh->words);
        if (known) {
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
    net_key *fresh = NULL;
    str source;
    if (!k->path)
        return MPK_OK;
    mpk_status status = file_read(cx, &a, k->path, MAX_FILE_BYTES, &source);
    if (status == MPK_OK)
        status = add_lines(cx, k->path, source, &fresh);
    if (status == MPK_OK) {
        pthread_mutex_lock(&k->mutex);
        take_over(k, fresh);
        pthread_mutex_unlock(&k->mutex);
    } else
        free_all(fresh);
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
