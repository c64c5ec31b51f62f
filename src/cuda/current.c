/* current.c - the machine's functions as a caller's thread meets them: the CUDA context that was
 * current on the thread is current again afterwards.
 *
 * A program that uses mpk may use GPUs on its own, or with PyTorch, on the same threads: it must
 * not find another GPU current after a call of ours.  Input: cuda_inner_def (cuda.c), whose
 * functions make GPUs current as they need them; output: cuda_outer_def, which reads the current
 * context before and restores it after.  Cost: two calls of the driver that do not involve the GPU.
 *
 * Called by host/machine.c and books.c.  Starting and stopping (cuda.c), and runs in the caller's
 * memory (calls.c), see to it themselves. */
#include "cuda/cuda_machine.h"

/* A call under way.  `before`: what was current on the thread when it came; NULL: nothing was. */
typedef struct visit {
    const cuda_machine *m;
    cuda_context before;
} visit;

/* The machine is not made current here: each inner function does that itself, where it comes to the
 * driver, since some change GPUs on their way. */
static visit arrive(const machine *base)
{
    const cuda_machine *m = (const cuda_machine *)base;
    return (visit){m, cuda_driver_current(m->driver)};
}

/* Asks again what is current, so that a call that touched no GPU costs no change. */
static void leave(const visit *v)
{
    cuda_driver_leave(v->m->driver, v->before);
}

/* Looks at the streams of all GPUs of the machine, one after the other. */
static mpk_status check(mpk_context *cx, machine *m)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.check(cx, m);
    leave(&v);
    return status;
}

/* These may pause the kernels, and tensors may lie on any GPU of the machine. */
static mpk_status write_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                               const void *from)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.write_tensor(cx, m, graph, tensor, from);
    leave(&v);
    return status;
}

static mpk_status read_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                              void *to)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.read_tensor(cx, m, graph, tensor, to);
    leave(&v);
    return status;
}

static mpk_status run_graph(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                            uint32_t n_rows)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.run_graph(cx, m, graph, n_tokens, n_rows);
    leave(&v);
    return status;
}

static mpk_status clear_state(mpk_context *cx, machine *m)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.clear_state(cx, m);
    leave(&v);
    return status;
}

/* May launch kernels.  The lock of the books is held. */
static void ring(machine *m)
{
    const visit v = arrive(m);
    cuda_inner_def.ring(m);
    leave(&v);
}

/* The thread may sleep here for long and launch kernels in between; the context is put back when it
 * leaves, not while it sleeps. */
static void wait_news(machine *m, rt_u32 seen, uint64_t timeout_ns)
{
    const visit v = arrive(m);
    cuda_inner_def.wait(m, seen, timeout_ns);
    leave(&v);
}

static void describe(machine *m, machine_facts *out)
{
    const visit v = arrive(m);
    cuda_inner_def.describe(m, out);
    leave(&v);
}

/* No visit: the answer lies in the source that the host has kept. */
static machine_code code_of(const machine *m, uint32_t graph, ir_op_id op)
{
    return cuda_inner_def.code_of(m, graph, op);
}

/* May pin more memory, which is a call of the driver. */
static mpk_status lend_logits(mpk_context *cx, machine *m, float *to, uint64_t n, rt_u64 *at)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.lend_logits(cx, m, to, n, at);
    leave(&v);
    return status;
}

/* No visit for these two: the logits are in host memory, to which the kernel has written them. */
static void return_logits(machine *m, rt_u64 at, float *to, uint64_t n)
{
    cuda_inner_def.return_logits(m, at, to, n);
}

/* No visit: the logits lie in pinned memory, which needs no context. */
static void peek_logits(machine *m, rt_u64 at, float *to, uint64_t first, uint64_t n)
{
    cuda_inner_def.peek_logits(m, at, to, first, n);
}

static void put_mask(machine *m, uint32_t row, const uint32_t *bits, uint32_t n_words,
                     uint32_t number)
{
    const visit v = arrive(m);
    cuda_inner_def.put_mask(m, row, bits, n_words, number);
    leave(&v);
}

static mpk_status read_profile(mpk_context *cx, machine *m, uint32_t graph, machine_profile *out)
{
    const visit v = arrive(m);
    mpk_status status = cuda_inner_def.read_profile(cx, m, graph, out);
    leave(&v);
    return status;
}

/* No visit: the driver is closed inside, and no question could be asked afterwards.  cuda.c's stop
 * puts the context back before that. */
static void stop(machine *m)
{
    cuda_inner_def.stop(m);
}

/* What machines other than those of calls have for `def` (cuda_start). */
const machine_def cuda_outer_def = {.name = "cuda",
                                    .stop = stop,
                                    .check = check,
                                    .write_tensor = write_tensor,
                                    .read_tensor = read_tensor,
                                    .run_graph = run_graph,
                                    .clear_state = clear_state,
                                    .ring = ring,
                                    .wait = wait_news,
                                    .describe = describe,
                                    .code_of = code_of,
                                    .lend_logits = lend_logits,
                                    .return_logits = return_logits,
                                    .peek_logits = peek_logits,
                                    .put_mask = put_mask,
                                    .read_profile = read_profile};
