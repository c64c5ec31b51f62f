/* net_keys.h - the API keys that clients must send: one from the command line, more from a file
 * that can be read again. */
#ifndef NET_KEYS_H
#define NET_KEYS_H

#include <pthread.h>

#include "net/net_limits.h"

/* A key of the file.  It stays until net_keys_close, so exchanges may keep a pointer to it.  A
 * key that has left the file is not valid; if it comes back, it has the counts that it had. */
typedef struct net_key {
    struct net_key *next;
    bool valid;
    net_account account; /* under the mutex */
    char words[];
} net_key;

/* Zero-initialise.  Any thread may ask while another one reads the file again. */
typedef struct net_keys {
    const char *one; /* without limits; NULL: none */
    /* The file: a key on each line, followed by its limits (net_limits_read); empty lines and
     * those that begin with # are skipped.  NULL: no file. */
    const char *path;
    pthread_mutex_t mutex; /* guards what follows */
    net_key *first;        /* heap */
} net_keys;

/* Read the file.  MPK_EIO, MPK_EFORMAT (no key in it, or something wrong); then the keys stay as
 * they were. */
mpk_status net_keys_read(mpk_context *cx, net_keys *k);
/* Must a request have a key at all? */
bool net_keys_needed(const net_keys *k);
/* Is this text a key?  *out: the key of the file; NULL if it is the one without limits. */
bool net_keys_find(net_keys *k, const char *given, net_key **out);
void net_keys_close(net_keys *k);

#endif
