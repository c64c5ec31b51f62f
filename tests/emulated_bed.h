/* emulated_bed.h - what the tests of emulated device bodies share: code compiled by the host's C++
 * compiler, an operator's case in memory, and the comparison with `ref`.  For
 * src/gen/body_emulated_test.c, src/gen/body_warps_test.c and src/gen/body_parts_test.c. */
#ifndef TESTS_EMULATED_BED_H
#define TESTS_EMULATED_BED_H

#include "check.h"

#include <dlfcn.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rng.h"
#include "gen/body_print.h"
#include "gen/image_of.h"
#include "gen/packed_form.h"
#include "rt/rt_centre.h"
#include "rt/rt_lane.h"
#include "shape/linear_tile_shape.h"

/* One case: its graph, whose last operator is meant, and where its code is. */
typedef struct subject {
    const op_def *def;
    uint32_t number;
    ir_graph *g;
    uint32_t instance;
    const gen_use *use;
} subject;

static mpk_context cx;

/* ---- compiling ---- */

static inline bool has_command(const char *name)
{
    char command[128];
    snprintf(command, sizeof command, "command -v %s >/dev/null", name);
    return system(command) == 0;
}

/* A shared object so many times, each with static data of its own. */
static inline void open_copies(const char *object, void **libraries, uint32_t n)
{
    char copy[80], command[256];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(copy, sizeof copy, "%s.%u", object, i);
        snprintf(command, sizeof command, "cp %s %s", object, copy);
        assert_int_equal(system(command), 0);
        if (!(libraries[i] = dlopen(copy, RTLD_NOW | RTLD_LOCAL)))
            fail_msg("%s", dlerror());
        unlink(copy);
    }
}

/* The source between two files of tests/ as n shared objects, by the first compiler that is there;
 * false: none is. */
static inline bool compile_emulated(const gen_source *source, const char *before, const char *after,
                                    void **libraries, uint32_t n)
{
    static const char *const compilers[] = {"c++", "g++", "clang++", "clang"};
    char folder[] = "/tmp/mpk-bodies-XXXXXX", code[64], object[64], command[1024];
    bool is_there = false;
    assert_non_null(mkdtemp(folder));
    snprintf(code, sizeof code, "%s/bodies.cu", folder);
    snprintf(object, sizeof object, "%s/bodies.so", folder);
    FILE *f = fopen(code, "w");
    assert_non_null(f);
    fprintf(f, "#include \"tests/%s\"\n%s\n#include \"tests/%s\"\n", before, source->text.at,
            after);
    assert_int_equal(fclose(f), 0);
    for (size_t i = 0; !is_there && i < sizeof compilers / sizeof *compilers; i++) {
        if (!has_command(compilers[i]))
            continue;
        snprintf(command, sizeof command,
                 "%s -x c++ -std=c++17 -Og -w -fPIC -shared -ffp-contract=off "
                 "-fsanitize=alignment -fsanitize-undefined-trap-on-error "
                 "-I. -Idevice -Isrc -o "
                 "%s %s -lm -lpthread",
                 compilers[i], object, code);
        if (system(command))
            fail_msg("%s does not compile %s", compilers[i], code);
        open_copies(object, libraries, n);
        is_there = true;
        unlink(object);
    }
    unlink(code);
    rmdir(folder);
    return is_there;
}

/* ---- a case in memory ---- */

typedef struct bed {
    const subject *s;
    ir_graph *g;
    const ir_op *op;
    arena arena;
    ir_values values;
    uint64_t seed, used;
    double slack;   /* relative error that is allowed beside that of the dtype */
    double tail;    /* absolute error that is allowed */
    void *residual; /* as it was before end_memory */
    void *x;        /* as it was before lengthen_x; NULL: it is not longer */
    /* rows of RT_SQUARES_ROW bytes, n_squares sums of squares of a row of x in each; NULL: none */
    char *squares;
    uint32_t n_squares;
    /* Element of a KV page where the device has (token, dim). */
    int (*kv_at)(int values, int token, int dim, int page_tokens, int size, int bytes);
} bed;

static inline uint64_t next_random(bed *b, uint64_t limit)
{
    return rng_u64(b->seed, b->used++) % limit;
}

