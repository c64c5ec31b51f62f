/* kernel_code.c - a program's kernels and its loader: source, machine code, bytes to keep, loaded
 * on a GPU.
 *
 * Input: an image, or the bytes that cuda_compile made of it before; output: loaded modules.  The
 * loader (device/pack.cuh) is small and compiled first, since the weights need nothing else;
 * meanwhile threads compile the kernels, one for each regime.  Relies on gen/source.h, cache.h and
 * the driver.  Called by cuda.c in the order begin, load_loader, end, load_kernel.
 *
 * The bytes that are kept (cuda_options.code, the code part of an image file):
 *
 *   cuda_code_head    magic, hash of the source, the sizes of what follows
 *   the loader        machine code
 *   the kernels       machine code, one for each regime of the program
 *
 * They hold no source: the program prints it again from the image, and the hash tells whether it is
 * still the same. */
#include <stdlib.h>

#include "base/thread.h"
#include "cuda/cache.h"
#include "cuda/cuda_machine.h"

/* The source of a program, and the room that its kernels leave the ring: two pages are the least
 * with which a worker can load one task's weights while another runs.  Needs no GPU; *source lies
 * in the arena. */
mpk_status cuda_make_source(mpk_context *cx, arena *a, const program_image *image,
                            const gen_arch *arch, gen_whole whole, gen_source *source)
{
    TRY(gen_source_of_image(cx, a, image, arch, whole, source));
    for (uint32_t r = 0; r < source->n_regimes; r++)
        CHECK(
            cx, source->rooms[r].n_pages >= 2, MPK_ELIMIT,
            "a task of this program needs %u bytes of shared memory: too many for %s, which has %u "
            "in all",
            source->rooms[r].scratch_bytes, arch->gpu, arch->shared_bytes);
    return MPK_OK;
}

/* Machine code or PTX of a source, from the cache or made now.  how: all but name and code.  The
 * caller frees *code.  The compiler's log goes no further than this: of a failure its first error
 * is in cx, and --keep writes all of it. */
static mpk_status compile_source(mpk_context *cx, const char *name, const cuda_source *how,
                                 str source, text *code, bool *cached)
{
    text words = {0};
    uint64_t start = clock_ns();
    cuda_source s = *how;
    s.name = name;
    s.code = source;
    mpk_status status = cuda_cache_compile(cx, &s, code, &words, cached);
    text_free(&words);
    TRY(status);
    log_line(cx, LOG_DEBUG, "%s for %s: %zu bytes, %s %.2f s", name, s.arch->name, code->n,
             *cached ? "from the cache in" : "compiled in", (double)(clock_ns() - start) * 1e-9);
    return MPK_OK;
}

/* The kernels of all regimes, side by side.  Each thread writes at its own regime's place in
 * kernels and cached; the rest is only read. */
typedef struct compilation {
    const cuda_source *how;
    const gen_source *source;
    bool in_units;
    text *kernels;            /* [n] */
    bool cached[GEN_REGIMES]; /* it came from the cache */
} compilation;

/* For thread_each.  The names are those of the files under --keep.  A regime that is to be compiled
 * in units goes through more threads of its own (tools.c). */
static mpk_status compile_regime(mpk_context *cx, void *user, uint32_t regime)
{
    static const char *const names[GEN_REGIMES] = {"mpk.cu", "mpk.prompts.cu"};
    compilation *c = user;
    cuda_source how = *c->how;
    how.regime = regime;
    how.units = c->in_units ? c->source->units[regime] : 0;
    return compile_source(cx, names[regime], &how, c->source->text, &c->kernels[regime],
                          &c->cached[regime]);
}

/* kernels: [GEN_REGIMES], the caller's to free, after a failure too.  *cached: all of them came
 * from the cache. */
static mpk_status compile_kernels(mpk_context *cx, const cuda_source *how, const gen_source *source,
                                  bool in_units, text *kernels, bool *cached)
{
    compilation c = {.how = how, .source = source, .in_units = in_units, .kernels = kernels};
    TRY(thread_each(cx, source->n_regimes, compile_regime, &c));
    *cached = true;
    for (uint32_t r = 0; r < source->n_regimes; r++)
        *cached &= c.cached[r];
    return MPK_OK;
}

