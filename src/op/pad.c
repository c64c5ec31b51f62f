/* pad.c - a tensor with entries added around it.  x [..] -> y with dims before[i] + x.dims[i] +
 * after[i].
 *
 * What the added entries are, for [1, 2, 3] with 2 before and 2 after:
 *
 *   constant   v v 1 2 3 v v    v: the attribute `value`
 *   reflect    3 2 1 2 3 2 1    mirrored at the first and last entry, which are not repeated
 *   replicate  1 1 1 2 3 3 3    the nearest entry
 *   circular   2 3 1 2 3 1 2    x again and again
 *
 * Any dtype of plain numbers; entries are copied bit by bit.  Cost: one copy.
 */
#include "op/move.h"
#include "op/runs.h"
#include "op/shape.h"

/* Attributes, by index. */
enum { BEFORE, AFTER, MODE, VALUE };
typedef enum pad_mode { CONSTANT, REFLECT, REPLICATE, CIRCULAR, MODES } pad_mode;

/* The mode that the attribute names; MODES if it names none, which infer refuses. */
static pad_mode mode_of(const ir_op *op)
{
    static const char *const names[MODES] = {"constant", "reflect", "replicate", "circular"};
    int mode = 0;
    while (mode < MODES && !str_is(op->attributes[MODE].s, names[mode]))
        mode++;
    return (pad_mode)mode;
}

/* How many entries may be put before or after an axis of n entries.  reflect has n - 1 entries
 * besides the one at the mirror; circular is limited to one round, so that source() needs one
 * addition only. */
static int64_t most_padding(pad_mode mode, int64_t n)
{
    if (mode == REFLECT)
        return n - 1;
    return mode == CIRCULAR ? n : INT64_MAX / 4;
}

/* Each mode limits what it can add (most_padding).  Padding axis 0 would move live tokens, so a
 * partly alive axis 0 keeps its length. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    CHECK(cx, a[BEFORE].ints.n == x->rank && a[AFTER].ints.n == x->rank, MPK_ESHAPE,
          "pad: %u numbers before and %u after, expected %u of each, the rank of x",
          a[BEFORE].ints.n, a[AFTER].ints.n, x->rank);
    pad_mode mode = mode_of(op);
    CHECK(cx, mode < MODES, MPK_EUNSUPPORTED,
          "pad: mode \"%.*s\" is not one of constant, reflect, replicate, circular",
          STR_ARG(a[MODE].s));
    shape_like(x, out);
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t before = a[BEFORE].ints.at[i], after = a[AFTER].ints.at[i];
        int64_t limit = most_padding(mode, x->dims[i]);
        CHECK(cx, before >= 0 && after >= 0 && before <= limit && after <= limit, MPK_ESHAPE,
              "pad: %lld before and %lld after axis %u of %lld entries, expected 0 to %lld of each",
              (long long)before, (long long)after, i, (long long)x->dims[i], (long long)limit);
        out->dims[i] = before + x->dims[i] + after;
    }
    CHECK(cx, x->live == IR_ALL || out->dims[0] == x->dims[0], MPK_ESHAPE,
          "pad: axis 0 of %%%.*s is partly alive and must stay as it is", STR_ARG(x->name));
    return MPK_OK;
}

/* The entry of x that entry `at` of the result takes its value from, `before` entries having
 * been added to an axis of n.  In mode constant it may lie outside 0 .. n - 1: there is no such
 * entry. */
static int64_t source(pad_mode mode, int64_t at, int64_t before, int64_t n)
{
    int64_t i = at - before;
    if (mode == REFLECT && i >= n)
        return 2 * (n - 1) - i;
    if (mode == REFLECT)
        return i < 0 ? -i : i;
    if (mode == REPLICATE)
        return op_clamp(i, 0, n - 1);
    return mode == CIRCULAR ? (i + n) % n : i;
}

/* Widen [*lo, *hi) by the entries of x that the entries from .. end - 1 of the result are made
 * of.  Within that range source() is monotonic (the caller cuts at both edges of x), so its two
 * ends bound it. */
static void widen(pad_mode mode, int64_t from, int64_t end, int64_t before, int64_t n, int64_t *lo,
                  int64_t *hi)
{
    if (from >= end)
        return;
    int64_t a = source(mode, from, before, n), b = source(mode, end - 1, before, n);
    int64_t least = op_clamp(a < b ? a : b, 0, INT64_MAX);
    int64_t most = op_clamp(a < b ? b : a, INT64_MIN, n - 1);
    *lo = least < *lo ? least : *lo;
    *hi = most + 1 > *hi ? most + 1 : *hi;
}

