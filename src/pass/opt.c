/* opt.c - passes on text: what `mpk opt` runs and what the goldens test (see pass.h).
 *
 * Input: the text form of a tensor program or of a task graph, and names of passes separated by
 * commas.  Output: the result as text.  A task graph is proved before any pass runs on it, so a
 * pass only sees graphs that keep the promises of their level, and what a user writes by hand is
 * refused with a message and never crashes a pass.  A name may be followed by settings of
 * pass_options for this pass alone: fuse_ops:splits=16:split_tokens=8:relaxed=1.
 *
 * The table of passes is made from the lists in pass.h, so that a new pass has one row there and
 * none here; only passes of an unusual form (decompose, depend, the plans, verify) are named
 * here.  Called by cli/cmd_opt.c and by tests.
 */
#include "pass/pass.h"

#define ROW_ON_PROGRAM(name, summary) {#name, summary, pass_##name, NULL},
#define ROW_ON_GRAPH(name, summary) {#name, summary, NULL, pass_##name},
#define ROW(name, summary) {#name, summary, NULL, NULL},
/* clang-format off */
const pass_entry pass_table[] = {
    PASS_ON_PROGRAM(ROW_ON_PROGRAM)
    ROW(decompose, "cut operators into tasks (tensor program to task graph; paper 4.1)")
    ROW(depend, "an event for each producer-consumer pair of tasks (4.1)")
    PASS_ON_GRAPH(ROW_ON_GRAPH)
    ROW(plan_memory, "where tensors lie (prints places)")
    ROW(plan_pages, "scratch pages of operators (prints numbers)")
    ROW(verify, "prove what the level of the task graph promises")
    {NULL, NULL, NULL, NULL},
};
/* clang-format on */

/* What the passes work on: exactly one of `ir` and `tg` is set.  A plan prints its result itself
 * (`printed`), so nothing may follow it. */
typedef struct subject {
    ir_graph *ir;
    tg_graph *tg;
    bool printed;
} subject;

/* Is the source a task graph?  Its text has a line that begins with "tgraph ". */
static bool has_heading(str source)
{
    for (size_t i = 0; i + 7 <= source.n; i++)
        if ((i == 0 || source.at[i - 1] == '\n') && memcmp(source.at + i, "tgraph ", 7) == 0)
            return true;
    return false;
}

/* Print a line for each tensor, "%NAME AREA OFFSET" (for weights the number of the weight in
 * place of an offset).  The plan is proved before it is printed, so that a golden never records
 * a wrong one. */
static mpk_status print_places(pass_state *s, tg_graph *g, text *out)
{
    static const char *const areas[TG_AREAS] = {"weights", "state", "step", "temps"};
    tg_compiled c = {.ir = g->ir, .tg = g};
    tg_program p = {.n_workers = g->n_workers, .n_graphs = 1, .graphs = &c};
    TRY(pass_plan_memory(s, &p));
    TRY(tg_verify_memory(s->cx, s->scratch, &c, p.area_bytes));
    for (ir_tensor_id t = 0; t < g->ir->tensors.n; t++)
        text_print(out, "%%%.*s %s %llu\n", STR_ARG(g->ir->tensors.at[t].name),
                   areas[c.places[t].area], (unsigned long long)c.places[t].offset);
    return MPK_OK;
}

/* Print a line for each operator, "%NAME PAGES". */
static mpk_status print_pages(pass_state *s, tg_graph *g, text *out)
{
    const pass_options *o = s->options;
    tg_compiled c = {.ir = g->ir, .tg = g};
    tg_program p = {.page_bytes = o->page_bytes,
                    .pages_per_worker = o->pages_per_worker,
                    .n_graphs = 1,
                    .graphs = &c};
    CHECK(s->cx, o->page_bytes, MPK_EARG, "pages of 0 bytes");
    TRY(pass_plan_pages(s, &p, &c));
    for (ir_op_id op = 0; op < g->ir->ops.n; op++)
        text_print(out, "%%%.*s %u\n", STR_ARG(g->ir->ops.at[op].name), c.pages[op]);
    return MPK_OK;
}

