/* jinja_macro.c - calls: macros, methods, globals.
 *
 * A call f(1, 2, b=3, k=4) of  {% macro f(a, b=0) %}, in this order:
 *
 *   bind_parameters   a = 1, b = 2 by place, then names, then defaults     (b=3 is left over)
 *   bind_caller       `caller`, if the body mentions it
 *   bind_keywords     what is left, b and k: to kwargs if the body mentions it, else an error
 *   bind_rest         arguments by place beyond the parameters: to varargs, else an error
 *
 * The parameters are the first bindings of the call's scope, in their order: bind_parameters reads
 * them back by index. */
#include "jinja/jinja_parts.h"

/* What the body prints as a text.  r->out is put back whatever the status, since the text is freed
 * here. */
mpk_status jinja_capture(jrun *r, const jnodes *body, jflow *flow, jval *out)
{
    text *outer = r->out, mine = {0};
    r->out = &mine;
    mpk_status status = jinja_run_nodes(r, body, flow);
    r->out = outer;
    return jinja_take_text(r, status, &mine, out);
}

/* A macro is a closure.  All scopes around it are marked as kept, so that no loop clears them for
 * its next turn. */
mpk_status jinja_make_macro(jrun *r, const jnode *n, jval *out)
{
    jmacro *m;
    TRY(jinja_charge(r, sizeof *m));
    NEW(r->cx, r->a, m, 1);
    *m = (jmacro){.node = n, .scope = r->scope, .name = n->kind == N_MACRO ? n->name : (str){0}};
    if (n->kind == N_CALL_BLOCK)
        m->name = STR("caller");
    for (jscope *s = r->scope; s && !s->is_kept; s = s->outer)
        s->is_kept = true;
    *out = (jval){.kind = J_MACRO, .macro = m};
    return MPK_OK;
}

/* The arguments of one call while they find their parameters. */
typedef struct binder {
    const jmacro *m;
    const jargs *args;
    jscope *scope;
    bool *used; /* of each keyword */
} binder;

/* A parameter of such a name takes the place of the special one. */
static bool has_parameter(const jnode *n, const char *name)
{
    for (size_t i = 0; i < n->items.n; i++)
        if (str_is(n->items.at[i]->name, name))
            return true;
    return false;
}

/* The value given by this name, J_ABSENT if none was; each is taken once, and what was not taken is
 * left for **kwargs. */
static jval take_keyword(binder *b, str name)
{
    for (size_t i = 0; i < b->args->n_keywords; i++)
        if (!b->used[i] && str_equal(b->args->keywords[i].name, name)) {
            b->used[i] = true;
            return b->args->keywords[i].value;
        }
    return (jval){0};
}

/* Positional ones, then names, then defaults, which may speak of the parameters before them. {%
 * macro m(a, b=a) %}: m(1) has b = 1. A parameter without value and default is undefined under its
 * own name, so a message can name it. */
static mpk_status bind_parameters(jrun *r, binder *b)
{
    const jnode *n = b->m->node;
    const size_t without_default = n->items.n - n->more.n;
    for (size_t i = 0; i < n->items.n; i++) {
        const str name = n->items.at[i]->name;
        jval v = i < b->args->n ? b->args->at[i] : take_keyword(b, name);
        TRY(jinja_bind_name(r, b->scope, name, v));
    }
    for (size_t i = 0; i < n->items.n; i++) {
        jval v;
        if (b->scope->at[i].value.kind != J_ABSENT)
            continue;
        v = jinja_undefined(n->items.at[i]->name);
        if (i >= without_default)
            TRY(jinja_eval(r, n->more.at[i - without_default], &v));
        TRY(jinja_bind_name(r, b->scope, n->items.at[i]->name, v));
    }
    return MPK_OK;
}

/* `caller` is a name of its own unless a parameter is called so. */
static mpk_status bind_caller(jrun *r, binder *b)
{
    jval caller;
    if (!(b->m->node->catches & J_CATCH_CALLER) || has_parameter(b->m->node, "caller"))
        return MPK_OK;
    caller = take_keyword(b, STR("caller"));
    if (caller.kind == J_ABSENT || caller.kind == J_NONE)
        caller = jinja_undefined(STR("caller"));
    return jinja_bind_name(r, b->scope, STR("caller"), caller);
}

