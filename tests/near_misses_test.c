/* near_misses_test.c - what rules of the passes still match, against tests/near_misses.txt.
 *
 * Programs that the passes turn into few operators (goldens, and one layer of true models) are
 * changed in one place: an operator reads another tensor of the same shape, or an attribute is one
 * more, or twice as large.  The file has a line for each operator, in it a mark for each change:
 *
 *   .  as many operators of each kind are left as of the program as it was
 *   a, b ...  others, a letter for each set of kinds that there is
 *   -  there is no such program
 *
 * A rule that takes what is not its pattern, or no longer takes what is, shows as another mark.
 */
/* ctest: slow */
#include "check.h"

#include "base/file.h"
#include "ir/op.h"
#include "limits_file.h"
#include "load/load.h"
#include "pass/pass.h"

enum { MOST_SETS = 52, MOST_TENSORS = 1024 };

static mpk_context cx;

/* ---- changed programs ---- */

/* One place: input `input` of an operator becomes `by`, or attribute `attribute` is changed. */
typedef struct change {
    ir_op_id op;
    uint32_t input, attribute; /* IR_NONE: the other one is meant */
    ir_tensor_id by;
    ir_attribute value;
} change;

/* Add operator number `number` of g to out, changed if it is the one; ids: tensors of g in out. */
static bool add_op(ir_graph *out, const ir_graph *g, ir_op_id number, const change *c,
                   ir_tensor_id *ids)
{
    const ir_op *op = &g->ops.at[number];
    ir_attribute attributes[IR_MAX_ATTRIBUTES];
    ir_tensor_id in[IR_MAX_INPUTS], made[IR_MAX_OUTPUTS];
    str names[IR_MAX_OUTPUTS];
    memcpy(attributes, op->attributes, sizeof attributes);
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_tensor_id id = c->op == number && c->input == i ? c->by : op->in[i];
        in[i] = id == IR_NONE ? IR_NONE : ids[id];
    }
    if (c->op == number && c->attribute != IR_NONE)
        attributes[c->attribute] = c->value;
    for (uint32_t i = 0; i < op->n_out; i++)
        names[i] = g->tensors.at[op->out[i]].name;
    if (ir_add_op_as(&cx, out, op->def, names, op->n_in, in, attributes, made) != MPK_OK)
        return false;
    for (uint32_t i = 0; i < op->n_out; i++)
        ids[op->out[i]] = made[i];
    return true;
}

/* The changed program; NULL: there is none. */
static ir_graph *build(arena *a, const ir_graph *g, const change *c)
{
    ir_tensor_id ids[MOST_TENSORS];
    char name[128];
    ir_graph *out;
    assert_true(g->tensors.n <= MOST_TENSORS);
    check_ok(&cx, ir_create(&cx, a, "near", &out));
    for (ir_tensor_id i = 0; i < g->tensors.n; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        snprintf(name, sizeof name, "%.*s", STR_ARG(t->name));
        if (t->producer == IR_NONE)
            check_ok(&cx,
                     ir_add_tensor(&cx, out, t->kind, t->live, arena_copy(a, name, strlen(name)),
                                   t->dtype, t->rank, t->dims, &ids[i]));
    }
    for (ir_op_id i = 0; i < g->ops.n; i++)
        if (!add_op(out, g, i, c, ids))
            return NULL;
    for (size_t i = 0; i < g->outputs.n; i++)
        check_ok(&cx, ir_add_output(&cx, out, ids[g->outputs.at[i]]));
    return ir_verify(&cx, out) == MPK_OK ? out : NULL;
}

/* ---- what is left of them ---- */

/* The sets of kinds that were seen of one program; the first is that of the program itself. */
typedef struct sets {
    char *words[MOST_SETS];
    uint32_t n;
} sets;

/* "2 add linear ..", or the refusal; the caller's to free. */
static char *kinds_of(ir_graph *g)
{
    static const pass_options options = {.n_workers = 132,
                                         .splits = 4,
                                         .split_tokens = 16,
                                         .norm_elements = 1 << 16,
                                         .relaxed = true,
                                         .logits = true,
                                         .flatten = true};
    arena result = {0}, scratch = {0};
    pass_state s = {&cx, &result, &scratch, &options};
    text out = {0};
    if (pass_simplify(&s, &g) != MPK_OK || pass_roll(&s, &g) != MPK_OK ||
        pass_recognise(&s, &g) != MPK_OK || pass_fuse_ops(&s, &g) != MPK_OK ||
        pass_fuse_map(&s, &g) != MPK_OK || pass_flatten(&s, &g) != MPK_OK)
        text_print(&out, "%s", cx.text);
    else
        for (const op_def *const *def = op_table; *def; def++) {
            uint32_t n = 0;
            for (size_t i = 0; i < g->ops.n; i++)
                n += g->ops.at[i].def == *def;
            if (n)
                text_print(&out, "%u %s ", n, (*def)->name);
        }
    assert_false(out.failed);
    arena_free(&result);
    arena_free(&scratch);
    return out.at;
}

