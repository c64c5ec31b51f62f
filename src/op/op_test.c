/* op_test.c - every operator over all its cases: what op.h promises between the fields of a record.
 *
 * For each case, with random operands, all entries alive and only some:
 *   - any split of output 0 that `axes` allows gives the same bits as the whole, in any order of
 *     the parts;
 *   - parts of every output are disjoint;
 *   - what lies outside `reads`, and entries that are not alive, may hold anything;
 *   - nothing is written outside the box and `writes`, and all of the box is.
 */
#include "check.h"

#include <ctype.h>

#include "base/rng.h"
#include "ir/op.h"
#include "op/experts.h"
#include "op/fill.h"
#include "op/runs.h"

static uint64_t base_seed;

typedef struct bed {
    mpk_context cx;
    arena arena;
    ir_graph *g;
    const ir_op *op; /* the one under test: the last */
    ir_values values;
    uint64_t seed, used; /* stream of random numbers, and how many were taken */
} bed;

static uint64_t next_random(bed *b, uint64_t limit)
{
    return rng_u64(b->seed, b->used++) % limit;
}

static const ir_tensor *tensor(const bed *b, ir_tensor_id id)
{
    return &b->g->tensors.at[id];
}

/* Parse a case, give every root memory of exactly its size, fill what is given, run all operators
 * but the last. */
static void set_up(bed *b, const char *graph, uint64_t seed, bool all_alive)
{
    *b = (bed){.seed = seed};
    check_ok(&b->cx, ir_parse(&b->cx, &b->arena, str_from(graph), &b->g));
    b->op = &b->g->ops.at[b->g->ops.n - 1];
    b->values.data = arena_alloc(&b->arena, b->g->tensors.n, sizeof(void *));
    b->values.live[IR_ALL] = UINT32_MAX;
    for (int i = IR_TOKENS; i < IR_LIVES; i++)
        b->values.live[i] = all_alive ? UINT32_MAX : 1 + (uint32_t)next_random(b, 6);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (tensor(b, i)->shares == IR_NONE) {
            b->values.data[i] = malloc((size_t)ir_bytes(tensor(b, i)));
            assert_non_null(b->values.data[i]);
            memset(b->values.data[i], 0, (size_t)ir_bytes(tensor(b, i)));
        }
    check_ok(&b->cx, ir_eval_allocate(&b->cx, &b->arena, b->g, &b->values));
    for (size_t k = 0; k < b->g->ops.n; k++)
        for (uint32_t i = 0; i < b->g->ops.at[k].n_in; i++) {
            ir_tensor_id in = b->g->ops.at[k].in[i];
            if (in != IR_NONE && tensor(b, in)->kind != IR_TEMP)
                op_fill(b->g, &b->g->ops.at[k], i, rng_u64(seed, in), b->values.data[in]);
        }
    b->g->ops.n--;
    check_ok(&b->cx, ir_eval(&b->cx, &b->arena, b->g, &b->values));
    b->g->ops.n++;
}

static void tear_down(bed *b)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (tensor(b, i)->shares == IR_NONE)
            free(b->values.data[i]);
    arena_free(&b->arena);
}

/* A copy of all memory, and back. */
static void **save(bed *b)
{
    void **copy = calloc(b->g->tensors.n, sizeof *copy);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (tensor(b, i)->shares == IR_NONE) {
            copy[i] = malloc((size_t)ir_bytes(tensor(b, i)));
            memcpy(copy[i], b->values.data[i], (size_t)ir_bytes(tensor(b, i)));
        }
    return copy;
}

/* Put tensors back as they were before a run, so that two runs begin alike. */
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

/* Run the operator on a box, scratch full of garbage and guarded after. */
static void run(bed *b, const ir_box *box)
{
    enum { GUARD = 64 };
    op_call call;
    op_bind(b->g, b->op, b->values.data, b->values.live, &call);
    size_t n = b->op->def->scratch_bytes ? b->op->def->scratch_bytes(b->g, b->op, box) : 0;
    unsigned char *scratch = aligned_alloc(64, (n + GUARD + 63) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch, 0xA5 + (int)(b->used % 3), n);
    memset(scratch + n, 0x5C, GUARD);
    b->op->def->ref(&call, box, scratch);
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(scratch[n + i], 0x5C);
    free(scratch);
}

