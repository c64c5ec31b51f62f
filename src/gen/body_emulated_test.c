/* body_emulated_test.c - the generic device bodies on the host: the generated text, compiled as C++, against `ref`.
 * ctest: slow */
/* Every operator's cases whose operands are plain go into one source, which the C++ compiler that is there turns into a
 * shared object.  For each case, with random operands, all entries alive and only some, with 1 and with 5 threads:
 *   - any split of output 0 gives what ref gives, within what the dtype allows; integers exactly;
 *   - two splits give the same bits;
 *   - nothing else is written.
 */
#include "check.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "base/rng.h"
#include "gen/body_print.h"
#include "rt/rt_lane.h"

typedef struct device {
    void *library;
    void (*run)(unsigned body, const rt_entry *e, unsigned hi0, const unsigned *live, char *scratch, int n);
    int (*kv_at)(int values, int token, int dim, int page_tokens, int size, int bytes);
} device;

/* One case: its graph and where its code is. */
typedef struct subject {
    const op_def *def;
    uint32_t number;
    ir_graph *g;
    uint32_t instance;
} subject;

static mpk_context cx;
static arena graphs_arena;
static VEC(subject) subjects;
static gen_source source;
static device dev;
static uint64_t base_seed;
static unsigned n_refused; /* cases with plain operands that have no body */

/* ---- compiling ---- */

static gen_call call_of(const ir_graph *g, const ir_op *op)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    return (gen_call){g, op, (uint32_t)(y->rank ? y->dims[0] : 1), 4, 0};
}

static mpk_status keep_subject(subject s)
{
    PUSH(&cx, &graphs_arena, &subjects, s);
    return MPK_OK;
}

/* Beside the cases of the records: long rows and contexts, and KV pages in the order of tensor cores. */
#define PLACES(tokens, pages)                                                                                         \
    "input %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens "] live=tokens\ninput %pages : i32[" pages "]\n" \
    "state %kc : bf16[80, 2, 16, 64]\nstate %vc : bf16[80, 2, 16, 64]\n"
static const char *const more_graphs[] = {
    "input %x : f32[4, 6001] live=rows\ninput %s : f32[4, 4] live=rows\ninput %e : i64[4] live=rows\n"
    "input %d : i32[4] live=rows\n%t = sample(%x, %s, %e, %d)\n",
    "input %q : bf16[3, 4, 64] live=tokens\n" PLACES("3", "2, 40") "%y = attention(%q, %kc, %vc, %p, %s, %pages)\n",
    "input %k : bf16[5, 2, 64] live=tokens\ninput %v : bf16[5, 2, 64] live=tokens\n" PLACES(
        "5", "2, 40") "%ka, %va = kv_write(%k, %v, %p, %s, %pages, %kc, %vc)\n",
    "input %x : bf16[5, 512] live=tokens\ninput %t : f32[5, 2, 32] live=tokens\n" PLACES(
        "5", "2, 40") "const %qn : bf16[64]\nconst %kn : bf16[64]\n%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, "
                      "%vc, %qn, %kn) {heads = 4, kv_heads = 2, head_size = 64}\n",
    "input %x : bf16[4, 512] live=tokens\n" PLACES(
        "4", "3, 20") "%y, %k, %v = attention_qkv(%x, %p, %s, %pages, %kc, %vc) {size = 64, heads = 4, kv_heads = 2, "
                      "head_size = 64}\n",
    "input %x : bf16[4, 512] live=tokens\ninput %t : f32[4, 2, 32] live=tokens\n" PLACES(
        "4", "2, 40") "const %qn : bf16[64]\nconst %kn : bf16[64]\n%y, %l, %k, %v = attention_split(%x, %t, %p, %s, "
                      "%pages, %kc, %vc, %qn, %kn) {heads = 4, kv_heads = 2, head_size = 64, splits = 5, unit = 64}\n",
};

