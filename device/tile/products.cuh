/* products.cuh - sums of two products with one rounding order, whatever surrounds them.
 *
 * A compiler may turn a * b + c * d into fmaf(a, b, c * d) or fmaf(c, d, a * b), which differ in
 * the last bit, and it chooses anew wherever a function is inlined.  Where several bodies, or
 * several instances of one, must agree to the bit, the order is written out here.
 */
#ifndef TILE_PRODUCTS_CUH
#define TILE_PRODUCTS_CUH

#include "tile/task.cuh"

/* a * b + c * d: c * d is rounded first. */
MPK_FN float mpk_two_products(float a, float b, float c, float d)
{
    return fmaf(a, b, __fmul_rn(c, d));
}

#endif
