/* engine_graph.c - tensor programs written by the caller (mpk/graph.h): build, compile, run.
 *
 * A graph is built operator by operator or parsed from text.  Compiling takes a copy through the
 * text form, so the caller may free or extend the graph afterwards.  A program runs in three ways:
 * mpk_program_run copies named tensors in and out; mpk_program_call works in the caller's memory,
 * by slots that were named once; mpk_program_launch does the same on a stream of the device
 * without waiting.  Relies on pass/, image/ and host/machine.h; the Python package's torch backend
 * is the main caller.
 *
 * Constants are bound for the life of the program: the machine may read the caller's bytes at any
 * time, or have packed a copy (mpk_program_describe names those that it copied).
 *
 * Names are the link between the caller's graph and what is run: passes replace and remove
 * operators and tensors, so a tensor's number in p->source says nothing in p->image.ir[0].  A
 * binding is checked against the first, where each name of the caller's is, and looked up in the
 * second, where a tensor that nothing uses is gone: that one is neither written nor read.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "ir/op.h"

/* A graph owns everything in its arena; compiled programs have copies and outlive it. */
struct mpk_graph {
    arena arena;
    ir_graph *ir;
};

/* A compiled graph with its machine; mpk_program_close frees all of it. */
struct mpk_program {
    arena arena;      /* graphs, program, image, options */
    ir_graph *source; /* as the caller wrote it; image.ir[0] is what the passes made of it */
    tg_program program;
    program_image image;
    machine *machine;
    target_device device;
    /* MPK_MODE_CALLS: of addresses in the device's memory; 0: the caller's tensors are here */
    uint32_t call_align;
    bool profiles; /* options.profile */

    /* mpk_program_name_slots; in an arena of their own, as they may be named again */
    arena slots_arena;
    machine_slots *slots;
    uint32_t n_slots;
    uintptr_t *slot_masks; /* [n_slots] address bits that must be 0 */
};

/* ---- building ---- */

/* Zeroed, so that mpk_graph_free takes it in any state. */
static mpk_status new_graph(mpk_context *cx, mpk_graph **out)
{
    *out = calloc(1, sizeof **out);
    CHECK(cx, *out, MPK_ENOMEM, "out of memory for a graph");
    return MPK_OK;
}

/* On failure nothing is left over and *out keeps its value. */
mpk_status mpk_graph_create(mpk_context *cx, const char *name, mpk_graph **out)
{
    mpk_graph *g;
    TRY(new_graph(cx, &g));
    mpk_status status = ir_create(cx, &g->arena, name, &g->ir);
    if (status == MPK_OK)
        *out = g;
    else
        mpk_graph_free(g);
    return status;
}

void mpk_graph_free(mpk_graph *g)
{
    if (!g)
        return;
    arena_free(&g->arena);
    free(g);
}

/* The caller's enums are checked here, for ir/ trusts its own. */
mpk_status mpk_graph_tensor(mpk_context *cx, mpk_graph *g, mpk_tensor_kind kind, const char *name,
                            mpk_dtype dtype, uint32_t rank, const int64_t *dims, mpk_tensor *out)
{
    static const ir_kind kinds[] = {IR_INPUT, IR_CONST, IR_STATE};
    CHECK(cx, (unsigned)kind <= MPK_TENSOR_STATE, MPK_EARG, "tensor %s: kind %d does not exist",
          name, (int)kind);
    CHECK(cx, (unsigned)dtype < IR_DTYPES, MPK_EARG, "tensor %s: dtype %d does not exist", name,
          (int)dtype);
    CHECK(cx, rank <= IR_MAX_RANK, MPK_EARG, "tensor %s: rank %u, at most %d", name, rank,
          IR_MAX_RANK);
    return ir_add_tensor(cx, g->ir, kinds[kind], IR_ALL, name, (ir_dtype)dtype, rank, dims,
                         &out->id);
}

/* Handles are indices, so one of another graph is refused only if it is too large; else it names
 * some tensor of this one. */
static mpk_status check_tensor(mpk_context *cx, const mpk_graph *g, mpk_tensor t)
{
    CHECK(cx, t.id < g->ir->tensors.n, MPK_EARG, "tensor %u is not of this graph, which has %zu",
          t.id, g->ir->tensors.n);
    return MPK_OK;
}

