/* engine_inspect.c - looks into the compiler without running a model: a compiled model as JSON, a
 * drawing of its task graph, its tensor program as text; single passes on text; the tables of
 * passes and operators; what the machine is.
 *
 * Input: a model (a configuration without weights is enough) or a text; output: a NUL-terminated
 * text that the caller returns with mpk_free.  No machine is started and no memory for weights is
 * taken: engine_build_open runs with for_running = false, so a model can be inspected for a device
 * that is not here.  Called through mpk.h, on the caller's thread alone.
 *
 * Each entry point keeps its engine_build or arena outside the function that does the work, so that
 * TRY may leave that function anywhere and the build is freed all the same.
 */
#include <stdio.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "base/free_memory.h"
#include "base/json.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "ir/op.h"

/* Hand a text over to the caller, who frees it; *t is empty afterwards, whatever the status.
 * text_add of nothing asks for the buffer and the final NUL of a text to which nothing was
 * added. */
static mpk_status give_text(mpk_context *cx, text *t, char **out)
{
    text_add(t, "", 0);
    char *at = t->at ? t->at : calloc(1, 1);
    bool failed = t->failed || !at;
    if (failed) {
        text_free(t);
        FAIL(cx, MPK_ENOMEM, "out of memory for a text");
    }
    *t = (text){0};
    *out = at;
    return MPK_OK;
}

/* ---- JSON ---- */

/* Hyper-parameters as they were read; "weights_present" and "tokenizer_present" tell a
 * configuration alone from a whole model. */
static void add_model(text *t, const engine_build *b)
{
    const model_config *c = &b->model.config;
    text_print(t, "\"model\": {\"path\": ");
    json_write_str(t, b->model.path);
    text_print(t, ", \"family\": ");
    json_write_str(t, c->family);
    text_print(t,
               ", \"layers\": %u, \"hidden_size\": %u, \"heads\": %u, \"kv_heads\": %u, "
               "\"head_size\": %u, "
               "\"ffn_size\": %u, \"experts\": %u, \"experts_per_token\": %u, \"expert_ffn_size\": "
               "%u, \"vocab_size\": "
               "%u, \"trained_context\": %u, \"tied_embeddings\": %s, "
               "\"weights_present\": %s, \"tokenizer_present\": %s}",
               c->n_layers, c->hidden_size, c->n_heads, c->n_kv_heads, c->head_size, c->ffn_size,
               c->n_experts, c->experts_per_token, c->expert_ffn_size, c->vocab_size,
               c->max_positions, str_bool(c->tied_embeddings), str_bool(b->model.tensors.n),
               str_bool(b->model.tokenizer));
}

/* How many weights of the program are in blocks, by format: "q4_k 181, q6_k 37".  Nothing is added
 * where none are. */
static void add_blocks(text *t, const program_image *image)
{
    bool any = false;
    for (uint32_t dtype = 0; dtype < IR_DTYPES; dtype++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < image->n_weights; i++)
            n += image->weights[i].dtype == dtype && ir_dtype_table[dtype].block_elements > 1;
        if (n)
            text_print(t, "%s%s %u", any ? ", " : ", \"weights_in_blocks\": \"",
                       ir_dtype_table[dtype].name, n);
        any |= n > 0;
    }
    if (any)
        text_print(t, "\"");
}

/* What the model needs on its device, by areas as the target divides its memory ("weights_bytes",
 * ...), and what one token of KV cache costs.  free_bytes is left out where the target cannot tell
 * it (UINT64_MAX).  On failure t is left half written; the caller frees it. */
