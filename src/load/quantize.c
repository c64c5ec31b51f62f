/* quantize.c - unpack every tensor of a model, pack it into its new type, write a GGUF file.
 *
 * Input: a model whose weights are mapped.  Output: a file.  The plan of all tensors gives the
 * file's size, so a disk without room is reported before the work begins.  Then tensor follows
 * tensor; a batch of rows is unpacked, packed by all processors and written.  Memory: one batch
 * (32 MiB), however large the model is.  Rows are independent, so the bytes do not depend on the
 * number of threads.  A tensor that already has its type is copied.
 *
 *   rows of the mapped file --unpack--> floats --pack, by importance--> blocks --> the new file
 *
 * Tensors are in the order of llama.cpp's files: by layer, then by name.  quantize_plan.c
 * chooses their types, and gguf_describe.c writes the values.  Called by the engine, for `mpk
 * quantize`.
 */
#include "load/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/thread.h"
#include "ir/blocks.h"
#include "load/gguf_write.h"

/* Bytes of a batch; into how many tasks its rows are divided. */
enum { BATCH_BYTES = 32 << 20, SLICES = 64 };

/* A tensor and its place in the file. */
typedef struct entry {
    const load_tensor *from;
    str name; /* in the file */
    ir_dtype dtype;
    gguf_rows order;         /* how its rows are ordered in the file */
    uint64_t n_bytes;        /* in the file */
    int64_t columns, rows;   /* rows of all axes but the last */
    const float *importance; /* of the columns; NULL: all are equal */
} entry;

/* One call of quantize_model; `packed` and `rows` are on the heap, the rest is freed with the
 * arena and the writer. */
typedef struct job {
    mpk_context *cx;
    arena arena;
    const load_model *m;
    const quantize_options *options;
    quantize_facts facts;
    const model_def *def; /* of the file's architecture */
    VEC(entry) entries;
    gguf_writer writer;
    file_sink sink;
    uint64_t done_bytes;   /* of data, for the progress */
    unsigned char *packed; /* room for a batch */
    float *rows;           /* [SLICES][columns of the longest row] */
    int64_t longest;       /* columns of the longest row */
} job;

/* ---- which tensors ---- */

/* Left out: the head of a checkpoint with a tied head, and tensors that no GGUF reader knows. */
static bool is_left_out(const job *j, const load_tensor *t, bool known, bool from_gguf)
{
    if (j->m->config.tied_embeddings && str_is(t->name, "lm_head.weight"))
        return true;
    return !known && !from_gguf;
}

/* The importance of the columns of the tensor `name`; NULL: every column counts the same. */
static const float *find_importance(const job *j, str name)
{
    uint64_t index;
    const quantize_importance *all = j->options->importance;
    return all && map_get(&all->names, name, &index) ? all->values[index] : NULL;
}

/* Add a tensor: its type by the plan, its size, and how its rows are ordered and weighed.  The
 * check refuses what cannot be unpacked to f32. Files whose rotation pairs neighbours need q and k
 * in that order again: gguf_find_rows says which rows.  importance: the tensor whose importances
 * count, the first part of a joined one, since all parts read the same vector. */
static mpk_status add_entry(job *j, const load_tensor *t, str name, str importance)
{
    entry e = {.from = t, .name = name, .columns = t->rank ? t->dims[t->rank - 1] : 1, .rows = 1};
    load_tensor packed = *t;
    e.dtype = packed.dtype = quantize_choose(&j->facts, name, t->rank, t->dims);
    TRY(load_tensor_bytes(j->cx, &packed, &e.n_bytes));
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        e.rows *= t->dims[i];
    if (j->def->gguf_neighbours)
        e.order = gguf_find_rows(&j->m->config, t);
    e.importance = find_importance(j, importance);
    CHECK(j->cx,
          t->dtype == e.dtype || t->dtype == IR_F32 || t->dtype == IR_F16 || t->dtype == IR_BF16 ||
              ir_dtype_table[t->dtype].block_elements > 1,
          MPK_EUNSUPPORTED, "tensor %.*s has the dtype %s, which is not quantised",
          LOAD_NAME(t->name), ir_dtype_table[t->dtype].name);
    j->longest = e.columns > j->longest ? e.columns : j->longest;
    PUSH(j->cx, &j->arena, &j->entries, e);
    return MPK_OK;
}

