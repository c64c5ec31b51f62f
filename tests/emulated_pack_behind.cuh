/* emulated_pack_behind.cuh - what stands behind device/pack.cuh on the host: the kernels as
 * functions, thread after thread. */
#ifndef EMULATED_PACK_BEHIND_CUH
#define EMULATED_PACK_BEHIND_CUH

template <class JOB>
static void emulated_launch(void (*kernel)(const JOB), const JOB *job, unsigned blocks,
                            unsigned threads)
{
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
            kernel(*job);
}
extern "C" void emulated_pack(const rt_pack *job, unsigned blocks, unsigned threads)
{
    emulated_launch<rt_pack>(mpk_pack, job, blocks, threads);
}
extern "C" void emulated_fill(const rt_fill *job, unsigned blocks, unsigned threads)
{
    emulated_launch<rt_fill>(mpk_fill, job, blocks, threads);
}

#endif
