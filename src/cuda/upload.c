/* upload.c - weights from host memory to the GPU, converted and packed on the way.
 *
 * Input: addresses on the host (mapped files) or nothing (random weights); of a peer's part
 * (ir_share) those of the whole weight, of which a GPU takes its runs alone (host/shares.c).
 * Output: the weights' block.  A weight is cut into pieces of whole rows.  Lanes, a thread each,
 * take pieces from a common counter; each has two pinned buffers, so that it reads the next piece
 * while the last one is on the bus.  A piece whose weight has no plain copy goes through a staging
 * buffer on the GPU, from where a kernel packs it: the model is never there twice. What scales or
 * shifts the columns of others goes first. Cost: one read of the files; the bus or the page cache
 * is the limit.
 *
 * The way of a piece, by what its weight needs:
 *
 *   plain alone            file -> pinned -> its place
 *   plain and packed       file -> pinned -> its place -> packed, by a kernel
 *   packed alone           file -> pinned -> staging -> packed
 *   made up                a kernel writes the numbers where they are wanted
 *
 * Called by cuda.c when a machine starts, and by tensors.c for one weight that is written again. */
#include <stdlib.h>

#include "base/num.h"
#include "base/thread.h"
#include "cuda/cuda_machine.h"
#include "gen/packed_form.h"
#include "ir/blocks.h"
#include "load/load.h"

enum { PACK_THREADS = 256, PACK_BLOCKS = 4096 };

/* Rows [first_row, first_row + n_rows) of a weight of the image; they fit a buffer. */
typedef struct piece {
    uint32_t weight;
    uint64_t first_row, n_rows;
} piece;

/* What all lanes share.  Only next, done and failed change while they run; failed ends the others
 * after the piece that they are at. */
typedef struct upload {
    cuda_machine *m;
    const machine_weights *from;
    uint32_t only; /* weight; IR_NONE: all */
    arena arena;
    VEC(piece) pieces;
    size_t n_first; /* pieces of what must be there before the others */
    uint64_t buffer_bytes;
    _Atomic size_t next, done;
    _Atomic bool failed;
} upload;

/* What one thread uses: a stream, on which its copies and packings are in order, and two buffers,
 * used in turn.  Lane 0 is the caller's thread. */
typedef struct lane {
    upload *u;
    mpk_context cx; /* of its thread */
    mpk_status status;
    pthread_t thread;
    bool has_thread;
    size_t end; /* pieces before this one */
    cuda_stream stream;
    struct {
        void *pinned;
        cuda_address pinned_at, staging;
        cuda_event free; /* the buffer's last copy and packing have ended */
        bool used;
    } buffers[2];
    uint32_t current;
    bool reports;
} lane;

/* ---- conversion on the host ---- */

/* Element i, at any alignment: tensors in files have none. */
static float load_float(const void *from, ir_dtype dtype, uint64_t i)
{
    float x;
    uint16_t half;
    if (dtype == IR_F32) {
        memcpy(&x, (const char *)from + 4 * i, 4);
        return x;
    }
    memcpy(&half, (const char *)from + 2 * i, 2);
    return dtype == IR_BF16 ? num_from_bf16(half) : num_from_f16(half);
}

