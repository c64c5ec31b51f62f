/* net_keys.h - the keys of those who may ask: one from the command line, more from a file that can
 * be read again. */
#ifndef NET_KEYS_H
#define NET_KEYS_H

#include <pthread.h>

#include "net/net_limits.h"

/* A key of the file.  It stays until net_keys_close, so that whoever has found it may keep it; one
 * that has left the file opens nothing any more, and comes back with the counts that it had. */
typedef struct net_key {
    struct net_key *next;
    bool valid;
    net_account account; /* under the mutex */
    char words[];
} net_key;

/* Zero-initialise; any thread may ask while another reads the file again. */
typedef struct net_keys {
    const char *one; /* without limits; NULL: none */
    /* A key on each line, and its limits (net_limits_read) after it; empty lines and those that
     * begin with # do not count; NULL: no file. */
    const char *path;
    pthread_mutex_t mutex; /* of what follows */
    net_key *first;        /* heap */
} net_keys;

/* Read the file.  MPK_EIO, MPK_EFORMAT: it has no key, or something wrong; then the keys stay as
 * they were. */
mpk_status net_keys_read(mpk_context *cx, net_keys *k);
/* Must one have a key at all? */
bool net_keys_needed(const net_keys *k);
/* *out: the key of the file; NULL: it is the one without limits. */
bool net_keys_find(net_keys *k, const char *given, net_key **out);
void net_keys_close(net_keys *k);

#endif