/* The caller's structs become the builder's; all that makes an operator wrong (shapes, dtypes,
 * unknown attributes) ir_add_op finds and names.  out has room for the outputs of the operator. */
mpk_status mpk_graph_operator(mpk_context *cx, mpk_graph *g, const char *op, const char *name,
                              uint32_t n_in, const mpk_tensor *in, uint32_t n_attributes,
                              const mpk_attribute *attributes, mpk_tensor *out)
{
    ir_tensor_id inputs[IR_MAX_INPUTS], outputs[IR_MAX_OUTPUTS];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    const op_def *def = op_find(str_from(op));
    CHECK(cx, def, MPK_EARG, "there is no operator '%s'; mpk opt --operators lists them", op);
    CHECK(cx, n_in <= IR_MAX_INPUTS && n_attributes <= IR_MAX_ATTRIBUTES, MPK_EARG,
          "operator %s: %u operands and %u attributes, at most %d and %d", op, n_in, n_attributes,
          IR_MAX_INPUTS, IR_MAX_ATTRIBUTES);
    for (uint32_t i = 0; i < n_in; i++) {
        inputs[i] = in[i].id;
        if (in[i].id != IR_NONE)
            TRY(check_tensor(cx, g, in[i]));
    }
    for (uint32_t i = 0; i < n_attributes; i++) {
        const mpk_attribute *a = &attributes[i];
        CHECK(cx, a->name, MPK_EARG, "operator %s: attribute %u has no name", op, i);
        sets[i] = (ir_set){a->name, a->i, a->f, a->s, a->ints, a->n_ints};
    }
    sets[n_attributes] = (ir_set){0};
    TRY(ir_add_op(cx, g->ir, op, name, n_in, inputs, sets, outputs));
    for (uint32_t i = 0; i < def->n_out; i++)
        out[i].id = outputs[i];
    return MPK_OK;
}

/* Outputs have an order, that of these calls; a tensor may be one and be read by operators too. */
mpk_status mpk_graph_output(mpk_context *cx, mpk_graph *g, mpk_tensor tensor)
{
    TRY(check_tensor(cx, g, tensor));
    return ir_add_output(cx, g->ir, tensor.id);
}

/* dims has room for IR_MAX_RANK numbers, all of which are written. */
mpk_status mpk_graph_describe(mpk_context *cx, const mpk_graph *g, mpk_tensor tensor,
                              mpk_dtype *dtype, uint32_t *rank, int64_t *dims)
{
    TRY(check_tensor(cx, g, tensor));
    const ir_tensor *t = &g->ir->tensors.at[tensor.id];
    *dtype = (mpk_dtype)t->dtype;
    *rank = t->rank;
    memcpy(dims, t->dims, sizeof t->dims);
    return MPK_OK;
}

/* The text is the caller's, to be freed with mpk_free: it is malloc'ed, as all texts are. */
mpk_status mpk_graph_print(mpk_context *cx, const mpk_graph *g, char **source)
{
    text t = {0};
    ir_print(g->ir, &t);
    if (t.failed || !t.at) {
        text_free(&t);
        FAIL(cx, MPK_ENOMEM, "out of memory for the text of a graph");
    }
    *source = t.at;
    return MPK_OK;
}

/* A graph as mpk_graph_print writes it.  On failure what was built is freed. */
mpk_status mpk_graph_parse(mpk_context *cx, const char *source, size_t n, mpk_graph **out)
{
    mpk_graph *g;
    TRY(new_graph(cx, &g));
    mpk_status status = ir_parse(cx, &g->arena, (str){source, n}, &g->ir);
    if (status == MPK_OK)
        *out = g;
    else
        mpk_graph_free(g);
    return status;
}

/* ---- compiling ---- */

/* Linear: called for each constant of a program that is being compiled, and for nothing in a
 * run. */
static const mpk_binding *find_binding(uint32_t n, const mpk_binding *bindings, str name)
{
    for (uint32_t i = 0; i < n; i++)
        if (bindings[i].name && str_is(name, bindings[i].name))
            return &bindings[i];
    return NULL;
}