static mpk_status add_memory(mpk_context *cx, text *t, const engine_build *b)
{
    const engine_plan *p = &b->plan;
    target_area areas[TARGET_AREAS];
    uint32_t n;
    TRY(b->device.target->plan_areas(cx, &b->image, &b->device, &b->options, areas, &n));
    text_print(t, ", \"memory\": {\"device\": ");
    json_write_str(t, str_from(b->device.name));
    for (uint32_t i = 0; i < n; i++)
        text_print(t, ", \"%s_bytes\": %llu", areas[i].name, (unsigned long long)areas[i].n_bytes);
    add_blocks(t, &b->image);
    if (b->device.free_bytes != UINT64_MAX)
        text_print(t, ", \"free_bytes\": %llu", (unsigned long long)b->device.free_bytes);
    text_print(t,
               ", \"kv_per_token_bytes\": %llu, \"kv_dtype\": \"%s\", \"kv_tokens\": %llu, "
               "\"kv_page_tokens\": %d, "
               "\"kv_pages\": %u, \"context_tokens\": %u, \"max_batch\": %u, \"step_tokens\": %u}",
               (unsigned long long)p->kv_token_bytes, ir_dtype_table[p->kv_dtype].name,
               (unsigned long long)p->n_pages * ENGINE_PAGE_TOKENS, ENGINE_PAGE_TOKENS, p->n_pages,
               p->context_tokens, p->max_batch, p->n_tokens[p->n_graphs - 1]);
    return MPK_OK;
}

/* One entry for each compiled number of tokens, those of a draft model marked.  All graphs of a
 * program share its number of workers and its compile time. */
static void add_graphs(text *t, const engine_build *b)
{
    text_print(t, ", \"graphs\": [");
    for (uint32_t i = 0; i < b->program.n_graphs; i++) {
        const tg_compiled *g = &b->program.graphs[i];
        text_print(t, "%s{%s\"tokens\": %u, \"workers\": %u, ", i ? ", " : "",
                   g->drafts ? "\"draft_model\": true, " : "", g->n_tokens, b->program.n_workers);
        tg_print_stats(&g->stats, t);
        text_print(t, "}");
    }
    text_print(t, "], \"compile_ms\": %.3f", (double)b->compile_ns * 1e-6);
}

/* JSON of the build.  add_memory is the only part that can fail after text was written, and
 * give_text sees text that ran out of memory. */
static mpk_status inspect(mpk_context *cx, engine_build *b, const char *model,
                          const mpk_engine_options *options, uint32_t tokens, char **json)
{
    text t = {0};
    TRY(engine_build_open(cx, model, options, false, tokens, b));
    text_print(&t, "{");
    add_model(&t, b);
    mpk_status status = add_memory(cx, &t, b);
    if (status != MPK_OK) {
        text_free(&t);
        return status;
    }
    add_graphs(&t, b);
    text_print(&t, "}");
    return give_text(cx, &t, json);
}

/* The report of a small model, shortened:
 *
 *     {"model": {"path": "...", "family": "llama", "layers": 30, ...},
 *      "memory": {"device": "...", "weights_bytes": ..., "kv_pages": ..., "max_batch": 16, ...},
 *      "graphs": [{"tokens": 1, "workers": 8, ...}, ...], "compile_ms": 12.345} */
mpk_status mpk_inspect(mpk_context *cx, const char *model, const mpk_engine_options *options,
                       uint32_t tokens, char **json)
{
    engine_build b = {0};
    mpk_status status = inspect(cx, &b, model, options, tokens, json);
    engine_build_free(&b);
    return status;
}

/* ---- drawing and printing ---- */

static bool contains(str s, const char *part)
{
    return memmem(s.at, s.n, part, strlen(part)) != NULL;
}

/* Does its name, its kind, or the name of a weight of it contain `part`? A product with the weight
 * model.layers.0.mlp.up_proj.weight is found by "layers.0.", by "up_proj" and by "linear". */
static bool op_contains(const ir_graph *ir, const ir_op *op, const char *part)
{
    bool found = contains(op->name, part) || contains(str_from(op->def->name), part);
    for (uint32_t i = 0; !found && i < op->n_in; i++)
        found = op->in[i] != IR_NONE && ir->tensors.at[op->in[i]].kind == IR_CONST &&
                contains(ir->tensors.at[op->in[i]].name, part);
    return found;
}

