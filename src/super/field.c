/* field.c - constants of programs as numbers of the finite fields (field.h).
 *
 * A double is a whole number of at most 53 bits times a power of 2, and both have an exact
 * counterpart modulo a prime; so 0.125 in an expression is the inverse of 8, and x * 0.125
 * agrees with x / 8.
 */
#include "super/field.h"

#include <math.h>

/* whole * 2^exponent modulo a prime; a negative power of 2 is a power of the inverse of 2, which
 * is (prime + 1) / 2. */
static uint32_t scaled(int64_t whole, int exponent, uint64_t prime)
{
    uint64_t size = (uint64_t)(whole < 0 ? -whole : whole) % prime;
    uint64_t half = (prime + 1) / 2;
    const uint64_t times = (uint64_t)(exponent < 0 ? -(int64_t)exponent : exponent);
    size = size * field_power(exponent < 0 ? half : 2, times, prime) % prime;
    return (uint32_t)(whole < 0 ? (prime - size) % prime : size);
}

/* The number that stands for a double.  An infinity or NaN becomes `lowest`: programs have no
 * other infinity than minus infinity. */
field field_of(double x)
{
    int exponent;
    if (!isfinite(x))
        return (field){0, 0, true};
    int64_t whole = (int64_t)(frexp(x, &exponent) * 0x1p53);
    return (field){scaled(whole, exponent - 53, FIELD_P), scaled(whole, exponent - 53, FIELD_Q),
                   false};
}