/* Bytes that a tensor's address must be a multiple of: the device's demand for calls, else that of
 * the dtype. */
static uintptr_t alignment_of(uint32_t call_align, ir_dtype dtype)
{
    return call_align ? call_align : ir_dtype_align(dtype);
}

/* For a refusal; words is the room for them. */
static const char *alignment_words(uint32_t call_align, char words[32])
{
    snprintf(words, 32, "%u bytes", call_align);
    return call_align ? words : "its elements";
}

/* A binding has as many bytes as the tensor takes in its dtype, dense and row by row, at an address
 * that the machine may read in whole elements. */
static mpk_status check_size(mpk_context *cx, uint32_t call_align, const ir_tensor *t,
                             const mpk_binding *b)
{
    char words[32];
    CHECK(cx, b->data && b->n_bytes == (size_t)ir_bytes(t), MPK_EARG,
          "%s is bound to %zu bytes, but has %lld", b->name, b->data ? b->n_bytes : 0,
          (long long)ir_bytes(t));
    CHECK(cx, (uintptr_t)b->data % alignment_of(call_align, t->dtype) == 0, MPK_EARG,
          "the bytes of %s are not aligned to %s", b->name, alignment_words(call_align, words));
    return MPK_OK;
}

/* Every constant is bound, and everything bound is a constant. */
static mpk_status check_constants(mpk_context *cx, uint32_t call_align, const ir_graph *g,
                                  uint32_t n, const mpk_binding *constants)
{
    for (uint32_t i = 0; i < n; i++) {
        ir_tensor_id id = constants[i].name ? ir_find(g, constants[i].name) : IR_NONE;
        CHECK(cx, id != IR_NONE && g->tensors.at[id].kind == IR_CONST, MPK_EARG,
              "the graph has no constant '%s'", constants[i].name ? constants[i].name : "");
        TRY(check_size(cx, call_align, &g->tensors.at[id], &constants[i]));
    }
    for (size_t i = 0; i < g->tensors.n; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        CHECK(cx, t->kind != IR_CONST || find_binding(n, constants, t->name), MPK_EARG,
              "the constant '%.*s' is bound to nothing", STR_ARG(t->name));
    }
    return MPK_OK;
}

/* The program's own copy of the graph, made through the text form: printing and parsing gives the
 * same graph, and no function is needed that copies every kind of node. */
static mpk_status copy_graph(mpk_context *cx, arena *a, const ir_graph *g, ir_graph **out)
{
    text t = {0};
    ir_print(g, &t);
    const char *source = text_copy(&t, a);
    const size_t n = t.n;
    text_free(&t);
    CHECK(cx, source, MPK_ENOMEM, "out of memory for a copy of the graph");
    return ir_parse(cx, a, (str){source, n}, out);
}

/* With the device chosen: p->machine is started, holding what it needs of the constants.  These are
 * found by name, since passes may have dropped some and ordered the others anew; check_constants
 * has made sure that each has a binding.  What was made before a failure is in p, which
 * mpk_program_close takes. */
static mpk_status compile_for(mpk_context *cx, const mpk_graph *g, uint32_t n_constants,
                              const mpk_binding *constants, const mpk_engine_options *options,
                              mpk_program *p)
{
    machine_weight *weights;
    pass_options passes;
    uint32_t n_tokens = 1; /* one graph, whatever its axes count */
    p->profiles = options->profile != 0;
    p->call_align = options->mode == MPK_MODE_CALLS ? p->device.target->call_align : 0;
    TRY(check_constants(cx, p->call_align, g->ir, n_constants, constants));
    TRY(engine_pass_options(cx, &p->arena, options, &p->device, 0, &passes));
    TRY(copy_graph(cx, &p->arena, g->ir, &p->source));
    TRY(pass_compile(cx, &p->arena, &passes, 1, &p->source, &n_tokens, &p->program));
    TRY(image_make(cx, &p->arena, &p->program, &p->image));
    NEW(cx, &p->arena, weights, p->image.n_weights + 1);
    for (uint32_t i = 0; i < p->image.n_weights; i++)
        weights[i] = (machine_weight){
            .at = find_binding(n_constants, constants, p->image.weights[i].name)->data,
            .dtype = p->image.weights[i].dtype};
    return engine_start_machine(cx, &p->image, options, &p->device, &(engine_code){0},
                                &(machine_weights){.at = weights}, NULL, NULL, &p->machine);
}