static inline const ir_tensor *tensor(const bed *b, ir_tensor_id id)
{
    return &b->g->tensors.at[id];
}

static inline bool is_root(const bed *b, ir_tensor_id id)
{
    return tensor(b, id)->shares == IR_NONE;
}

static inline bool is_output(const bed *b, ir_tensor_id id)
{
    bool found = false;
    for (uint32_t o = 0; o < b->op->n_out; o++)
        found = found || b->op->out[o] == id;
    return found;
}

/* On both sides of each root: bytes that make a NaN of what is read too far, and show what is
 * written too far. */
enum { FENCE = 256 };

static inline void *fenced(size_t n)
{
    unsigned char *p = aligned_alloc(FENCE, (n + 3 * FENCE - 1) / FENCE * FENCE);
    assert_non_null(p);
    memset(p, 0xff, n + 2 * FENCE);
    memset(p + FENCE, 0, n);
    return p + FENCE;
}

static inline void free_fenced(void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < FENCE; i++)
        assert_true(p[n + i] == 0xff && *(p - 1 - i) == 0xff);
    free((unsigned char *)data - FENCE);
}

/* Is it a product whose norm is a layer_norm? */
static inline bool is_centred(const ir_op *op)
{
    for (uint32_t i = 0; i < op->def->n_attributes; i++)
        if (strcmp(op->def->attributes[i].name, "centred") == 0)
            return op->attributes[i].i;
    return false;
}

/* Rows of its x get means of up to ten deviations. */
static inline void shift_rows(bed *b)
{
    const ir_tensor_id x = b->op->in[0];
    op_view v = {.data = b->values.data[x], .dtype = tensor(b, x)->dtype};
    const int64_t columns = tensor(b, x)->dims[1];
    for (int64_t t = 0; is_centred(b->op) && t < tensor(b, x)->dims[0]; t++) {
        const float mean = 5 * ((float)next_random(b, 5) - 2);
        for (int64_t i = t * columns; i < (t + 1) * columns; i++)
            op_store(&v, i, op_load(&v, i) + mean);
    }
}

/* Memory of exactly the size of each root; inputs random, operators before the last one run,
 * outputs full of -1.  Of what may be dead `fewest` entries or a few more are alive, or all. */
static inline void set_up(bed *b, const subject *s, uint64_t seed, bool all_alive, uint32_t fewest,
                          uint32_t most)
{
    *b = (bed){.s = s, .g = s->g, .seed = seed, .op = &s->g->ops.at[s->g->ops.n - 1]};
    b->values.data = arena_alloc(&b->arena, b->g->tensors.n, sizeof(void *));
    b->values.live[IR_ALL] = UINT32_MAX;
    for (int i = IR_TOKENS; i < IR_LIVES; i++)
        b->values.live[i] =
            all_alive ? UINT32_MAX : fewest + (uint32_t)next_random(b, most - fewest + 1);
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (is_root(b, i))
            b->values.data[i] = fenced((size_t)ir_bytes(tensor(b, i)));
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
    shift_rows(b);
}

static inline void tear_down(bed *b)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (is_root(b, i))
            free_fenced(b->values.data[i], (size_t)ir_bytes(tensor(b, i)));
    arena_free(&b->arena);
}

static inline void **save(bed *b)
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

static inline void load(bed *b, void **copy)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        if (copy[i])
            memcpy(b->values.data[i], copy[i], (size_t)ir_bytes(tensor(b, i)));
}

static inline void drop(bed *b, void **copy)
{
    for (ir_tensor_id i = 0; i < b->g->tensors.n; i++)
        free(copy[i]);
    free(copy);
}

/* ---- a residual at the end of memory ---- */