/* Add a tensor of divisors of the rope frequencies, unless the model has it from its file. */
static mpk_status add_divisors_as(job *j, const char *name, const float *divisors)
{
    const model_config *c = &j->m->config;
    load_tensor *t;
    if (load_find(j->m, name))
        return MPK_OK;
    NEW(j->cx, &j->arena, t, 1);
    *t = (load_tensor){
        .name = str_from(name), .dtype = IR_F32, .rank = 1, .dims = {c->rope_size / 2}};
    t->data = divisors;
    t->n_bytes = sizeof *divisors * (c->rope_size / 2);
    return add_entry(j, t, t->name, t->name);
}

/* Add the rope scaling of Llama 3 or longrope, which a GGUF file holds as divisors. */
static mpk_status add_divisors(job *j)
{
    const model_config *c = &j->m->config;
    float *divisors;
    if (c->rope_scaling == MODEL_ROPE_LONG) {
        TRY(add_divisors_as(j, "rope_factors_short.weight", c->rope_short));
        return add_divisors_as(j, "rope_factors_long.weight", c->rope_long);
    }
    if (c->rope_scaling != MODEL_ROPE_LLAMA3)
        return MPK_OK;
    NEW(j->cx, &j->arena, divisors, c->rope_size / 2);
    for (uint32_t i = 0; i < c->rope_size / 2; i++)
        divisors[i] = (float)gguf_llama3_divisor(c, i);
    return add_divisors_as(j, "rope_freqs.weight", divisors);
}

/* For qsort: by layer, then by name. */
static int compare_entries(const void *left, const void *right)
{
    str a = ((const entry *)left)->name, b = ((const entry *)right)->name;
    int difference = quantize_layer(a) - quantize_layer(b);
    if (difference)
        return difference;
    difference = memcmp(a.at, b.at, a.n < b.n ? a.n : b.n);
    return difference ? difference : (a.n > b.n) - (a.n < b.n);
}

/* List all tensors, joined as the file has them.  Their names are translated to GGUF's first,
 * because plan and order depend on them. */
static mpk_status list_entries(job *j)
{
    bool from_gguf = !file_is_folder(j->m->path.at);
    for (size_t i = 0; i < j->m->tensors.n; i++) {
        const load_tensor *t, *part = &j->m->tensors.at[i];
        str name;
        bool known;
        TRY(load_join_parts(j->cx, &j->arena, j->m, part, &t));
        if (!t)
            continue;
        TRY(gguf_name_tensor(j->cx, &j->arena, j->def->gguf_names, t->name, &name, &known));
        if (!is_left_out(j, t, known, from_gguf))
            TRY(add_entry(j, t, name, part->name));
    }
    TRY(add_divisors(j));
    qsort(j->entries.at, j->entries.n, sizeof *j->entries.at, compare_entries);
    return MPK_OK;
}

/* ---- rows ---- */

/* The address in the model of the row that becomes row `row` of the file. */
static const void *find_row(const entry *e, int64_t row)
{
    const load_tensor *t = e->from;
    return load_row_at(t, e->rows, t->rank >= 2 ? gguf_row_from(&e->order, row) : row);
}

/* Reorder the entries of a vector as the rows of a matrix would be. */
static mpk_status order_vector(mpk_context *cx, const entry *e, float *row)
{
    float *copy = malloc((size_t)e->columns * sizeof *copy);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for tensor %.*s", LOAD_NAME(e->name));
    memcpy(copy, row, (size_t)e->columns * sizeof *copy);
    for (int64_t i = 0; i < e->columns; i++)
        row[i] = copy[gguf_row_from(&e->order, i)];
    free(copy);
    return MPK_OK;
}

/* A NaN would spoil the scale of its whole block, so it is refused, not rounded. */
static mpk_status check_finite(mpk_context *cx, const entry *e, int64_t row, const float *x)
{
    for (int64_t i = 0; i < e->columns; i++)
        CHECK(cx, isfinite(x[i]), MPK_EFORMAT, "weight %.*s, row %lld, column %lld is not finite",
              LOAD_NAME(e->name), (long long)row, (long long)i);
    return MPK_OK;
}

