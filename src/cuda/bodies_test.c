/* ctest: slow */
/* bodies_test.c - many bodies in one kernel, and what loads weights, compiled by NVRTC: what it
 * costs.
 *
 * Input: cases of all operators whose operands are plain, in one program: an eighth of them, for
 * one of the architectures, as the seed draws; all for all in a thorough check.  Output: for each
 * architecture seconds, bytes of code, and for each function that spills its registers, stack and
 * spills; a fast body that spills is an error.  Without NVRTC nothing is tested. */
#include "check.h"

#include <time.h>

#include "cuda/nvrtc.h"
#include "gen/source.h"

static mpk_context cx;
static uint64_t seed;

/* Do all tasks count as JIT, so that the code for both ways of launching is there?  Two rings leave
 * the scratch of some bodies no room on small GPUs: there half of the seeds do without. */
static bool has_jit(const gen_arch *arch)
{
    return arch->features & GEN_ROOM || rng_u64(seed, UINT64_MAX) % 2;
}

/* Has the architecture room for the body of the graph beside its rings?  If not, the message says
 * what to do about it. */
static bool has_room(arena *a, const gen_arch *arch, const gen_graph *graph)
{
    gen_source source;
    if (gen_source_make(&cx, a, 1, graph, arch->n_sms, arch, GEN_KERNEL, &source) == MPK_OK)
        return true;
    assert_false(arch->features & GEN_ROOM);
    assert_non_null(graph->jit);
    assert_non_null(strstr(cx.text, "launch ahead of time"));
    return false;
}

/* A case of an operator as one more graph, unless it is a view, has no body, or (only_fast) only
 * the generic one, or no room. */
static mpk_status add_graph(arena *a, const gen_arch *arch, const char *graph, bool only_fast,
                            gen_graph *out, uint32_t *n)
{
    ir_graph *ir;
    TRY(ir_parse(&cx, a, str_from(graph), &ir));
    const ir_op *op = &ir->ops.at[ir->ops.n - 1];
    const ir_tensor *y = &ir->tensors.at[op->out[0]];
    gen_call c = {.ir = ir,
                  .op = op,
                  .n_tokens = (uint32_t)(y->rank ? y->dims[0] : 1),
                  .n_workers = arch->n_sms,
                  .needs = arch->features,
                  .halves = IR_BF16};
    if (op->def->flags & OP_VIEW && y->shares != IR_NONE)
        return MPK_OK;
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    if (!body || (only_fast && body->rank == 0))
        return MPK_OK;
    bool *jit = arena_alloc(a, ir->ops.n, sizeof *jit);
    assert_non_null(jit);
    memset(jit, true, ir->ops.n * sizeof *jit);
    out[*n] = (gen_graph){.ir = ir, .n_tokens = c.n_tokens, .jit = has_jit(arch) ? jit : NULL};
    *n += has_room(a, arch, &out[*n]);
    return MPK_OK;
}

/* One architecture of the table, and of the cases one in eight: to optimize and assemble all takes
 * minutes for each architecture. */
enum { SHARE = 8 };

/* One of the architectures in a run, by the seed; all of them in a thorough one. */
static bool is_drawn(const gen_arch *arch)
{
    uint64_t n = 0;
    while (gen_arch_table[n].name)
        n++;
    return check_thorough() || (uint64_t)(arch - gen_arch_table) == seed % n;
}

/* The first case of each operator for which there is code, and all that get a fast body, as far as
 * they are drawn, as graphs of one program: what generic bodies compute is tested elsewhere, here
 * it is that they compile. */
