/* jinja_names.c - a tree -> what its names, filters and tests mean, as far as the text alone
 * decides it.
 *
 * Jinja2 compiles a template to Python functions, and this shows: a name that a scope stores, and
 * that is in no scope around it, is that scope's own from its beginning, so that even a variable
 * of the caller by that name is not seen before the store; unless the first mention is a read, or
 * lies in a branch of an if.  Such names are listed as hidden.  A macro takes caller, kwargs and
 * varargs only if its body mentions them.  A filter or test that does not exist is an error of the
 * template, but inside a branch only if it is reached.
 *
 * An example of hiding, with x given by the caller:
 *
 *   {% for i in l %}{{ x }}{% endfor %}{% set x = 1 %}{{ x }}
 *
 * Jinja2 compiles the template to a function in which x is a local variable, and prints nothing
 * for x inside the loop.  So the template's scope lists x as hidden: it is there from the
 * beginning, without a value, and lookup stops at it.
 *
 * Two walks over each scope: its own nodes in the order of Jinja2's compiler, and then the scopes
 * inside it, which were put aside (`inside`).  Called by jinja_parse once the tree is complete;
 * the tree does not change any more after it.  Time: nodes times the depth of scopes. */
#include "jinja/jinja_parts.h"

/* The part of a node that is a scope of its own: all of it, or of a for its body, its else, or its
 * condition. */
typedef enum region { WHOLE, LOOP_BODY, LOOP_ELSE, LOOP_TEST } region;

/* A scope that is looked at later. */
typedef struct pending {
    jnode *n;
    region part;
} pending;

/* One scope: the names that it mentions, and the scopes inside it, which come when it is
 * complete. */
typedef struct symbols {
    mpk_context *cx;
    arena *a;
    str source;
    const struct symbols *outer;
    jnode *macro; /* of this scope itself; NULL: it is none */
    map touched;
    jnames *hidden;
    unsigned branches; /* of ifs around this place */
    VEC(pending) inside;
} symbols;

static mpk_status visit(symbols *s, jnode *n, bool soft);
static mpk_status visit_scope(const symbols *outer, jnode *n, region part);

/* The first mention of a name in this scope decides.  Hidden is a name that is stored first,
 * outside of branches, and that no scope around mentions. */
static mpk_status touch(symbols *s, str name, bool stores)
{
    if (map_get(&s->touched, name, NULL))
        return MPK_OK;
    TRY(map_put(s->cx, s->a, &s->touched, name, 1));
    for (const symbols *o = s->outer; o; o = o->outer)
        if (map_get(&o->touched, name, NULL))
            return MPK_OK;
    if (stores && !s->branches)
        PUSH(s->cx, s->a, s->hidden, name);
    return MPK_OK;
}

/* A read.  caller, kwargs and varargs mark every macro around: Jinja2 looks for them anywhere in a
 * body. */
static mpk_status load(symbols *s, str name)
{
    static const struct {
        const char *name;
        unsigned mark;
    } marks[] = {
        {"caller", J_CATCH_CALLER}, {"kwargs", J_CATCH_KWARGS}, {"varargs", J_CATCH_VARARGS}};
    unsigned mark = 0;
    for (int i = 0; i < 3; i++)
        if (str_is(name, marks[i].name))
            mark = marks[i].mark;
    for (const symbols *o = s; mark && o; o = o->outer)
        if (o->macro)
            o->macro->catches |= mark;
    return touch(s, name, false);
}

/* Each node of the list, in order. */
static mpk_status visit_all(symbols *s, const jnodes *list, bool soft)
{
    for (size_t i = 0; i < list->n; i++)
        TRY(visit(s, list->at[i], soft));
    return MPK_OK;
}

/* A target of set, or of for or with (parameter). */
static mpk_status visit_target(symbols *s, const jnode *n, bool parameter)
{
    if (n->kind == N_NAME)
        return touch(s, n->name, !parameter);
    if (n->kind == N_MEMBER)
        return load(s, n->name);
    for (size_t i = 0; i < n->items.n; i++)
        TRY(visit_target(s, n->items.at[i], parameter));
    return MPK_OK;
}

/* By place, by name, *, **: the order in which they are computed. */
static mpk_status visit_arguments(symbols *s, const jarguments *g, bool soft)
{
    if (!g)
        return MPK_OK;
    TRY(visit_all(s, &g->at, soft));
    TRY(visit_all(s, &g->values, soft));
    TRY(g->star ? visit(s, g->star, soft) : MPK_OK);
    return g->stars ? visit(s, g->stars, soft) : MPK_OK;
}

/* The byte of a line, for a message. */
static size_t line_start(str source, uint32_t line)
{
    size_t at = 0;
    for (; line > 1 && at < source.n; at++)
        line -= source.at[at] == '\n';
    return at;
}

/* soft: inside a branch, where an unknown name is an error only when it runs. */
static mpk_status find_record(symbols *s, jnode *n, bool soft)
{
    const bool filter = n->kind == N_FILTER;
    if (filter)
        n->filter = jinja_find_filter(n->name);
    else
        n->test = jinja_find_test(n->name);
    if (n->filter || n->test || soft)
        return MPK_OK;
    return jinja_fail_at(s->cx, MPK_EUNSUPPORTED, s->source, line_start(s->source, n->line),
                         "there is no %s %.*s", filter ? "filter" : "test", JINJA_SHOWN(n->name));
}

/* An if, with all its branches; the condition itself always runs, but Jinja2 counts it as soft
 * too. */
static mpk_status visit_branches(symbols *s, jnode *n)
{
    TRY(visit(s, n->a, true));
    s->branches++;
    TRY(visit_all(s, &n->body, true));
    TRY(visit_all(s, &n->more, true));
    TRY(visit_all(s, &n->items, true));
    s->branches--;
    return MPK_OK;
}