/* Pack a row; false: a value is too large for f16. */
static bool pack_row(const entry *e, const float *x, const float *importance, unsigned char *to)
{
    uint16_t half;
    bool fits = true;
    if (ir_dtype_table[e->dtype].block_elements > 1)
        return blocks_pack_row(e->dtype, x, importance, e->columns, to);
    if (e->dtype == IR_F32)
        memcpy(to, x, (size_t)e->columns * sizeof *x);
    for (int64_t i = 0; e->dtype != IR_F32 && i < e->columns; i++) {
        half = e->dtype == IR_BF16 ? num_to_bf16(x[i]) : num_to_f16(x[i]);
        fits &= e->dtype == IR_BF16 || (half & 0x7c00) != 0x7c00;
        memcpy(to + 2 * i, &half, sizeof half);
    }
    return fits;
}

/* In a stack of experts each matrix has importances of its own. */
static const float *row_importance(const entry *e, int64_t row)
{
    if (!e->importance || e->from->rank < 3)
        return e->importance;
    return e->importance + row / (e->rows / e->from->dims[0]) * e->columns;
}

/* Convert one row; runs on many threads at once, each with its own x. */
static mpk_status convert_row(mpk_context *cx, const entry *e, int64_t row, float *x,
                              unsigned char *to)
{
    load_unpack(e->from->dtype, find_row(e, row), e->columns, x); /* add_entry has checked it */
    if (e->from->rank == 1 && e->order.head)
        TRY(order_vector(cx, e, x));
    TRY(check_finite(cx, e, row, x));
    CHECK(cx, pack_row(e, x, row_importance(e, row), to), MPK_ELIMIT,
          "weight %.*s, row %lld: too large for %s, whose scales are f16", LOAD_NAME(e->name),
          (long long)row, ir_dtype_table[e->dtype].name);
    return MPK_OK;
}

/* ---- batches ---- */

/* Rows [first, first + n) of a tensor, which SLICES tasks of the pool convert. */
typedef struct batch {
    const job *job;
    const entry *e;
    int64_t first, n; /* rows */
    uint64_t row_bytes;
} batch;

/* One task: rows of its own, so nothing is shared. */
static mpk_status convert_slice(mpk_context *cx, void *user, uint32_t slice)
{
    const batch *b = user;
    int64_t from = b->n * slice / SLICES, to = b->n * (slice + 1) / SLICES;
    float *x = b->job->rows + (int64_t)slice * b->job->longest;
    for (int64_t i = from; i < to; i++) {
        unsigned char *packed = b->job->packed + (uint64_t)i * b->row_bytes;
        if (b->e->from->dtype == b->e->dtype && b->e->from->rank > 1)
            memcpy(packed, find_row(b->e, b->first + i), b->row_bytes);
        else
            TRY(convert_row(cx, b->e, b->first + i, x, packed));
    }
    return MPK_OK;
}

/* Report the progress.  If the caller gives up, the sink removes what was written so far. */
static mpk_status tell(job *j)
{
    const quantize_options *o = j->options;
    double done = (double)j->done_bytes / (double)(j->writer.data_bytes + 1);
    CHECK(j->cx, !o->progress || o->progress(o->progress_user, "quantising", done), MPK_ECANCELLED,
          "given up at %.0f %%", 100 * done);
    return MPK_OK;
}

/* Write one tensor in batches of as many rows as fit BATCH_BYTES, at least one. */
static mpk_status write_entry(job *j, const entry *e)
{
    static const char zeros[GGUF_ALIGNMENT];
    batch b = {.job = j, .e = e, .row_bytes = e->n_bytes / (uint64_t)e->rows};
    int64_t most = BATCH_BYTES / (int64_t)b.row_bytes + 1;
    for (; b.first < e->rows; b.first += b.n) {
        b.n = e->rows - b.first < most ? e->rows - b.first : most;
        TRY(tell(j));
        TRY(thread_each(j->cx, SLICES, convert_slice, &b));
        TRY(file_sink_write(j->cx, &j->sink, j->packed, (size_t)b.n * b.row_bytes));
        j->done_bytes += (uint64_t)b.n * b.row_bytes;
    }
    return file_sink_write(j->cx, &j->sink, zeros, gguf_padding(e->n_bytes));
}