/* The mark of a change. */
static char mark_of(sets *known, const ir_graph *g, const change *c)
{
    static const char marks[] = ".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    arena a = {0};
    ir_graph *near = build(&a, g, c);
    char *words = near ? kinds_of(near) : NULL;
    uint32_t at = 0;
    arena_free(&a);
    if (!words)
        return '-';
    while (at < known->n && strcmp(known->words[at], words) != 0)
        at++;
    if (at < known->n || at == MOST_SETS) {
        free(words);
        return at == MOST_SETS ? '*' : marks[at];
    }
    known->words[known->n++] = words;
    return marks[at];
}

/* The last tensor before an operator that could stand in the place of `id`; IR_NONE: none. */
static ir_tensor_id find_other(const ir_graph *g, const ir_op *op, ir_tensor_id id)
{
    const ir_tensor *t = &g->tensors.at[id];
    for (ir_tensor_id i = op->out[0]; i-- > 0;) {
        const ir_tensor *u = &g->tensors.at[i];
        if (i != id && u->dtype == t->dtype && u->live == t->live && u->rank == t->rank &&
            memcmp(u->dims, t->dims, t->rank * sizeof *t->dims) == 0)
            return i;
    }
    return IR_NONE;
}

static void print_attributes(const ir_graph *g, change c, sets *known, text *out)
{
    const ir_op *op = &g->ops.at[c.op];
    int64_t list[64];
    for (c.attribute = 0; c.attribute < op->def->n_attributes; c.attribute++) {
        const ir_attribute *was = &op->attributes[c.attribute];
        const ir_attribute_type type = op->def->attributes[c.attribute].type;
        c.value = *was;
        c.value.i++;
        c.value.f = was->f * 2 + 1;
        if (type == IR_ATTRIBUTE_INT || type == IR_ATTRIBUTE_FLOAT)
            text_print(out, "%c", mark_of(known, g, &c));
        for (uint32_t i = 0; type == IR_ATTRIBUTE_INTS && i < was->ints.n; i++) {
            assert_true(was->ints.n <= 64);
            memcpy(list, was->ints.at, was->ints.n * sizeof *list);
            list[i]++;
            c.value.ints.at = list;
            text_print(out, "%c", mark_of(known, g, &c));
        }
    }
}

static void print_program(const char *name, const ir_graph *g, text *out)
{
    sets known = {0};
    change c = {.op = IR_NONE, .input = IR_NONE, .attribute = IR_NONE};
    assert_int_equal(mark_of(&known, g, &c), '.');
    text_print(out, "%s: %s\n", name, known.words[0]);
    for (c.op = 0; c.op < g->ops.n; c.op++) {
        const ir_op *op = &g->ops.at[c.op];
        text_print(out, "  %.*s ", STR_ARG(op->name));
        c.attribute = IR_NONE;
        for (c.input = 0; c.input < op->n_in; c.input++) {
            c.by = op->in[c.input] == IR_NONE ? IR_NONE : find_other(g, op, op->in[c.input]);
            text_print(out, "%c", c.by == IR_NONE ? '-' : mark_of(&known, g, &c));
        }
        c.input = IR_NONE;
        print_attributes(g, c, &known, out);
        text_print(out, "\n");
    }
    for (uint32_t i = 0; i < known.n; i++)
        free(known.words[i]);
}

/* ---- the programs ---- */

static void print_golden(const char *name, text *out)
{
    arena a = {0};
    ir_graph *g;
    file_map file;
    char path[64];
    snprintf(path, sizeof path, "tests/golden/%s.in", name);
    check_ok(&cx, file_map_open(&cx, path, &file));
    check_ok(&cx, ir_parse(&cx, &a, (str){(const char *)file.bytes, file.n_bytes}, &g));
    print_program(name, g, out);
    file_map_close(&file);
    arena_free(&a);
}

static mpk_status all_bf16(mpk_context *c, const void *self, const char *name, uint32_t rank,
                           const int64_t *dims, ir_dtype *dtype)
{
    (void)c, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_BF16;
    return MPK_OK;
}

static void print_model(const char *folder, text *out)
{
    const model_weights weights = {.dtype = all_bf16};
    const model_shape shape = {.n_tokens = 8,
                               .n_rows = 8,
                               .n_slots = 8,
                               .n_pages = 64,
                               .page_tokens = 16,
                               .max_pages_per_slot = 8,
                               .kv_dtype = IR_BF16,
                               .activation_dtype = IR_BF16};
    load_model m;
    arena a = {0};
    ir_graph *g;
    char path[64];
    snprintf(path, sizeof path, "models/%s", folder);
    check_ok(&cx, load_open(&cx, path, &m));
    m.config.n_layers = 1;
    check_ok(&cx, model_build(&cx, &a, &m.config, &shape, &weights, &g));
    print_program(folder, g, out);
    load_close(&m);
    arena_free(&a);
}

static void rules_match_what_the_file_says(void **state)
{
    static const char *const goldens[] = {
        "4-flatten", "4-fuse-map",    "4-recognise-decode", "4-roll",           "4-simplify",
        "6.5-shard", "6.5-shard-sum", "6.5-shard-experts",  "6.6-fuse-ops-full"};
    static const char *const models[] = {"deepseek-v2-lite", "gemma-3-4b", "gpt-oss-20b",
                                         "llama-3.2-1b",     "olmo-2-7b",  "qwen3-30b-a3b"};
    text made = {0};
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++)
        print_golden(goldens[i], &made);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        print_model(models[i], &made);
    check_limits("near_misses.txt", &made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules_match_what_the_file_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