/* The code that packs weights and makes them up: the same text for all programs, so that it comes
 * from the cache but for the first time. */
static mpk_status compile_loader(mpk_context *cx, const cuda_source *how, text *code)
{
    arena a = {0};
    str source;
    bool cached;
    mpk_status status = gen_source_expand(cx, &a, "pack.cuh", &source);
    if (status == MPK_OK)
        status = compile_source(cx, "mpk_loader.cu", how, source, code, &cached);
    arena_free(&a);
    return status;
}

/* How a machine's sources are compiled: as one whole, until the caller says otherwise (units). */
static cuda_source compile_how(const cuda_machine *m)
{
    return (cuda_source){.arch = &m->arch,
                         .as_ptx = m->as_ptx,
                         .checked = m->options.checked,
                         .keep_folder = m->options.keep};
}

/* ---- the bytes of cuda_options.code ---- */

/* The last character of the magic is the version of these bytes. */
cuda_code_head cuda_head_of(str source)
{
    return (cuda_code_head){.magic = {'m', 'p', 'k', 'c', 'o', 'd', 'e', '3'},
                            .source_hash = hash_bytes(source.at, source.n, 0)};
}

/* The bytes of cuda_options.code, in *code, which the caller frees; empty after a failure.  A
 * regime that the program has not got counts 0 bytes in the head. */
static mpk_status join_code(mpk_context *cx, str source, const text *loader, const text *kernels,
                            text *code)
{
    cuda_code_head head = cuda_head_of(source);
    head.loader_bytes = loader->n;
    for (uint32_t r = 0; r < GEN_REGIMES; r++)
        head.kernel_bytes[r] = kernels[r].n;
    text_add(code, (const char *)&head, sizeof head);
    text_add(code, loader->at, loader->n);
    for (uint32_t r = 0; r < GEN_REGIMES; r++)
        if (kernels[r].n)
            text_add(code, kernels[r].at, kernels[r].n);
    if (!code->failed)
        return MPK_OK;
    text_free(code);
    FAIL(cx, MPK_ENOMEM, "out of memory for kernels of %zu bytes", kernels[0].n);
}

/* Cut the next n bytes off *left; false: there are fewer, or none are wanted. */
static bool cut_off(str *left, uint64_t n, str *out)
{
    if (!n || n > left->n)
        return false;
    *out = (str){left->at, (size_t)n};
    *left = (str){left->at + n, left->n - (size_t)n};
    return true;
}

/* Take the bytes of m->options.code apart; the parts point into them.  False: they are not of the
 * very source that this program gives now, or are cut.  They must be, for the host and the kernel
 * number bodies and lay out weights together. */
static bool split_code(const cuda_machine *m, str *loader, str *kernels)
{
    str left = {m->options.code, m->options.code_bytes};
    cuda_code_head want = cuda_head_of(m->source.text), head;
    if (left.n <= sizeof head)
        return false;
    memcpy(&head, left.at, sizeof head);
    left = (str){left.at + sizeof head, left.n - sizeof head};
    if (memcmp(head.magic, want.magic, sizeof want.magic) != 0 ||
        head.source_hash != want.source_hash || !cut_off(&left, head.loader_bytes, loader))
        return false;
    for (uint32_t r = 0; r < m->source.n_regimes; r++)
        if (!cut_off(&left, head.kernel_bytes[r], &kernels[r]))
            return false;
    return left.n == 0;
}

/* For `mpk compile`: needs no GPU, only NVRTC and the architecture's name.  Everything is made in
 * this thread and those of the compilation, and nothing is loaded.  *code is the caller's to
 * free. */
mpk_status cuda_compile(mpk_context *cx, const program_image *image, const gen_arch *row,
                        const char *keep, text *code)
{
    arena a = {0};
    const cuda_source how = {.arch = row, .keep_folder = keep};
    gen_source source;
    text loader = {0}, kernels[GEN_REGIMES] = {{0}};
    bool cached = false;
    mpk_status status = cuda_make_source(cx, &a, image, row, GEN_KERNEL, &source);
    if (status == MPK_OK)
        status = compile_loader(cx, &how, &loader);
    if (status == MPK_OK)
        status = compile_kernels(cx, &how, &source, true, kernels, &cached);
    if (status == MPK_OK)
        status = join_code(cx, source.text, &loader, kernels, code);
    text_free(&loader);
    for (uint32_t r = 0; r < GEN_REGIMES; r++)
        text_free(&kernels[r]);
    arena_free(&a);
    return status;
}

