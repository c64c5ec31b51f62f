/* jinja_run.c - statements -> text; what names mean.
 *
 * Template, loop's turn, macro's call, with, and a block that is caught each have a scope; if has
 * none.  What a scope sets ends with it.  Around the template's own scope lies that of the
 * caller's variables, and around that the globals.
 *
 * The chain of scopes while a macro f, defined at the top, is called in a loop:
 *
 *   f's call  ->  template  ->  the caller's variables        (r->scope while f runs)
 *   a turn    ->  template  ->  the caller's variables        (r->scope before and after)
 *
 * A function that changes r->scope puts it back before it returns, but not after an error: then
 * nothing runs any more.  The same holds for r->depth and r->out. */
#include "jinja/jinja_parts.h"

/* ---- scopes ---- */

/* Scopes are short lists, searched from the start; the work is charged, for a template could make
 * one long. */
mpk_status jinja_bind_name(jrun *r, jscope *s, str name, jval v)
{
    TRY(jinja_work(r, s->n * (uint64_t)(1 + name.n / 32)));
    for (size_t i = 0; i < s->n; i++)
        if (str_equal(s->at[i].name, name)) {
            s->at[i].value = v;
            return MPK_OK;
        }
    TRY(jinja_charge(r, s->n == s->capacity ? s->n * sizeof(jbinding) : 1));
    PUSH(r->cx, r->a, s, ((jbinding){name, v}));
    return MPK_OK;
}

/* Hidden names (jinja_names.c) are there from the beginning, without a value. */
mpk_status jinja_open_scope(jrun *r, jscope *outer, const jnames *hidden, jscope **out)
{
    jscope *s;
    TRY(jinja_charge(r, sizeof *s));
    NEW(r->cx, r->a, s, 1);
    s->outer = outer;
    for (size_t i = 0; i < hidden->n; i++)
        TRY(jinja_bind_name(r, s, hidden->at[i], (jval){0}));
    *out = s;
    return MPK_OK;
}

/* A hidden name that has no value yet is undefined, even if a scope around has one: that is what
 * hiding means. */
mpk_status jinja_lookup(jrun *r, str name, jval *out)
{
    for (const jscope *s = r->scope; s; s = s->outer) {
        TRY(jinja_work(r, s->n * (uint64_t)(1 + name.n / 32)));
        for (size_t i = 0; i < s->n; i++)
            if (str_equal(s->at[i].name, name)) {
                *out = s->at[i].value.kind == J_ABSENT ? jinja_undefined(name) : s->at[i].value;
                return MPK_OK;
            }
    }
    if (str_is(name, "self"))
        return jinja_refuse(r, "the template as a value (self) is not supported");
    const jglobal *global = jinja_find_global(name);
    *out = global ? (jval){.kind = J_GLOBAL, .global = global} : jinja_undefined(name);
    return MPK_OK;
}

/* ns.x = v: only namespaces can be changed.  A leading underscore is refused, as the sandbox
 * refuses to read it. */
static mpk_status assign_member(jrun *r, const jnode *target, jval v)
{
    jval ns;
    r->line = target->line;
    TRY(jinja_lookup(r, target->name, &ns));
    if (ns.kind != J_NAMESPACE)
        return jinja_fail(r, "%.*s is %s, and only parts of namespaces can be set",
                          JINJA_SHOWN(target->name), jinja_type_name(ns));
    if (target->member.at[0] == '_')
        return jinja_fail(r, "names in namespaces cannot begin with an underscore");
    return jinja_dict_put(r, ns.dict, jinja_str(target->member), v);
}

/* All values are taken before any name is set, so that `a, b = b, a` swaps; there must be exactly
 * as many. One more than there are targets is asked for, to see that nothing is left over. */
static mpk_status assign_several(jrun *r, const jnode *target, jval v)
{
    jiterator *it;
    jval item;
    if (!jinja_can_iterate(v))
        return jinja_fail(r, "%s cannot be taken apart", jinja_type_name(v));
    jval items;
    TRY(jinja_make_list(r, J_TUPLE, target->items.n, &items));
    TRY(jinja_iterate(r, v, &it));
    for (size_t i = 0; i <= target->items.n; i++) {
        TRY(jinja_next(r, it, &item));
        if ((item.kind == J_ABSENT) != (i == target->items.n))
            return jinja_fail(r, "%s than %zu values to take apart",
                              i == target->items.n ? "more" : "fewer", target->items.n);
        if (item.kind != J_ABSENT)
            TRY(jinja_push(r, items.list, item));
    }
    for (size_t i = 0; i < target->items.n; i++)
        TRY(jinja_assign(r, target->items.at[i], items.list->at[i]));
    return MPK_OK;
}