/* Arguments by names that no parameter has: kwargs if the body mentions it, else an error. */
static mpk_status bind_keywords(jrun *r, binder *b)
{
    jval rest;
    const bool catches =
        (b->m->node->catches & J_CATCH_KWARGS) && !has_parameter(b->m->node, "kwargs");
    TRY(jinja_make_dict(r, &rest));
    for (size_t i = 0; i < b->args->n_keywords; i++) {
        const jkeyword *k = &b->args->keywords[i];
        if (b->used[i])
            continue;
        if (!catches)
            return jinja_fail(r, "the macro %.*s takes no argument %.*s", JINJA_SHOWN(b->m->name),
                              JINJA_SHOWN(k->name));
        TRY(jinja_dict_put(r, rest.dict, jinja_str(k->name), k->value));
    }
    return catches ? jinja_bind_name(r, b->scope, STR("kwargs"), rest) : MPK_OK;
}

/* Arguments by place beyond the parameters: varargs if the body mentions it, else an error. */
static mpk_status bind_rest(jrun *r, binder *b)
{
    const size_t n = b->m->node->items.n;
    jval rest;
    if (!(b->m->node->catches & J_CATCH_VARARGS) || has_parameter(b->m->node, "varargs")) {
        if (b->args->n > n)
            return jinja_fail(r, "the macro %.*s takes not more than %zu arguments",
                              JINJA_SHOWN(b->m->name), n);
        return MPK_OK;
    }
    TRY(jinja_make_list(r, J_TUPLE, 0, &rest));
    for (size_t i = n; i < b->args->n; i++)
        TRY(jinja_push(r, rest.list, b->args->at[i]));
    return jinja_bind_name(r, b->scope, STR("varargs"), rest);
}

/* A macro sees the scope where it was made, not that of its caller, and its result is the text that
 * it prints. `hidden` are names that the body stores before it reads them: bound without a value,
 * they keep a variable outside of the same name from being seen (jinja_names.c). */
mpk_status jinja_call_macro(jrun *r, const jmacro *m, const jargs *args, jval *out)
{
    jscope *present = r->scope;
    binder b = {.m = m, .args = args};
    jflow flow = J_GO_ON;
    TRY(jinja_charge(r, args->n_keywords));
    NEW(r->cx, r->a, b.used, args->n_keywords);
    TRY(jinja_open_scope(r, m->scope, &(jnames){0}, &b.scope));
    r->scope = b.scope;
    TRY(bind_parameters(r, &b));
    TRY(bind_caller(r, &b));
    TRY(bind_keywords(r, &b));
    TRY(bind_rest(r, &b));
    for (size_t i = 0; i < m->node->hidden.n; i++)
        TRY(jinja_bind_name(r, b.scope, m->node->hidden.at[i], (jval){0}));
    TRY(jinja_capture(r, &m->node->body, &flow, out));
    r->scope = present;
    return MPK_OK;
}

/* Calls are counted in depth, so a macro that calls itself for ever is an error and no crash. After
 * a failure depth and line stay as they are: the run is over. */
mpk_status jinja_call(jrun *r, jval f, const jargs *args, jval *out)
{
    const uint32_t line = r->line;
    TRY(jinja_charge(r, 1));
    TRY(jinja_deeper(r));
    switch (f.kind) {
    case J_MACRO:
        TRY(jinja_call_macro(r, f.macro, args, out));
        break;
    case J_METHOD:
        if (!f.method->method->call)
            return jinja_refuse(r, "the method %s of %s is not supported", f.method->method->name,
                                jinja_type_name(f.method->self));
        TRY(f.method->method->call(r, f.method->self, args, out));
        break;
    case J_GLOBAL:
        if (!f.global->call)
            return jinja_refuse(r, "the function %s is not supported", f.global->name);
        TRY(f.global->call(r, args, out));
        break;
    case J_LOOP:
        TRY(jinja_loop_recurse(r, f.loop, args, out));
        break;
    case J_JOINER:
        *out = f.cycler->at ? f.cycler->items.at[0] : jinja_str(STR(""));
        f.cycler->at = 1;
        break;
    case J_UNDEFINED:
        return jinja_fail_undefined(r, f);
    default:
        return jinja_fail(r, "%s cannot be called", jinja_type_name(f));
    }
    r->depth--;
    r->line = line;
    return MPK_OK;
}
