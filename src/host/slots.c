/* slots.c - tensors in the caller's memory, whose addresses change from step to step.
 *
 * A target that shares memory with the caller gets the addresses.  For any other target, the bytes
 * are written before the step and read back after it.  If the caller's tensors lie in the target's
 * own memory, it is launched with their addresses.
 */
#include "host/machine.h"

struct machine_slots {
    uint32_t n, graph;
    const ir_tensor_id *roots; /* [n] */
    const void **at;           /* [n] of the last step */
    void *target;              /* NULL: copies */
};

/* roots[i]: the tensor whose memory slot i gives, IR_NONE for one that the program does not use. */
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

/* Constants are written only when the address changes: a caller who changes one in place must say
 * so with another address. */
static mpk_status write_slots(mpk_context *cx, machine *m, machine_slots *s, void *const *data)
{
    for (uint32_t i = 0; i < s->n; i++) {
        ir_kind kind =
            s->roots[i] == IR_NONE ? IR_TEMP : m->image.ir[s->graph]->tensors.at[s->roots[i]].kind;
        if (kind == IR_INPUT || kind == IR_STATE || (kind == IR_CONST && s->at[i] != data[i]))
            TRY(machine_write_tensor(cx, m, s->graph, s->roots[i], data[i]));
        s->at[i] = data[i];
    }
    return MPK_OK;
}

/* Outputs and state go back to the caller. */
static mpk_status read_slots(mpk_context *cx, machine *m, const machine_slots *s, void *const *data)
{
    for (uint32_t i = 0; i < s->n; i++) {
        ir_kind kind =
            s->roots[i] == IR_NONE ? IR_INPUT : m->image.ir[s->graph]->tensors.at[s->roots[i]].kind;
        if (kind == IR_TEMP || kind == IR_STATE)
            TRY(machine_read_tensor(cx, m, s->graph, s->roots[i], data[i]));
    }
    return MPK_OK;
}

/* Addresses where memory is shared, copies elsewhere. */
mpk_status machine_run_slots(mpk_context *cx, machine *m, machine_slots *s, void *const *data)
{
    if (s->target && m->def->move_slots) {
        m->def->move_slots(m, s->target, data);
        return machine_run_graph(cx, m, s->graph, UINT32_MAX, UINT32_MAX);
    }
    TRY(write_slots(cx, m, s, data));
    TRY(machine_run_graph(cx, m, s->graph, UINT32_MAX, UINT32_MAX));
    return read_slots(cx, m, s, data);
}

static mpk_status check_launches(mpk_context *cx, const machine *m)
{
    CHECK(cx, m->def->launch_slots, MPK_EUNSUPPORTED,
          "this program is not one of calls (MPK_MODE_CALLS): mpk_program_call runs it");
    return MPK_OK;
}

/* after: the machine whose launch on the same stream comes before; NULL: none. */
mpk_status machine_launch_slots(mpk_context *cx, machine *m, machine *after, machine_slots *s,
                                void *stream, void *const *data)
{
    TRY(check_launches(cx, m));
    if (after)
        TRY(check_launches(cx, after));
    return m->def->launch_slots(cx, m, after, s->target, stream, data);
}

mpk_status machine_wait_launch(mpk_context *cx, machine *m)
{
    TRY(check_launches(cx, m));
    return m->def->wait_launch(cx, m);
}

mpk_status machine_touch_slot(mpk_context *cx, machine *m, machine_slots *s, uint32_t i)
{
    TRY(check_launches(cx, m));
    m->def->touch_slot(m, s->target, i);
    return MPK_OK;
}

bool machine_keeps_copy(const machine *m, uint32_t weight)
{
    return m->def->keeps_copy && m->def->keeps_copy(m, weight);
}
