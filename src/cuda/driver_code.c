/* driver_code.c - modules of a GPU, launches of their kernels, and graphs of launches, through
 * libcuda.  driver.c has the rest of driver.h.
 *
 * Relies on driver_entries.h for the entry points.  Called by kernel_code.c (modules, checks),
 * launch.c, baseline.c and calls.c (launches and graphs), upload.c (the loader's kernels). */
#include "cuda/driver_entries.h"

#include <dlfcn.h>
#include <string.h>

/* ---- code ---- */

/* Code from a file is checked for what the driver would read past.  The driver's compiler writes
 * its words for PTX into `log`, which become a second line of the message.  The driver copies the
 * code, so the caller may free it; the module is in the context that is current, g's, and must be
 * released there. */
mpk_status cuda_module_load(mpk_context *cx, cuda_gpu *g, const char *name, str code,
                            cuda_module *out)
{
    char log[1024] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    cuda_module m = NULL;
    CHECK(cx, code.n >= 4, MPK_EFORMAT, "%s: no code: compile again", name);
    /* the driver sees where machine code ends by its header, but where PTX ends by a NUL */
    CHECK(cx, memcmp(code.at, "\177ELF", 4) == 0 || memchr(code.at, 0, code.n), MPK_EFORMAT,
          "%s is neither machine code nor PTX that ends in NUL: compile again", name);
    int status = g->d->cuModuleLoadDataEx(&m, code.at, 2, options, values);
    if (status != CUDA_SUCCESS) {
        mpk_status failed = cuda_driver_fail(cx, g->d, status, "cuModuleLoadDataEx",
                                             "load %s to %s (compute capability %u.%u)", name,
                                             g->facts.name, g->facts.major, g->facts.minor);
        return log[0] ? status_note(cx, failed, "the driver's compiler says: %s", log) : failed;
    }
    *out = m;
    return MPK_OK;
}

/* No kernel of it may run any more; its functions and variables are gone with it. */
void cuda_module_release(cuda_gpu *g, cuda_module m)
{
    if (m)
        g->d->cuModuleUnload(m);
}

/* *out is the module's and needs no release.  Names are those of extern "C" kernels. */
mpk_status cuda_module_function(mpk_context *cx, cuda_gpu *g, cuda_module m, const char *name,
                                cuda_function *out)
{
    CALL(cx, g->d, cuModuleGetFunction, (out, m, name), "find the kernel %s", name);
    return MPK_OK;
}

/* Written by copies like any memory; a kernel that is running may or may not see the change, so it
 * is done before the launch. */
mpk_status cuda_module_variable(mpk_context *cx, cuda_gpu *g, cuda_module m, const char *name,
                                cuda_address *out, uint64_t *n_bytes)
{
    size_t n = 0;
    CALL(cx, g->d, cuModuleGetGlobal, (out, &n, m, name), "find the variable %s of the kernel",
         name);
    if (n_bytes)
        *n_bytes = n;
    return MPK_OK;
}

/* What ptxas gave the kernel on this GPU.  *out is written only if every question was answered. */
mpk_status cuda_function_describe(mpk_context *cx, cuda_gpu *g, cuda_function f,
                                  cuda_function_facts *out)
{
    cuda_function_facts facts;
    const struct {
        int id;
        uint32_t *out;
    } wanted[] = {{FUNCTION_REGISTERS, &facts.registers},
                  {FUNCTION_LOCAL, &facts.local_bytes},
                  {FUNCTION_SHARED, &facts.shared_bytes},
                  {FUNCTION_MAX_THREADS, &facts.max_threads},
                  {FUNCTION_BINARY, &facts.binary}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        int value = 0;
        CALL(cx, g->d, cuFuncGetAttribute, (&value, wanted[i].id, f),
             "ask for what a kernel needs");
        *wanted[i].out = (uint32_t)value;
    }
    *out = facts;
    return MPK_OK;
}

/* Beyond 48 KB a kernel must be allowed by name; the limit of the GPU is checked first, because the
 * driver's own message has no numbers. */
mpk_status cuda_function_allow_shared(mpk_context *cx, cuda_gpu *g, cuda_function f, uint32_t n)
{
    CHECK(cx, n <= g->facts.shared_bytes, MPK_ELIMIT,
          "the kernel needs %u bytes of shared memory, %s gives a block %u: compile for this GPU",
          n, g->facts.name, g->facts.shared_bytes);
    CALL(cx, g->d, cuFuncSetAttribute, (f, FUNCTION_MAX_DYNAMIC_SHARED, (int)n),
         "give a kernel %u bytes of shared memory", n);
    return MPK_OK;
}

/* How many blocks fit beside each other on an SM that is empty: what other programs run there does
 * not count. */