/* Output 0 whole, cut to what is alive. */
static ir_box alive_box(const bed *b)
{
    const ir_tensor *t = tensor(b, b->op->out[0]);
    ir_box box = ir_box_whole(t);
    if (t->rank && t->live != IR_ALL && (int64_t)b->values.live[t->live] < box.hi[0])
        box.hi[0] = b->values.live[t->live];
    return box;
}

/* The axes of the operator; an operator without `axes` may not be cut. */
static void fill_axes(const bed *b, op_axis *axes)
{
    memset(axes, 0, IR_MAX_RANK * sizeof *axes);
    if (b->op->def->axes)
        b->op->def->axes(b->g, b->op, axes);
}

/* Cut an axis of the boxes at random multiples of its grain; returns the new number of boxes. */
static size_t cut_axis(bed *b, ir_box *boxes, size_t n, size_t limit, uint32_t axis, int64_t grain)
{
    for (size_t i = 0; i < n && n < limit; i++) {
        int64_t lo = boxes[i].lo[axis], hi = boxes[i].hi[axis];
        int64_t steps = (hi - lo - 1) / grain; /* cuts at lo + grain .. */
        if (steps < 1 || next_random(b, 4) == 0)
            continue;
        int64_t at = lo + grain * (1 + (int64_t)next_random(b, (uint64_t)steps));
        boxes[n] = boxes[i];
        boxes[n++].lo[axis] = at;
        boxes[i].hi[axis] = at;
    }
    return n;
}

enum { MOST_BOXES = 32 };

/* A random split of what is alive. */
static size_t split(bed *b, ir_box boxes[MOST_BOXES])
{
    op_axis axes[IR_MAX_RANK];
    size_t n = 1;
    fill_axes(b, axes);
    boxes[0] = alive_box(b);
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < tensor(b, b->op->out[0])->rank; i++)
            if (axes[i].grain > 0)
                n = cut_axis(b, boxes, n, MOST_BOXES, i, axes[i].grain);
    for (size_t i = n; i-- > 1;) {
        size_t k = (size_t)next_random(b, i + 1);
        ir_box swap = boxes[i];
        boxes[i] = boxes[k];
        boxes[k] = swap;
    }
    return n;
}

/* The part of an output that belongs to `box` of output 0, as the record says it. */
static ir_box written_box(const bed *b, uint32_t output, const ir_box *box)
{
    ir_box written = *box;
    if (output && b->op->def->writes)
        b->op->def->writes(b->g, b->op, output, box, &written);
    return written;
}

static void check_disjoint(const bed *b, const ir_box *boxes, size_t n)
{
    /* Tasks that write apart though their boxes meet: that runs in any order give the same is all
     * that can be seen. */
    uint32_t n_out = b->op->def->flags & OP_WRITES_APART ? 1 : b->op->n_out;
    for (uint32_t o = 0; o < n_out; o++)
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < i; k++) {
                ir_box one = written_box(b, o, &boxes[i]), two = written_box(b, o, &boxes[k]);
                assert_false(ir_box_overlaps(&one, &two, tensor(b, b->op->out[o])->rank));
            }
}

/* The operator in one task and in three random cuts: the same bytes in every tensor, also in
 * those that it should not touch. */
static void check_split(bed *b, void **start)
{
    ir_box boxes[MOST_BOXES], whole = alive_box(b);
    load(b, start);
    run(b, &whole);
    void **expected = save(b);
    for (int round = 0; round < 3; round++) {
        size_t n = split(b, boxes);
        check_disjoint(b, boxes, n);
        load(b, start);
        for (size_t i = 0; i < n; i++)
            run(b, &boxes[i]);
        for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
            if (expected[i])
                assert_memory_equal(b->values.data[i], expected[i], (size_t)ir_bytes(tensor(b, i)));
    }
    drop(b, expected);
}

/* True if the block of a root that starts at element number `element` touches the box. */
static bool inside(const ir_tensor *t, const ir_box *box, int64_t element)
{
    int64_t n = ir_dtype_table[t->dtype].block_elements;
    for (uint32_t i = t->rank; i-- > 0; element /= t->dims[i], n = 1) {
        int64_t at = element % t->dims[i];
        if (box->lo[i] >= box->hi[i] || at >= box->hi[i] || at + n <= box->lo[i])
            return false;
    }
    return true;
}

/* How many elements from `element` on, to the end of its row at most, lie in the box as it does, or
 * outside it as it does. */
