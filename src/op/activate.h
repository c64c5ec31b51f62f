/* activate.h - the activation functions of feed-forward layers, in fp32.
 *
 * Used by the reference code of gelu, silu, silu_mul, linear and expert_linear; fast bodies have
 * their own forms (vec_math.h, device/) and agree up to rounding.  The forms here are the
 * definition: fuse_map writes the same ones as expressions.
 */
#ifndef OP_ACTIVATE_H
#define OP_ACTIVATE_H

#include <math.h>

#include "base/str.h"

/* x / (1 + e^-x).  For x far below zero expf overflows to infinity and the quotient is -0, as it
 * should be. */
static inline float activate_silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* x times the normal distribution function, 0.5 (1 + erf(x / sqrt 2)), as 0.5 erfc(-x / sqrt 2),
 * which keeps its digits where 1 + erf cancels (x below -1): a gate may be followed by a large
 * factor. */
static inline float activate_gelu(float x)
{
    return 0.5f * x * erfcf(x * -0.70710678118654752f);
}

/* Its approximation by tanh: 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 +
 * e^-2u), which keeps its digits where 1 + tanh(u) cancels (u near -3). */
static inline float activate_gelu_tanh(float x)
{
    return x / (1.0f + expf(-1.59576912160573072f * (x + 0.044715f * x * x * x)));
}

/* Its approximation by a sigmoid, x sigmoid(1.702 x), which OpenAI's CLIP was trained with. */
static inline float activate_quick_gelu(float x)
{
    return x / (1.0f + expf(-1.702f * x));
}

/* max(x, 0); NaN stays NaN, which a comparison the other way round would turn into 0. */
static inline float activate_relu(float x)
{
    return x <= 0 ? 0 : x;
}

/* The gated activation of gpt-oss, which it calls swiglu: (up + 1) gate sigmoid(1.702 gate), with
 * gate at most `limit` and up within it.  Comparisons keep NaN. */
static inline float activate_swiglu_oai(float gate, float up, float limit)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return gate / (1.0f + expf(-1.702f * gate)) * (up + 1.0f);
}

/* By the name that attributes give: "silu", "gelu", "gelu_tanh", "quick_gelu" or "relu". */
static inline float activate_named(str name, float x)
{
    if (str_is(name, "silu"))
        return activate_silu(x);
    if (str_is(name, "relu"))
        return activate_relu(x);
    if (str_is(name, "quick_gelu"))
        return activate_quick_gelu(x);
    return str_is(name, "gelu") ? activate_gelu(x) : activate_gelu_tanh(x);
}

#endif
