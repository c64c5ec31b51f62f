/* activate.cuh - the activation functions of feed-forward layers, in fp32; as src/op/activate.h. */
#ifndef TASK_ACTIVATE_CUH
#define TASK_ACTIVATE_CUH

#include "tile/task.cuh"

enum { ACTIVATE_NONE, ACTIVATE_SILU, ACTIVATE_GELU, ACTIVATE_GELU_TANH, ACTIVATE_RELU };

MPK_FN float activate_silu(float x)
{
    return x / (1.0f + expf(-x));
}
MPK_FN float activate_gelu(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}
MPK_FN float activate_gelu_tanh(float x)
{
    return x / (1.0f + expf(-1.59576912160573072f * (x + 0.044715f * x * x * x)));
}
MPK_FN float activate_relu(float x)
{
    return x <= 0 ? 0 : x;
}
MPK_FN float activate(int kind, float x)
{
    if (kind == ACTIVATE_SILU)
        return activate_silu(x);
    if (kind == ACTIVATE_RELU)
        return activate_relu(x);
    return kind == ACTIVATE_GELU ? activate_gelu(x) : activate_gelu_tanh(x);
}

#endif
