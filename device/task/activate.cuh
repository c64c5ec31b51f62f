/* activate.cuh - the activation functions of feed-forward layers, in fp32.
 *
 * The formulas are those of src/op/activate.h, which defines them; expf and erff are the
 * compiler's, so bits may differ from the reference's. Generic bodies (linear, experts) and the
 * ends of streamed products call these. An activation is a constant of the instance, so the chain
 * of ifs in activate() is not in the code.
 */
#ifndef TASK_ACTIVATE_CUH
#define TASK_ACTIVATE_CUH

#include "tile/task.cuh"

/* The numbers that src/gen prints into instances by name, for the operator's attribute.  The order
 * counts: gen_form_of_activation (src/gen/body_linear_tile.c) lists the same names, and bits of
 * MPK_FORMS are numbered by it. */
enum {
    ACTIVATE_NONE,
    ACTIVATE_SILU,
    ACTIVATE_GELU,
    ACTIVATE_GELU_TANH,
    ACTIVATE_RELU,
    ACTIVATE_SWIGLU_OAI, /* of two numbers and a limit, activate_swiglu_oai */
    ACTIVATE_QUICK_GELU
};

/* x / (1 + e^-u).  A division of floats is a branch, a call and thirty instructions; this one is
 * two instructions, and within two units of the last place.  For u far below zero expf overflows
 * to infinity, and the quotient is -0, as it should be. */
MPK_FN float activate_sigmoid(float x, float u)
{
    return __fdividef(x, 1.0f + expf(-u));
}
MPK_FN float activate_silu(float x)
{
    return activate_sigmoid(x, x);
}
/* x times the normal distribution function; the constant is sqrt(1/2). The reference takes erfc,
 * which keeps its digits below 0 too; erff has half of its instructions, and is exact to 6e-8 of x,
 * more than 16 bits tell. */
MPK_FN float activate_gelu(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}
/* The tanh form written as x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3): 1 + tanh(u) would
 * cancel near u = -3. */
MPK_FN float activate_two_u(float x)
{
    return 1.59576912160573072f * (x + 0.044715f * x * x * x);
}
MPK_FN float activate_gelu_tanh(float x)
{
    return activate_sigmoid(x, activate_two_u(x));
}
MPK_FN float activate_quick_gelu(float x)
{
    return activate_sigmoid(x, 1.702f * x);
}
/* Compared this way round, NaN stays NaN. */
MPK_FN float activate_relu(float x)
{
    return x <= 0 ? 0 : x;
}
/* (up + 1) gate sigmoid(1.702 gate), gate at most `limit`, up within it; NaN stays. */
MPK_FN float activate_swiglu_oai(float gate, float up, float limit)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return activate_quick_gelu(gate) * (up + 1.0f);
}
/* The same for the ends of tiles, by the hardware's exponential. */
MPK_FN float activate_limited(float gate, float up, float limit)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return __fdividef(gate, 1 + __expf(-1.702f * gate)) * (up + 1);
}
/* kind: one of a single number, and not ACTIVATE_NONE, which callers test for, since it also means
 * that there is no gate.  Kinds that are not named here are the last, GELU_TANH. */
MPK_FN float activate(int kind, float x)
{
    if (kind == ACTIVATE_SILU)
        return activate_silu(x);
    if (kind == ACTIVATE_RELU)
        return activate_relu(x);
    if (kind == ACTIVATE_QUICK_GELU)
        return activate_quick_gelu(x);
    return kind == ACTIVATE_GELU ? activate_gelu(x) : activate_gelu_tanh(x);
}

/* activate_sigmoid for a result of 16 bits, within 2^-17 of it: the exponential and the reciprocal
 * are an instruction each. */
MPK_FN float activate_sigmoid_short(float x, float u)
{
    return x * ptx_rcp(1.0f + ptx_exp2(-1.44269504088896341f * u)); /* log2(e) */
}
/* activate() for a result of 16 bits, or of more. */
MPK_FN float activate_as(bool is_short, int kind, float x)
{
    if (is_short && kind == ACTIVATE_SILU)
        return activate_sigmoid_short(x, x);
    if (is_short && kind == ACTIVATE_QUICK_GELU)
        return activate_sigmoid_short(x, 1.702f * x);
    if (is_short && kind == ACTIVATE_GELU_TANH)
        return activate_sigmoid_short(x, activate_two_u(x));
    return activate(kind, x);
}

#endif
