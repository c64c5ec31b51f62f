/* field.h - numbers of finite fields, in which two programs are compared without rounding.
 *
 * A number is a pair: `p` modulo FIELD_P for what stands outside of exponentials, `q` modulo
 * FIELD_Q for what stands in an exponent.  FIELD_P = 2 FIELD_Q + 1, both prime, so the squares
 * modulo FIELD_P are a group of order FIELD_Q, and exp(x) = root^q with a random square `root`
 * obeys exp(a + b) = exp(a) exp(b).  (The construction is that of the Mirage paper.)  A function
 * of which nothing is known is a random table: a hash of its name and its arguments.  `lowest`:
 * minus infinity, as a mask and the largest of nothing have it.
 *
 * Why fields: (a + b) + c and a + (b + c) differ in floats, so two right programs would differ;
 * in a field they are equal, and two different polynomials agree at a random point with a
 * probability of about their degree over FIELD_P.
 *
 * Called by block_run.c.
 */
#ifndef SUPER_FIELD_H
#define SUPER_FIELD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"

/* Below 2^31, so that products fit 64 bits and a number fits 32. */
#define FIELD_P UINT64_C(2147483579)
#define FIELD_Q UINT64_C(1073741789)

typedef struct field {
    /* p < FIELD_P, q < FIELD_Q; after an exponential q is unknown, a hash of p */
    uint32_t p, q;
    /* minus infinity; it is sticky in sums and products, and its exponential is 0 */
    bool lowest;
} field;

/* Number `index` of a stream; uniform but for a bias of about 2^-33, which no proof notices. */
static inline field field_random(uint64_t stream, uint64_t index)
{
    return (field){(uint32_t)(rng_u64(stream, 2 * index) % FIELD_P),
                   (uint32_t)(rng_u64(stream, 2 * index + 1) % FIELD_Q), false};
}
static inline field field_add(field a, field b)
{
    return (field){(uint32_t)(((uint64_t)a.p + b.p) % FIELD_P),
                   (uint32_t)(((uint64_t)a.q + b.q) % FIELD_Q), a.lowest || b.lowest};
}
static inline field field_negate(field a)
{
    return (field){(uint32_t)((FIELD_P - a.p) % FIELD_P), (uint32_t)((FIELD_Q - a.q) % FIELD_Q),
                   false};
}
static inline field field_subtract(field a, field b)
{
    field d = field_add(a, field_negate(b));
    d.lowest = a.lowest;
    return d;
}
static inline field field_multiply(field a, field b)
{
    return (field){(uint32_t)((uint64_t)a.p * b.p % FIELD_P),
                   (uint32_t)((uint64_t)a.q * b.q % FIELD_Q), a.lowest || b.lowest};
}
static inline uint32_t field_power(uint64_t base, uint64_t n, uint64_t prime)
{
    uint64_t power = 1;
    for (base %= prime; n; n >>= 1, base = base * base % prime)
        power = n & 1 ? power * base % prime : power;
    return (uint32_t)power;
}
/* The inverse; of zero: zero. */
static inline field field_inverse(field a)
{
    return (field){field_power(a.p, FIELD_P - 2, FIELD_P), field_power(a.q, FIELD_Q - 2, FIELD_Q),
                   false};
}
/* An unknown function: the same value for equal names and arguments, random otherwise. */
static inline field field_unknown(uint64_t name, const field *x, uint32_t n)
{
    uint64_t key = name;
    for (uint32_t i = 0; i < n; i++)
        key = rng_u64(key, (uint64_t)x[i].p << 32 | x[i].q) + x[i].lowest;
    return field_random(key, n);
}
/* root^x.  root: a square.  The result's own q, which an exponential of an exponential would
 * need, is a hash: no law holds for it. */
static inline field field_exp(field x, uint32_t root)
{
    if (x.lowest)
        return (field){0, 0, false};
    field y = {field_power(root, x.q, FIELD_P), 0, false};
    y.q = field_unknown(1, &y, 1).q;
    return y;
}
/* A number of a program: exact, for a double is a whole number times a power of 2. */
field field_of(double x);

#endif
