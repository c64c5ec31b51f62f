/* net_random.h - random numbers of the operating system: ids that cannot be guessed, seeds that
 * differ. */
#ifndef NET_RANDOM_H
#define NET_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Write the prefix and 24 random hexadecimal digits.  MPK_EIO: the system gives none. */
mpk_status net_random_id(mpk_context *cx, const char *prefix, char *to, size_t n_bytes);
mpk_status net_random_seed(mpk_context *cx, uint64_t *to);

#endif