/* As loading rounds: to nearest even, once. */
static void store_float(void *to, ir_dtype dtype, uint64_t i, float x)
{
    if (dtype == IR_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = dtype == IR_BF16 ? num_to_bf16(x) : num_to_f16(x);
}

static bool is_float(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16;
}

/* n elements, whole rows, of one dtype as another.  Blocks are unpacked 256 elements at a time,
 * which is whole blocks of every format.  MPK_EUNSUPPORTED: between two dtypes that are not
 * floats. */
static mpk_status convert(mpk_context *cx, const void *from, ir_dtype from_dtype, void *to,
                          ir_dtype to_dtype, uint64_t n)
{
    float part[256];
    if (from_dtype == to_dtype) {
        memcpy(to, from, (size_t)ir_row_bytes(to_dtype, (int64_t)n));
        return MPK_OK;
    }
    const ir_dtype_info *info = &ir_dtype_table[from_dtype];
    CHECK(cx, is_float(to_dtype) && (is_float(from_dtype) || info->block_elements > 1),
          MPK_EUNSUPPORTED, "a weight of %s cannot become one of %s", info->name,
          ir_dtype_table[to_dtype].name);
    for (uint64_t i = 0; i < n; i += 256) {
        uint64_t here = n - i < 256 ? n - i : 256;
        if (info->block_elements > 1)
            blocks_unpack_row(from_dtype, (const char *)from + ir_row_bytes(from_dtype, (int64_t)i),
                              (int64_t)here, part);
        for (uint64_t k = 0; k < here; k++)
            store_float(to, to_dtype, i + k,
                        info->block_elements > 1 ? part[k] : load_float(from, from_dtype, i + k));
    }
    return MPK_OK;
}

/* ---- one piece ---- */

static const tg_weight *weight_at(const upload *u, uint32_t i)
{
    return &u->m->machine.image.weights[i];
}

/* Which runs of the whole weight a piece's weight is (host/shares.c): found by its name.  A weight
 * that is written alone is given as the program has it, so it is not part of another; without a
 * name it is found to be whole. */
static host_share share_of(const upload *u, uint32_t i)
{
    tg_weight w = *weight_at(u, i);
    if (u->only != IR_NONE)
        w.name = STR("");
    return host_read_share(&w);
}

/* One of the loader's kernels on the lane's stream, with blocks that go through the items in
 * strides.  The argument is copied by the driver before this returns, so it may lie on the
 * stack. */
static mpk_status launch(mpk_context *cx, lane *l, cuda_function f, const char *name,
                         void *argument, uint64_t items)
{
    uint64_t blocks = (items + PACK_THREADS - 1) / PACK_THREADS;
    void *arguments[] = {argument};
    cuda_launch how = {.function = f,
                       .name = name,
                       .n_blocks = (uint32_t)(blocks < PACK_BLOCKS ? blocks : PACK_BLOCKS),
                       .n_threads = PACK_THREADS,
                       .arguments = arguments};
    return cuda_launch_on(cx, l->u->m->gpu, l->stream, &how);
}

/* Make up elements of a plain dtype where they are wanted, with the numbers that the whole weight
 * has there: base, step and run say which elements of it these are. */
static mpk_status fill_on_gpu(mpk_context *cx, lane *l, const piece *p, ir_dtype dtype,
                              cuda_address to)
{
    upload *u = l->u;
    const host_share share = share_of(u, p->weight);
    load_law law = load_random_law(u->from->seed, share.whole);
    uint64_t columns = u->m->weights.weights[p->weight].columns;
    rt_fill f = {.to = to,
                 .stream = law.stream,
                 .first = p->first_row * columns,
                 .n = p->n_rows * columns,
                 .base = (rt_u64)share.first,
                 .step = (rt_u64)share.step,
                 .run = (rt_u64)share.n,
                 .mean = law.mean,
                 .deviation = law.deviation,
                 .dtype = (rt_u32)dtype};
    return launch(cx, l, u->m->fill, "mpk_fill", &f, f.n);
}

/* The lane's buffer in turn gets its pinned memory when it is first needed: pinning is dear, and
 * random weights do without. */
static mpk_status pin_buffer(mpk_context *cx, lane *l)
{
    if (l->buffers[l->current].pinned)
        return MPK_OK;
    return cuda_host_alloc(cx, l->u->m->gpu, l->u->buffer_bytes, &l->buffers[l->current].pinned,
                           &l->buffers[l->current].pinned_at);
}

/* Its numbers lie nowhere, neither whole nor in parts: they follow from the seed and the name. */
static bool is_made_up(const machine_weight *from)
{
    return !from->at && !from->parts;
}

/* A run of a piece from where it lies, or made up, as another dtype, to `to`.  Random blocks are
 * made as blocks first: their values follow from their bits. */
static mpk_status convert_run(mpk_context *cx, const upload *u, uint32_t weight, str whole,
                              const host_run *run, void *to, ir_dtype dtype)
{
    const machine_weight *from = &u->from->at[weight];
    const ir_dtype own = weight_at(u, weight)->dtype;
    if (!is_made_up(from))
        return convert(cx, run->at, from->dtype, to, dtype, (uint64_t)run->n);
    if (dtype == own) {
        load_random_fill(u->from->seed, whole, dtype, run->first, run->n, to);
        return MPK_OK;
    }
    void *blocks = malloc((size_t)ir_row_bytes(own, run->n));
    CHECK(cx, blocks, MPK_ENOMEM, "out of memory for made-up blocks");
    load_random_fill(u->from->seed, whole, own, run->first, run->n, blocks);
    mpk_status status = convert(cx, blocks, own, to, dtype, (uint64_t)run->n);
    free(blocks);
    return status;
}

/* The rows of a piece, from wherever they lie, as another dtype, one after the other from `to` on.
 * A peer's rows may be several runs of the whole weight, each converted in turn. */
static mpk_status convert_piece(mpk_context *cx, const upload *u, const piece *p, void *to,
                                ir_dtype dtype)
{
    const host_share share = share_of(u, p->weight);
    const uint64_t columns = u->m->weights.weights[p->weight].columns;
    const int64_t end = (int64_t)((p->first_row + p->n_rows) * columns);
    host_run run;
    for (int64_t at = (int64_t)(p->first_row * columns); at < end; at += run.n) {
        run = host_find_run(&share, &u->from->at[p->weight], at, end - at);
        TRY(convert_run(cx, u, p->weight, share.whole, &run, to, dtype));
        to = (char *)to + ir_row_bytes(dtype, run.n);
    }
    return MPK_OK;
}

/* The bytes of a piece in the next pinned buffer, converted, in flight to the GPU.  take_buffer
 * has been called: nothing else reads the buffer. */
static mpk_status send(mpk_context *cx, lane *l, const piece *p, ir_dtype dtype, cuda_address to)
{
    upload *u = l->u;
    const uint64_t n = p->n_rows * u->m->weights.weights[p->weight].columns;
    TRY(pin_buffer(cx, l));
    void *pinned = l->buffers[l->current].pinned;
    NOTE(cx, convert_piece(cx, u, p, pinned, dtype), "loading weight %.*s",
         LOAD_NAME(weight_at(u, p->weight)->name));
    return cuda_upload_on(cx, u->m->gpu, l->stream, to, pinned,
                          (uint64_t)ir_row_bytes(dtype, (int64_t)n));
}

/* A piece in `dtype` at `to` on the GPU: made up there if it can be, else sent. */
static mpk_status bring(mpk_context *cx, lane *l, const piece *p, ir_dtype dtype, cuda_address to)
{
    if (is_made_up(&l->u->from->at[p->weight]) && is_float(dtype) &&
        dtype == weight_at(l->u, p->weight)->dtype)
        return fill_on_gpu(cx, l, p, dtype, to);
    return send(cx, l, p, dtype, to);
}

/* Of a weight that stays in blocks, or whose rows are centred: a job for the loader's kernel says
 * so.  Returns how many items its threads share out: parts of a row in a piece, rows, or else units
 * of eight columns. */
uint64_t cuda_pack_blocks(const cuda_packed *packed, ir_dtype dtype, rt_pack *job)
{
    job->form = packed->form;
    if (packed->added) {
        job->added = job->to + packed->added;
        return job->n_rows;
    }
    if (!packed->form)
        return job->n_rows * ((job->columns + 7) / 8);
    job->dtype = gen_packed_format(dtype);
    return job->n_rows * ((job->columns + RT_PIECE_COLUMNS - 1) / RT_PIECE_COLUMNS);
}

/* The rows of a piece that belong to part k of a packed weight go there; none is no error.  `from`
 * is where the piece lies on the GPU, in `dtype`. */
static mpk_status pack_part(mpk_context *cx, lane *l, const piece *p, const cuda_packed *packed,
                            uint32_t k, ir_dtype dtype, cuda_address from)
{
    const cuda_machine *m = l->u->m;
    const cuda_part *part = &packed->parts[k];
    uint64_t items;
    uint64_t first = p->first_row > part->first_row ? p->first_row : part->first_row,
             end = p->first_row + p->n_rows, part_end = part->first_row + part->n_rows;
    end = end < part_end ? end : part_end;
    if (part->weight != p->weight || first >= end)
        return MPK_OK;
    rt_pack job = {
        .from = from +
                (uint64_t)ir_row_bytes(dtype, (int64_t)((first - p->first_row) * packed->columns)),
        .to = m->weight_block + packed->offset,
        .first_row = first - part->first_row,
        .n_rows = end - first,
        .base_row = part->base_row,
        .columns = packed->columns,
        .padded_columns = packed->padded_columns,
        .to_dtype = (rt_u32)packed->dtype,
        .dtype = (rt_u32)dtype,
        .paired = packed->order == GEN_PAIRED,
        .which = k,
    };
    items = cuda_pack_blocks(packed, dtype, &job);
    if (packed->scale != IR_NONE) {
        job.scale = m->weight_block + m->weights.weights[packed->scale].offset;
        job.scale_dtype = (rt_u32)weight_at(l->u, packed->scale)->dtype;
    }
    if (packed->shift != IR_NONE) {
        job.shift = m->weight_block + m->weights.weights[packed->shift].offset;
        job.shift_dtype = (rt_u32)weight_at(l->u, packed->shift)->dtype;
    }
    return launch(cx, l, m->pack, "mpk_pack", &job, items);
}

/* A piece may be a part of several packed copies. */
static mpk_status pack_piece(mpk_context *cx, lane *l, const piece *p, ir_dtype dtype,
                             cuda_address from)
{
    const cuda_weight_plan *plan = &l->u->m->weights;
    for (size_t i = 0; i < plan->packed.n; i++)
        for (uint32_t k = 0; k < plan->packed.at[i].n_parts; k++)
            TRY(pack_part(cx, l, p, &plan->packed.at[i], k, dtype, from));
    return MPK_OK;
}

/* Is the weight a part of some packed copy, so that its pieces must be packed? */
static bool has_packed(const cuda_weight_plan *plan, uint32_t weight)
{
    for (size_t i = 0; i < plan->packed.n; i++)
        for (uint32_t k = 0; k < plan->packed.at[i].n_parts; k++)
            if (plan->packed.at[i].parts[k].weight == weight)
                return true;
    return false;
}

/* Go to the lane's other buffer and wait until its last use has ended.  Between this and
 * give_buffer the buffer is the piece's, on the host and on the GPU. */
static mpk_status take_buffer(mpk_context *cx, lane *l)
{
    l->current = 1 - l->current;
    if (l->buffers[l->current].used)
        TRY(cuda_event_wait(cx, l->u->m->gpu, l->buffers[l->current].free));
    l->buffers[l->current].used = true;
    return MPK_OK;
}

/* The buffer's use ends when the stream has come this far: everything that reads it is on the
 * stream by now, so the event is recorded here. */
static mpk_status give_buffer(mpk_context *cx, lane *l)
{
    return cuda_event_record(cx, l->u->m->gpu, l->buffers[l->current].free, l->stream);
}

/* One piece to all places where its weight is wanted. */
static mpk_status load_piece(mpk_context *cx, lane *l, const piece *p)
{
    const cuda_machine *m = l->u->m;
    const cuda_resident *r = &m->weights.weights[p->weight];
    ir_dtype dtype = weight_at(l->u, p->weight)->dtype;
    cuda_address plain = m->weight_block + r->offset +
                         (uint64_t)ir_row_bytes(dtype, (int64_t)(p->first_row * r->columns));
    bool packs = has_packed(&m->weights, p->weight);
    if (r->plain) {
        TRY(take_buffer(cx, l));
        TRY(bring(cx, l, p, dtype, plain));
        if (packs)
            TRY(pack_piece(cx, l, p, dtype, plain));
        TRY(give_buffer(cx, l));
    }
    if (packs && !r->plain) {
        TRY(take_buffer(cx, l));
        TRY(bring(cx, l, p, dtype, l->buffers[l->current].staging));
        TRY(pack_piece(cx, l, p, dtype, l->buffers[l->current].staging));
        TRY(give_buffer(cx, l));
    }
    return MPK_OK;
}

/* ---- lanes ---- */

/* A lane's stream, staging and events; its GPU is current on the thread.  After a failure what was
 * made stays in the lane, for close_lane. */
static mpk_status open_lane(mpk_context *cx, upload *u, lane *l)
{
    cuda_gpu *g = u->m->gpu;
    TRY(cuda_stream_create(cx, g, &l->stream));
    for (int i = 0; i < 2; i++) {
        TRY(cuda_memory_alloc(cx, g, "staging buffers", u->buffer_bytes, &l->buffers[i].staging));
        TRY(cuda_event_create(cx, g, false, &l->buffers[i].free));
    }
    return MPK_OK;
}

/* The GPU is current on the thread; the lane may be open in part, or not at all.  After a failure
 * copies may still be under way: releasing memory waits for them. */
static void close_lane(upload *u, lane *l)
{
    for (int i = 0; i < 2; i++) {
        if (l->buffers[i].free)
            cuda_event_release(u->m->gpu, l->buffers[i].free);
        cuda_memory_release(u->m->gpu, l->buffers[i].staging);
        cuda_host_release(u->m->gpu, l->buffers[i].pinned);
    }
    if (l->stream)
        cuda_stream_release(u->m->gpu, l->stream);
}

/* A share of the pieces, GPU after GPU; one weight alone is not worth a line. */
static mpk_status report(mpk_context *cx, upload *u)
{
    const cuda_options *o = &u->m->options;
    if (!o->progress || u->only != IR_NONE)
        return MPK_OK;
    return o->progress(cx, o->progress_user, "loading weights",
                       (u->m->peer + (double)u->done / (double)u->pieces.n) / u->m->n_peers);
}

/* Take pieces up to l->end until there are none, another lane has failed, or the kernel does not
 * compile, so that weights are wanted no more (that is told by cuda_end_code). */
static mpk_status run_pieces(mpk_context *cx, lane *l)
{
    upload *u = l->u;
    for (;;) {
        size_t i = atomic_fetch_add(&u->next, 1);
        if (i >= l->end || u->failed || u->m->peers[0]->has_no_code)
            break;
        TRY(load_piece(cx, l, &u->pieces.at[i]));
        u->done++;
        if (l->reports)
            TRY(report(cx, u));
    }
    return cuda_stream_wait(cx, u->m->gpu, l->stream);
}

/* A lane in a thread of its own: a new thread has no GPU current.  A failure is left in the lane,
 * which run_lanes reads when the thread has ended, and makes the others stop. */
static void *run_lane(void *argument)
{
    lane *l = argument;
    l->status = cuda_gpu_use(&l->cx, l->u->m->gpu);
    if (l->status == MPK_OK)
        l->status = open_lane(&l->cx, l->u, l);
    if (l->status == MPK_OK)
        l->status = run_pieces(&l->cx, l);
    if (l->status != MPK_OK)
        l->u->failed = true;
    return NULL;
}

/* Lanes 1 to n - 1 in threads, lane 0 here: it alone may report progress.  All threads are joined
 * whatever happens; the first lane's failure is told, else that of the first thread that failed. */
static mpk_status run_lanes(mpk_context *cx, upload *u, lane *lanes, uint32_t n)
{
    mpk_status status = MPK_OK;
    for (uint32_t i = 1; i < n && status == MPK_OK; i++) {
        status = thread_start(cx, &lanes[i].thread, run_lane, &lanes[i]);
        lanes[i].has_thread = status == MPK_OK;
    }
    if (status == MPK_OK)
        status = run_pieces(cx, &lanes[0]);
    if (status != MPK_OK)
        u->failed = true;
    for (uint32_t i = 1; i < n; i++) {
        if (!lanes[i].has_thread)
            continue;
        pthread_join(lanes[i].thread, NULL);
        if (status == MPK_OK && lanes[i].status != MPK_OK)
            status = status_fail(cx, lanes[i].status, "%s", lanes[i].cx.text);
    }
    return status;
}

/* First what scales others, by lane 0 alone and waited for; then everything else by all lanes.
 * `next` is set back between the two, since a lane that finds nothing has counted all the same. */
static mpk_status run_all(mpk_context *cx, upload *u, lane *lanes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        lanes[i].u = u;
        lanes[i].reports = i == 0;
    }
    TRY(open_lane(cx, u, &lanes[0]));
    lanes[0].end = u->n_first;
    TRY(run_pieces(cx, &lanes[0]));
    u->next = u->n_first;
    for (uint32_t i = 0; i < n; i++)
        lanes[i].end = u->pieces.n;
    return run_lanes(cx, u, lanes, n);
}