/* n bytes in whole pages. */
static inline size_t pages_of(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

/* Where the n bytes of the residual are; NULL: there is none. */
static inline void **residual_of(bed *b, size_t *n)
{
    for (uint32_t i = 0; i < b->op->n_in; i++)
        if (b->op->in[i] != IR_NONE && is_root(b, b->op->in[i]) &&
            str_is(tensor(b, b->op->in[i])->name, "r")) {
            *n = (size_t)ir_bytes(tensor(b, b->op->in[i]));
            return &b->values.data[b->op->in[i]];
        }
    return NULL;
}

/* Move the residual, rounded up to 16 bytes, to the end of a page that none may be read after: a
 * body that reads beyond it crashes the test.  What lies around it is NaN. */
static inline void end_memory(bed *b)
{
    size_t n;
    void **at = residual_of(b, &n);
    if (!at)
        return;
    const size_t bytes = pages_of(n), page = pages_of(1);
    char *pages =
        mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    memset(pages, 0xff, bytes);
    assert_int_equal(mprotect(pages + bytes, page, PROT_NONE), 0);
    b->residual = *at;
    *at = pages + bytes - (n + 15) / 16 * 16;
    memcpy(*at, b->residual, n);
}

/* Undo end_memory; nothing has been written around the residual. */
static inline void drop_residual(bed *b)
{
    size_t n;
    void **at = residual_of(b, &n);
    if (!at)
        return;
    unsigned char *from = *at, *end = from + (n + 15) / 16 * 16;
    for (unsigned char *p = end - pages_of(n); p < end; p++)
        assert_true((p >= from && p < from + n) || *p == 0xff);
    assert_int_equal(munmap(end - pages_of(n), pages_of(n) + pages_of(1)), 0);
    *at = b->residual;
}

/* ---- rows after those of x ---- */

/* Bytes of the rows that a map has after those of x, as in a call where x is a temporary. */
static inline size_t bytes_after_x(const bed *b)
{
    const gen_boxes all = gen_boxes_of_x(tensor(b, b->op->in[0]), true),
                    own = gen_boxes_of_x(tensor(b, b->op->in[0]), false);
    return (size_t)((all.rows - own.rows) * all.stride_bytes);
}

/* Of half of the products by boxes: x is followed by rows of NaN, which its map has too. */
static inline void lengthen_x(bed *b)
{
    const ir_tensor_id x = b->op->in[0];
    const gen_body *body = b->s->use->body;
    if (!body->maps || body->images || !is_root(b, x) || next_random(b, 2))
        return;
    const size_t n = (size_t)ir_bytes(tensor(b, x)), after = bytes_after_x(b);
    char *longer = fenced(n + after);
    memcpy(longer, b->values.data[x], n);
    memset(longer + n, 0xff, after);
    b->x = b->values.data[x];
    b->values.data[x] = longer;
}

/* Undo lengthen_x; nothing has been written to those rows. */
static inline void shorten_x(bed *b)
{
    const ir_tensor_id x = b->op->in[0];
    if (!b->x)
        return;
    const size_t n = (size_t)ir_bytes(tensor(b, x)), after = bytes_after_x(b);
    const unsigned char *end = (unsigned char *)b->values.data[x] + n;
    for (size_t i = 0; i < after; i++)
        assert_int_equal(end[i], 0xff);
    free_fenced(b->values.data[x], n + after);
    b->values.data[x] = b->x;
}

/* ---- running ---- */

static inline ir_box alive_box(const bed *b)
{
    const ir_tensor *t = tensor(b, b->op->out[0]);
    ir_box box = ir_box_whole(t);
    if (t->rank && t->live != IR_ALL && (int64_t)b->values.live[t->live] < box.hi[0])
        box.hi[0] = b->values.live[t->live];
    return box;
}

static inline void run_ref(bed *b, const ir_box *box)
{
    op_call call;
    op_bind(b->g, b->op, b->values.data, b->values.live, &call);
    size_t n = b->op->def->scratch_bytes ? b->op->def->scratch_bytes(b->g, b->op, box) : 0;
    void *scratch = aligned_alloc(64, (n + 64) / 64 * 64);
    assert_non_null(scratch);
    b->op->def->ref(&call, box, scratch);
    free(scratch);
}

/* Where the device has each element of a page. */
static inline int *device_places(const bed *b, int values, int tokens, int size, int bytes)
{
    int *places = malloc((size_t)(tokens * size) * sizeof *places);
    assert_non_null(places);
    for (int i = 0; i < tokens * size; i++)
        places[i] = b->kv_at(values, i / size, i % size, tokens, size, bytes);
    return places;
}

/* KV pages into the order of the device, or back. */
static inline void reorder_pages(bed *b, ir_tensor_id cache, int values, bool to_device)
{
    const ir_tensor *t = tensor(b, cache);
    int bytes = (int)ir_dtype_table[t->dtype].block_bytes, tokens = (int)t->dims[2],
        size = (int)t->dims[3], *places = device_places(b, values, tokens, size, bytes);
    char *data = b->values.data[cache], *page = malloc((size_t)(tokens * size * bytes));
    for (int64_t p = 0; p < t->dims[0] * t->dims[1]; p++, data += tokens * size * bytes) {
        memcpy(page, data, (size_t)(tokens * size * bytes));
        for (int i = 0; i < tokens * size; i++)
            memcpy(data + (to_device ? places[i] : i) * bytes,
                   page + (to_device ? i : places[i]) * bytes, (size_t)bytes);
    }
    free(page);
    free(places);
}

static inline void reorder_caches(bed *b, bool to_device)
{
    for (uint32_t i = 0; i < b->op->n_in; i++) {
        const char *name = op_operand_of(b->op->def, i)->name;
        if (b->op->in[i] != IR_NONE &&
            (strcmp(name, "k_cache") == 0 || strcmp(name, "v_cache") == 0))
            reorder_pages(b, b->op->in[i], name[0] == 'v', to_device);
    }
}

enum { MOST_BOXES = 24 };

/* The box cut at random along each axis that may be cut, where the body wants it between tiles. */
static inline size_t split(bed *b, ir_box box, ir_box boxes[MOST_BOXES])
{
    op_axis axes[IR_MAX_RANK] = {0};
    size_t n = 1;
    if (b->op->def->axes)
        b->op->def->axes(b->g, b->op, axes);
    boxes[0] = box;
    for (uint32_t axis = 0; axis < tensor(b, b->op->out[0])->rank; axis++) {
        const bool tiles = b->s->use && b->s->use->body->of_rows;
        const int64_t unit = tiles ? axes[axis].tile : axes[axis].grain;
        for (size_t i = 0, before = n; unit > 0 && i < before && n < MOST_BOXES; i++) {
            int64_t lo = boxes[i].lo[axis], hi = boxes[i].hi[axis], steps = (hi - lo - 1) / unit;
            if (steps < 1 || next_random(b, 3) == 0)
                continue;
            boxes[n] = boxes[i];
            boxes[i].hi[axis] = boxes[n++].lo[axis] =
                lo + unit * (1 + (int64_t)next_random(b, (uint64_t)steps));
        }
    }
    return n;
}

/* ---- comparing ---- */

static inline double element(const ir_tensor *t, const void *data, int64_t i)
{
    op_view v = {.data = (void *)data, .dtype = t->dtype};
    return t->dtype == IR_F64 ? ((const double *)data)[i] : (double)op_load(&v, i);
}

/* Relative error that a dtype allows after sums in another order. */
static inline double slack(ir_dtype dtype)
{
    return dtype == IR_BF16 ? 0x1p-7 : dtype == IR_F16 ? 0x1p-10 : dtype == IR_F32 ? 3e-5 : 1e-12;
}

/* The largest finite element that ref has written. */
static inline double scale_of(const ir_tensor *t, const void *expected, const void *before)
{
    double scale = 0;
    size_t bytes = ir_dtype_table[t->dtype].block_bytes;
    for (int64_t i = 0; i < ir_elements(t); i++) {
        double x = fabs(element(t, expected, i));
        if (memcmp((const char *)expected + (size_t)i * bytes,
                   (const char *)before + (size_t)i * bytes, bytes) != 0 &&
            isfinite(x) && x > scale)
            scale = x;
    }
    return scale;
}

/* Are these the places of max_pool's entries in a graph that names its outputs, and nothing reads
 * them?  A body then does not write them. */
static inline bool is_left_out(const bed *b, ir_tensor_id id)
{
    bool read =
        !b->g->outputs.n || strcmp(b->op->def->name, "max_pool") != 0 || id != b->op->out[1];
    for (size_t i = 0; i < b->g->outputs.n; i++)
        read = read || b->g->outputs.at[i] == id;
    return !read;
}

static inline void compare(const bed *b, ir_tensor_id id, const void *expected, const void *before)
{
    const ir_tensor *t = tensor(b, id);
    size_t bytes = ir_dtype_table[t->dtype].block_bytes;
    const int64_t n = ir_elements(t);
    if (memcmp(expected, b->values.data[id], (size_t)ir_bytes(t)) == 0 || is_left_out(b, id))
        return;
    if (ir_dtype_table[t->dtype].block_elements > 1)
        fail_msg("%s case %u: %%%.*s is written", b->s->def->name, b->s->number, STR_ARG(t->name));
    bool integer =
        t->dtype != IR_F32 && t->dtype != IR_F16 && t->dtype != IR_BF16 && t->dtype != IR_F64;
    double scale = scale_of(t, expected, before);
    for (int64_t i = 0; i < n; i++) {
        const char *want = (const char *)expected + (size_t)i * bytes;
        const char *got = (const char *)b->values.data[id] + (size_t)i * bytes;
        if (memcmp(want, got, bytes) == 0)
            continue;
        bool written = memcmp(want, (const char *)before + (size_t)i * bytes, bytes) != 0;
        double x = element(t, expected, i), y = element(t, b->values.data[id], i);
        bool close =
            !integer && written &&
            ((isnan(x) && isnan(y)) ||
             fabs(x - y) <= (slack(t->dtype) + b->slack) * (fabs(x) + scale / 4) + b->tail);
        if (!close)
            fail_msg("%s case %u: %%%.*s element %lld is %g, expected %g, the largest is %g%s",
                     b->s->def->name, b->s->number, STR_ARG(t->name), (long long)i, y, x, scale,
                     written ? "" : " (not to be written)");
    }
}

/* ---- what bodies on a GPU are given ---- */

/* Columns of row `row` of a weight to where the layout of gen/device_body.h has them. */
static inline void pack_row(const bed *b, const gen_pack *p, const ir_tensor *w, const void *data,
                            int64_t row, int64_t packed, char *to)
{
    op_view from = {.data = (void *)data, .dtype = w->dtype}, scale = {0}, shift = {0};
    if (p->scale != IR_NONE)
        scale = (op_view){.data = b->values.data[p->scale], .dtype = tensor(b, p->scale)->dtype};
    if (p->shift != IR_NONE)
        shift = (op_view){.data = b->values.data[p->shift], .dtype = tensor(b, p->shift)->dtype};
    rt_centre centre = {.unit = p->dtype == IR_F16 ? RT_CENTRE_F16 : RT_CENTRE_BF16};
    float *entries = calloc((size_t)p->columns, sizeof *entries), added = 0;
    double sum = 0;
    for (int64_t c = 0; c < p->columns; c++) {
        const float entry = op_load(&from, row * p->columns + c);
        entries[c] = entry * (scale.data ? op_load(&scale, c) : 1);
        sum += (double)entries[c];
        added += entry * (shift.data ? op_load(&shift, c) : 0);
    }
    centre.mean = (float)(sum / (double)p->columns);
    for (int64_t c = 0; c < p->columns; c++)
        centre.largest = fmaxf(centre.largest, fabsf(entries[c] - centre.mean));
    for (int64_t c = 0; c < p->columns; c++) {
        char *block = to + (packed / 8 * (p->padded_columns / 32) + c / 32) * 512;
        op_view at = {.data = block + packed % 8 * 64 + (c % 32 / 8 ^ packed % 8 / 2) * 16,
                      .dtype = p->dtype};
        op_store(&at, c % 8,
                 p->centred ? rt_centre_next(&centre, (uint64_t)c, (uint64_t)p->columns, entries[c])
                            : entries[c]);
        rt_centre_take(&centre, op_load(&at, c % 8));
    }
    if (p->centred)
        memcpy(to + p->padded_rows * p->padded_columns * 2 + packed * 4, &added, sizeof added);
    free(entries);
}

/* A row that stays in blocks, as device/pack.cuh packs it. */
static inline void pack_row_blocks(const gen_pack *p, const ir_tensor *w, const void *data,
                                   int64_t row, int64_t packed, char *to)
{
    const unsigned char *from =
        (const unsigned char *)data + row * ir_row_bytes(w->dtype, p->columns);
    for (int64_t c = 0; c < p->columns; c += RT_PIECE_COLUMNS) {
        const int64_t piece =
            packed / 8 * (p->padded_columns / RT_PIECE_COLUMNS) + c / RT_PIECE_COLUMNS;
        rt_pack_piece(gen_packed_format(w->dtype), p->form, from, (uint64_t)c, (uint64_t)p->columns,
                      (uint32_t)packed % 8, (uint32_t *)(to + piece * RT_PIECE_BYTES(p->form)));
    }
}

/* The weights of the operator as one stream; NULL: it has none. */
static inline void *pack_weights(const bed *b, const gen_pack *p)
{
    if (!p->n_weights)
        return NULL;
    char *to = fenced(p->n_bytes);
    for (int64_t i = 0, base = 0; i < p->n_weights; i++) {
        const ir_tensor *w = tensor(b, p->w[i]);
        const int64_t rows = ir_elements(w) / p->columns;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t packed = p->order == GEN_PAIRED ? r / 4 * 8 + r % 4 * 2 + i : base + r;
            if (p->form)
                pack_row_blocks(p, w, b->values.data[p->w[i]], r, packed, to);
            else
                pack_row(b, p, w, b->values.data[p->w[i]], r, packed, to);
        }
        base += rows;
    }
    return to;
}