/* Without a device in the options it is the one whose memory the caller's tensors are in.  The
 * device is left again whatever the status, for only starting the machine needs it open. */
static mpk_status compile(mpk_context *cx, const mpk_graph *g, uint32_t n_constants,
                          const mpk_binding *constants, const mpk_engine_options *options,
                          mpk_program *p)
{
    mpk_engine_options o;
    TRY(engine_read_options(cx, &p->arena, options, &o));
    CHECK(cx, o.gpus == 1, MPK_EUNSUPPORTED,
          "a tensor program with the caller's weights has one peer, not %u", o.gpus);
    if (!o.device)
        o.device =
            engine_default_device(o.mode == MPK_MODE_CALLS); /* where the caller's tensors are */
    mpk_status status = engine_choose_device(cx, &o, true, &p->device);
    if (status == MPK_OK)
        status = compile_for(cx, g, n_constants, constants, &o, p);
    engine_leave_device(&p->device);
    return status;
}

/* p is zeros first, so mpk_program_close takes it wherever compile has stopped. */
mpk_status mpk_program_compile(mpk_context *cx, const mpk_graph *g, uint32_t n_constants,
                               const mpk_binding *constants, const mpk_engine_options *options,
                               mpk_program **out)
{
    mpk_program *p = calloc(1, sizeof *p);
    CHECK(cx, p, MPK_ENOMEM, "out of memory for a program");
    mpk_status status = compile(cx, g, n_constants, constants, options, p);
    if (status == MPK_OK)
        *out = p;
    else
        mpk_program_close(p);
    return status;
}

/* The machine first, whose threads or kernel use the image and the slots in the arenas. */
void mpk_program_close(mpk_program *p)
{
    if (!p)
        return;
    machine_stop(p->machine);
    arena_free(&p->slots_arena);
    arena_free(&p->arena);
    free(p);
}

/* ---- running ---- */

/* Linear in the outputs; an input or a state may be an output too. */
static bool is_output(const ir_graph *g, ir_tensor_id id)
{
    for (size_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i] == id)
            return true;
    return false;
}

/* All bindings are checked before any is written, so a refused run has changed nothing.  Constants
 * are not among them: they were bound when the program was compiled. */
static mpk_status check_bindings(mpk_context *cx, const mpk_program *p, uint32_t n,
                                 const mpk_binding *bindings)
{
    for (uint32_t i = 0; i < n; i++) {
        ir_tensor_id id = bindings[i].name ? ir_find(p->source, bindings[i].name) : IR_NONE;
        CHECK(cx, id != IR_NONE, MPK_EARG, "the program has no tensor '%s'",
              bindings[i].name ? bindings[i].name : "");
        const ir_tensor *t = &p->source->tensors.at[id];
        CHECK(cx, t->kind == IR_INPUT || t->kind == IR_STATE || is_output(p->source, id), MPK_EARG,
              "'%s' is neither an input, nor a state, nor an output", bindings[i].name);
        TRY(check_size(cx, p->call_align, t, &bindings[i]));
    }
    return MPK_OK;
}

/* Inputs are written before the run, outputs and states read after it; an input that is an output
 * too is both.  A state keeps in the machine what the last run left there, so it is read and never
 * written.  Names are checked against the caller's graph, for passes may have removed a tensor that
 * nothing uses. */
mpk_status mpk_program_run(mpk_context *cx, mpk_program *p, uint32_t n_bindings,
                           const mpk_binding *bindings)
{
    const ir_graph *g = p->image.ir[0];
    TRY(check_bindings(cx, p, n_bindings, bindings));
    for (uint32_t i = 0; i < n_bindings; i++) {
        ir_tensor_id id = ir_find(g, bindings[i].name); /* none if the compiler found it unused */
        if (id != IR_NONE && g->tensors.at[id].kind == IR_INPUT)
            TRY(machine_write_tensor(cx, p->machine, 0, id, bindings[i].data));
    }
    TRY(machine_run_graph(cx, p->machine, 0, UINT32_MAX, UINT32_MAX));
    for (uint32_t i = 0; i < n_bindings; i++) {
        ir_tensor_id id = ir_find(g, bindings[i].name);
        if (id != IR_NONE && (g->tensors.at[id].kind != IR_INPUT || is_output(g, id)))
            TRY(machine_read_tensor(cx, p->machine, 0, id, bindings[i].data));
    }
    return MPK_OK;
}