static void write_source(arena *a, const gen_arch *arch, gen_source *source)
{
    uint32_t n = 0, most = 0, number = 0;
    gen_graph *graphs;
    for (const op_def *const *def = op_table; *def; def++)
        most += (*def)->n_cases;
    graphs = arena_alloc(a, most, sizeof *graphs);
    assert_non_null(graphs);
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            if (check_takes(seed, number++, SHARE))
                check_ok(&cx, add_graph(a, arch, (*def)->cases[i].graph, i > 0, graphs, &n));
    check_ok(&cx, gen_source_make(&cx, a, n, graphs, arch->n_sms, arch, GEN_KERNEL, source));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The functions of the compiler's log that spill, by name; returns how many of them are fast
 * bodies. */
static unsigned report_spills(const gen_source *source, const char *log)
{
    unsigned bad = 0, number, seen = 0;
    char name[64] = "";
    for (const char *line = log; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        int stack = 0, stores = 0, loads = 0;
        const char *properties = strstr(line, "Function properties for ");
        const char *end = strchr(line, '\n');
        if (properties && (!end || properties < end))
            sscanf(properties, "Function properties for %63s", name);
        /* some compilers put a name before them */
        const char *numbers = strstr(line, " bytes stack frame, ");
        if (!numbers || (end && numbers > end))
            continue;
        while (numbers > line && numbers[-1] >= '0' && numbers[-1] <= '9')
            numbers--;
        assert_int_equal(sscanf(numbers,
                                "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads",
                                &stack, &stores, &loads),
                         3);
        seen++;
        /* without a frame: registers that a called function keeps for its caller */
        if (stores == 0 || stack == 0)
            continue;
        const char *body = strstr(name, "body_");
        const gen_body *b = NULL;
        if (body && sscanf(body, "body_%u", &number) == 1 && number < source->n_instances)
            b = source->instances[number].body;
        print_message("  %s of the body %s: %d bytes of stack, spills %d bytes\n", name,
                      b ? b->name : "(none)", stack, stores);
        bad += b && b->rank > 0;
    }
    assert_true(seen); /* else the log has a form that is not read here */
    return bad;
}

/* Every body compiles for the architecture with the true NVRTC, and what its log says of spills
 * is held against the bounds. */
static void test_all_bodies(void **state)
{
    (void)state;
    cuda_nvrtc *nvrtc;
    if (cuda_nvrtc_open(&cx, &nvrtc) != MPK_OK) {
        check_skip(cx.text);
    }
    for (const gen_arch *arch = gen_arch_table; arch->name; arch++) {
        if (!is_drawn(arch))
            continue;
        arena a = {0};
        gen_source source;
        text code = {0}, log = {0};
        write_source(&a, arch, &source);
        double start = now();
        cuda_source s = {.name = "bodies.cu",
                         .code = source.text,
                         .arch = arch,
                         .keep_folder = getenv("MPK_KEEP")};
        check_ok(&cx, cuda_nvrtc_compile(&cx, nvrtc, &s, &code, &log));
        print_message(
            "%s: %u bodies, %zu bytes of source, %u of scratch; %.1f s, %zu bytes of code\n",
            arch->name, source.n_instances, source.text.n, source.rooms[0].scratch_bytes,
            now() - start, code.n);
        assert_int_equal(report_spills(&source, log.at ? log.at : ""), 0);
        text_free(&code);
        text_free(&log);
        arena_free(&a);
    }
    cuda_nvrtc_close(nvrtc);
}

/* The loader compiles for every architecture, without spills, and has the two kernels by name. */
static void test_loader(void **state)
{
    (void)state;
    cuda_nvrtc *nvrtc;
    if (cuda_nvrtc_open(&cx, &nvrtc) != MPK_OK)
        check_skip(cx.text);
    for (const gen_arch *arch = gen_arch_table; arch->name; arch++) {
        arena a = {0};
        str source;
        text code = {0}, log = {0};
        check_ok(&cx, gen_source_expand(&cx, &a, "pack.cuh", &source));
        cuda_source s = {.name = "loader.cu", .code = source, .arch = arch};
        check_ok(&cx, cuda_nvrtc_compile(&cx, nvrtc, &s, &code, &log));
        assert_non_null(memmem(code.at, code.n, "mpk_pack", 8));
        assert_non_null(memmem(code.at, code.n, "mpk_fill", 8));
        assert_non_null(strstr(log.at, " 0 bytes spill stores"));
        text_free(&code);
        text_free(&log);
        arena_free(&a);
    }
    cuda_nvrtc_close(nvrtc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_bodies),
                                       cmocka_unit_test(test_loader)};
    seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