/* As emulated_map of tests/emulated_warps.cuh.  inside: no box may have rows that the map has
 * not. */
static inline rt_map make_map(const gen_boxes *m, const void *at, bool inside)
{
    return (rt_map){{(rt_u64)(uintptr_t)at, m->columns * m->element_bytes, m->rows, m->stride_bytes,
                     m->element_bytes, (rt_u64)m->box_columns * m->element_bytes, m->box_rows,
                     m->swizzled, inside}};
}

/* The same of images: boxes of 64 channels of 64 places. */
static inline rt_map make_image_map(const gen_image *m, const void *at)
{
    struct {
        const void *at;
        uint64_t width_bytes, n_rows, stride_bytes, element_bytes, box_bytes, box_rows, swizzled,
            inside;
        int in[2], n, first[2], end[2], step[2];
    } made = {at,
              (uint64_t)m->channels * 2,
              (uint64_t)m->n * m->in[0] * m->in[1],
              (uint64_t)m->channels * 2,
              2,
              128,
              64,
              1,
              0,
              {m->in[1], m->in[0]},
              m->n,
              {0},
              {0},
              {0}};
    rt_map copy = {{0}};
    for (int i = 0; i < 2; i++) {
        made.first[i] = -m->padding[1 - i];
        made.end[i] =
            m->in[1 - i] + m->padding[1 - i] - m->dilation[1 - i] * (m->kernel[1 - i] - 1);
        made.step[i] = m->stride[1 - i];
    }
    assert_true(sizeof made <= sizeof copy);
    memcpy(&copy, &made, sizeof made);
    return copy;
}