/* ---- pieces ---- */

/* A row of a weight in a buffer. */
static uint64_t row_bytes(const upload *u, uint32_t i)
{
    return (uint64_t)ir_row_bytes(weight_at(u, i)->dtype,
                                  (int64_t)u->m->weights.weights[i].columns);
}

/* Whole rows, as many as a buffer holds. */
static mpk_status cut_weight(mpk_context *cx, upload *u, uint32_t i)
{
    const cuda_resident *r = &u->m->weights.weights[i];
    uint64_t most = u->buffer_bytes / row_bytes(u, i);
    most = most ? most : 1;
    if ((!r->plain && !has_packed(&u->m->weights, i)) || (u->only != IR_NONE && u->only != i))
        return MPK_OK;
    for (uint64_t row = 0; row < r->n_rows; row += most)
        PUSH(cx, &u->arena, &u->pieces,
             (piece){i, row, r->n_rows - row < most ? r->n_rows - row : most});
    return MPK_OK;
}

/* The order of loading, and the size of buffers: CUDA_PIECE_BYTES, less for small models, more
 * where one row is longer. */
static mpk_status cut(mpk_context *cx, upload *u)
{
    const cuda_weight_plan *plan = &u->m->weights;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < u->m->machine.image.n_weights; i++) {
        if (u->only != IR_NONE && u->only != i)
            continue;
        uint64_t bytes = plan->weights[i].n_rows * row_bytes(u, i);
        largest = bytes > largest ? bytes : largest;
    }
    u->buffer_bytes = largest < CUDA_PIECE_BYTES ? largest : CUDA_PIECE_BYTES;
    if (u->buffer_bytes < plan->largest_row)
        u->buffer_bytes = plan->largest_row;
    for (uint32_t i = 0; i < u->m->machine.image.n_weights; i++)
        if (plan->weights[i].scales)
            TRY(cut_weight(cx, u, i));
    u->n_first = u->pieces.n;
    for (uint32_t i = 0; i < u->m->machine.image.n_weights; i++)
        if (!plan->weights[i].scales)
            TRY(cut_weight(cx, u, i));
    return MPK_OK;
}