/* Counts all entries of the box, since those outside x are written too although they read
 * nothing; 8 bytes stand for one read and one write. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    enum { ENTRY_BYTES = 8 };
    return ir_box_elements(box, g->tensors.at[op->out[0]].rank) * ENTRY_BYTES;
}

/* The smallest box of x around what the three parts of the box are made of: those before, in and
 * after x.  Of mode constant only the middle part reads anything. A circular box that begins before
 * x reads the end of x as well as its beginning, so this may be all of x although few entries are
 * read. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    pad_mode mode = mode_of(op);
    *read = (ir_box){0};
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t n = x->dims[i], before = op->attributes[BEFORE].ints.at[i], lo = box->lo[i],
                hi = box->hi[i];
        int64_t in_lo = op_clamp(lo, before, INT64_MAX),
                in_hi = op_clamp(hi, INT64_MIN, before + n);
        read->lo[i] = n;
        widen(mode, in_lo, in_hi, before, n, &read->lo[i], &read->hi[i]);
        if (mode == CONSTANT)
            continue;
        widen(mode, lo, hi < before ? hi : before, before, n, &read->lo[i], &read->hi[i]);
        widen(mode, lo > before + n ? lo : before + n, hi, before, n, &read->lo[i], &read->hi[i]);
    }
    if (ir_box_is_empty(read, x->rank))
        *read = (ir_box){0};
}

/* The part of the box that is x itself.  Along an axis where the box holds none of x the part is
 * an empty range within the box, as fill_outside expects. */
static ir_box inside(const op_call *call, const ir_box *box)
{
    const op_view *x = &call->in[0];
    ir_box part = *box;
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t before = call->attributes[BEFORE].ints.at[i];
        part.lo[i] = op_clamp(before, box->lo[i], box->hi[i]);
        part.hi[i] = op_clamp(before + x->dims[i], part.lo[i], box->hi[i]);
    }
    return part;
}

/* Fill what is outside of x: for each axis the slab before x and the slab after it.  `rest`
 * shrinks to x along the axes done, so no entry is filled twice. */
static void fill_outside(const op_call *call, const ir_box *box, const ir_box *part)
{
    ir_box rest = *box, slab;
    for (uint32_t i = 0; i < call->in[0].rank; i++) {
        slab = rest;
        slab.hi[i] = part->lo[i];
        move_fill(&call->out[0], &slab, call->attributes[VALUE].f);
        slab.lo[i] = part->hi[i];
        slab.hi[i] = rest.hi[i];
        move_fill(&call->out[0], &slab, call->attributes[VALUE].f);
        rest.lo[i] = part->lo[i];
        rest.hi[i] = part->hi[i];
    }
}

/* One row of a mode that repeats x, from at[] to `end` along the last axis.  The entries that
 * are x itself are one run; the mirrored or repeated ones are copied one by one. */
static void copy_row(const op_call *call, pad_mode mode, const ir_box *part, const int64_t *at,
                     int64_t end)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = y->rank - 1;
    int64_t before = call->attributes[BEFORE].ints.at[last], n = x->dims[last], from = 0, run;
    int64_t to = walk_offset(y, at) - at[last] * y->stride[last];
    for (uint32_t i = 0; i < last; i++)
        from += source(mode, at[i], call->attributes[BEFORE].ints.at[i], x->dims[i]) * x->stride[i];
    for (int64_t i = at[last]; i < end; i += run) {
        run = i == part->lo[last] && i < part->hi[last] ? part->hi[last] - i : 1;
        walk_copy(y, to + i * y->stride[last], y->stride[last], x,
                  from + source(mode, i, before, n) * x->stride[last], x->stride[last], run);
    }
}

/* A constant is filled around one copied box; the other modes go row by row, as every row takes
 * its entries from somewhere in x. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    pad_mode mode = mode_of(call->op);
    ir_box part = inside(call, box);
    int64_t at[IR_MAX_RANK];
    if (mode == CONSTANT || y->rank == 0) {
        fill_outside(call, box, &part);
        move_part(y, &part, x, call->attributes[BEFORE].ints.at);
        return;
    }
    memcpy(at, box->lo, sizeof at);
    do
        copy_row(call, mode, &part, at, box->hi[y->rank - 1]);
    while (walk_next(box, y->rank - 1, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("before", INTS), SHAPE_NEEDED("after", INTS),
                                          SHAPE_WORD("mode", "constant"), SHAPE_REAL("value", 0)};
/* Live axis 0 padded along axis 1 only, each mode, integers and bool, and rows of whole pieces of
 * 16 bytes. */
static const op_case cases[] = {
    {"input %x : f32[7, 20] live=tokens\n%y = pad(%x) {before = [0, 3], after = [0, 1], value = "
     "2.5}\n"},
    {"input %x : bf16[3, 5]\n%y = pad(%x) {before = [2, 4], after = [1, 0], mode = \"reflect\"}\n"},
    {"input %x : i64[3, 5]\n%y = pad(%x) {before = [2, 0], after = [4, 1], mode = "
     "\"replicate\"}\n"},
    {"input %x : f16[3, 5]\n%y = pad(%x) {before = [3, 0], after = [3, 2], mode = \"circular\"}\n"},
    {"input %x : bool[3]\n%y = pad(%x) {before = [9], after = [0], value = 1.0}\n"},
    {"input %x : bf16[2, 37]\n%y = pad(%x) {before = [1, 8], after = [0, 19], value = -1.5}\n"},
    {"input %t : bf16[2, 3, 5, 6]\n%x = transpose(%t) {perm = [0, 2, 3, 1]}\n%y = pad(%x) {before "
     "= [0, 0, 0, 0], after = [0, 0, 0, 5]}\n"},
    {"input %x : u8[40]\n%y = pad(%x) {before = [24], after = [32], mode = \"circular\"}\n"},
};

const op_def op_pad = {
    .name = "pad",
    .summary = "entries added around a tensor: constant, reflect, replicate or circular",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = runs_axes,
    .effort = effort,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