/* maps: room for RT_MAPS. */
static inline void make_maps(const bed *b, const void *packed, rt_map *maps, rt_entry *e)
{
    const gen_boxes w = gen_boxes_of_w(b->s->use->body, &b->s->use->pack, false),
                    few = gen_boxes_of_w(b->s->use->body, &b->s->use->pack, true);
    const void *x = b->values.data[b->op->in[0]];
    if (b->s->use->body->images) {
        const gen_image image = gen_image_of(b->g, b->op);
        maps[0] = make_image_map(&image, x);
    } else {
        const gen_boxes boxes = gen_boxes_of_x(tensor(b, b->op->in[0]), b->x);
        maps[0] = make_map(&boxes, x, b->x);
    }
    packed = packed ? packed : b->values.data[b->op->in[1]];
    maps[1] = make_map(&w, packed, false);
    maps[2] = make_map(&few, packed, false);
    e->maps = (rt_u64)(uintptr_t)maps;
}

/* Sums of squares are kept for whole lots of tokens, whatever the number that are alive. */
static inline size_t squares_bytes(const bed *b)
{
    const int64_t tokens = tensor(b, b->op->out[0])->dims[0];
    return (size_t)(tokens + RT_PART_TOKENS - 1) / RT_PART_TOKENS * RT_PART_TOKENS * RT_SQUARES_ROW;
}
static inline float *squares_at(char *rows, int64_t token)
{
    return (float *)(void *)(rows + token * RT_SQUARES_ROW);
}