static int64_t alike(const ir_tensor *t, const ir_box *box, int64_t element, bool *in)
{
    const int64_t n = ir_dtype_table[t->dtype].block_elements;
    *in = inside(t, box, element);
    if (!t->rank)
        return n;
    const int64_t width = t->dims[t->rank - 1], at = element % width, lo = box->lo[t->rank - 1],
                  hi = box->hi[t->rank - 1];
    int64_t end = width;
    if (*in && hi < width)
        end = (hi + n - 1) / n * n;
    else if (!*in && at + n <= lo && lo < width)
        end = lo / n * n;
    return end - at;
}

/* The part of root `id` that computing the box reads; entries that are not alive are not. */
static ir_box read_of_root(const bed *b, ir_tensor_id id, const ir_box *box)
{
    ir_box all = {0}, part;
    for (uint32_t i = 0; i < b->op->n_in; i++) {
        if (b->op->in[i] == IR_NONE)
            continue;
        const ir_tensor *t = tensor(b, b->op->in[i]);
        ir_box read = {0};
        ir_tensor_id root;
        b->op->def->reads(b->g, b->op, i, box, &read);
        ir_box whole = ir_box_whole(t);
        assert_true(ir_box_contains(&whole, &read, t->rank));
        if (t->rank && t->live != IR_ALL && read.hi[0] > (int64_t)b->values.live[t->live])
            read.hi[0] = b->values.live[t->live];
        ir_root(b->g, b->op->in[i], &read, &root, &part);
        if (root == id)
            all = ir_box_is_empty(&all, tensor(b, id)->rank) && tensor(b, id)->rank
                      ? part
                      : ir_box_around(&all, &part, tensor(b, id)->rank);
    }
    return all;
}

/* Garbage for n bytes of a tensor: NaN and -1, or random bits; integers small, so that they may
 * name something that exists. */
static void spoil(bed *b, const ir_tensor *t, unsigned char *at, size_t n, int kind)
{
    const size_t size = ir_dtype_table[t->dtype].block_bytes;
    const bool small = t->dtype == IR_BOOL || t->dtype == IR_I32 || t->dtype == IR_I64;
    if (!kind) {
        memset(at, t->dtype == IR_BOOL ? 1 : 0xff, n);
        return;
    }
    for (size_t i = 0, step = small ? size : 8; i < n; i += step) {
        int64_t bits = (int64_t)next_random(b, small ? 8 : UINT64_MAX);
        if (t->dtype == IR_BOOL)
            bits %= 2;
        memcpy(at + i, &bits, step < n - i ? step : n - i); /* little-endian, as all targets are */
    }
}

/* Garbage in every block of a root outside a box (outputs of their own: everywhere).  State whose
 * reads are not named stays: that it is not read where the step writes is seen by running parts in
 * any order. */
static void poison(bed *b, ir_tensor_id id, const ir_box *kept, int kind)
{
    const ir_tensor *t = tensor(b, id);
    bool is_output = false;
    if (t->kind == IR_STATE && b->op->def->flags & OP_READS_EARLIER)
        return;
    for (uint32_t o = 0; o < b->op->n_out; o++)
        is_output = is_output || b->op->out[o] == id;
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    const int64_t n = ir_elements(t);
    unsigned char *at = b->values.data[id];
    bool in = false;
    for (int64_t e = 0, some; e < n; e += some) {
        some = alike(t, kept, e, &in);
        size_t bytes = (size_t)(some / info->block_elements) * info->block_bytes;
        if (is_output || !in)
            spoil(b, t, at, bytes, kind);
        at += bytes;
    }
}

/* Run a box from poisoned memory; before: the memory just before, after: just after. */
static void run_poisoned(bed *b, void **start, const ir_box *box, int kind, void ***before,
                         void ***after)
{
    load(b, start);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (tensor(b, i)->shares == IR_NONE) {
            ir_box kept = read_of_root(b, i, box);
            poison(b, i, &kept, kind);
        }
    *before = save(b);
    run(b, box);
    *after = save(b);
}

/* The part of root `id` that the box may write. */
static bool written_of_root(const bed *b, ir_tensor_id id, const ir_box *box, ir_box *written,
                            bool *in_place)
{
    for (uint32_t o = 0; o < b->op->n_out; o++) {
        ir_tensor_id root;
        ir_box of_output = written_box(b, o, box);
        ir_root(b->g, b->op->out[o], &of_output, &root, written);
        *in_place = root != b->op->out[o];
        if (root == id)
            return true;
    }
    return false;
}

