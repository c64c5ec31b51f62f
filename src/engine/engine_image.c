/* engine_image.c - the file that mpk_compile_to_file writes: a header, the paths of the model and
 * of its adapters, the program's block, and the code of a target that compiles some.
 *
 * The image holds no weights.  It names the model's files and adapters and holds a fingerprint of
 * them and of the program that they make, so that a program never runs with a model that it was not
 * compiled for.  Opening costs the checks of the block; nothing is compiled.
 *
 * Input and output are the engine_build of engine_compile.c: written out by mpk_compile_to_file,
 * and filled again by engine_read_image, which stands in for planning and compiling.  A file may be
 * cut short, damaged, or made to deceive, so every number is checked before it is used: here those
 * of the header and the plan, in image_open those of the block.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "engine/engine.h"

enum {
    IMAGE_VERSION = 9,
    MAX_PATH_BYTES = 4096,
    FINGERPRINT_BYTES = 1 << 16,
    MAX_ADAPTER_BYTES = 1 << 20
};

/* Little-endian, followed by the path, the adapters (engine_adapters.c), zeros up to a multiple of
 * 64, the block, and the kernel. */
typedef struct image_header {
    char magic[8];
    uint32_t version, path_bytes;
    /* of the version, the path, the adapters, and the header after this field: the block and the
     * code have checks of their own (image_open, code_hash) */
    uint64_t checksum;
    uint64_t block_bytes, code_bytes, code_hash, fingerprint, random_seed;
    uint32_t random_weights, random_routing, fusion, launch, coarse_events, kv_dtype;
    uint32_t batch_invariant, activations, own_experts, adapter_bytes;
    engine_plan plan;
} image_header;

static const char MAGIC[8] = {'m', 'p', 'k', 'i', 'm', 'a', 'g', 'e'};

/* Zeros up to a multiple of 64, so that the block's tables are aligned in the file too. */
static uint64_t padded(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* Where the block begins. */
static uint64_t block_at(const image_header *h)
{
    return padded(sizeof *h + (uint64_t)h->path_bytes + h->adapter_bytes);
}

/* Does the file begin as an image does?  False also for a folder, and for what cannot be read: the
 * function that opens it as a model then says what is wrong. */
bool engine_is_image(const char *path)
{
    char start[sizeof MAGIC] = {0};
    /* not a stream: that allocates, and there is no status to return; a pipe is not waited for */
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    bool found = fd >= 0 && read(fd, start, sizeof start) == sizeof start &&
                 memcmp(start, MAGIC, sizeof MAGIC) == 0;
    if (fd >= 0)
        close(fd);
    return found;
}

static mpk_status fixed_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                              const int64_t *dims, ir_dtype *dtype)
{
    (void)cx, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_F32;
    return MPK_OK;
}

/* The text of the smallest program that the model's configuration can make: whatever a number of it
 * changes in any program, it changes there.  Options and plan are not in it: the program of an
 * image holds them. */
static mpk_status hash_program(mpk_context *cx, const load_model *m, uint64_t *h)
{
    const model_weights weights = {fixed_dtype, NULL};
    const model_shape shape = {.n_tokens = 1,
                               .n_rows = 1,
                               .n_slots = 1,
                               .n_pages = 1,
                               .page_tokens = ENGINE_PAGE_TOKENS,
                               .max_pages_per_slot = 1,
                               .kv_dtype = IR_F32,
                               .activation_dtype = IR_F32};
    arena scratch = {0};
    ir_graph *graph;
    text t = {0};
    mpk_status status = model_build(cx, &scratch, &m->config, &shape, &weights, &graph);
    if (status == MPK_OK) {
        ir_print(graph, &t);
        *h = hash_bytes(t.at, t.n, *h);
        if (t.failed)
            status = status_fail(cx, MPK_ENOMEM, "out of memory for the text of a program");
    }
    text_free(&t);
    arena_free(&scratch);
    return status;
}

/* What tells whether the model is still that of the compilation: the text of its program, and the
 * sizes, beginnings and ends of its files, where formats keep their tables, and adapters as a
 * whole.  Weights in between are not read, since hashing a large model would take longer than
 * opening it. */