/* A target's form was checked by the parser. */
mpk_status jinja_assign(jrun *r, const jnode *target, jval v)
{
    if (target->kind == N_NAME)
        return jinja_bind_name(r, r->scope, target->name, v);
    return target->kind == N_MEMBER ? assign_member(r, target, v) : assign_several(r, target, v);
}

/* ---- output ---- */

/* The one place where a template's text grows; its size is bounded here. */
mpk_status jinja_emit(jrun *r, str s)
{
    TRY(jinja_charge(r, s.n));
    CHECK(r->cx, s.n <= JINJA_MAX_OUTPUT && r->out->n <= JINJA_MAX_OUTPUT - s.n, MPK_ELIMIT,
          "chat template, line %u: it prints more than %d bytes", r->line, JINJA_MAX_OUTPUT);
    text_add(r->out, s.at, s.n);
    CHECK(r->cx, !r->out->failed, MPK_ENOMEM, "out of memory for what a chat template prints");
    return MPK_OK;
}

/* {{ x }}, or {% print a, b %}, whose expressions are prints in `items`. */
static mpk_status run_print(jrun *r, const jnode *n)
{
    jval v;
    str s = {0};
    for (size_t i = 0; i < n->items.n; i++)
        TRY(run_print(r, n->items.at[i]));
    if (!n->a)
        return MPK_OK;
    TRY(jinja_eval(r, n->a, &v));
    r->line = n->line;
    TRY(jinja_to_str(r, v, &s));
    return jinja_emit(r, s);
}

/* ---- statements ---- */

/* `more` are the elifs, `items` the else.  An if has no scope. */
static mpk_status run_if(jrun *r, const jnode *n, jflow *flow)
{
    jval test;
    TRY(jinja_eval(r, n->a, &test));
    if (jinja_true(test))
        return jinja_run_nodes(r, &n->body, flow);
    for (size_t i = 0; i < n->more.n; i++) {
        TRY(jinja_eval(r, n->more.at[i]->a, &test));
        if (jinja_true(test))
            return jinja_run_nodes(r, &n->more.at[i]->body, flow);
    }
    return jinja_run_nodes(r, &n->items, flow);
}

/* The value is computed before the name is looked at: `set x = x + 1` reads the x outside. */
static mpk_status run_set(jrun *r, const jnode *n)
{
    jval v;
    TRY(jinja_eval(r, n->b, &v));
    return jinja_assign(r, n->a, v);
}

/* In a scope of its own: a set or filter block, the text of which the filters change. */
static mpk_status run_caught(jrun *r, const jnode *n, const jnode *filters, jflow *flow, jval *out)
{
    jscope *outer = r->scope;
    TRY(jinja_open_scope(r, outer, &n->hidden, &r->scope));
    TRY(jinja_capture(r, &n->body, flow, out));
    if (filters && *flow == J_GO_ON)
        TRY(jinja_eval_filters(r, filters, *out, out));
    r->scope = outer;
    return MPK_OK;
}

/* A break inside leaves without setting the name. */
static mpk_status run_set_block(jrun *r, const jnode *n, jflow *flow)
{
    jval v;
    TRY(run_caught(r, n, n->b, flow, &v));
    return *flow == J_GO_ON ? jinja_assign(r, n->a, v) : MPK_OK;
}

/* A break inside leaves without printing what was caught. */
static mpk_status run_filter_block(jrun *r, const jnode *n, jflow *flow)
{
    jval v;
    str s = {0};
    TRY(run_caught(r, n, n->a, flow, &v));
    if (*flow != J_GO_ON)
        return MPK_OK;
    TRY(jinja_to_str(r, v, &s));
    return jinja_emit(r, s);
}

/* The macro is a value like others, bound to its name in the present scope. */
static mpk_status run_macro(jrun *r, const jnode *n)
{
    jval macro;
    TRY(jinja_make_macro(r, n, &macro));
    return jinja_bind_name(r, r->scope, n->name, macro);
}

/* A macro without a name that the call gets as `caller`. {% call(x) m(1) %}body{% endcall %} is
 * m(1, caller=a macro with the parameter x and this body). */