/* Run a pass on the tensor program, or decompose, which makes the task graph of it. */
static mpk_status run_on_program(pass_state *s, const pass_entry *pass, subject *on)
{
    CHECK(s->cx, !on->tg, MPK_EARG, "%s works on a tensor program, this is a task graph",
          pass->name);
    return pass->on_program ? pass->on_program(s, &on->ir) : pass_decompose(s, on->ir, &on->tg);
}

/* pass_depend itself does not check the level, because compile.c calls it on what decompose has
 * just made. */
static mpk_status depend(pass_state *s, tg_graph *g)
{
    uint64_t pairs;
    CHECK(s->cx, g->level == TG_TASKS, MPK_EARG,
          "depend works on tasks alone, this task graph is %s", tg_level_names[g->level]);
    return pass_depend(s, g, &pairs);
}

/* Run a pass on the task graph, depend, or a plan, which prints; verify only needs the proof
 * that surrounds it. */
static mpk_status run_on_graph(pass_state *s, const pass_entry *pass, subject *on, text *out)
{
    CHECK(s->cx, on->tg, MPK_EARG,
          "%s works on a task graph, this is a tensor program: run decompose first", pass->name);
    if (pass->on_graph)
        return pass->on_graph(s, on->tg);
    if (strcmp(pass->name, "depend") == 0)
        return depend(s, on->tg);
    if (strcmp(pass->name, "verify") == 0)
        return MPK_OK; /* every pass is preceded and followed by the proof anyway */
    CHECK(s->cx, on->tg->level == TG_LINEAR, MPK_EARG,
          "%s works on a linear task graph, this one is %s", pass->name,
          tg_level_names[on->tg->level]);
    on->printed = true;
    return strcmp(pass->name, "plan_memory") == 0 ? print_places(s, on->tg, out)
                                                  : print_pages(s, on->tg, out);
}

/* Apply one setting, NAME=NUMBER.  MPK_EARG names the settings that there are. */
static mpk_status apply_setting(mpk_context *cx, str setting, pass_options *o)
{
    uint64_t value = 0;
    size_t n = 0;
    while (n < setting.n && setting.at[n] != '=')
        n++;
    str name = {setting.at, n};
    for (size_t i = n + 1; i < setting.n && value <= UINT32_MAX; i++) {
        CHECK(cx, setting.at[i] >= '0' && setting.at[i] <= '9', MPK_EARG,
              "setting %.*s: a whole number is expected", STR_ARG(setting));
        value = value * 10 + (uint64_t)(setting.at[i] - '0');
    }
    CHECK(cx, n + 1 < setting.n && value <= UINT32_MAX, MPK_EARG,
          "setting %.*s: expected NAME=NUMBER", STR_ARG(setting));
    if (str_is(name, "peers"))
        o->n_peers = (uint32_t)value;
    else if (str_is(name, "gather_bytes"))
        o->gather_bytes = value;
    else if (str_is(name, "own_experts"))
        o->own_experts = value;
    else if (str_is(name, "splits"))
        o->splits = (uint32_t)value;
    else if (str_is(name, "split_tokens"))
        o->split_tokens = (uint32_t)value;
    else if (str_is(name, "own_units"))
        o->own_units = (uint32_t)value;
    else if (str_is(name, "context_tasks"))
        o->context_tasks = (uint32_t)value;
    else if (str_is(name, "norm_elements"))
        o->norm_elements = (uint32_t)value;
    else if (str_is(name, "share_tokens"))
        o->share_tokens = (uint32_t)value;
    else if (str_is(name, "relaxed"))
        o->relaxed = value;
    else if (str_is(name, "logits"))
        o->logits = value;
    else if (str_is(name, "sum_terms"))
        o->sum_terms = value;
    else if (str_is(name, "whole_tiles"))
        o->whole_tiles = value;
    else if (str_is(name, "unpack_tokens"))
        o->unpack_tokens = (uint32_t)value;
    else
        FAIL(cx, MPK_EARG,
             "there is no setting %.*s; peers, gather_bytes, own_experts, splits, split_tokens, "
             "own_units, context_tasks, norm_elements, share_tokens, relaxed, logits, "
             "sum_terms, whole_tiles, unpack_tokens are",
             STR_ARG(name));
    return MPK_OK;
}