static bool are_same(void **x, void **y, ir_tensor_id id, size_t at, size_t n)
{
    return memcmp((char *)x[id] + at, (char *)y[id] + at, n) == 0;
}

/* Two runs over different poison: where the task may not write, each keeps its poison; where it
 * must, both hold the same bytes, so that nothing poisoned was read. */
static void compare_poisoned(const bed *b, ir_tensor_id id, const ir_box *box, void **before[2],
                             void **after[2])
{
    const ir_tensor *t = tensor(b, id);
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    ir_box written = {0};
    bool in_place = false, writes = written_of_root(b, id, box, &written, &in_place);
    const int64_t elements = ir_elements(t);
    const size_t size = info->block_bytes;
    bool in = false;
    for (int64_t e = 0, some; e < elements; e += some) {
        size_t at = (size_t)(e / info->block_elements) * size;
        some = alike(t, &written, e, &in);
        in = in && writes;
        size_t n = (size_t)(some / info->block_elements) * size;
        if (in ? are_same(after[0], after[1], id, at, n)
               : are_same(before[0], after[0], id, at, n) &&
                     are_same(before[1], after[1], id, at, n))
            continue;
        some = info->block_elements; /* that did not say which */
        bool unchanged = are_same(before[0], after[0], id, at, size) &&
                         are_same(before[1], after[1], id, at, size);
        if (!in && !unchanged)
            fail_msg("%%%.*s: element %lld was written", STR_ARG(t->name), (long long)e);
        if (in && !are_same(after[0], after[1], id, at, size) && !(in_place && unchanged))
            fail_msg("%%%.*s: element %lld was not written, or depends on what is not read",
                     STR_ARG(t->name), (long long)e);
    }
}

/* Of an operator that reads what earlier steps wrote no read of state is named: a named one would
 * wait for tasks of this step. */
static void check_unnamed(const bed *b, const ir_box *box)
{
    for (uint32_t i = 0; i < b->op->n_in && b->op->def->flags & OP_READS_EARLIER; i++) {
        ir_box read = {0};
        if (b->op->in[i] == IR_NONE || tensor(b, b->op->in[i])->kind != IR_STATE)
            continue;
        b->op->def->reads(b->g, b->op, i, box, &read);
        assert_true(ir_box_is_empty(&read, tensor(b, b->op->in[i])->rank));
    }
}

/* Some tasks of a random cut run with everything outside `reads` poisoned, each time with
 * another poison. */
static void check_reads_and_writes(bed *b, void **start)
{
    ir_box boxes[MOST_BOXES];
    size_t n = split(b, boxes);
    for (size_t i = 0; i < n && i < 3; i++) {
        check_unnamed(b, &boxes[i]);
        void **before[2], **after[2];
        for (int kind = 0; kind < 2; kind++)
            run_poisoned(b, start, &boxes[i], kind, &before[kind], &after[kind]);
        for (ir_tensor_id id = 0; id < b->g->tensors.n; id++)
            if (tensor(b, id)->shares == IR_NONE)
                compare_poisoned(b, id, &boxes[i], before, after);
        for (int kind = 0; kind < 2; kind++) {
            drop(b, before[kind]);
            drop(b, after[kind]);
        }
    }
}

/* Of a view: the elements of a box lie, by strides, in the box of the root that ir_root gives. */
static void check_view(bed *b)
{
    const ir_tensor *y = tensor(b, b->op->out[0]);
    for (int round = 0; round < 50; round++) {
        ir_box box = {0}, root_box;
        int64_t offset = y->offset;
        for (uint32_t i = 0; i < y->rank; i++) {
            box.lo[i] = (int64_t)next_random(b, (uint64_t)y->dims[i]);
            box.hi[i] = box.lo[i] + 1 + (int64_t)next_random(b, (uint64_t)(y->dims[i] - box.lo[i]));
            offset += y->stride[i] *
                      (box.lo[i] + (int64_t)next_random(b, (uint64_t)(box.hi[i] - box.lo[i])));
        }
        ir_tensor_id root;
        ir_root(b->g, b->op->out[0], &box, &root, &root_box);
        int64_t block = ir_dtype_table[y->dtype].block_elements;
        assert_true(inside(tensor(b, root), &root_box, offset / block * block));
    }
}

