/* sent.c - results of products that other GPUs read and that are not carried: which, and where.
 *
 * Input: the image and the code of its operators.  Output: for each such tensor the peers that its
 * writer stores it for (cuda_flow.sends), and its place in the block of carried results, the same
 * on all peers.
 *
 * Terms of sums over GPUs in steps of many tokens are of this kind.  Were they left where they are
 * made, every GPU that adds them would load them over its link when all products are done, and
 * wait.  So the product's tasks store each word into the memory of all GPUs that read it, while
 * tensor cores work on; readers then find it in their own.
 *
 *   temporaries, all peers and graphs   |   a   b |  | c |      |  d  |     spans of terms; a and b
 *                                       |___|_|___|  |___|      |_____|     overlap
 *   block, on every peer                | a   b | c |  d  |                 spans, packed
 *
 * Terms that share bytes of the temporaries share them in the block, and no others do.  So what is
 * proved of the temporaries (tg_verify_memory: no bytes are written before all have read what was
 * there) holds for every copy: its writer and its readers are the same tasks.  A reader finds what
 * was stored because it has waited for an event at system scope that follows the writer's tasks,
 * as if it read over the link (docs/gpus.md).  Cost: a pass over the operators of each graph.
 */
#include <stdlib.h>

#include "cuda/cuda_machine.h"
#include "gen/body_print.h"
#include "ir/op.h"

/* Bytes of the temporaries that terms have, and where they lie in the block. */
typedef struct span {
    uint64_t lo, hi, at;
} span;

typedef struct plan {
    cuda_machine *m;
    VEC(span) spans;
} plan;

static const ir_graph *program_of(const cuda_machine *m, uint32_t graph)
{
    return m->machine.image.ir[graph];
}

/* Mark the roots ([tensors]) that their producer alone writes and the program does not return. */
static mpk_status find_apart(mpk_context *cx, arena *scratch, const ir_graph *g, bool **is_apart)
{
    NEW(cx, scratch, *is_apart, g->tensors.n);
    memset(*is_apart, true, g->tensors.n);
    for (ir_op_id i = 0; i < g->ops.n; i++) {
        const ir_op *op = &g->ops.at[i];
        for (uint32_t k = 0; k < op->n_out && !(op->def->flags & OP_VIEW); k++)
            if (tg_root(g, op->out[k]) != op->out[k])
                (*is_apart)[tg_root(g, op->out[k])] = false;
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        (*is_apart)[tg_root(g, g->outputs.at[i])] = false;
    return MPK_OK;
}

/* The peers that the operator's only result is sent to; 0: it stays. */
static uint32_t peers_of(const cuda_machine *m, uint32_t graph, ir_op_id by, const bool *is_apart)
{
    const ir_op *op = &program_of(m, graph)->ops.at[by];
    const gen_body *body = m->source.uses[graph][by].body;
    const ir_tensor_id id = op->n_out == 1 ? op->out[0] : IR_NONE;
    if (!body || !body->sends || body->carries || id == IR_NONE || !is_apart[id] ||
        tg_root(program_of(m, graph), id) != id ||
        m->machine.image.places[graph][id].area != TG_TEMPS)
        return 0;
    return m->carriers.flows[graph].readers[id] & ~(1u << op->peer);
}

static int by_place(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Spans that overlap become one, and all get their places.  Returns the bytes of all. */
static uint64_t pack_spans(plan *p)
{
    size_t n = 0;
    uint64_t bytes = 0;
    if (p->spans.n)
        qsort(p->spans.at, p->spans.n, sizeof *p->spans.at, by_place);
    for (size_t i = 0; i < p->spans.n; i++) {
        const span s = p->spans.at[i];
        if (n && s.lo < p->spans.at[n - 1].hi)
            p->spans.at[n - 1].hi = s.hi > p->spans.at[n - 1].hi ? s.hi : p->spans.at[n - 1].hi;
        else
            p->spans.at[n++] = s;
    }
    p->spans.n = n;
    for (size_t i = 0; i < n; i++) {
        span *s = &p->spans.at[i];
        s->at = bytes;
        bytes += (s->hi - s->lo + CUDA_CARRY_ALIGN - 1) / CUDA_CARRY_ALIGN * CUDA_CARRY_ALIGN;
    }
    return bytes;
}

/* The place in the block of what lies at `offset` of the temporaries. */
static uint64_t place_of(const plan *p, uint64_t offset)
{
    size_t i = 0;
    while (offset >= p->spans.at[i].hi)
        i++;
    return p->spans.at[i].at + (offset - p->spans.at[i].lo);
}

/* The operators of a graph: whose results are sent, with their spans. */
static mpk_status find_sent(mpk_context *cx, arena *scratch, plan *p, uint32_t graph)
{
    const ir_graph *g = program_of(p->m, graph);
    bool *is_apart = NULL;
    TRY(find_apart(cx, scratch, g, &is_apart));
    for (ir_op_id i = 0; i < g->ops.n; i++) {
        const uint32_t peers = peers_of(p->m, graph, i, is_apart);
        if (!peers)
            continue;
        const ir_tensor_id id = g->ops.at[i].out[0];
        const uint64_t at = p->m->machine.image.places[graph][id].offset;
        const span s = {at, at + (uint64_t)ir_bytes(&g->tensors.at[id]), 0};
        p->m->carriers.flows[graph].sends[id] = peers;
        PUSH(cx, scratch, &p->spans, s);
    }
    return MPK_OK;
}

static mpk_status plan_all(mpk_context *cx, arena *scratch, cuda_machine *m)
{
    plan p = {.m = m};
    for (uint32_t g = 0; g < m->machine.image.n_graphs; g++)
        TRY(find_sent(cx, scratch, &p, g));
    m->carriers.n_sent = pack_spans(&p);
    for (uint32_t g = 0; g < m->machine.image.n_graphs; g++)
        for (ir_tensor_id i = 0; i < program_of(m, g)->tensors.n; i++)
            if (m->carriers.flows[g].sends[i])
                m->carriers.flows[g].at[i] = place_of(&p, m->machine.image.places[g][i].offset);
    return MPK_OK;
}

/* Of programs of several peers alone: one GPU reads what it has made itself.  The flows are there,
 * with their readers, and nothing in them has a place yet. */
mpk_status cuda_plan_sent(mpk_context *cx, cuda_machine *m)
{
    arena scratch = {0};
    if (m->n_peers < 2)
        return MPK_OK;
    mpk_status status = plan_all(cx, &scratch, m);
    arena_free(&scratch);
    return status;
}
