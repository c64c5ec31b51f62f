/* nvrtc_unit.cu - what stands after the headers of src/rt when tools/nvrtc_check.py compiles them:
 * a body and a kernel that enters both loops, so that NVRTC generates code for the whole runtime
 * and does not only parse it. */

RT_FN void rt_run_body(rt_machine *m, rt_worker *w, const rt_task *task, rt_u32 op, rt_u32 hi0,
                       rt_u32 page)
{
    (void)m;
    (void)w;
    (void)task;
    (void)op;
    (void)hi0;
    (void)page;
}

RT_FN int rt_preload(rt_machine *m, rt_worker *w, rt_u32 task, rt_u32 piece)
{
    (void)m;
    (void)w;
    (void)task;
    (void)piece;
    return 0;
}

extern "C" __global__ void rt_all(rt_machine *m, rt_worker *workers, rt_scheduler *schedulers)
{
    if (threadIdx.x < 32)
        rt_worker_loop(m, &workers[blockIdx.x], &schedulers[blockIdx.x]);
    else if (threadIdx.x == 32)
        rt_sched_loop(m, &schedulers[blockIdx.x]);
}
