/* field.c - constants of programs as numbers of the finite fields (field.h). */
#include "super/field.h"

#include <math.h>

/* whole * 2^exponent modulo a prime; a negative power of 2 is one of the inverse of 2, (prime + 1)
 * / 2. */
static uint32_t scaled(int64_t whole, int exponent, uint64_t prime)
{
    uint64_t size = (uint64_t)(whole < 0 ? -whole : whole) % prime;
    uint64_t half = (prime + 1) / 2;
    const uint64_t times = (uint64_t)(exponent < 0 ? -(int64_t)exponent : exponent);
    size = size * field_power(exponent < 0 ? half : 2, times, prime) % prime;
    return (uint32_t)(whole < 0 ? (prime - size) % prime : size);
}

/* Exact: the 53 bits of the fraction are a whole number.  An infinity or NaN becomes `lowest`,
 * which only minus infinity means; programs have no other. */
field field_of(double x)
{
    int exponent;
    if (!isfinite(x))
        return (field){0, 0, true};
    int64_t whole = (int64_t)(frexp(x, &exponent) * 0x1p53);
    return (field){scaled(whole, exponent - 53, FIELD_P), scaled(whole, exponent - 53, FIELD_Q),
                   false};
}