/* Put a scope aside until this one is complete. */
static mpk_status add_inside(symbols *s, jnode *n, region part)
{
    PUSH(s->cx, s->a, &s->inside, (pending){n, part});
    return MPK_OK;
}

/* What it runs over is computed outside of the loop's scopes. */
static mpk_status visit_for(symbols *s, jnode *n, bool soft)
{
    TRY(visit(s, n->b, soft));
    TRY(add_inside(s, n, LOOP_BODY));
    if (n->c)
        TRY(add_inside(s, n, LOOP_TEST));
    return add_inside(s, n, LOOP_ELSE);
}

/* In the order in which Jinja2's compiler looks at the parts: it decides which mention is the
 * first. Whether a name is first read or first set within a block decides whose variable it is;
 * Jinja2 decides it when it compiles, so it is decided here before the template runs. */
static mpk_status visit_statement(symbols *s, jnode *n, bool soft)
{
    switch (n->kind) {
    case N_FOR:
        return visit_for(s, n, soft);
    case N_IF:
        return visit_branches(s, n);
    case N_SET:
        TRY(visit(s, n->b, soft));
        return visit_target(s, n->a, false);
    case N_SET_BLOCK:
        TRY(visit_target(s, n->a, false));
        return add_inside(s, n, WHOLE);
    case N_MACRO:
        TRY(touch(s, n->name, true));
        return add_inside(s, n, WHOLE);
    case N_CALL_BLOCK:
        TRY(visit(s, n->a, soft));
        return add_inside(s, n, WHOLE);
    case N_WITH:
        TRY(visit_all(s, &n->more, soft));
        return add_inside(s, n, WHOLE);
    default:
        return add_inside(s, n, WHOLE);
    }
}

/* soft: in a branch, where what does not exist matters only if it is reached. */
static mpk_status visit(symbols *s, jnode *n, bool soft)
{
    if (n->kind == N_NAME)
        return load(s, n->name);
    if (n->kind == N_TEXT || n->kind == N_BREAK || n->kind == N_CONTINUE)
        return MPK_OK;
    if (n->kind > N_PRINT)
        return visit_statement(s, n, soft);
    soft |= n->kind == N_CHOICE;
    if (n->kind == N_FILTER || n->kind == N_TEST)
        TRY(find_record(s, n, soft));
    TRY(n->a ? visit(s, n->a, soft) : MPK_OK);
    TRY(n->b ? visit(s, n->b, soft) : MPK_OK);
    TRY(n->c ? visit(s, n->c, soft) : MPK_OK);
    TRY(visit_all(s, &n->items, soft));
    return visit_arguments(s, n->arguments, soft);
}

/* ---- scopes ---- */

/* Three regions with a scope each: the condition, the body, and the else. */
static mpk_status visit_loop(symbols *s, jnode *n, region part)
{
    if (part == LOOP_ELSE)
        return visit_all(s, &n->items, false);
    TRY(visit_target(s, n->a, true));
    if (part == LOOP_TEST)
        return visit(s, n->c, false);
    TRY(touch(s, STR("loop"), false));
    return visit_all(s, &n->body, false);
}

/* Parameters come first, so that the body's stores of their names hide nothing; a call block and
 * {% generation %} are macros too. */
static mpk_status visit_macro(symbols *s, jnode *n)
{
    s->macro = n;
    for (size_t i = 0; i < n->items.n; i++)
        TRY(touch(s, n->items.at[i]->name, false));
    TRY(visit_all(s, &n->more, false));
    return visit_all(s, &n->body, false);
}

/* What belongs to this scope itself.  In a filter block and a set block the filters come after the
 * body, because Jinja2 compiles them so. */
static mpk_status visit_own(symbols *s, jnode *n, region part)
{
    switch (n->kind) {
    case N_FOR:
        return visit_loop(s, n, part);
    case N_MACRO:
    case N_CALL_BLOCK:
    case N_GENERATION:
        return visit_macro(s, n);
    case N_WITH:
        for (size_t i = 0; i < n->items.n; i++)
            TRY(visit_target(s, n->items.at[i], true));
        return visit_all(s, &n->body, false);
    case N_FILTER_BLOCK:
        TRY(visit_all(s, &n->body, false));
        return visit(s, n->a, false);
    default: /* N_SET_BLOCK */
        TRY(visit_all(s, &n->body, false));
        return n->b ? visit(s, n->b, false) : MPK_OK;
    }
}

/* The scopes that were put aside, in the order of the source. */
static mpk_status visit_inside(const symbols *s)
{
    for (size_t i = 0; i < s->inside.n; i++)
        TRY(visit_scope(s, s->inside.at[i].n, s->inside.at[i].part));
    return MPK_OK;
}

/* A new scope is finished before the scopes inside it are begun: those must know all that this one
 * mentions. */
static mpk_status visit_scope(const symbols *outer, jnode *n, region part)
{
    symbols s = {.cx = outer->cx,
                 .a = outer->a,
                 .source = outer->source,
                 .outer = outer,
                 .hidden = part == LOOP_ELSE ? &n->hidden_else : &n->hidden};
    TRY(visit_own(&s, n, part));
    return visit_inside(&s);
}

/* Fills hidden, hidden_else, catches, filter and test of the tree's nodes; the lists lie in `a`. */
mpk_status jinja_resolve_names(mpk_context *cx, arena *a, struct jinja_template *t)
{
    symbols s = {.cx = cx, .a = a, .source = t->source, .hidden = &t->hidden};
    TRY(visit_all(&s, &t->body, false));
    return visit_inside(&s);
}