/* Sums of x's columns, in a random number of pieces of `floats` each (2: sums of entries follow);
 * NaN what is not alive. */
static inline void give_squares(bed *b, int64_t alive, uint32_t floats)
{
    const ir_tensor *x = tensor(b, b->op->in[0]);
    const void *data = b->values.data[b->op->in[0]];
    b->n_squares = (4 + 4 * (uint32_t)next_random(b, RT_MOST_SQUARES / 4)) / floats;
    b->squares = fenced(squares_bytes(b));
    memset(b->squares, 0xff, squares_bytes(b));
    for (int64_t t = 0; t < alive; t++) {
        float *to = squares_at(b->squares, t);
        memset(to, 0, b->n_squares * floats * sizeof *to);
        for (int64_t c = 0; c < x->dims[1]; c++) {
            const double v = element(x, data, t * x->dims[1] + c);
            float *sum = to + next_random(b, b->n_squares) * floats;
            sum[0] += (float)(v * v);
            if (floats > 1)
                sum[1] += (float)v;
        }
    }
}
static inline void drop_squares(const bed *b)
{
    if (b->squares)
        free_fenced(b->squares, squares_bytes(b));
}

static inline void make_entry(const bed *b, const ir_box *box, void *packed, rt_entry *e)
{
    const ir_tensor *y = tensor(b, b->op->out[0]);
    *e = (rt_entry){.body = b->s->instance, .live = y->live, .rank = y->rank, .needed = 1};
    for (uint32_t i = 0; i < y->rank; i++) {
        e->lo[i] = (uint32_t)box->lo[i];
        e->hi[i] = (uint32_t)box->hi[i];
    }
    for (uint32_t i = 0; i < b->op->n_in; i++)
        if (b->op->in[i] != IR_NONE)
            e->at[gen_operand_of_input(b->op, i)] = (rt_u64)(uintptr_t)b->values.data[b->op->in[i]];
    for (uint32_t i = 0; i < b->op->n_out; i++)
        e->at[gen_operand_of_output(b->op, i)] = (rt_u64)(uintptr_t)b->values.data[b->op->out[i]];
    e->at[RT_PACKED] = (rt_u64)(uintptr_t)packed;
}

