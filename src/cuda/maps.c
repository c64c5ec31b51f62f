/* maps.c - which operators have tensor maps of their x and their weights, and what of.
 *
 * Input: the image, the code of its operators, entries with the addresses of their operands.
 * Output: the maps (boxes.c makes each), in the block of tables or for a run of a call whose x has
 * moved.  Called by tables.c and calls.c.
 */
#include "cuda/cuda_machine.h"

/* Does the tensor lie in memory of a call's caller, who may have it elsewhere in each run?  All but
 * temporaries do. */
static bool moves(const cuda_machine *m, uint32_t graph, ir_tensor_id tensor)
{
    const ir_tensor_id root = tg_root(m->machine.image.ir[graph], tensor);
    return m->options.mode == CUDA_CALLS && m->machine.image.places[graph][root].area != TG_TEMPS;
}

/* The maps of an operator of the same graph before operator `at` that has the same x, if one has
 * maps; else 0.  ops: entries of the graph's operators, filled before. */
static rt_u64 maps_before(const ir_graph *g, uint32_t at, const rt_entry *ops)
{
    const ir_tensor *x = &g->tensors.at[g->ops.at[at].in[0]];
    for (uint32_t i = 0; i < at; i++) {
        const ir_tensor *other = ops[i].maps ? &g->tensors.at[g->ops.at[i].in[0]] : NULL;
        if (other && ops[i].at[0] == ops[at].at[0] && other->dims[0] == x->dims[0] &&
            other->dims[1] == x->dims[1])
            return ops[i].maps;
    }
    return 0;
}

bool cuda_takes_maps(const cuda_machine *m, uint32_t graph, uint32_t op)
{
    const gen_use *use = &m->source.uses[graph][op];
    return m->source.x_maps[m->source.regime_of[graph]] && use->instance != RT_NONE &&
           use->body->maps;
}

/* Has an operator's map of x rows after those of x (gen_boxes_of_x)?  In calls, where x is a
 * temporary; what follows a tensor of the caller's may be no memory.  Steps of a model that take
 * boxes have a power of two of tokens, so no box lies outside. */
static bool goes_further(const cuda_machine *m, uint32_t graph, uint32_t op)
{
    return m->options.mode == CUDA_CALLS && cuda_takes_maps(m, graph, op) &&
           !m->source.uses[graph][op].body->images &&
           !moves(m, graph, m->machine.image.ir[graph]->ops.at[op].in[0]);
}

uint64_t cuda_bytes_after_temps(const cuda_machine *m)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++) {
        const ir_graph *g = m->machine.image.ir[i];
        for (uint32_t op = 0; op < g->ops.n; op++) {
            if (!goes_further(m, i, op))
                continue;
            const ir_tensor *x = &g->tensors.at[g->ops.at[op].in[0]];
            const gen_boxes all = gen_boxes_of_x(x, true), own = gen_boxes_of_x(x, false);
            const uint64_t n = (all.rows - own.rows) * all.stride_bytes;
            most = n > most ? n : most;
        }
    }
    return most;
}

/* From a temporary to the end of the block that it is in. */
static uint64_t bytes_from(const cuda_machine *m, cuda_address temporary)
{
    const cuda_address first = m->areas[RT_TEMPS], end = first + m->windows[RT_TEMPS].n_bytes;
    if (temporary >= first && temporary < end)
        return end - temporary;
    return m->carried_block + m->carriers.n_bytes - temporary;
}

/* Of images, or of a matrix.  What is no memory is in no map, whatever was planned. */
bool cuda_map_x(const cuda_machine *m, uint32_t graph, uint32_t op, cuda_address x, rt_map *out)
{
    const ir_graph *g = m->machine.image.ir[graph];
    if (m->source.uses[graph][op].body->images) {
        const gen_image image = gen_image_of(g, &g->ops.at[op]);
        return cuda_map_images(m->gpu, &image, x, out);
    }
    const bool further = goes_further(m, graph, op);
    gen_boxes boxes = gen_boxes_of_x(&g->tensors.at[g->ops.at[op].in[0]], further);
    const uint64_t there = further ? bytes_from(m, x) / boxes.stride_bytes : boxes.rows;
    boxes.rows = there < boxes.rows ? there : boxes.rows;
    return cuda_map_boxes(m->gpu, &boxes, x, out);
}