/* Keep a case if there is code for it: operands of a block dtype have none, other plain ones must. */
static void gather_case(const op_def *def, uint32_t number, const char *graph)
{
    subject s = {.def = def, .number = number};
    check_ok(&cx, ir_parse(&cx, &graphs_arena, str_from(graph), &s.g));
    const ir_op *op = &s.g->ops.at[s.g->ops.n - 1];
    s.def = op->def;
    if (op->def->flags & OP_VIEW && s.g->tensors.at[op->out[0]].shares != IR_NONE)
        return;
    gen_call c = call_of(s.g, op);
    bool plain = true;
    for (uint32_t k = 0; k < op->n_in; k++)
        plain = plain && (!gen_input(&c, k) || ir_dtype_table[gen_input(&c, k)->dtype].block_elements == 1);
    if (gen_body_choose(&c, 0)) {
        assert_true(plain);
        check_ok(&cx, keep_subject(s));
    } else if (plain) {
        n_refused++;
        print_message("%s has no generic body for case %u\n", s.def->name, number);
    }
}

static void gather_subjects(void)
{
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            gather_case(*def, i, (*def)->cases[i].graph);
    for (uint32_t i = 0; i < sizeof more_graphs / sizeof *more_graphs; i++)
        gather_case(NULL, 100 + i, more_graphs[i]);
}

static void write_source(void)
{
    gen_graph *graphs = arena_alloc(&graphs_arena, subjects.n, sizeof *graphs);
    for (size_t i = 0; i < subjects.n; i++)
        graphs[i] = (gen_graph){subjects.at[i].g, 1};
    check_ok(&cx, gen_source_make(&cx, &graphs_arena, (uint32_t)subjects.n, graphs, 4, gen_arch_find("sm_80"),
                                  GEN_GENERIC, &source));
    for (size_t i = 0; i < subjects.n; i++)
        subjects.at[i].instance = source.uses[i][subjects.at[i].g->ops.n - 1].instance;
}

/* The first compiler that turns the source into a shared object; false: none is there. */
static bool compile(const char *folder)
{
    static const char *const compilers[] = {"c++", "g++", "clang++", "clang"};
    char path[256], command[1024];
    snprintf(path, sizeof path, "%s/bodies.cu", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#include \"tests/emulated_before.cuh\"\n%s\n#include \"tests/emulated_behind.cuh\"\n", source.text.at);
    assert_int_equal(fclose(f), 0);
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
        snprintf(command, sizeof command, "command -v %s >/dev/null", compilers[i]);
        if (system(command))
            continue;
        snprintf(
            command, sizeof command,
            "%s -x c++ -std=c++17 -O1 -w -fPIC -shared -ffp-contract=off -I. -Idevice -Isrc -o %s/bodies.so %s -lm "
            "-lpthread",
            compilers[i], folder, path);
        if (system(command))
            fail_msg("%s does not compile %s", compilers[i], path);
        return true;
    }
    return false;
}

static int set_up_device(void **state)
{
    (void)state;
    char folder[] = "/tmp/mpk-bodies-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    gather_subjects();
    write_source();
    print_message("%zu cases, %u instances, %zu bytes of source\n", subjects.n, source.n_instances, source.text.n);
    if (!compile(folder)) {
        print_message("there is no C++ compiler here: nothing is tested\n");
        return 0;
    }
    snprintf(path, sizeof path, "%s/bodies.so", folder);
    dev.library = dlopen(path, RTLD_NOW);
    if (!dev.library)
        fail_msg("%s", dlerror());
    *(void **)&dev.run = dlsym(dev.library, "emulated_run");
    *(void **)&dev.kv_at = dlsym(dev.library, "emulated_kv_at");
    unlink(path);
    snprintf(path, sizeof path, "%s/bodies.cu", folder);
    unlink(path);
    rmdir(folder);
    return 0;
}

/* ---- a case in memory ---- */

typedef struct bed {
    const subject *s;
    ir_graph *g;
    const ir_op *op;
    arena arena;
    ir_values values;
    uint64_t seed, used;
} bed;

static uint64_t next_random(bed *b, uint64_t limit)
{
    return rng_u64(b->seed, b->used++) % limit;
}

static const ir_tensor *tensor(const bed *b, ir_tensor_id id)
{
    return &b->g->tensors.at[id];
}