mpk_status cuda_launch_occupancy(mpk_context *cx, cuda_gpu *g, const cuda_launch *l,
                                 uint32_t *blocks_per_sm)
{
    int n = 0;
    CALL(cx, g->d, cuOccupancyMaxActiveBlocksPerMultiprocessor,
         (&n, l->function, (int)l->n_threads, l->shared_bytes),
         "ask how many blocks of %s an SM holds", l->name);
    *blocks_per_sm = (uint32_t)n;
    return MPK_OK;
}

/* All workers must be resident at once: a worker that waits for one that has no SM would wait for
 * ever. */
mpk_status cuda_launch_check(mpk_context *cx, cuda_gpu *g, const cuda_launch *l)
{
    uint32_t n = 0;
    cuda_function_facts f;
    TRY(cuda_function_describe(cx, g, l->function, &f));
    TRY(cuda_launch_occupancy(cx, g, l, &n));
    CHECK(cx, (uint64_t)n * g->facts.n_sms >= l->n_blocks, MPK_ELIMIT,
          "%s: %u blocks do not fit %s at the same time (%u an SM, %u SMs): a block has %u threads "
          "with %u registers and "
          "%u bytes of shared memory, an SM %u registers and %u bytes: compile for this GPU",
          l->name, l->n_blocks, g->facts.name, n, g->facts.n_sms, l->n_threads, f.registers,
          f.shared_bytes + l->shared_bytes, g->facts.registers_sm, g->facts.shared_sm_bytes);
    return MPK_OK;
}

/* cooperative: the driver itself refuses a grid that is not resident at once.  Returns as soon as
 * the launch is on the stream; the driver has copied the arguments by then.  What the kernel does
 * wrong is an error of some later call. */
mpk_status cuda_launch_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, const cuda_launch *l)
{
    launch_attribute attributes[2] = {0};
    launch_config config = {.grid = {l->n_blocks, 1, 1},
                            .block = {l->n_threads, 1, 1},
                            .shared_bytes = l->shared_bytes,
                            .stream = s,
                            .attributes = attributes};
    if (l->cooperative)
        attributes[config.n_attributes++] =
            (launch_attribute){.id = LAUNCH_COOPERATIVE, .value.on = 1};
    if (l->early)
        attributes[config.n_attributes++] = (launch_attribute){.id = LAUNCH_EARLY, .value.on = 1};
    CALL(cx, g->d, cuLaunchKernelEx, (&config, l->function, l->arguments, NULL),
         "start %s with %u blocks of %u threads and %u bytes of shared memory", l->name,
         l->n_blocks, l->n_threads, l->shared_bytes);
    return MPK_OK;
}

/* The caller casts it to the type that it has in cuda.h; nothing to release. */
void *cuda_find_entry(const cuda_gpu *g, const char *symbol)
{
    return dlsym(g->d->library, symbol);
}

/* ---- graphs ---- */

/* s must not be the default stream, which cannot be recorded. */
mpk_status cuda_graph_begin(mpk_context *cx, cuda_gpu *g, cuda_stream s)
{
    CALL(cx, g->d, cuStreamBeginCapture, (s, CAPTURE_THIS_THREAD), "begin to record launches");
    return MPK_OK;
}

/* The recording is made ready to launch and then destroyed, also where that fails; *out is the
 * caller's (cuda_graph_release). */
static mpk_status end_recording(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_graph *out)
{
    graph_handle recorded = NULL;
    cuda_graph ready = NULL;
    CALL(cx, g->d, cuStreamEndCapture, (s, &recorded), "end a recording of launches");
    int code = g->d->cuGraphInstantiateWithFlags(&ready, recorded, 0);
    g->d->cuGraphDestroy(recorded);
    if (code != CUDA_SUCCESS)
        return cuda_driver_fail(cx, g->d, code, "cuGraphInstantiateWithFlags",
                                "make recorded launches ready");
    *out = ready;
    return MPK_OK;
}

/* After a failure the recording ends in a context of its own, so that the first words stay. */
mpk_status cuda_graph_end(mpk_context *cx, cuda_gpu *g, cuda_stream s, mpk_status status,
                          cuda_graph *out)
{
    mpk_context late = {0};
    mpk_status ended = end_recording(status == MPK_OK ? cx : &late, g, s, out);
    return status == MPK_OK ? ended : status;
}

/* The graph may be launched any number of times and on any stream of its GPU; launches of one graph
 * run one after the other. */
mpk_status cuda_graph_launch(mpk_context *cx, cuda_gpu *g, cuda_graph graph, cuda_stream s)
{
    CALL(cx, g->d, cuGraphLaunch, (graph, s), "start recorded launches");
    return MPK_OK;
}

/* Launches of it that are on a stream run to their end. */
void cuda_graph_release(cuda_gpu *g, cuda_graph graph)
{
    if (graph)
        g->d->cuGraphExecDestroy(graph);
}