/* A task is clipped to the entries that are alive, and its scratch is planned for all of them. */
static void check_scratch(const bed *b)
{
    ir_box box = ir_box_whole(tensor(b, b->op->out[0]));
    if (tensor(b, b->op->out[0])->live == IR_ALL || !b->op->def->scratch_bytes)
        return;
    for (size_t most = b->op->def->scratch_bytes(b->g, b->op, &box); --box.hi[0] > 0;) {
        const size_t bytes = b->op->def->scratch_bytes(b->g, b->op, &box);
        assert_true(bytes <= most);
        most = bytes;
    }
}

/* One case with one seed.  all_alive: no row is dead; otherwise live counts are drawn, and what
 * lies beyond them must not matter. */
static void check_case(const op_def *def, uint32_t number, uint64_t seed, bool all_alive)
{
    bed b;
    set_up(&b, def->cases[number].graph, seed, all_alive);
    assert_ptr_equal(b.op->def, def);
    if (tensor(&b, b.op->out[0])->shares != IR_NONE && def->flags & OP_VIEW) {
        check_view(&b);
    } else {
        void **start = save(&b);
        check_scratch(&b);
        check_split(&b, start);
        check_reads_and_writes(&b, start);
        drop(&b, start);
    }
    tear_down(&b);
}

static void test_every_case(void **state)
{
    (void)state;
    for (const op_def *const *def = op_table; *def; def++) {
        assert_true((*def)->n_cases > 0);
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            for (uint64_t round = 0; round < (CHECK_SHARE == 1 ? 4 : 2); round++) {
                uint64_t seed = base_seed + round;
                if (getenv("MPK_VERBOSE"))
                    print_message("%s case %u round %d\n", (*def)->name, i, (int)round);
                check_case(*def, i, seed, round == 0);
            }
    }
}

/* A case with one number among the attributes of its last operator replaced: number `which`,
 * counted from 0.  False: there are not so many. */
static bool replace_number(const char *graph, int which, const char *by, char *to, size_t n)
{
    const char *at = strrchr(graph, '{');
    while (at && *at) {
        size_t digits = strspn(at, "0123456789.-+e");
        bool name = at > graph && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (*at == '"')
            at = strchr(at + 1, '"') + 1;
        else if (!digits || name || *at == 'e')
            at++;
        else if (which-- > 0)
            at += digits;
        else
            return (size_t)snprintf(to, n, "%.*s%s%s", (int)(at - graph), graph, by, at + digits) <
                   n;
    }
    return false;
}

/* Whatever a number of a graph is, the operator is refused or works within its memory; nothing is
 * asked of the result.  Graphs that come out large are only built. */
static void check_hostile(const char *graph)
{
    enum { MOST_BYTES = 1 << 20, MOST_SCRATCH = 1 << 24 };
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    bool small = ir_parse(&cx, &a, str_from(graph), &g) == MPK_OK;
    for (ir_tensor_id i = 0; small && i < g->tensors.n; i++)
        small = ir_bytes(&g->tensors.at[i]) <= MOST_BYTES;
    const ir_op *op = small ? &g->ops.at[g->ops.n - 1] : NULL;
    if (small && op->def->scratch_bytes) {
        ir_box box = ir_box_whole(&g->tensors.at[op->out[0]]);
        small = op->def->scratch_bytes(g, op, &box) <= MOST_SCRATCH;
    }
    arena_free(&a);
    if (!small)
        return;
    bed b;
    set_up(&b, graph, base_seed, true);
    check_ok(&b.cx, ir_eval(&b.cx, &b.arena, b.g, &b.values));
    tear_down(&b);
}

/* Every number in the text of every case, one at a time, replaced by extreme ones: the program
 * is refused or runs, without overflow (the sanitizers look on). */
static void test_hostile_attributes(void **state)
{
    static const char *const numbers[] = {"-9223372036854775808",
                                          "9223372036854775807",
                                          "4611686018427387904",
                                          "2147483648",
                                          "-1",
                                          "0",
                                          "1e300",
                                          "1000000"};
    uint64_t number = 0;
    (void)state;
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
                char graph[4096];
                if (!check_takes(base_seed, number++, CHECK_SHARE))
                    continue;
                for (int which = 0;
                     replace_number((*def)->cases[i].graph, which, numbers[n], graph, sizeof graph);
                     which++) {
                    if (getenv("MPK_VERBOSE"))
                        print_message("%s\n", graph);
                    check_hostile(graph);
                }
            }
}