/* What a task of this box needs of the code for many tokens, as its kernel has it. */
static inline uint64_t forms_of(const bed *b, const gen_arch *arch, ir_dtype halves,
                                const ir_box *box, bool maps)
{
    const gen_body *body = b->s->use->body;
    const gen_call c = {.ir = b->g,
                        .op = b->op,
                        .n_tokens = 1,
                        .n_workers = 4,
                        .needs = arch->features,
                        .is_call = halves == IR_F16, /* as in gen/source.c */
                        .halves = halves,
                        .maps = true};
    return body->forms ? body->forms(&c, box, maps ? GEN_MAPS_ALL : GEN_MAPS_NONE) : 0;
}

/* Entries of each row become pairs of a number, or of its negative, and it. */
static inline void pair_entries(bed *b, ir_tensor_id id, float sign)
{
    op_view v = {.data = b->values.data[id], .dtype = tensor(b, id)->dtype};
    assert_int_equal(tensor(b, id)->dims[tensor(b, id)->rank - 1] % 2, 0);
    for (int64_t i = 0; i < ir_elements(tensor(b, id)); i += 2)
        op_store(&v, i, sign * op_load(&v, i + 1));
}

/* What multiplies packed weights, or x where these stay in blocks, becomes powers of 2, so that
 * nothing is rounded there that ref does not round.  Rows that are to be centred are. */
static inline void round_scale(bed *b)
{
    const gen_pack *p = &b->s->use->pack;
    ir_tensor_id id = p->n_weights ? p->scale : IR_NONE;
    for (uint32_t i = 0; p->form && i < b->op->n_in; i++)
        if (strcmp(op_operand_of(b->op->def, i)->name, "norm") == 0)
            id = b->op->in[i];
    if (id == IR_NONE)
        return;
    op_view v = {.data = b->values.data[id], .dtype = tensor(b, id)->dtype};
    for (int64_t i = 0; i < ir_elements(tensor(b, id)); i++)
        op_store(&v, i, (float[]){0.5f, 1, -1, 2}[next_random(b, 4)]);
    if (p->centred)
        pair_entries(b, id, 1);
    for (uint32_t i = 0; p->centred && i < p->n_weights; i++)
        pair_entries(b, p->w[i], -1);
}

#endif