/* The range *first ... *first + *n - 1 from the first operator that contains `part` to the last,
 * counted as tg_dot does: without views.  Of operators embed, view, q_proj, k_proj, the part
 * "_proj" is 1 and 2.  False: no operator does, and *first and *n are unchanged. */
static bool find_part(const ir_graph *ir, const char *part, uint32_t *first, uint32_t *n)
{
    uint32_t at = 0;
    bool found = false;
    for (uint32_t i = 0; i < ir->ops.n; i++) {
        const ir_op *op = &ir->ops.at[i];
        if (!tg_op_has_tasks(ir, op))
            continue;
        bool match = op_contains(ir, op, part);
        if (match && !found)
            *first = at;
        if (match)
            *n = at - *first + 1;
        found |= match;
        at++;
    }
    return found;
}

/* tokens 0: a step of one token, the smallest drawing.  Without `part` the first ENGINE_DRAWN_OPS
 * operators are drawn, about a layer. */
static mpk_status draw(mpk_context *cx, engine_build *b, const char *model,
                       const mpk_engine_options *options, uint32_t tokens, const char *part,
                       char **dot)
{
    text t = {0};
    uint32_t first = 0, n = ENGINE_DRAWN_OPS;
    TRY(engine_build_open(cx, model, options, false, tokens ? tokens : 1, b));
    const tg_compiled *g = &b->program.graphs[0];
    CHECK(cx, !part || find_part(g->ir, part, &first, &n), MPK_EARG,
          "no operator's name contains '%s'", part);
    mpk_status status = tg_dot(cx, &b->arena, g->tg, first, n, &t);
    if (status == MPK_OK)
        return give_text(cx, &t, dot);
    text_free(&t);
    return status;
}

mpk_status mpk_draw(mpk_context *cx, const char *model, const mpk_engine_options *options,
                    uint32_t tokens, const char *part, char **dot)
{
    engine_build b = {0};
    mpk_status status = draw(cx, &b, model, options, tokens, part, dot);
    engine_build_free(&b);
    return status;
}

/* The tensor program before any pass.  It is not engine_build_open because nothing is compiled, but
 * the order is the same one: the device decides in which types weights are kept, the draft model
 * takes part of the memory that the plan divides, and the graph has the plan's sizes. */
static mpk_status print_program(mpk_context *cx, engine_build *b, const char *model,
                                const mpk_engine_options *options, uint32_t tokens, char **source)
{
    text t = {0};
    ir_graph *g;
    TRY(engine_read_options(cx, &b->arena, options, &b->options));
    TRY(engine_load_model(cx, model, b->options.adapters, b->options.n_adapters, &b->model));
    b->is_loaded = true;
    CHECK(cx, b->model.has_config, MPK_EUNSUPPORTED, "%s is a vocabulary alone", model);
    TRY(engine_choose_device(cx, &b->options, false, &b->device));
    TRY(load_order_heads(cx, &b->model, b->device.target->most_group));
    TRY(engine_open_draft(cx, b));
    TRY(engine_make_plan(cx, false, b));
    TRY(engine_build_graph(cx, &b->arena, b, false, tokens ? tokens : 1, &g));
    ir_print(g, &t);
    return give_text(cx, &t, source);
}

mpk_status mpk_print_program(mpk_context *cx, const char *model, const mpk_engine_options *options,
                             uint32_t tokens, char **source)
{
    engine_build b = {0};
    mpk_status status = print_program(cx, &b, model, options, tokens, source);
    engine_build_free(&b);
    return status;
}

/* ---- passes on text ---- */

/* kv_heads is 0, for a text names no model.  Without a device or target in the options the default
 * for tensors in the host's memory is taken. */