/* Names are the files', attributes fit, summaries are there. */
static void test_records(void **state)
{
    (void)state;
    for (const op_def *const *def = op_table; *def; def++) {
        assert_ptr_equal(op_find(str_from((*def)->name)), *def);
        assert_true((*def)->n_attributes <= IR_MAX_ATTRIBUTES && (*def)->n_in <= IR_MAX_INPUTS);
        assert_true((*def)->n_out >= 1 && (*def)->n_out <= IR_MAX_OUTPUTS);
        assert_true((*def)->summary && (*def)->infer && (*def)->reads);
        assert_true((*def)->ref || (*def)->view);
        assert_true(!((*def)->flags & OP_VIEW) == !(*def)->view);
    }
    assert_null(op_find(STR("no_such_operator")));
}

/* Every tensor of a variadic operand is that operand. */
static void inputs_have_operands(void **state)
{
    (void)state;
    for (const op_def *const *at = op_table; *at; at++) {
        const op_def *def = *at;
        for (uint32_t i = 0; i < def->n_in; i++)
            assert_ptr_equal(op_operand_of(def, i), &def->in[i]);
        for (uint32_t i = def->n_in; def->n_in && i < IR_MAX_INPUTS; i++)
            assert_ptr_equal(op_operand_of(def, i), &def->in[def->n_in - 1]);
    }
}

/* Attributes that are just beyond what an operator takes, which random ones seldom are. */
static void test_just_refused(void **state)
{
    static const struct {
        const char *graph, *message;
        mpk_status status;
    } rows[] = {
        {"input %x : i32[4]\n%z = map(%x) {expr = \"t0 = 2; x0 + t32\"}",
         "this temporary has no value", MPK_EFORMAT},
        {"input %x : f32[4]\n%z = map(%x) {expr = \"t32 = x0; t32\"}",
         "this temporary cannot be set", MPK_EFORMAT},
        {"input %p : i32[4] live=tokens\n%y = rope_table(%p) {size = 8, theta = 1.0}",
         "theta is 1, expected more than 1", MPK_EARG},
        {"input %x : i32[4, 3]\n%y = reduce(%x) {axes = [0], kind = \"mean\"}",
         "the mean of i32 needs a dtype", MPK_ESHAPE},
        {"input %x : f32[2, 3]\nconst %w : f32[4, 3]\n%y = conv(%x, %w, _)",
         "x has rank 2 and w rank 2, expected both 3, 4 or 5", MPK_ESHAPE},
        {"input %x : f32[2, 3, 4, 4, 4, 4]\nconst %w : f32[4, 3, 1, 1, 1, 1]\n%y = conv(%x, %w, _)",
         "x has rank 6 and w rank 6, expected both 3, 4 or 5", MPK_ESHAPE},
        {"input %x : f32[2, 3, 4, 4]\nconst %w : f32[4, 3, 1]\n%y = conv(%x, %w, _)",
         "x has rank 4 and w rank 3, expected both 3, 4 or 5", MPK_ESHAPE},
        {"input %x : f32[2, 8]\nconst %v : f32[4]\nconst %w : f32[4]\n%y = rms_norm_parts(%x, %v, "
         "%w) {eps = -0.5}",
         "eps is -0.5, expected 0 or more", MPK_EARG},
        {"input %x : f32[2, 8]\ninput %r : f32[2, 8]\n%y = rms_norm(%x, _, %r, %r)",
         "there is a residual and a gate, and only one of them is possible", MPK_ESHAPE},
        {"input %x : f32[4]\n%y = pad(%x) {before = [-1], after = [2]}",
         "-1 before and 2 after axis 0 of 4 entries", MPK_ESHAPE},
        {"input %x : f32[4]\n%y = pad(%x) {before = [2], after = [-1]}",
         "2 before and -1 after axis 0 of 4 entries", MPK_ESHAPE},
        {"input %x : f32[4]\n%y = pad(%x) {before = [4], after = [3], mode = \"reflect\"}",
         "4 before and 3 after axis 0 of 4 entries, expected 0 to 3", MPK_ESHAPE},
        {"input %x : f32[4]\n%y = pad(%x) {before = [4], after = [5], mode = \"circular\"}",
         "4 before and 5 after axis 0 of 4 entries, expected 0 to 4", MPK_ESHAPE},
        {"input %x : f32[1, 128]\ninput %t : f32[1, 2, 32]\ninput %p : i32[1]\ninput %s : i32[1]\n"
         "input %g : i32[2, 4]\nstate %kc : f32[9, 1, 16, 64]\nstate %vc : f32[9, 1, 16, 64]\n%q, "
         "%k, %v = rope_kv(%x, %t, %p, %s, %g, %kc, %vc) {heads = 0, kv_heads = 1, head_size = 64}",
         "heads 0 is not a multiple of kv_heads 1", MPK_ESHAPE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        arena a = {0};
        ir_graph *g;
        check_fails(&cx, rows[i].status, rows[i].message,
                    ir_parse(&cx, &a, str_from(rows[i].graph), &g));
        arena_free(&a);
    }
}

/* Attributes that an operator just takes, or does not look at. */
static void test_just_taken(void **state)
{
    static const char *const graphs[] = {
        "input %p : i32[4] live=tokens\n%y = rope_table(%p) {size = 8, low_freq_factor = 4.0, "
        "high_freq_factor = 1.0}",
        "input %p : i32[4] live=tokens\n%y = rope_table(%p) {size = 8, scaling = \"linear\", "
        "beta_fast = -1.0, beta_slow = 0.0}",
        "input %x : f32[2, 8]\nconst %v : f32[4]\nconst %w : f32[4]\n%y = rms_norm_parts(%x, %v, "
        "%w) {eps = 0.0}",
        "input %x : f32[4]\n%y = pad(%x) {before = [3], after = [3], mode = \"reflect\"}",
        "input %x : f32[4]\n%y = pad(%x) {before = [4], after = [0], mode = \"circular\"}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        mpk_context cx = {0};
        arena a = {0};
        ir_graph *g;
        check_ok(&cx, ir_parse(&cx, &a, str_from(graphs[i]), &g));
        arena_free(&a);
    }
}

/* Runs into which an axis is cut: of at most 1,024 entries they are all alike, and as long as may
 * be. */
static void runs_divide_their_axis(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 3000; n++) {
        const int64_t run = runs_of(n);
        if (n > 1024 || n % 8)
            assert_int_equal(run, n > 1024 ? 64 : n);
        else
            assert_true(n % run == 0 && run >= 8 && run <= 64 && (run == 64 || n % (2 * run)));
    }
}