/* As many lanes as there are processors or pieces, CUDA_LANES at most.  All of them are closed
 * here, those of other threads too, which have ended. */
static mpk_status upload_pieces(mpk_context *cx, upload *u)
{
    lane lanes[CUDA_LANES];
    uint32_t n = thread_processors() < CUDA_LANES ? thread_processors() : CUDA_LANES;
    n = u->pieces.n < n ? (uint32_t)u->pieces.n : n;
    memset(lanes, 0, sizeof lanes);
    mpk_status status = run_all(cx, u, lanes, n);
    for (uint32_t i = 0; i < n; i++)
        close_lane(u, &lanes[i]);
    return status;
}

/* m's GPU is current, the loader is loaded and the weights' block is there; when this returns
 * MPK_OK all copies have ended.  The block is zeroed first, for the padding that packing leaves;
 * for one weight that is written again it is zero there already. */
mpk_status cuda_upload_weights(mpk_context *cx, cuda_machine *m, const machine_weights *from,
                               uint32_t only)
{
    upload u = {.m = m, .from = from, .only = only};
    mpk_status status = cut(cx, &u);
    if (status == MPK_OK && u.pieces.n && only == IR_NONE) {
        /* padding */
        status = cuda_fill_on(cx, m->gpu, m->copies, m->weight_block, 0, m->weights.n_bytes);
        if (status == MPK_OK)
            status = cuda_stream_wait(cx, m->gpu, m->copies);
    }
    if (status == MPK_OK && u.pieces.n)
        status = upload_pieces(cx, &u);
    arena_free(&u.arena);
    return status;
}