mpk_status engine_fingerprint(mpk_context *cx, const load_model *m, uint64_t *out)
{
    uint64_t h = 0;
    for (size_t i = 0; i < m->files.n; i++) {
        const file_map *f = &m->files.at[i];
        size_t n = f->n_bytes < FINGERPRINT_BYTES ? f->n_bytes : FINGERPRINT_BYTES;
        h = hash_bytes(&f->n_bytes, sizeof f->n_bytes, h);
        h = hash_bytes(f->bytes, n, h);
        h = hash_bytes(f->bytes + f->n_bytes - n, n, h);
    }
    h = hash_bytes(&m->adapters_hash, sizeof m->adapters_hash, h);
    TRY(hash_program(cx, m, &h));
    *out = h;
    return MPK_OK;
}

/* h's version is the start value.  The path need not end with NUL: in a file it does not. */
static uint64_t checksum(const image_header *h, const char *path, const char *adapters)
{
    const char *rest = (const char *)&h->block_bytes;
    uint64_t sum = hash_bytes(rest, (size_t)((const char *)(h + 1) - rest), h->version);
    sum = hash_bytes(path, h->path_bytes, sum);
    return h->adapter_bytes ? hash_bytes(adapters, h->adapter_bytes, sum) : sum;
}

/* ---- writing ---- */

/* memset, not an initializer: padding is written to the file and hashed, too. */
static mpk_status fill_header(mpk_context *cx, const engine_build *b, const char *path,
                              const text *adapters, image_header *h)
{
    const mpk_engine_options *o = &b->options;
    size_t n = strlen(path);
    CHECK(cx, n < MAX_PATH_BYTES, MPK_ELIMIT, "the model's path has %zu bytes, at most %d", n,
          MAX_PATH_BYTES);
    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof MAGIC);
    h->version = IMAGE_VERSION;
    h->path_bytes = (uint32_t)n;
    h->block_bytes = b->image.block->n_bytes;
    h->code_bytes = b->code.n;
    h->code_hash = hash_bytes(b->code.at, b->code.n, 0);
    TRY(engine_fingerprint(cx, &b->model, &h->fingerprint));
    h->random_seed = o->random_seed;
    h->random_weights = o->random_weights;
    h->random_routing = o->random_routing;
    h->fusion = o->fusion;
    h->launch = o->launch;
    h->coarse_events = o->coarse_events;
    h->kv_dtype = o->kv_dtype;
    h->batch_invariant = o->batch_invariant;
    h->activations = o->activations;
    h->own_experts = o->own_experts;
    h->plan = b->plan;
    CHECK(cx, adapters->n < MAX_ADAPTER_BYTES, MPK_ELIMIT,
          "the adapters' paths have %zu bytes, at most %d", adapters->n, MAX_ADAPTER_BYTES);
    h->adapter_bytes = (uint32_t)adapters->n;
    h->checksum = checksum(h, path, adapters->at);
    return MPK_OK;
}

/* The path is made absolute, so that the image opens from any directory; moving the model needs a
 * new compilation.  The file is put together in memory and written in one call, which leaves an old
 * file untouched on failure.  Statuses are looked at only after `path` was freed. */
static mpk_status write_image(mpk_context *cx, engine_build *b, const char *model, const char *out)
{
    image_header h;
    text adapters = {0};
    char *bytes, *path = realpath(model, NULL);
    CHECK(cx, path, MPK_EIO, "cannot find the full path of %s", model);
    mpk_status status =
        engine_print_adapters(cx, b->options.adapters, b->options.n_adapters, &adapters);
    if (status == MPK_OK)
        status = fill_header(cx, b, path, &adapters, &h);
    uint64_t first = status == MPK_OK ? block_at(&h) : 0;
    uint64_t n = status == MPK_OK ? first + h.block_bytes + h.code_bytes : 0;
    bytes = n ? arena_alloc(&b->arena, 1, n) : NULL;
    if (bytes) {
        memcpy(bytes, &h, sizeof h);
        memcpy(bytes + sizeof h, path, h.path_bytes);
        if (h.adapter_bytes)
            memcpy(bytes + sizeof h + h.path_bytes, adapters.at, h.adapter_bytes);
        memcpy(bytes + first, b->image.block, h.block_bytes);
        if (h.code_bytes)
            memcpy(bytes + first + h.block_bytes, b->code.at, h.code_bytes);
    }
    free(path);
    text_free(&adapters);
    TRY(status);
    CHECK(cx, bytes, MPK_ENOMEM, "out of memory for an image of %llu bytes", (unsigned long long)n);
    return file_write(cx, out, bytes, n);
}

