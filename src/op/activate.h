/* activate.h - the activation functions of feed-forward layers, in fp32. */
#ifndef OP_ACTIVATE_H
#define OP_ACTIVATE_H

#include <math.h>

static inline float activate_silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* x times the normal distribution function */
static inline float activate_gelu(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

/* its approximation by tanh */
static inline float activate_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

#endif