static mpk_status opt(mpk_context *cx, arena *a, const char *passes, str source,
                      const mpk_engine_options *options, char **result)
{
    mpk_engine_options o;
    target_device device;
    pass_options p;
    text t = {0};
    TRY(engine_read_options(cx, a, options, &o));
    if (!o.device && !o.target)
        o.device = engine_default_device(false); /* text compiles alike on all machines */
    TRY(engine_choose_device(cx, &o, false, &device));
    TRY(engine_pass_options(cx, a, &o, &device, 0, &p));
    mpk_status status = pass_run_text(cx, &p, str_from(passes), source, &t);
    if (status == MPK_OK)
        return give_text(cx, &t, result);
    text_free(&t);
    return status;
}

mpk_status mpk_opt(mpk_context *cx, const char *passes, const char *source, size_t n,
                   const mpk_engine_options *options, char **result)
{
    arena a = {0};
    mpk_status status = opt(cx, &a, passes, (str){source, n}, options, result);
    arena_free(&a);
    return status;
}

mpk_status mpk_opt_passes(mpk_context *cx, char **lines)
{
    text t = {0};
    for (const pass_entry *p = pass_table; p->name; p++)
        text_print(&t, "%s\t%s\n", p->name, p->summary);
    return give_text(cx, &t, lines);
}

/* ---- operators ---- */

/* Names with commas between, each with the mark of its presence. */
static void add_operands(text *t, const op_operand *operands, uint32_t n)
{
    static const char *const marks[] = {
        [OP_REQUIRED] = "", [OP_OPTIONAL] = "?", [OP_VARIADIC] = "..."};
    for (uint32_t i = 0; i < n; i++)
        text_print(t, "%s%s%s", i ? ", " : "", operands[i].name, marks[operands[i].presence]);
}

/* One line for each operator, in the order of op_table, as in
 *
 *     name(x, weight, bias?) -> y {eps: float}<tab>summary
 *
 * where "?" marks an operand that may be absent and "..." one that stands for any number. */
mpk_status mpk_operators(mpk_context *cx, char **lines)
{
    static const char *const types[] = {"int", "float", "text", "ints"};
    text t = {0};
    for (const op_def *const *d = op_table; *d; d++) {
        text_print(&t, "%s(", (*d)->name);
        add_operands(&t, (*d)->in, (*d)->n_in);
        text_print(&t, ") -> ");
        add_operands(&t, (*d)->out, (*d)->n_out);
        for (uint32_t i = 0; i < (*d)->n_attributes; i++)
            text_print(&t, "%s%s: %s", i ? ", " : " {", (*d)->attributes[i].name,
                       types[(*d)->attributes[i].type]);
        text_print(&t, "%s\t%s\n", (*d)->n_attributes ? "}" : "", (*d)->summary);
    }
    return give_text(cx, &t, lines);
}

/* ---- the machine ---- */

/* Processors, memory and libraries are written here; every target of the build then reports its
 * devices as further members of the same object. */
mpk_status mpk_machine(mpk_context *cx, char **json)
{
    uint64_t total, available = memory_free_bytes(&total);
    char pcre[64] = "";
    text t = {0};
    mpk_status status = MPK_OK;
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    /* "10.42 2022-12-11": the number without the date */
    pcre[strcspn(pcre, " ")] = 0;
    text_print(
        &t,
        "{\"processors\": %u, \"memory_bytes\": %llu, \"free_memory_bytes\": %llu, \"libraries\": "
        "{\"pcre2\": \"%s\", \"utf8proc\": \"%s\"}",
        thread_processors(), (unsigned long long)total, (unsigned long long)available, pcre,
        utf8proc_version());
    for (const target_def *const *target = target_table; *target && status == MPK_OK; target++) {
        text_print(&t, ", ");
        status = (*target)->report(cx, &t);
    }
    text_print(&t, "}");
    if (status == MPK_OK)
        return give_text(cx, &t, json);
    text_free(&t);
    return status;
}

/* Stops at the first target that fails; those before it are cleared. */
mpk_status mpk_clear_kernels(mpk_context *cx)
{
    for (const target_def *const *target = target_table; *target; target++)
        if ((*target)->clear_programs)
            TRY((*target)->clear_programs(cx));
    return MPK_OK;
}