/* The target's code for the image, into b->code. */
static mpk_status compile_kernel(mpk_context *cx, engine_build *b)
{
    TRY(engine_progress(cx, &b->options, "compiling the kernel", 0));
    NOTE(cx, b->device.target->compile(cx, &b->image, &b->device, &b->options, &b->code),
         "compiling the kernel for %s", b->device.arch);
    return engine_progress(cx, &b->options, "compiling the kernel", 1);
}

/* for_running is false: the target need not be present, and nothing is refused for lack of memory.
 * What is refused is told before the kernel is compiled, which takes longest. */
mpk_status mpk_compile_to_file(mpk_context *cx, const char *model,
                               const mpk_engine_options *options, const char *path)
{
    engine_build b = {0};
    mpk_status status = MPK_OK;
    if (engine_is_image(model))
        status = status_fail(cx, MPK_EARG, "%s is an image already", model);
    if (status == MPK_OK)
        status = engine_build_open(cx, model, options, false, 0, &b);
    if (status == MPK_OK && b.has_draft)
        status = status_fail(cx, MPK_EARG,
                             "an image holds one model: name the draft model with a model that is "
                             "not an image");
    if (status == MPK_OK && engine_build_reads(&b, path))
        status = status_fail(cx, MPK_EARG,
                             "%s is a file of the model that is read: write to another", path);
    if (status == MPK_OK && b.device.target->compile)
        status = compile_kernel(cx, &b);
    if (status == MPK_OK)
        status = write_image(cx, &b, model, path);
    engine_build_free(&b);
    return status;
}

/* ---- reading ---- */

/* May n_tokens[i], i >= 1, follow the one before it?  Numbers of tokens are powers of two, any of
 * them once or twice: 1 2 4 4 8. */
static bool is_next(const engine_plan *p, uint32_t i)
{
    const uint32_t *n = &p->n_tokens[i];
    return n[0] == 2 * n[-1] || (n[0] == n[-1] && (i == 1 || n[-1] != n[-2]));
}

/* MPK_EFORMAT unless the numbers of a plan make sense.  The plan sizes arrays of the engine
 * (n_tokens, graphs) and divides; numbers that only describe the program are compared with the
 * machine's in engine.c.  An architecture must end within its array, and be one that some target
 * compiles for or none (the CPU). */
static mpk_status check_plan(mpk_context *cx, const engine_plan *p)
{
    bool good = p->threads && p->threads <= RT_MAX_WORKERS && p->n_peers &&
                p->n_peers <= IR_MAX_PEERS && p->threads % p->n_peers == 0 && p->max_batch &&
                p->max_batch <= ENGINE_MAX_BATCH && p->n_graphs &&
                p->n_graphs <= ENGINE_MAX_GRAPHS && p->n_choices && p->context_tokens &&
                p->n_pages && p->kv_dtype < IR_DTYPES && p->activation_dtype < IR_DTYPES &&
                memchr(p->arch, 0, sizeof p->arch) && (!*p->arch || engine_knows_arch(p->arch));
    for (uint32_t i = 0; good && i < p->n_graphs; i++)
        good = i ? is_next(p, i) : p->n_tokens[i] == 1;
    CHECK(cx, good, MPK_EFORMAT, "the image's plan is damaged: compile the model again");
    return MPK_OK;
}

/* Sizes first, then the checksum, then what the numbers mean: no byte is read before its place is
 * known to lie in the file.  The version is looked at as soon as a header is there, since another
 * version has other fields.  *h is a copy, and *model lies in a: neither points into the file. */