/* Cut the settings off a name, "NAME:A=1:B=2" to "NAME", and apply them. */
static mpk_status apply_settings(mpk_context *cx, str *name, pass_options *o)
{
    size_t end = 0, from;
    while (end < name->n && name->at[end] != ':')
        end++;
    size_t first = end;
    for (from = end + 1; from <= name->n; from = end + 1) {
        for (end = from; end < name->n && name->at[end] != ':';)
            end++;
        TRY(apply_setting(cx, (str){name->at + from, end - from}, o));
    }
    name->n = first;
    return MPK_OK;
}

/* Look the pass up by name, prove the task graph that it is about to read, and run it. */
static mpk_status run_one(pass_state *s, str name, subject *on, text *out)
{
    const pass_entry *pass = pass_table;
    while (pass->name && !str_is(name, pass->name))
        pass++;
    CHECK(s->cx, pass->name, MPK_EARG, "there is no pass %.*s", STR_ARG(name));
    CHECK(s->cx, !on->printed, MPK_EARG,
          "nothing can follow plan_memory and plan_pages: they print");
    if (on->tg)
        NOTE(s->cx, tg_verify(s->cx, s->scratch, on->tg), "verifying what goes into %.*s",
             STR_ARG(name));
    bool on_program = pass->on_program || strcmp(pass->name, "decompose") == 0;
    return on_program ? run_on_program(s, pass, on) : run_on_graph(s, pass, on, out);
}

/* Run the passes in the order in which they are named, each on the result of the one before it,
 * with options of its own (settings do not leak to the next one); then prove and print what is
 * left. */
static mpk_status run_passes(pass_state *s, str passes, str source, text *out)
{
    subject on = {0};
    if (has_heading(source))
        TRY(tg_parse(s->cx, s->result, source, &on.tg));
    else
        TRY(ir_parse(s->cx, s->result, source, &on.ir));
    for (size_t from = 0, end; from <= passes.n; from = end + 1) {
        for (end = from; end < passes.n && passes.at[end] != ',';)
            end++;
        pass_options options = *s->options;
        pass_state own = {s->cx, s->result, s->scratch, &options};
        str name = {passes.at + from, end - from};
        TRY(apply_settings(s->cx, &name, &options));
        TRY(run_one(&own, name, &on, out));
    }
    if (on.tg && !on.printed) {
        NOTE(s->cx, tg_verify(s->cx, s->scratch, on.tg), "verifying what came out of %.*s",
             STR_ARG(passes));
        tg_print(on.tg, out);
    } else if (!on.printed) {
        NOTE(s->cx, ir_verify(s->cx, on.ir), "verifying what came out of %.*s", STR_ARG(passes));
        ir_print(on.ir, out);
    }
    CHECK(s->cx, !out->failed, MPK_ENOMEM, "out of memory for the text");
    return MPK_OK;
}

/* Both arenas live for this call alone: the result leaves it as text. */
mpk_status pass_run_text(mpk_context *cx, const pass_options *options, str passes, str source,
                         text *out)
{
    arena result = {0}, scratch = {0};
    pass_state s = {.cx = cx, .result = &result, .scratch = &scratch, .options = options};
    mpk_status status = MPK_OK;
    if (options->n_workers < 1 || options->n_workers > 65535)
        status =
            status_fail(cx, MPK_EARG, "%u workers: 1 to 65535 are possible", options->n_workers);
    else
        status = run_passes(&s, passes, source, out);
    arena_free(&result);
    arena_free(&scratch);
    return status;
}