static mpk_status run_call_block(jrun *r, const jnode *n)
{
    jval f, caller, made;
    jargs args;
    jkeyword *keywords;
    str s = {0};
    TRY(jinja_make_macro(r, n, &caller));
    TRY(jinja_eval(r, n->a->a, &f));
    TRY(jinja_eval_arguments(r, n->a->arguments, &args));
    TRY(jinja_charge(r, (args.n_keywords + 1) * sizeof *keywords));
    NEW(r->cx, r->a, keywords, args.n_keywords + 1);
    for (size_t i = 0; i < args.n_keywords; i++)
        keywords[i] = args.keywords[i];
    keywords[args.n_keywords++] = (jkeyword){STR("caller"), caller};
    args.keywords = keywords;
    r->line = n->line;
    TRY(jinja_call(r, f, &args, &made));
    TRY(jinja_to_str(r, made, &s));
    return jinja_emit(r, s);
}

/* A macro that is called at once, without arguments. */
static mpk_status run_generation(jrun *r, const jnode *n)
{
    jval macro, made;
    TRY(jinja_make_macro(r, n, &macro));
    TRY(jinja_call(r, macro, &(jargs){0}, &made));
    return jinja_emit(r, made.text);
}

/* Each value is computed outside the new scope, as Jinja2 does: a name set before it in the same
 * `with` is not seen. */
static mpk_status run_with(jrun *r, const jnode *n, jflow *flow)
{
    jscope *outer = r->scope, *inner;
    TRY(jinja_open_scope(r, outer, &n->hidden, &inner));
    for (size_t i = 0; i < n->items.n; i++) {
        jval v;
        r->scope = outer;
        TRY(jinja_eval(r, n->more.at[i], &v));
        r->scope = inner;
        TRY(jinja_assign(r, n->items.at[i], v));
    }
    r->scope = inner;
    TRY(jinja_run_nodes(r, &n->body, flow));
    r->scope = outer;
    return MPK_OK;
}

/* One statement.  The line is set first, so that errors in it name where it begins; expressions set
 * it again to their own. break and continue set *flow and everything around them unwinds up to the
 * loop. */
static mpk_status run_node(jrun *r, const jnode *n, jflow *flow)
{
    r->line = n->line;
    switch (n->kind) {
    case N_TEXT:
        return jinja_emit(r, n->name);
    case N_PRINT:
        return run_print(r, n);
    case N_FOR:
        return jinja_run_for(r, n, flow);
    case N_IF:
        return run_if(r, n, flow);
    case N_SET:
        return run_set(r, n);
    case N_SET_BLOCK:
        return run_set_block(r, n, flow);
    case N_MACRO:
        return run_macro(r, n);
    case N_CALL_BLOCK:
        return run_call_block(r, n);
    case N_FILTER_BLOCK:
        return run_filter_block(r, n, flow);
    case N_WITH:
        return run_with(r, n, flow);
    case N_GENERATION:
        return run_generation(r, n);
    default:
        *flow = n->kind == N_BREAK ? J_LEAVE : J_AGAIN;
        return MPK_OK;
    }
}

/* *flow is J_GO_ON unless a break or continue was met, which every block around up to the loop
 * passes on. */
mpk_status jinja_run_nodes(jrun *r, const jnodes *nodes, jflow *flow)
{
    TRY(jinja_deeper(r));
    for (size_t i = 0; i < nodes->n && *flow == J_GO_ON; i++) {
        TRY(jinja_charge(r, 1));
        TRY(run_node(r, nodes->at[i], flow));
    }
    r->depth--;
    return MPK_OK;
}

/* ---- the whole ---- */

/* The caller's variables lie in a scope around the template's, so that the template can hide but
 * not change them. */
static mpk_status render(jrun *r, const json_value *variables)
{
    jscope *given;
    jval v;
    jflow flow = J_GO_ON;
    TRY(jinja_open_scope(r, NULL, &(jnames){0}, &given));
    for (size_t i = 0; variables && i < variables->n; i++) {
        TRY(jinja_from_json(r, &variables->items[i], &v));
        TRY(jinja_bind_name(r, given, variables->items[i].key, v));
    }
    TRY(jinja_open_scope(r, given, &r->t->hidden, &r->scope));
    return jinja_run_nodes(r, &r->t->body, &flow);
}

/* Everything a run makes lies in one arena, freed at its end; only the text survives. */
mpk_status jinja_render(mpk_context *cx, const jinja_template *t, const json_value *variables,
                        int64_t now, text *out)
{
    arena a = {0};
    jrun r = {.cx = cx, .a = &a, .t = t, .out = out, .line = 1, .now = now};
    mpk_status status = render(&r, variables);
    arena_free(&a);
    return status;
}