/* The thread's work.  j->cx, j->status and j->kernels are its own until it is joined, as are
 * m->code_ns and m->code_cached; has_no_code is told at once, so that lanes stop bringing
 * weights. */
static void *run_code_job(void *argument)
{
    cuda_code_job *j = argument;
    cuda_machine *m = j->m;
    const cuda_source how = compile_how(m);
    uint64_t begin = clock_ns();
    /* kernels of calls are small, and plain bodies, of another unit, stand between all products */
    j->status = compile_kernels(&j->cx, &how, &m->source, m->options.mode != CUDA_CALLS, j->kernels,
                                &m->code_cached);
    m->code_ns += clock_ns() - begin;
    if (j->status != MPK_OK)
        m->has_no_code = true;
    return NULL;
}

/* The kernels begin to be compiled in a thread, unless they were given; the loader is compiled
 * here, beside them.  After a failure, too, cuda_end_code must be called: the thread may run. */
mpk_status cuda_begin_code(mpk_context *cx, cuda_machine *m, cuda_code_job *j)
{
    bool given = m->options.code && split_code(m, &j->given_loader, j->given_kernels);
    CHECK(cx, given || !m->options.code || m->options.code_may_differ, MPK_EUNSUPPORTED,
          "the image's kernel was made by another mpk or for another GPU: compile the model again");
    m->code_cached = given;
    if (given)
        return MPK_OK;
    j->m = m;
    j->cx = (mpk_context){.log = cx->log, .log_user = cx->log_user};
    TRY(thread_start(cx, &j->thread, run_code_job, j));
    j->has_thread = true;
    const cuda_source how = compile_how(m);
    return compile_loader(cx, &how, &j->loader);
}

/* Wait for it, whatever else has happened. */
mpk_status cuda_end_code(mpk_context *cx, cuda_code_job *j, mpk_status status)
{
    uint64_t begin = clock_ns();
    if (!j->has_thread)
        return status;
    pthread_join(j->thread, NULL);
    j->m->code_wait_ns += clock_ns() - begin;
    if (status == MPK_OK && j->status != MPK_OK)
        status = status_fail(cx, j->status, "%s", j->cx.text);
    return status;
}

/* The caller that started the machine may keep what was compiled, as bytes for cuda_options.code of
 * a later start.  They are lent for the call of `made` alone.  Code that was given is not offered
 * again. */
mpk_status cuda_offer_code(mpk_context *cx, const cuda_machine *m, const cuda_code_job *j)
{
    text all = {0};
    if (!j->has_thread || !m->options.made)
        return MPK_OK;
    TRY(join_code(cx, m->source.text, &j->loader, j->kernels, &all));
    m->options.made(cx, m->options.made_user, (str){all.at, all.n});
    text_free(&all);
    return MPK_OK;
}

/* ---- loading and launching ---- */

/* How the kernel of a regime is launched.  Cooperative, where the GPU can: then the driver checks
 * that all blocks are resident.  `arguments` is lent until the launch has been made; NULL: the
 * launch is only checked. */
static cuda_launch main_launch(cuda_machine *m, uint32_t regime, void **arguments)
{
    return (cuda_launch){
        .function = m->kernels[regime].function,
        .name = "mpk_kernel",
        .n_blocks = cuda_workers(m),
        .n_threads = m->arch.worker_threads,
        .shared_bytes = m->kernels[regime].shared_bytes,
        .arguments = arguments,
        .cooperative = (m->options.mode == CUDA_PERSISTENT || m->options.mode == CUDA_CALLS) &&
                       cuda_gpu_facts(m->gpu)->cooperative && !m->options.on_one_gpu};
}