/* Rounds of a token's chunks of experts: all slots get as many chunks of it, and four rounds are
 * for fewer than 512 columns alone. */
static void rounds_divide_experts(void **state)
{
    (void)state;
    for (int64_t of_token = 1; of_token <= EXPERTS_MOST_PER_TOKEN; of_token++)
        for (int64_t columns = 504; columns <= 520; columns++) {
            const int rounds = experts_rounds(of_token, columns);
            assert_true(rounds == 1 || rounds == 2 || rounds == 4);
            assert_int_equal(of_token % rounds, 0);
            assert_int_equal(rounds == 4, of_token % 4 == 0 && columns < 512);
            assert_true(rounds > 1 || of_token % 2);
        }
}

/* Operands of every integer dtype are filled: with the same numbers, as far as they fit. */
static void integers_are_filled(void **state)
{
    static const ir_dtype dtypes[] = {IR_I64, IR_I32, IR_I16, IR_I8, IR_U8};
    enum { N = 64, LIMIT = 100 };
    (void)state;
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        const ir_tensor t = {.dtype = dtypes[k], .rank = 1, .dims = {N}};
        const size_t size = (size_t)ir_row_bytes(t.dtype, 1);
        char data[8 * N] = {0};
        fill_indices(&t, LIMIT, base_seed, data);
        for (uint64_t i = 0; i < N; i++) {
            const int64_t expected = fill_choose(base_seed, i, LIMIT);
            assert_memory_equal(data + i * size, &expected, size); /* its low bytes */
        }
    }
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),          cmocka_unit_test(test_hostile_attributes),
        cmocka_unit_test(test_just_refused),     cmocka_unit_test(test_just_taken),
        cmocka_unit_test(test_every_case),       cmocka_unit_test(runs_divide_their_axis),
        cmocka_unit_test(rounds_divide_experts), cmocka_unit_test(integers_are_filled),
        cmocka_unit_test(inputs_have_operands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
