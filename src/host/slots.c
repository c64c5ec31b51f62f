/* slots.c - tensors that lie in the caller's memory, another place in each step.
 *
 * A target that shares its memory with the caller is told the addresses; for any other the bytes are written before the
 * step and read behind it.
 */
#include "host/machine.h"

struct machine_slots {
    uint32_t n, graph;
    const ir_tensor_id *roots; /* [n] */
    const void **at;           /* [n] of the last step */
    void *target;              /* NULL: copies */
};

mpk_status machine_make_slots(mpk_context *cx, machine *m, arena *a, uint32_t graph, uint32_t n,
                              const ir_tensor_id *roots, machine_slots **out)
{
    machine_slots *s;
    ir_tensor_id *copy;
    NEW(cx, a, s, 1);
    NEW(cx, a, copy, n);
    NEW(cx, a, s->at, n);
    for (uint32_t i = 0; i < n; i++) {
        copy[i] = roots[i];
        for (uint32_t k = 0; k < i && roots[i] != IR_NONE; k++)
            CHECK(cx, roots[k] != roots[i], MPK_EARG, "tensor %.*s is given twice",
                  STR_ARG(m->image.ir[graph]->tensors.at[roots[i]].name));
    }
    s->n = n;
    s->graph = graph;
    s->roots = copy;
    if (m->def->make_slots)
        TRY(m->def->make_slots(cx, m, a, graph, n, roots, &s->target));
    *out = s;
    return MPK_OK;
}

static mpk_status write_slots(mpk_context *cx, machine *m, machine_slots *s, void *const *data)
{
    for (uint32_t i = 0; i < s->n; i++) {
        ir_kind kind = s->roots[i] == IR_NONE ? IR_TEMP : m->image.ir[s->graph]->tensors.at[s->roots[i]].kind;
        if (kind == IR_INPUT || kind == IR_STATE || (kind == IR_CONST && s->at[i] != data[i]))
            TRY(machine_write_tensor(cx, m, s->graph, s->roots[i], data[i]));
        s->at[i] = data[i];
    }
    return MPK_OK;
}

static mpk_status read_slots(mpk_context *cx, machine *m, const machine_slots *s, void *const *data)
{
    for (uint32_t i = 0; i < s->n; i++) {
        ir_kind kind = s->roots[i] == IR_NONE ? IR_INPUT : m->image.ir[s->graph]->tensors.at[s->roots[i]].kind;
        if (kind == IR_TEMP || kind == IR_STATE)
            TRY(machine_read_tensor(cx, m, s->graph, s->roots[i], data[i]));
    }
    return MPK_OK;
}

mpk_status machine_run_slots(mpk_context *cx, machine *m, machine_slots *s, void *const *data)
{
    if (s->target) {
        m->def->move_slots(m, s->target, data);
        return machine_run_graph(cx, m, s->graph, UINT32_MAX, UINT32_MAX);
    }
    TRY(write_slots(cx, m, s, data));
    TRY(machine_run_graph(cx, m, s->graph, UINT32_MAX, UINT32_MAX));
    return read_slots(cx, m, s, data);
}