/* Put the kernel on the stream: its one argument is the address of rt_kernel in the block of
 * tables, so a launch needs nothing of the host but that these are there.  m's GPU is current. */
mpk_status cuda_launch_main(mpk_context *cx, cuda_machine *m, uint32_t regime, cuda_stream s)
{
    cuda_address argument = m->table_block + m->layout.kernel;
    void *arguments[] = {&argument};
    cuda_launch l = main_launch(m, regime, arguments);
    return cuda_launch_on(cx, m->gpu, s, &l);
}

/* All that can be wrong with a kernel is said before it is launched: more shared memory than the
 * GPU gives a block, or more blocks than fit at the same time. */
static mpk_status check_code(mpk_context *cx, cuda_machine *m, uint32_t regime)
{
    cuda_kernel *k = &m->kernels[regime];
    TRY(cuda_function_describe(cx, m->gpu, k->function, &k->facts));
    log_line(cx, LOG_DEBUG,
             "kernel %u: %u registers a thread, %u bytes spilled, %u + %u bytes of shared memory",
             regime, k->facts.registers, k->facts.local_bytes, k->facts.shared_bytes,
             k->shared_bytes);
    TRY(cuda_function_allow_shared(cx, m->gpu, k->function, k->shared_bytes));
    cuda_launch l = main_launch(m, regime, NULL);
    return cuda_launch_check(cx, m->gpu, &l);
}

/* Given bytes, else those that were compiled. */
static str code_of(str given, const text *made)
{
    return given.at ? given : (str){made->at, made->n};
}

/* The module of the loader, with its two kernels.  m's GPU is current; the module is m's, and
 * released when the machine stops. */
mpk_status cuda_load_loader(mpk_context *cx, cuda_machine *m, const cuda_code_job *j)
{
    TRY(cuda_module_load(cx, m->gpu, "the loader", code_of(j->given_loader, &j->loader),
                         &m->loader));
    TRY(cuda_module_function(cx, m->gpu, m->loader, "mpk_pack", &m->pack));
    return cuda_module_function(cx, m->gpu, m->loader, "mpk_fill", &m->fill);
}

/* What a kernel is not compiled for is written into its variables before it runs: whether it notes
 * times, and the sizes of KV caches.  So one entry of the cache serves every number of requests. */
static mpk_status tell_kernel(mpk_context *cx, cuda_machine *m, cuda_module module)
{
    cuda_address at;
    uint64_t n;
    if (m->options.profile && !cuda_has_op_kernels(m)) {
        const rt_u32 yes = 1;
        TRY(cuda_module_variable(cx, m->gpu, module, "mpk_timed", &at, &n));
        TRY(cuda_upload(cx, m->gpu, at, &yes, sizeof yes));
    }
    if (!m->source.n_caches)
        return MPK_OK;
    TRY(cuda_module_variable(cx, m->gpu, module, "mpk_caches", &at, &n));
    CHECK(cx, n >= m->source.n_caches * sizeof *m->source.caches, MPK_EDEVICE,
          "the kernel has %llu bytes for the sizes of %u KV caches", (unsigned long long)n,
          m->source.n_caches);
    return cuda_upload(cx, m->gpu, at, m->source.caches,
                       m->source.n_caches * sizeof *m->source.caches);
}

/* A kernel for each regime, with as much shared memory as its pages and scratch take.  m's GPU is
 * current; after a failure the modules that were loaded stay in m, for stop. */
mpk_status cuda_load_kernels(mpk_context *cx, cuda_machine *m, const cuda_code_job *j)
{
    for (uint32_t r = 0; r < m->source.n_regimes; r++) {
        cuda_kernel *k = &m->kernels[r];
        const gen_room *room = &m->source.rooms[r];
        k->shared_bytes = room->n_pages * m->arch.page_bytes + room->scratch_bytes;
        TRY(cuda_module_load(cx, m->gpu, "the kernel", code_of(j->given_kernels[r], &j->kernels[r]),
                             &k->module));
        TRY(tell_kernel(cx, m, k->module));
        TRY(cuda_module_function(cx, m->gpu, k->module, "mpk_kernel", &k->function));
        TRY(check_code(cx, m, r));
    }
    return MPK_OK;
}
