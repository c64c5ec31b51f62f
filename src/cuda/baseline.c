/* baseline.c - the same bodies without a mega-kernel: one kernel for each operator, recorded in CUDA graphs. */
#include "cuda/cuda_machine.h"

mpk_status cuda_baseline_start(mpk_context *cx, cuda_machine *m)
{
    (void)m;
    FAIL(cx, MPK_EUNSUPPORTED, "operators as kernels of their own are not built into this mpk");
}

void cuda_baseline_stop(cuda_machine *m)
{
    (void)m;
}

mpk_status cuda_baseline_run(mpk_context *cx, cuda_machine *m, uint32_t graph, uint32_t n_tokens, uint32_t n_rows)
{
    (void)graph;
    (void)n_tokens;
    (void)n_rows;
    return cuda_baseline_start(cx, m);
}