static bool is_root(const bed *b, ir_tensor_id id)
{
    return tensor(b, id)->shares == IR_NONE;
}

static bool is_output(const bed *b, ir_tensor_id id)
{
    bool found = false;
    for (uint32_t o = 0; o < b->op->n_out; o++)
        found = found || b->op->out[o] == id;
    return found;
}

/* Memory of exactly the size of each root; inputs random, operators before the last one run, outputs full of -1. */
static void set_up(bed *b, const subject *s, uint64_t seed, bool all_alive)
{
    *b = (bed){.s = s, .g = s->g, .seed = seed, .op = &s->g->ops.at[s->g->ops.n - 1]};
    b->values.data = arena_alloc(&b->arena, b->g->tensors.n, sizeof(void *));
    b->values.live[IR_ALL] = UINT32_MAX;
    for (int i = IR_TOKENS; i < IR_LIVES; i++)
        b->values.live[i] = all_alive ? UINT32_MAX : 1 + (uint32_t)next_random(b, 6);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (is_root(b, i)) {
            b->values.data[i] = calloc(1, (size_t)ir_bytes(tensor(b, i)));
            assert_non_null(b->values.data[i]);
        }
    check_ok(&cx, ir_eval_allocate(&cx, &b->arena, b->g, &b->values));
    for (size_t k = 0; k < b->g->ops.n; k++)
        for (uint32_t i = 0; i < b->g->ops.at[k].n_in; i++) {
            ir_tensor_id in = b->g->ops.at[k].in[i];
            if (in != IR_NONE && tensor(b, in)->kind != IR_TEMP)
                op_fill(b->g, &b->g->ops.at[k], i, rng_u64(seed, in), b->values.data[in]);
        }
    b->g->ops.n--;
    check_ok(&cx, ir_eval(&cx, &b->arena, b->g, &b->values));
    b->g->ops.n++;
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (is_root(b, i) && is_output(b, i))
            memset(b->values.data[i], 0xff, (size_t)ir_bytes(tensor(b, i)));
}

static void tear_down(bed *b)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (is_root(b, i))
            free(b->values.data[i]);
    arena_free(&b->arena);
}

static void **save(bed *b)
{
    void **copy = calloc(b->g->tensors.n, sizeof *copy);
    assert_non_null(copy);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (is_root(b, i)) {
            copy[i] = malloc((size_t)ir_bytes(tensor(b, i)));
            assert_non_null(copy[i]);
            memcpy(copy[i], b->values.data[i], (size_t)ir_bytes(tensor(b, i)));
        }
    return copy;
}

static void load(bed *b, void **copy)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (copy[i])
            memcpy(b->values.data[i], copy[i], (size_t)ir_bytes(tensor(b, i)));
}

static void drop(bed *b, void **copy)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        free(copy[i]);
    free(copy);
}

/* ---- running ---- */

static ir_box alive_box(const bed *b)
{
    const ir_tensor *t = tensor(b, b->op->out[0]);
    ir_box box = ir_box_whole(t);
    if (t->rank && t->live != IR_ALL && (int64_t)b->values.live[t->live] < box.hi[0])
        box.hi[0] = b->values.live[t->live];
    return box;
}

static void run_ref(bed *b, const ir_box *box)
{
    op_call call;
    op_bind(b->g, b->op, b->values.data, b->values.live, &call);
    size_t n = b->op->def->scratch_bytes ? b->op->def->scratch_bytes(b->g, b->op, box) : 0;
    void *scratch = aligned_alloc(64, (n + 64) / 64 * 64);
    assert_non_null(scratch);
    b->op->def->ref(&call, box, scratch);
    free(scratch);
}