/* ---- running in the caller's memory ---- */

/* The tensor of a slot in the compiled graph; IR_NONE if the compiler found it unused.  A view is
 * refused, because its bytes are those of the tensor that it shares and cannot lie at an address of
 * their own. */
static mpk_status find_slot(mpk_context *cx, const mpk_program *p, const char *name,
                            ir_tensor_id *out)
{
    const ir_graph *g = p->image.ir[0];
    ir_tensor_id source = name ? ir_find(p->source, name) : IR_NONE;
    CHECK(cx, source != IR_NONE, MPK_EARG, "the program has no tensor '%s'", name ? name : "");
    const ir_tensor *t = &p->source->tensors.at[source];
    CHECK(cx, t->kind != IR_TEMP || is_output(p->source, source), MPK_EARG,
          "'%s' is neither an input, nor a constant, nor a state, nor an output", name);
    *out = ir_find(g, name);
    CHECK(cx, *out == IR_NONE || g->tensors.at[*out].shares == IR_NONE, MPK_EARG,
          "'%s' is a view and cannot lie in memory of its own; put the operator copy after it",
          name);
    return MPK_OK;
}

/* Fill p->slots from names, in the order in which a call will give addresses.  The mask of a slot
 * is its alignment - 1, which is a power of two less one: a call then checks an address with one
 * AND.  n_slots is set last, when all of it is there. */
static mpk_status name_slots(mpk_context *cx, mpk_program *p, uint32_t n, const char *const *names)
{
    ir_tensor_id *roots;
    NEW(cx, &p->slots_arena, roots, n);
    NEW(cx, &p->slots_arena, p->slot_masks, n);
    for (uint32_t i = 0; i < n; i++) {
        TRY(find_slot(cx, p, names[i], &roots[i]));
        p->slot_masks[i] =
            alignment_of(p->call_align, p->source->tensors.at[ir_find(p->source, names[i])].dtype) -
            1;
    }
    TRY(machine_make_slots(cx, p->machine, &p->slots_arena, 0, n, roots, &p->slots));
    p->n_slots = n;
    return MPK_OK;
}

/* Replaces earlier slots; if it fails, the program has none. */
mpk_status mpk_program_name_slots(mpk_context *cx, mpk_program *p, uint32_t n,
                                  const char *const *names)
{
    arena_free(&p->slots_arena);
    p->slots = NULL;
    p->n_slots = 0;
    return name_slots(cx, p, n, names);
}

/* A call is on the path of each PyTorch step, so nothing but the addresses is checked here: sizes
 * and dtypes were settled when the slots were named. */
static mpk_status check_addresses(mpk_context *cx, const mpk_program *p, uint32_t n,
                                  void *const *data)
{
    char words[32];
    CHECK(cx, p->slots && n == p->n_slots, MPK_EARG, "%u addresses for %u slots", n, p->n_slots);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(cx, data[i], MPK_EARG, "the address of slot %u is NULL", i);
        CHECK(cx, ((uintptr_t)data[i] & p->slot_masks[i]) == 0, MPK_EARG,
              "the address of slot %u is not aligned to %s", i,
              alignment_words(p->call_align, words));
    }
    return MPK_OK;
}

/* Returns when the run is done, so the caller may read its tensors at once. */
mpk_status mpk_program_call(mpk_context *cx, mpk_program *p, uint32_t n, void *const *data)
{
    TRY(check_addresses(cx, p, n, data));
    return machine_run_slots(cx, p->machine, p->slots, data);
}

/* ---- running in the caller's memory on the device ---- */

/* Returns while the run is under way; addresses and their contents stay the device's until it has
 * ended.  `after` orders the two runs on the device; between devices there is no such order, so it
 * is refused. */
