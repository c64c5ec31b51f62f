/* net_random.c - random bytes of the operating system. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "net/net_random.h"

/* From the kernel, not from a generator with a state: ids must not be guessable, and forked or
 * restored processes must not repeat them. */
static mpk_status draw(mpk_context *cx, void *to, size_t n)
{
    ssize_t got;
    do
        /* so few bytes come at once after the system has started */
        got = getrandom(to, n, 0);
    while (got < 0 && errno == EINTR);
    CHECK(cx, got == (ssize_t)n, MPK_EIO, "the system gives no random bytes: %s", strerror(errno));
    return MPK_OK;
}

/* 96 random bits as hexadecimal digits. */
mpk_status net_random_id(mpk_context *cx, const char *prefix, char *to, size_t n_bytes)
{
    unsigned char drawn[12];
    char digits[2 * sizeof drawn + 1];
    TRY(draw(cx, drawn, sizeof drawn));
    for (size_t i = 0; i < sizeof drawn; i++)
        snprintf(digits + 2 * i, 3, "%02x", drawn[i]);
    snprintf(to, n_bytes, "%s%s", prefix, digits);
    return MPK_OK;
}

mpk_status net_random_seed(mpk_context *cx, uint64_t *to)
{
    return draw(cx, to, sizeof *to);
}
