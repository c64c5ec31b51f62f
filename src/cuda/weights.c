/* weights.c - which copies of the weights lie on the GPU: plain, packed, or both.
 *
 * Input: what each operator's body reads (gen_use).  Output: an offset for each copy in one block
 * of memory.  A weight is plain only if some body reads it as it is; operators that want the same
 * packing share it.  A block of three packed copies and the plain weights that are read so:
 *
 *   [q, k, v of layer 0, one after the other][o of layer 0][gate, up][embeddings][norms] ...
 *    packed: an operator may pack up to three                         plain
 *
 * A scale and a shift (weight and bias of a norm, which change the columns of others as they are
 * packed) stay plain too, since packing reads them.  Called by memory.c, without a GPU; upload.c
 * fills the copies, calls.c those of calls. */
#include "cuda/cuda_machine.h"

/* Copies begin at multiples of CUDA_ALIGN: bulk copies read them. */
static uint64_t aligned(uint64_t n)
{
    return (n + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The weight of the image that a tensor (or the root of a view) is; IR_NONE: it is none. */
static uint32_t weight_of(const cuda_machine *m, uint32_t graph, ir_tensor_id tensor)
{
    const tg_place *p = &m->machine.image.places[graph][tensor];
    return p->area == TG_WEIGHTS ? (uint32_t)p->offset : IR_NONE;
}

/* Of a weight with more than two axes that a body packs, the rows are those that it packs: a filter
 * of a convolution is a row, whose entries have axes of their own. */
static void find_rows(cuda_machine *m, uint32_t graph, const gen_use *use)
{
    for (uint32_t k = 0; use->instance != RT_NONE && k < use->pack.n_weights; k++) {
        const uint32_t weight = weight_of(m, graph, use->pack.w[k]);
        if (weight == IR_NONE || m->machine.image.weights[weight].rank <= 2)
            continue;
        cuda_resident *r = &m->weights.weights[weight];
        const uint64_t all = r->n_rows * r->columns, columns = (uint64_t)use->pack.columns;
        if (all % columns == 0) {
            r->n_rows = all / columns;
            r->columns = columns;
        }
    }
}

/* A weight as a matrix: all axes but the last are its rows, unless a body packs it otherwise. */
static void measure(cuda_machine *m)
{
    const program_image *image = &m->machine.image;
    for (uint32_t i = 0; i < image->n_weights; i++) {
        const tg_weight *w = &image->weights[i];
        cuda_resident *r = &m->weights.weights[i];
        r->n_rows = 1;
        r->columns = w->rank ? (uint64_t)w->dims[w->rank - 1] : 1;
        for (uint32_t d = 0; d + 1 < w->rank; d++)
            r->n_rows *= (uint64_t)w->dims[d];
    }
    for (uint32_t g = 0; g < image->n_graphs; g++)
        for (uint32_t k = 0; k < image->ir[g]->ops.n; k++)
            find_rows(m, g, &m->source.uses[g][k]);
    for (uint32_t i = 0; i < image->n_weights; i++)
        m->weights.largest_row =
            larger(m->weights.largest_row, m->weights.weights[i].columns * CUDA_ELEMENT_BYTES);
}

/* Rows of a weight that a tensor (the weight, or a view of whole rows of it) stands for.
 * MPK_EUNSUPPORTED: it is not a weight, or cuts rows, which packing cannot follow.  Axes of length
 * 1 may have any stride, and those after the rows may be several. */
static mpk_status find_part(mpk_context *cx, const cuda_machine *m, uint32_t graph,
                            ir_tensor_id tensor, cuda_part *out)
{
    const ir_graph *g = m->machine.image.ir[graph];
    const ir_tensor *t = &g->tensors.at[tensor];
    uint32_t weight = weight_of(m, graph, tensor);
    CHECK(cx, weight != IR_NONE, MPK_EUNSUPPORTED,
          "tensor %%%.*s is packed for a body but is not a weight", STR_ARG(t->name));
    int64_t stride[IR_MAX_RANK], offset, columns = (int64_t)m->weights.weights[weight].columns;
    ir_strides(g, tensor, stride, &offset);
    int64_t n = 1; /* entries of the axes so far, from the last one on */
    bool whole = t->rank > 0 && offset % columns == 0, ends = false;
    for (uint32_t i = t->rank; whole && i-- > 0;) {
        whole = t->dims[i] == 1 || stride[i] == n;
        n *= t->dims[i];
        ends = ends || n == columns; /* a row ends with an axis */
    }
    CHECK(cx, whole && ends, MPK_EUNSUPPORTED,
          "tensor %%%.*s is packed for a body but is not whole rows of a weight", STR_ARG(t->name));
    *out = (cuda_part){.weight = weight,
                       .first_row = (uint64_t)(offset / columns),
                       .n_rows = (uint64_t)(n / columns)};
    return MPK_OK;
}

/* What a body wants packed (gen_pack), in weights of the image instead of tensors of a graph; parts
 * follow each other in the packed copy. */
static mpk_status read_pack(mpk_context *cx, const cuda_machine *m, uint32_t graph,
                            const gen_pack *p, cuda_packed *out)
{
    *out = (cuda_packed){.n_parts = p->n_weights,
                         .scale = p->scale == IR_NONE ? IR_NONE : weight_of(m, graph, p->scale),
                         .shift = IR_NONE,
                         .order = p->order,
                         .form = p->form,
                         .dtype = p->dtype,
                         .columns = (uint64_t)p->columns,
                         .padded_columns = (uint64_t)p->padded_columns,
                         .n_bytes = p->n_bytes};
    if (p->shift != IR_NONE)
        out->shift = weight_of(m, graph, p->shift);
    if (p->centred)
        out->added = (uint64_t)p->padded_rows * out->padded_columns * 2;
    CHECK(cx, p->scale == IR_NONE || out->scale != IR_NONE, MPK_EUNSUPPORTED,
          "tensor %%%.*s scales a packed weight but is not a weight",
          STR_ARG(m->machine.image.ir[graph]->tensors.at[p->scale].name));
    CHECK(cx, p->shift == IR_NONE || out->shift != IR_NONE, MPK_EUNSUPPORTED,
          "tensor %%%.*s shifts a packed weight but is not a weight",
          STR_ARG(m->machine.image.ir[graph]->tensors.at[p->shift].name));
    uint64_t rows = 0;
    for (uint32_t k = 0; k < p->n_weights; k++) {
        TRY(find_part(cx, m, graph, p->w[k], &out->parts[k]));
        CHECK(cx, m->weights.weights[out->parts[k].weight].columns == (uint64_t)p->columns,
              MPK_EUNSUPPORTED, "two operators pack rows of other lengths of one weight");
        out->parts[k].base_row = rows;
        rows += out->parts[k].n_rows;
    }
    return MPK_OK;
}

/* Equal copies have the same bytes, whichever operator asked first. */
static bool same_packed(const cuda_packed *a, const cuda_packed *b)
{
    bool same = a->n_parts == b->n_parts && a->scale == b->scale && a->shift == b->shift &&
                a->added == b->added && a->order == b->order && a->form == b->form &&
                a->n_bytes == b->n_bytes && a->padded_columns == b->padded_columns;
    for (uint32_t k = 0; same && k < a->n_parts; k++)
        same = a->parts[k].weight == b->parts[k].weight &&
               a->parts[k].first_row == b->parts[k].first_row &&
               a->parts[k].n_rows == b->parts[k].n_rows;
    return same;
}

/* Find an equal copy or add this one; *out is its index.  Copies are chained by the first weight of
 * each (first_of, next), which tells nearly all apart, so that planning is linear in the
 * operators. */
static mpk_status add_packed(mpk_context *cx, cuda_machine *m, const cuda_packed *p,
                             uint32_t *first_of, uint32_t *next, uint32_t *out)
{
    uint32_t *at = &first_of[p->parts[0].weight];
    for (uint32_t i = *at; i != RT_NONE; i = next[i])
        if (same_packed(&m->weights.packed.at[i], p)) {
            *out = i;
            return MPK_OK;
        }
    *out = (uint32_t)m->weights.packed.n;
    PUSH(cx, &m->arena, &m->weights.packed, *p);
    next[*out] = *at;
    *at = *out;
    return MPK_OK;
}

/* Is the tensor one of those that the body reads from its packed copy? */
static bool is_packed(const gen_pack *p, ir_tensor_id tensor)
{
    for (uint32_t k = 0; k < p->n_weights; k++)
        if (p->w[k] == tensor)
            return true;
    return false;
}

/* Every weight that an operator reads other than packed must lie there as it is. */
static void note_plain(cuda_machine *m, uint32_t graph, const ir_op *op, const gen_pack *p)
{
    for (uint32_t i = 0; i < op->n_in; i++) {
        uint32_t weight = op->in[i] == IR_NONE ? IR_NONE : weight_of(m, graph, op->in[i]);
        if (weight != IR_NONE && !is_packed(p, op->in[i]))
            m->weights.weights[weight].plain = true;
    }
}

/* Fill in packed, packed_of, plain and scales from what the bodies of this peer's operators read.
 * Two graphs may name the same packed weight with different ids, so copies are told apart by
 * weights of the image. */
static mpk_status find_uses(mpk_context *cx, cuda_machine *m)
{
    const program_image *image = &m->machine.image;
    cuda_weight_plan *plan = &m->weights;
    uint32_t *first_of, *next;
    uint64_t n_ops = image_count(image->block, RT_OPS);
    NEW(cx, &m->arena, first_of, image->n_weights);
    NEW(cx, &m->arena, next, n_ops);
    memset(first_of, 0xff, image->n_weights * sizeof *first_of);
    NEW(cx, &m->arena, plan->packed_of, image->n_graphs);
    for (uint32_t g = 0; g < image->n_graphs; g++) {
        NEW(cx, &m->arena, plan->packed_of[g], image->ir[g]->ops.n);
        for (uint32_t k = 0; k < image->ir[g]->ops.n; k++) {
            const gen_use *use = &m->source.uses[g][k];
            cuda_packed packed;
            plan->packed_of[g][k] = RT_NONE;
            if (use->instance == RT_NONE || image->ir[g]->ops.at[k].peer != m->peer)
                continue;
            note_plain(m, g, &image->ir[g]->ops.at[k], &use->pack);
            if (!use->pack.n_weights)
                continue;
            TRY(read_pack(cx, m, g, &use->pack, &packed));
            TRY(add_packed(cx, m, &packed, first_of, next, &plan->packed_of[g][k]));
            if (packed.scale != IR_NONE)
                plan->weights[packed.scale].plain = plan->weights[packed.scale].scales = true;
            if (packed.shift != IR_NONE)
                plan->weights[packed.shift].plain = plan->weights[packed.shift].scales = true;
        }
    }
    return MPK_OK;
}

/* Plan the copies: m->source must be there, and m->weights zero.  Everything is in m's arena.
 * Packed copies come first, in the order in which operators ask for them; then plain ones by their
 * number. */
mpk_status cuda_plan_weights(mpk_context *cx, cuda_machine *m)
{
    const program_image *image = &m->machine.image;
    cuda_weight_plan *plan = &m->weights;
    NEW(cx, &m->arena, plan->weights, image->n_weights);
    measure(m);
    TRY(find_uses(cx, m));
    for (size_t i = 0; i < plan->packed.n; i++) {
        plan->packed.at[i].offset = plan->n_bytes;
        plan->n_bytes += aligned(plan->packed.at[i].n_bytes);
    }
    for (uint32_t i = 0; i < image->n_weights; i++) {
        cuda_resident *r = &plan->weights[i];
        if (!r->plain || m->options.mode == CUDA_CALLS) /* used where the caller has it */
            continue;
        r->offset = plan->n_bytes;
        plan->n_bytes += aligned(
            r->n_rows * (uint64_t)ir_row_bytes(image->weights[i].dtype, (int64_t)r->columns));
    }
    return MPK_OK;
}

/* From a bulk copy's start to its page's arrival while the memory is not saturated.  With it a
 * worker of an H100, where 2 and 3 pages were compared, has 20 KB in flight: 1.2 pages of 16 KB
 * (docs/performance.md, "Loads in flight"). */
enum { LOAD_LATENCY_NS = 800 };

/* Do the weights of a task, in the mean over all but the largest, take more than the ring? */
static bool fills_ring(const cuda_weight_plan *plan, uint32_t n_workers, uint64_t ring_bytes)
{
    uint64_t sum = 0, largest = 0;
    for (size_t i = 0; i < plan->packed.n; i++) {
        sum += plan->packed.at[i].n_bytes;
        largest = larger(largest, plan->packed.at[i].n_bytes);
    }
    return plan->packed.n > 1 && (sum - largest) / (plan->packed.n - 1) / n_workers > ring_bytes;
}

/* What a page brings: all of it, but less where weights are in blocks, of which most of the bytes
 * are then. */
static uint64_t page_bytes(const cuda_weight_plan *plan, const gen_arch *arch)
{
    uint64_t n = arch->page_bytes;
    for (size_t i = 0; i < plan->packed.n; i++) {
        const uint32_t form = plan->packed.at[i].form;
        const uint64_t here = RT_GROUPS_OF_PAGE(form) * RT_SLAB_BYTES(form);
        n = form && here < n ? here : n;
    }
    return n;
}

/* Pages that a worker should have under way at once: its share of what the memory brings in the
 * latency of one load, 2 at least and the ring at most; one more where tasks are longer than the
 * ring. */
uint32_t cuda_weights_in_flight(const cuda_weight_plan *plan, uint32_t n_workers,
                                uint64_t memory_bytes_s, const gen_arch *arch)
{
    uint64_t ring_bytes = (uint64_t)arch->n_pages * arch->page_bytes;
    /* bandwidth times latency */
    uint64_t bytes = memory_bytes_s / 1000 * LOAD_LATENCY_NS / 1000000 / n_workers;
    uint64_t of_page = page_bytes(plan, arch);
    uint64_t pages = larger((bytes + of_page - 1) / of_page, 2);
    pages += fills_ring(plan, n_workers, ring_bytes);
    return (uint32_t)(pages < arch->n_pages ? pages : arch->n_pages);
}
