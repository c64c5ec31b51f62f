/* net_keys.h - the keys of those who may ask: one from the command line, more from a file that can be read again. */
#ifndef NET_KEYS_H
#define NET_KEYS_H

#include <pthread.h>

#include "base/str.h"

/* Zero-initialise; any thread may ask while another reads the file again. */
typedef struct net_keys {
    const char *one;  /* NULL: none */
    const char *path; /* a key on each line; empty lines and those that begin with # do not count; NULL: no file */
    pthread_mutex_t mutex;
    arena arena; /* of lines */
    VEC(const char *) lines;
} net_keys;

/* Read the file.  MPK_EIO, MPK_EFORMAT: it has no key; then the keys stay as they were. */
mpk_status net_keys_read(mpk_context *cx, net_keys *k);
/* Must one have a key at all? */
bool net_keys_needed(const net_keys *k);
bool net_keys_has(net_keys *k, const char *given);
void net_keys_close(net_keys *k);

#endif