static mpk_status read_header(mpk_context *cx, arena *a, str bytes, image_header *h,
                              const char **model)
{
    CHECK(cx, bytes.n >= sizeof *h, MPK_EFORMAT, "the image is cut short: it has %zu bytes",
          bytes.n);
    memcpy(h, bytes.at, sizeof *h);
    CHECK(cx, h->version == IMAGE_VERSION, MPK_EUNSUPPORTED,
          "the image is of version %u, this mpk reads version %d: compile the model again",
          h->version, IMAGE_VERSION);
    CHECK(cx,
          h->path_bytes && h->path_bytes < MAX_PATH_BYTES && h->adapter_bytes < MAX_ADAPTER_BYTES &&
              bytes.n >= block_at(h),
          MPK_EFORMAT, "the image is cut short or damaged: compile the model again");
    const char *path = bytes.at + sizeof *h;
    uint64_t rest = bytes.n - block_at(h);
    CHECK(cx,
          h->checksum == checksum(h, path, path + h->path_bytes) && h->block_bytes <= rest &&
              h->code_bytes == rest - h->block_bytes &&
              h->code_hash == hash_bytes(bytes.at + bytes.n - h->code_bytes, h->code_bytes, 0),
          MPK_EFORMAT, "the image is cut short or damaged: compile the model again");
    TRY(check_plan(cx, &h->plan));
    *model = arena_copy(a, path, h->path_bytes);
    CHECK(cx, *model, MPK_ENOMEM, "out of memory for the model's path");
    return MPK_OK;
}

/* For callers that need the model's files alone (a tokenizer): neither the block nor the code is
 * copied.  *model lies in a; the map of the image is closed again. */
mpk_status engine_read_image_model(mpk_context *cx, arena *a, const char *path, const char **model)
{
    file_map file;
    image_header h;
    TRY(file_map_open(cx, path, &file));
    mpk_status status =
        read_header(cx, a, (str){(const char *)file.bytes, file.n_bytes}, &h, model);
    file_map_close(&file);
    return status;
}

/* One number of the caller's against that of the image.  given 0: the caller left it to the image.
 * exact: less would be another program, as with threads; else less is served by the larger one. */
static mpk_status check_given(mpk_context *cx, const char *what, uint32_t given, uint32_t made,
                              bool exact)
{
    CHECK(cx, !given || given == made || (!exact && given < made), MPK_EARG,
          "the image was compiled for %s %u, not %u: leave that away, or compile the model again",
          what, made, given);
    return MPK_OK;
}

/* The image's options in place of the caller's, who may ask for less but not for more: for a
 * smaller batch than the program has, but for exactly its threads.  What only concerns running
 * (progress, profile) stays the caller's; weights are made up if either asks for it.
 *
 * fusion and launch are indices of tables later, and a file may hold any number.  For the CPU,
 * whose plans name no architecture, activations are compared as "in 8 bits or not", since auto
 * means 8 bits there. */