/* Scratch full of garbage, guarded behind. */
static void run_device(bed *b, const ir_box *box, int threads)
{
    enum { GUARD = 64 };
    const ir_tensor *y = tensor(b, b->op->out[0]);
    rt_entry e = {.body = b->s->instance, .live = y->live, .rank = y->rank};
    uint32_t n = source.instances[b->s->instance].scratch_bytes;
    unsigned char *scratch = aligned_alloc(1024, ((size_t)n + GUARD + 1023) / 1024 * 1024);
    assert_non_null(scratch);
    memset(scratch, 0xA5, n);
    memset(scratch + n, 0x5C, GUARD);
    for (uint32_t i = 0; i < y->rank; i++) {
        e.lo[i] = (uint32_t)box->lo[i];
        e.hi[i] = (uint32_t)box->hi[i];
    }
    for (uint32_t i = 0; i < b->op->n_in; i++)
        if (b->op->in[i] != IR_NONE)
            e.at[gen_operand_of_input(b->op, i)] = (rt_u64)(uintptr_t)b->values.data[b->op->in[i]];
    for (uint32_t i = 0; i < b->op->n_out; i++)
        e.at[gen_operand_of_output(b->op, i)] = (rt_u64)(uintptr_t)b->values.data[b->op->out[i]];
    dev.run(b->s->instance, &e, e.hi[0], b->values.live, (char *)scratch, threads);
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(scratch[n + i], 0x5C);
    free(scratch);
}

/* KV pages into the order of the device, or back. */
static void turn_pages(bed *b, ir_tensor_id cache, int values, bool to_device)
{
    const ir_tensor *t = tensor(b, cache);
    int bytes = (int)ir_dtype_table[t->dtype].block_bytes, tokens = (int)t->dims[2], size = (int)t->dims[3];
    char *data = b->values.data[cache], *page = malloc((size_t)(tokens * size * bytes));
    for (int64_t p = 0; p < t->dims[0] * t->dims[1]; p++, data += tokens * size * bytes) {
        memcpy(page, data, (size_t)(tokens * size * bytes));
        for (int token = 0; token < tokens; token++)
            for (int k = 0; k < size; k++) {
                int plain = token * size + k, there = dev.kv_at(values, token, k, tokens, size, bytes);
                memcpy(data + (to_device ? there : plain) * bytes, page + (to_device ? plain : there) * bytes,
                       (size_t)bytes);
            }
    }
    free(page);
}

static void turn_caches(bed *b, bool to_device)
{
    for (uint32_t i = 0; i < b->op->def->n_in; i++) {
        const char *name = b->op->def->in[i].name;
        if (strcmp(name, "k_cache") == 0 || strcmp(name, "v_cache") == 0)
            turn_pages(b, b->op->in[i], name[0] == 'v', to_device);
    }
}

enum { MOST_BOXES = 24 };

/* What is alive, cut at random along each axis that may be cut. */
static size_t split(bed *b, ir_box boxes[MOST_BOXES])
{
    op_axis axes[IR_MAX_RANK] = {0};
    size_t n = 1;
    if (b->op->def->axes)
        b->op->def->axes(b->g, b->op, axes);
    boxes[0] = alive_box(b);
    for (uint32_t axis = 0; axis < tensor(b, b->op->out[0])->rank; axis++)
        for (size_t i = 0, before = n; axes[axis].grain > 0 && i < before && n < MOST_BOXES; i++) {
            int64_t lo = boxes[i].lo[axis], hi = boxes[i].hi[axis], steps = (hi - lo - 1) / axes[axis].grain;
            if (steps < 1 || next_random(b, 3) == 0)
                continue;
            boxes[n] = boxes[i];
            boxes[i].hi[axis] = boxes[n++].lo[axis] =
                lo + axes[axis].grain * (1 + (int64_t)next_random(b, (uint64_t)steps));
        }
    return n;
}

/* ---- comparing ---- */

static double element(const ir_tensor *t, const void *data, int64_t i)
{
    op_view v = {.data = (void *)data, .dtype = t->dtype};
    return t->dtype == IR_F64 ? ((const double *)data)[i] : (double)op_load(&v, i);
}

/* Relative error that a dtype allows after sums in another order. */
static double slack(ir_dtype dtype)
{
    return dtype == IR_BF16 ? 0x1p-7 : dtype == IR_F16 ? 0x1p-10 : dtype == IR_F32 ? 3e-5 : 1e-12;
}