/* A body without another way to read its operands: the driver must make their maps, and images, of
 * which it copies windows, must stay where they are, which pass flatten sees to. */
static mpk_status check_by_maps(mpk_context *cx, const ir_op *op, const gen_use *use, rt_u64 maps)
{
    CHECK(cx, maps || use->instance == RT_NONE || !use->body->by_maps, MPK_EUNSUPPORTED,
          "operator %s (%%%.*s): this driver makes no tensor map of its %s: they came with CUDA "
          "12.0; "
          "update the driver",
          op->def->name, STR_ARG(op->name),
          use->body->images ? "images, by which kernels copy windows"
                            : "operands, by which kernels copy them");
    return MPK_OK;
}

/* The tensor maps of an operator whose body takes them: operand 0 and the packed weights.  Without
 * them e->maps stays 0, and the body copies another way; but a kernel for prompts has no code for
 * that (maps_of in gen/source.c).  In a kernel that copies boxes of x alone operators with the same
 * x share its map, which multiprocessors then have in their caches.  That of an x which moves is
 * made for each run that has it elsewhere (calls.c), but for images, which pass flatten keeps where
 * they are. */
static mpk_status fill_maps(mpk_context *cx, const cuda_machine *m, uint32_t graph, uint32_t at,
                            char *block, rt_entry *ops)
{
    const gen_use *use = &m->source.uses[graph][at];
    const ir_graph *g = m->machine.image.ir[graph];
    const uint32_t regime = m->source.regime_of[graph];
    rt_entry *e = &ops[at];
    /* x that moves may lie nowhere yet */
    const bool moving = moves(m, graph, g->ops.at[at].in[0]), later = moving && !e->at[0];
    if (!cuda_takes_maps(m, graph, at) || (moving && use->body->images))
        return MPK_OK;
    e->maps = m->source.maps[regime] || moving ? 0 : maps_before(g, at, ops);
    if (e->maps)
        return MPK_OK;
    const cuda_address there = cuda_maps_at(m, e->op);
    /* [0] x, [1] weights in boxes of a whole tile, [2] in half boxes (few) */
    rt_map *maps = (rt_map *)(void *)(block + (there - m->table_block));
    const gen_boxes w = gen_boxes_of_w(use->body, &use->pack, false),
                    few = gen_boxes_of_w(use->body, &use->pack, true);
    const cuda_address of_w = e->at[gen_operand_of_w(&use->pack)];
    /* if one fails maps[] is half filled, and e->maps stays 0: no body reads it */
    if ((later || cuda_map_x(m, graph, at, e->at[0], &maps[0])) &&
        (!m->source.maps[regime] || (cuda_map_boxes(m->gpu, &w, of_w, &maps[1]) &&
                                     cuda_map_boxes(m->gpu, &few, of_w, &maps[2]))))
        e->maps = there;
    const bool wanted = m->options.mode == CUDA_CALLS ? use->body->parts && gen_wants_maps(g, at)
                                                      : m->source.maps[regime];
    CHECK(cx, e->maps || !wanted, MPK_EUNSUPPORTED,
          "this driver makes no tensor maps, by which kernels copy the operands of products: they "
          "came with CUDA 12.0; update the driver");
    return MPK_OK;
}

mpk_status cuda_fill_maps(mpk_context *cx, const cuda_machine *m, uint32_t graph, uint32_t at,
                          char *block, rt_entry *ops)
{
    TRY(fill_maps(cx, m, graph, at, block, ops));
    return check_by_maps(cx, &m->machine.image.ir[graph]->ops.at[at], &m->source.uses[graph][at],
                         ops[at].maps);
}