static mpk_status merge_options(mpk_context *cx, const image_header *h, mpk_engine_options *o)
{
    const engine_plan *p = &h->plan;
    TRY(check_given(cx, "threads", o->threads, p->threads, true));
    CHECK(cx, o->gpus == 1 || o->gpus == p->n_peers, MPK_EARG,
          "the image was compiled for %u gpus, not for %u: leave that away, or compile the model "
          "again",
          p->n_peers, o->gpus);
    TRY(check_given(cx, "max_batch", o->max_batch, p->max_batch, false));
    TRY(check_given(cx, "context", o->context_tokens, p->context_tokens, false));
    TRY(check_given(cx, "step_tokens", o->step_tokens, p->n_tokens[p->n_graphs - 1], false));
    CHECK(cx, !o->batch_invariant || h->batch_invariant || !p->arch[0], MPK_EARG,
          "the image was compiled without batch_invariant: leave that away, or compile the model "
          "again");
    CHECK(
        cx, !o->own_experts || h->own_experts, MPK_EARG,
        "the image was compiled without own_experts: leave that away, or compile the model again");
    bool narrow = h->activations != MPK_ACTIVATIONS_F32 && !p->arch[0];
    CHECK(cx, !o->activations || (o->activations == MPK_ACTIVATIONS_I8) == narrow, MPK_EARG,
          "the image was compiled with activations in %s: leave that away, or compile the model "
          "again",
          narrow ? "8 bits (i8)" : "f32");
    o->threads = p->threads;
    o->gpus = p->n_peers;
    o->max_batch = p->max_batch;
    o->context_tokens = p->context_tokens;
    o->fusion = (mpk_fusion)h->fusion <= MPK_FUSION_NONE ? (mpk_fusion)h->fusion : MPK_FUSION_FULL;
    o->launch = (mpk_launch)h->launch <= MPK_LAUNCH_JIT ? (mpk_launch)h->launch : MPK_LAUNCH_AUTO;
    o->coarse_events = h->coarse_events;
    o->kv_dtype = (mpk_dtype)h->kv_dtype;
    o->batch_invariant = h->batch_invariant;
    o->activations = (mpk_activations)h->activations;
    o->own_experts = h->own_experts != 0;
    if (!o->random_weights && h->random_weights) {
        o->random_weights = true;
        o->random_seed = h->random_seed;
    }
    CHECK(cx, !o->random_routing || h->random_routing, MPK_EARG,
          "the image was compiled without random_routing: leave that away, or compile the model "
          "again with it");
    CHECK(cx, !o->count_experts || p->counts_experts, MPK_EARG,
          "the image was compiled without count_experts: leave that away, or compile the model "
          "again with it");
    if (!o->random_routing)
        o->random_routing = (mpk_routing_law)h->random_routing;
    return MPK_OK;
}

/* As engine_read_image, of the mapped file.  Cheap refusals come first: the header, the device and
 * the options are compared before the model's files are opened.  The block and the code are copied
 * out of `bytes`, which is unmapped when this returns, and only for running. */
static mpk_status read_image(mpk_context *cx, str bytes, bool for_running, engine_build *b)
{
    image_header h;
    const char *model;
    TRY(read_header(cx, &b->arena, bytes, &h, &model));
    uint64_t begin = clock_ns();
    TRY(engine_image_device(cx, &b->options, &h.plan, for_running, &b->device));
    b->device_ns = clock_ns() - begin;
    TRY(merge_options(cx, &h, &b->options));
    TRY(engine_progress(cx, &b->options, "loading", 0));
    TRY(engine_parse_adapters(cx, &b->arena,
                              (str){bytes.at + sizeof h + h.path_bytes, h.adapter_bytes},
                              &b->options.adapters, &b->options.n_adapters));
    NOTE(cx, engine_load_model(cx, model, b->options.adapters, b->options.n_adapters, &b->model),
         "loading %s", model);
    b->is_loaded = true;
    TRY(load_order_heads(cx, &b->model, b->device.target->most_group));
    TRY(engine_ask_routing(cx, b));
    uint64_t found;
    TRY(engine_fingerprint(cx, &b->model, &found));
    CHECK(cx, found == h.fingerprint, MPK_EARG,
          "%s%s has changed since the image was made: compile it again", model,
          b->options.n_adapters ? ", or one of its adapters," : "");
    b->plan = h.plan;
    if (!for_running)
        return MPK_OK;
    uint64_t first = block_at(&h);
    text_add(&b->code, bytes.at + first + h.block_bytes, h.code_bytes);
    CHECK(cx, !b->code.failed, MPK_ENOMEM, "out of memory for a kernel of %llu bytes",
          (unsigned long long)h.code_bytes);
    return image_open(cx, &b->arena, bytes.at + first, h.block_bytes, &b->image);
}

mpk_status engine_read_image(mpk_context *cx, const char *path, bool for_running, engine_build *b)
{
    file_map file;
    TRY(file_map_open(cx, path, &file));
    mpk_status status =
        read_image(cx, (str){(const char *)file.bytes, file.n_bytes}, for_running, b);
    file_map_close(&file);
    return status;
}