/* ---- the file ---- */

/* `packed` has room for one row more than a batch, since a batch ends at a whole row; `rows` has
 * one row for each task. */
static mpk_status make_buffers(job *j)
{
    uint64_t most = 0;
    for (size_t i = 0; i < j->entries.n; i++) {
        uint64_t row = j->entries.at[i].n_bytes / (uint64_t)j->entries.at[i].rows;
        most = row > most ? row : most;
    }
    j->packed = malloc(BATCH_BYTES + (size_t)most);
    j->rows = malloc(SLICES * (size_t)j->longest * sizeof *j->rows);
    CHECK(j->cx, j->packed && j->rows, MPK_ENOMEM, "out of memory for rows of %lld weights",
          (long long)j->longest);
    return MPK_OK;
}

/* Head, tensors, then the rename that makes the file visible. */
static mpk_status write_file(job *j, const text *head)
{
    TRY(file_sink_write(j->cx, &j->sink, head->at, head->n));
    for (size_t i = 0; i < j->entries.n; i++)
        TRY(write_entry(j, &j->entries.at[i]));
    return file_sink_commit(j->cx, &j->sink);
}

/* The sink writes beside the target and renames at the end; abandoning it after success does
 * nothing. */
static mpk_status open_file(job *j, const char *path, quantize_result *out)
{
    text head;
    TRY(gguf_writer_head(j->cx, &j->writer, &head));
    out->n_bytes = head.n + j->writer.data_bytes;
    mpk_status status = file_sink_open(j->cx, path, out->n_bytes, &j->sink);
    if (status == MPK_OK) {
        status = write_file(j, &head);
        file_sink_abandon(&j->sink);
    }
    text_free(&head);
    return status;
}

/* The values of the model, and two that say how it was quantised. */
static mpk_status describe(job *j)
{
    TRY(gguf_describe(j->cx, &j->arena, j->m, &j->writer));
    gguf_put_u32(&j->writer, "general.quantization_version", 2);
    gguf_put_u32(&j->writer, "general.file_type", j->options->mix->file_type);
    return MPK_OK;
}

/* For the report: number of elements, and of tensors by type. */
static void count(const job *j, quantize_result *out)
{
    for (size_t i = 0; i < j->entries.n; i++) {
        const entry *e = &j->entries.at[i];
        out->n_elements += (uint64_t)(e->rows * e->columns);
        out->n_tensors[e->dtype]++;
    }
}

/* Everything that can be refused is refused before the first byte is written. Sizes and offsets of
 * all tensors are known before their data are made, so the head is written once and the data after
 * it, in the same order. */
static mpk_status run(job *j, const char *path, quantize_result *out)
{
    const load_model *m = j->m;
    CHECK(j->cx, m->has_config && m->tensors.n, MPK_EARG, "%s has no weights to quantise",
          m->path.at);
    CHECK(j->cx, !load_reads(m, path), MPK_EARG,
          "%s is a file of the model that is read: write to another", path);
    TRY(gguf_find_written(j->cx, m, &j->def));
    j->facts = (quantize_facts){j->options->mix, &m->config, m->config.tied_embeddings,
                                j->options->importance != NULL};
    TRY(list_entries(j));
    TRY(describe(j));
    for (size_t i = 0; i < j->entries.n; i++) {
        const entry *e = &j->entries.at[i];
        gguf_put_tensor(&j->writer, e->name, e->dtype, e->from->rank, e->from->dims, e->n_bytes);
    }
    TRY(make_buffers(j));
    count(j, out);
    return open_file(j, path, out);
}

/* *out is set on success only. The file is written beside its place and renamed at the end, so a
 * failure leaves what was there before. */
mpk_status quantize_model(mpk_context *cx, const load_model *m, const char *path,
                          const quantize_options *options, quantize_result *out)
{
    job j = {.cx = cx, .m = m, .options = options};
    quantize_result result = {0};
    mpk_status status = run(&j, path, &result);
    free(j.packed);
    free(j.rows);
    gguf_writer_free(&j.writer);
    arena_free(&j.arena);
    NOTE(cx, status, "quantising %.*s to %s", LOAD_NAME(m->path), path);
    *out = result;
    return MPK_OK;
}