/* The largest finite element that ref has written. */
static double scale_of(const ir_tensor *t, const void *expected, const void *before)
{
    double scale = 0;
    size_t bytes = ir_dtype_table[t->dtype].block_bytes;
    for (int64_t i = 0; i < ir_elements(t); i++) {
        double x = fabs(element(t, expected, i));
        if (memcmp((const char *)expected + (size_t)i * bytes, (const char *)before + (size_t)i * bytes, bytes) != 0 &&
            isfinite(x) && x > scale)
            scale = x;
    }
    return scale;
}

static void compare(const bed *b, ir_tensor_id id, const void *expected, const void *before)
{
    const ir_tensor *t = tensor(b, id);
    size_t bytes = ir_dtype_table[t->dtype].block_bytes;
    bool integer = t->dtype != IR_F32 && t->dtype != IR_F16 && t->dtype != IR_BF16 && t->dtype != IR_F64;
    double scale = scale_of(t, expected, before);
    for (int64_t i = 0; i < ir_elements(t); i++) {
        const char *want = (const char *)expected + (size_t)i * bytes;
        const char *got = (const char *)b->values.data[id] + (size_t)i * bytes;
        if (memcmp(want, got, bytes) == 0)
            continue;
        bool written = memcmp(want, (const char *)before + (size_t)i * bytes, bytes) != 0;
        double x = element(t, expected, i), y = element(t, b->values.data[id], i);
        bool close =
            !integer && written && ((isnan(x) && isnan(y)) || fabs(x - y) <= slack(t->dtype) * (fabs(x) + scale / 4));
        if (!close)
            fail_msg("%s case %u: %%%.*s element %lld is %g, expected %g%s", b->s->def->name, b->s->number,
                     STR_ARG(t->name), (long long)i, y, x, written ? "" : " (not to be written)");
    }
}

/* ---- the test ---- */

static void check_subject(const subject *s, uint64_t seed, bool all_alive, int threads)
{
    bed b;
    ir_box boxes[MOST_BOXES], whole;
    set_up(&b, s, seed, all_alive);
    whole = alive_box(&b);
    void **start = save(&b), **first = NULL;
    run_ref(&b, &whole);
    void **expected = save(&b);
    for (int round = 0; round < 2; round++) {
        load(&b, start);
        turn_caches(&b, true);
        size_t n = split(&b, boxes);
        for (size_t i = 0; i < n; i++)
            run_device(&b, &boxes[i], threads);
        turn_caches(&b, false);
        for (ir_tensor_id i = 0; i < b.g->tensors.n; i++)
            if (expected[i]) {
                compare(&b, i, expected[i], start[i]);
                if (first && memcmp(first[i], b.values.data[i], (size_t)ir_bytes(tensor(&b, i))) != 0)
                    fail_msg("%s case %u: two cuts give different bits", s->def->name, s->number);
            }
        if (!first)
            first = save(&b);
    }
    drop(&b, start);
    drop(&b, expected);
    drop(&b, first);
    tear_down(&b);
}

/* Large results take long on threads that share few processors: once, with one thread. */
static void test_every_case(void **state)
{
    (void)state;
    if (!dev.library)
        skip();
    for (size_t i = 0; i < subjects.n; i++) {
        const ir_graph *g = subjects.at[i].g;
        bool large = ir_elements(&g->tensors.at[g->ops.at[g->ops.n - 1].out[0]]) > 1 << 14;
        for (uint64_t round = 0; round < (large ? 1 : 2); round++)
            for (int threads = 1; threads <= (large ? 1 : 5); threads += 4) {
                if (getenv("MPK_VERBOSE"))
                    print_message("%s case %u, %d threads\n", subjects.at[i].def->name, subjects.at[i].number, threads);
                check_subject(&subjects.at[i], base_seed + round, round == 0, threads);
            }
    }
}

/* Every case whose operands are plain has a body of rank 0. */
static void test_none_is_refused(void **state)
{
    (void)state;
    assert_int_equal(n_refused, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_case), cmocka_unit_test(test_none_is_refused)};
    base_seed = check_seed();
    return cmocka_run_group_tests(tests, set_up_device, NULL);
}