mpk_status mpk_program_launch(mpk_context *cx, mpk_program *p, mpk_program *after, void *stream,
                              uint32_t n, void *const *data)
{
    TRY(check_addresses(cx, p, n, data));
    CHECK(cx,
          !after ||
              (after->device.target == p->device.target && after->device.index == p->device.index),
          MPK_EARG, "a run on %s:%u cannot follow one on %s:%u", p->device.target->name,
          p->device.index, after->device.target->name, after->device.index);
    return machine_launch_slots(cx, p->machine, after ? after->machine : NULL, p->slots, stream,
                                data);
}

/* For the end of the last launch, whose failure, if any, it tells. */
mpk_status mpk_program_wait(mpk_context *cx, mpk_program *p)
{
    return machine_wait_launch(cx, p->machine);
}

mpk_status mpk_program_touch(mpk_context *cx, mpk_program *p, uint32_t slot)
{
    CHECK(cx, p->slots && slot < p->n_slots, MPK_EARG, "slot %u of %u", slot, p->n_slots);
    return machine_touch_slot(cx, p->machine, p->slots, slot);
}

/* ---- looking at it ---- */

/* The program has one graph, number 0, which stands for one token. */
mpk_status mpk_program_profile(mpk_context *cx, mpk_program *p, char **json)
{
    CHECK(cx, p->profiles, MPK_EARG, "the program was not compiled with a profile");
    return engine_read_profile(cx, p->machine, 0, 1, json);
}

/* Operators of this kind that have tasks: a view whose output shares its input's bytes has none. */
static uint32_t count_kind(const ir_graph *g, const op_def *def)
{
    uint32_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const ir_op *op = &g->ops.at[i];
        bool seen_in_place = def->flags & OP_VIEW && g->tensors.at[op->out[0]].shares != IR_NONE;
        n += op->def == def && !seen_in_place;
    }
    return n;
}

/* How many operators of each kind the compiled graph has, as in "linear": 3, "rms_norm": 1.  In the
 * table's order, the same for every program, so that descriptions can be compared as text. */
static void print_kinds(const ir_graph *g, text *out)
{
    const char *comma = "";
    for (const op_def *const *def = op_table; *def; def++) {
        uint32_t n = count_kind(g, *def);
        if (n)
            text_print(out, "%s\"%s\": %u", comma, (*def)->name, n);
        comma = n ? ", " : comma;
    }
}

/* Constants of which the machine keeps a copy, and where it runs. */
static void print_machine(machine *m, text *out)
{
    machine_facts f;
    const char *comma = "";
    text_print(out, "\"copied\": [");
    for (uint32_t i = 0; i < m->image.n_weights; i++)
        if (machine_keeps_copy(m, i)) {
            text_print(out, "%s\"%.*s\"", comma, STR_ARG(m->image.weights[i].name));
            comma = ", ";
        }
    text_print(out, "], ");
    machine_describe(m, &f);
    text_print(out,
               "\"device\": \"%s\", \"workers\": %u, \"kernel_ms\": %.1f, \"kernel_cached\": %s",
               f.device, f.n_workers, (double)f.code_ns * 1e-6, str_bool(f.code_cached));
}

/* Statistics of the task graph, operators by kind, their code, and what the machine keeps, as one
 * object.  The status of engine_print_code is looked at last, when the text can be freed in one
 * place. */
mpk_status mpk_program_describe(mpk_context *cx, const mpk_program *p, char **json)
{
    text t = {0};
    text_print(&t, "{");
    tg_print_stats(&p->program.graphs[0].stats, &t);
    text_print(&t, ", \"kinds\": {");
    print_kinds(p->program.graphs[0].ir, &t);
    text_print(&t, "}, \"code\": ");
    const mpk_status status = engine_print_code(cx, p->machine, 0, &t);
    text_print(&t, ", ");
    print_machine(p->machine, &t);
    text_print(&t, "}");
    if (status != MPK_OK) {
        text_free(&t);
        return status;
    }
    if (t.failed || !t.at) {
        text_free(&t);
        FAIL(cx, MPK_ENOMEM, "out of memory for the description of a program");
    }
    *json = t.at;
    return MPK_OK;
}
