/* cpu_slots.c - tensors that lie in the caller's memory, at another address in each step.
 *
 * A slot is a tensor with storage of its own.  All operands that use its storage are found once;
 * a step then writes their addresses: one addition for each operand of a slot that has moved.
 * No tensor is copied.  Called through machine_def by torch.compile's calls, whose inputs lie
 * where PyTorch has them.
 *
 *   slots->first   [0, 2, 2, 5]       slot 0 has uses 0-1, slot 1 none, slot 2 uses 2-4
 *   slots->uses    {&call.in[1].data, 128, 0} ...     address of the pointer, offset in the slot
 */
#include "cpu/cpu_machine.h"

/* A tensor that is not a slot. */
enum { NO_SLOT = -1 };

/* An operand in the storage of a slot. */
typedef struct cpu_use {
    void **data;    /* the op_view.data that is written */
    int64_t offset; /* bytes, from the slot's first element */
    uint32_t slot;
} cpu_use;

typedef struct cpu_slots {
    uint32_t n, graph; /* slots; the graph that they belong to */
    const char **at;   /* [n] where the slots lie now; NULL: not used by any operator */
    uint32_t *first;   /* [n + 1] slot i has the uses first[i] .. first[i + 1] - 1 */
    cpu_use *uses;
} cpu_slots;

/* Call `visit` for each operand of the graph that lies in a slot's storage. */
static void visit_uses(cpu_machine *m, uint32_t graph, const int32_t *slot_of,
                       void (*visit)(cpu_slots *s, uint32_t slot, void **data), cpu_slots *s)
{
    const ir_graph *g = m->base.image.ir[graph];
    for (uint32_t k = 0; k < g->ops.n; k++) {
        const ir_op *op = &g->ops.at[k];
        op_call *call = &m->calls[m->rt.graphs[graph].first_op + k].call;
        for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
            ir_tensor_id t = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
            int32_t slot = t == IR_NONE ? NO_SLOT : slot_of[tg_root(g, t)];
            if (slot != NO_SLOT)
                visit(s, (uint32_t)slot,
                      i < op->n_in ? &call->in[i].data : &call->out[i - op->n_in].data);
        }
    }
}

/* First pass: count the uses of a slot, one place further on, so that a running sum gives the
 * first of each. */
static void count_use(cpu_slots *s, uint32_t slot, void **data)
{
    (void)data;
    s->first[slot + 1]++;
}

/* Second pass.  first[slot] counts up to the end of the slot's uses; the caller restores it. */
static void add_use(cpu_slots *s, uint32_t slot, void **data)
{
    s->uses[s->first[slot]++] = (cpu_use){data, (const char *)*data - s->at[slot], slot};
}

/* Build the slots: two passes over the operators, counting and filling.  All memory is of arena
 * a, the caller's.  MPK_EARG: a root is listed twice. */
mpk_status cpu_make_slots(mpk_context *cx, machine *base, arena *a, uint32_t graph, uint32_t n,
                          const ir_tensor_id *roots, void **out)
{
    cpu_machine *m = cpu_of(base);
    const ir_graph *g = m->base.image.ir[graph];
    int32_t *slot_of;
    cpu_slots *s;
    NEW(cx, a, s, 1);
    NEW(cx, a, s->at, n);
    NEW(cx, a, s->first, n + 1);
    NEW(cx, a, slot_of, g->tensors.n);
    for (size_t t = 0; t < g->tensors.n; t++)
        slot_of[t] = NO_SLOT;
    s->n = n;
    s->graph = graph;
    for (uint32_t i = 0; i < n; i++) {
        if (roots[i] == IR_NONE)
            continue;
        CHECK(cx, slot_of[roots[i]] == NO_SLOT, MPK_EARG, "tensor %.*s is given twice",
              STR_ARG(g->tensors.at[roots[i]].name));
        slot_of[roots[i]] = (int32_t)i;
        s->at[i] = m->data[graph][roots[i]];
    }
    visit_uses(m, graph, slot_of, count_use, s);
    for (uint32_t i = 0; i < n; i++)
        s->first[i + 1] += s->first[i];
    NEW(cx, a, s->uses, s->first[n]);
    visit_uses(m, graph, slot_of, add_use, s);
    for (uint32_t i = n; i > 0; i--)
        s->first[i] = s->first[i - 1];
    s->first[0] = 0;
    *out = s;
    return MPK_OK;
}

/* Set where the slots lie now; data[i] for slot i.  Between steps only.  Slots that have not
 * moved, which are most, and those without uses are skipped. */
void cpu_move_slots(machine *m, void *slots, void *const *data)
{
    cpu_slots *s = slots;
    (void)m;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->at[i] == (const char *)data[i] || !s->at[i])
            continue;
        for (uint32_t u = s->first[i]; u < s->first[i + 1]; u++)
            *s->uses[u].data = (char *)data[i] + s->uses[u].offset;
        s->at[i] = data[i];
    }
}
