/* jinja_parse.c - tokens -> the tree of a template: text, {{ }} and statements.
 *
 * A statement's node is made by parse_statement and filled in by one function of the table
 * `statements`, which begins after the statement's name.  What nests is parsed by parse_body: from
 * the end of the opening tag through nodes up to a tag that begins with one of `ends`,
 *
 *   {% if a %}  body  {% elif b %}  body  {% else %}  items  {% endif %}
 *         ^ parse_if   ^ parse_body stops before its name: parse_if looks which of the ends it is
 *
 * Called by jinja_parse, at the end of this file; jinja_expression.c parses what stands inside the
 * tags. */
#include "jinja/jinja_parts.h"

static mpk_status parse_body(jparser *p, jnode *owner, jnodes *out, const char *const *ends);

/* ---- statements: each begins after its name and stops at the end of the tag ---- */

/* Take the %} of a tag. */
static mpk_status expect_block_end(jparser *p)
{
    if (jinja_peek(p)->kind != T_BLOCK_END)
        return jinja_unexpected(p, "%}");
    p->at++;
    return MPK_OK;
}

/* A body up to its one end, which is taken. */
static mpk_status parse_to(jparser *p, jnode *n, const char *end)
{
    TRY(parse_body(p, n, &n->body, (const char *const[]){end, NULL}));
    p->at++;
    return MPK_OK;
}

/* For children that were added before the node could know their height. */
static mpk_status grow_all(jparser *p, jnode *n, const jnodes *children)
{
    for (size_t i = 0; i < children->n; i++)
        TRY(jinja_grow(p, n, children->at[i]));
    return MPK_OK;
}

/* `loops`: how many loops a break could leave here.  In an else it leaves the loop around. */
static mpk_status parse_for(jparser *p, jnode *n)
{
    TRY(jinja_parse_target(p, false, "in", &n->a));
    if (!jinja_skip_name(p, "in"))
        return jinja_unexpected(p, "'in'");
    TRY(jinja_parse_tuple(p, false, "recursive", false, &n->b));
    if (jinja_skip_name(p, "if"))
        TRY(jinja_parse_expression(p, true, &n->c));
    n->flag = jinja_skip_name(p, "recursive");
    p->loops++;
    TRY(parse_body(p, n, &n->body, (const char *const[]){"endfor", "else", NULL}));
    p->loops--;
    bool has_else = jinja_next_is_name(p, "else");
    p->at++;
    if (has_else) {
        const unsigned loops = p->loops;
        p->loops = n->flag ? 0 : loops; /* a recursive loop is a function of its own */
        TRY(parse_body(p, n, &n->items, (const char *const[]){"endfor", NULL}));
        p->loops = loops;
        p->at++;
    }
    TRY(jinja_grow(p, n, n->a));
    TRY(jinja_grow(p, n, n->b));
    return jinja_grow(p, n, n->c);
}

/* An elif is an if without else in `more`. */
static mpk_status parse_if(jparser *p, jnode *first)
{
    for (jnode *n = first;;) {
        TRY(jinja_parse_tuple(p, false, NULL, false, &n->a));
        TRY(jinja_grow(p, first, n->a));
        TRY(parse_body(p, first, &n->body, (const char *const[]){"endif", "elif", "else", NULL}));
        bool is_elif = jinja_next_is_name(p, "elif"), is_else = jinja_next_is_name(p, "else");
        p->at++;
        if (is_else) {
            TRY(parse_body(p, first, &first->items, (const char *const[]){"endif", NULL}));
            p->at++;
        }
        if (!is_elif)
            return MPK_OK;
        TRY(jinja_node(p, N_IF, jinja_peek(p)->line, &n));
        PUSH(p->cx, p->a, &first->more, n);
    }
}

/* {% set x = ... %}, or without = a block whose text is the value, perhaps through filters. */
static mpk_status parse_set(jparser *p, jnode *n)
{
    TRY(jinja_parse_target(p, true, NULL, &n->a));
    if (jinja_skip(p, "=")) {
        TRY(jinja_parse_tuple(p, true, NULL, false, &n->b));
        return jinja_grow(p, n, n->b);
    }
    n->kind = N_SET_BLOCK;
    if (jinja_next_is(p, "|"))
        TRY(jinja_parse_filters(p, NULL, false, &n->b));
    TRY(jinja_grow(p, n, n->b));
    return parse_to(p, n, "endset");
}

/* (a, b=1) of a macro or a call block. Defaults are in n->more, from the first parameter that has
 * one on. */
static mpk_status parse_parameters(jparser *p, jnode *n)
{
    TRY(jinja_expect(p, "("));
    while (!jinja_next_is(p, ")")) {
        if (n->items.n)
            TRY(jinja_expect(p, ","));
        jnode *name, *value;
        TRY(jinja_node(p, N_NAME, jinja_peek(p)->line, &name));
        TRY(jinja_expect_name(p, &name->name));
        for (size_t i = 0; i < n->items.n; i++)
            if (str_equal(n->items.at[i]->name, name->name))
                return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, jinja_peek(p)->at - 1,
                                     "two parameters have the name %.*s", JINJA_SHOWN(name->name));
        PUSH(p->cx, p->a, &n->items, name);
        if (n->items.n > JINJA_MAX_ARGS)
            return jinja_fail_at(p->cx, MPK_ELIMIT, p->tokens->source, jinja_peek(p)->at,
                                 "more than %d parameters", JINJA_MAX_ARGS);
        if (jinja_skip(p, "=")) {
            TRY(jinja_parse_expression(p, true, &value));
            PUSH(p->cx, p->a, &n->more, value);
            TRY(jinja_grow(p, n, value));
        } else if (n->more.n)
            return jinja_unexpected(p, "a default, as the parameter before has one");
    }
    return jinja_expect(p, ")");
}

/* The body is a function of its own: no loop around it can be left. */
static mpk_status parse_function_body(jparser *p, jnode *n, const char *end)
{
    unsigned loops = p->loops;
    p->loops = 0;
    TRY(parse_to(p, n, end));
    p->loops = loops;
    return MPK_OK;
}

/* Name, parameters, body.  The name is bound where the statement runs. */
static mpk_status parse_macro(jparser *p, jnode *n)
{
    TRY(jinja_expect_name(p, &n->name));
    TRY(parse_parameters(p, n));
    return parse_function_body(p, n, "endmacro");
}

/* {% call(parameters) f(x) %}: the body is a macro that f knows as caller(). */
static mpk_status parse_call_block(jparser *p, jnode *n)
{
    if (jinja_next_is(p, "("))
        TRY(parse_parameters(p, n));
    const jtoken *t = jinja_peek(p);
    TRY(jinja_parse_expression(p, true, &n->a));
    if (n->a->kind != N_CALL)
        return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at, "expected a call");
    TRY(jinja_grow(p, n, n->a));
    return parse_function_body(p, n, "endcall");
}

/* The filters apply to what the body prints; their innermost has no value (n->a is NULL). */
static mpk_status parse_filter_block(jparser *p, jnode *n)
{
    TRY(jinja_parse_filters(p, NULL, true, &n->a));
    TRY(jinja_grow(p, n, n->a));
    return parse_to(p, n, "endfilter");
}

/* Targets in `items`, their values in `more`. */
static mpk_status parse_with(jparser *p, jnode *n)
{
    while (jinja_peek(p)->kind != T_BLOCK_END) {
        jnode *target, *value;
        if (n->items.n)
            TRY(jinja_expect(p, ","));
        TRY(jinja_parse_target(p, false, NULL, &target));
        TRY(jinja_expect(p, "="));
        TRY(jinja_parse_expression(p, true, &value));
        PUSH(p->cx, p->a, &n->items, target);
        PUSH(p->cx, p->a, &n->more, value);
    }
    TRY(grow_all(p, n, &n->items));
    TRY(grow_all(p, n, &n->more));
    return parse_to(p, n, "endwith");
}

/* {% generation %} marks what the model has said, for training; what it prints is the same.  Its
 * body is a function, as the extension of Transformers makes one. */
static mpk_status parse_generation(jparser *p, jnode *n)
{
    return parse_function_body(p, n, "endgeneration");
}

/* break and continue: only where the compiler of Jinja2 would put them into a Python loop. */
static mpk_status parse_leave(jparser *p, jnode *n)
{
    (void)n;
    if (!p->loops)
        return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, jinja_peek(p)->at,
                             "there is no loop around this");
    return MPK_OK;
}

/* {% print a, b %} */
static mpk_status parse_print(jparser *p, jnode *n)
{
    while (jinja_peek(p)->kind != T_BLOCK_END) {
        jnode *item, *print;
        if (n->items.n)
            TRY(jinja_expect(p, ","));
        TRY(jinja_node(p, N_PRINT, jinja_peek(p)->line, &print));
        TRY(jinja_parse_expression(p, true, &item));
        print->a = item;
        TRY(jinja_grow(p, print, item));
        TRY(jinja_grow(p, n, print));
        PUSH(p->cx, p->a, &n->items, print);
    }
    return MPK_OK;
}

static const struct {
    const char *name;
    jnode_kind kind;
    mpk_status (*parse)(jparser *p, jnode *n);
} statements[] = {
    {"for", N_FOR, parse_for},
    {"if", N_IF, parse_if},
    {"set", N_SET, parse_set},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALL_BLOCK, parse_call_block},
    {"filter", N_FILTER_BLOCK, parse_filter_block},
    {"with", N_WITH, parse_with},
    {"generation", N_GENERATION, parse_generation},
    {"break", N_BREAK, parse_leave},
    {"continue", N_CONTINUE, parse_leave},
    {"print", N_PRINT, parse_print},
};

/* Statements of Jinja2 that chat templates do not use are refused by name, others are unknown.
 * ends[0] is what was expected, for the message: "unknown statement endfi, expected endif". */
static mpk_status parse_statement(jparser *p, const char *const *ends, jnode **out)
{
    static const char *const refused[] = {"block",  "extends", "include",
                                          "import", "from",    "autoescape"};
    const jtoken *t = jinja_peek(p);
    str name = {0};
    TRY(jinja_expect_name(p, &name));
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (str_is(name, statements[i].name)) {
            TRY(jinja_node(p, statements[i].kind, t->line, out));
            return statements[i].parse(p, *out);
        }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (str_is(name, refused[i]))
            return jinja_fail_at(p->cx, MPK_EUNSUPPORTED, p->tokens->source, t->at,
                                 "the statement %s is not supported", refused[i]);
    if (ends)
        return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at,
                             "unknown statement %.*s, expected %s", JINJA_SHOWN(name), ends[0]);
    return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at, "unknown statement %.*s",
                         JINJA_SHOWN(name));
}

/* Is the name of the statement that begins here one of the ends? */
static bool ends_here(const jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jinja_next_is_name(p, *ends))
            return true;
    return false;
}

/* Data between tags, or a {{ }}. */
static mpk_status parse_text(jparser *p, const jtoken *t, jnode **out)
{
    p->at++;
    TRY(jinja_node(p, t->kind == T_DATA ? N_TEXT : N_PRINT, t->line, out));
    if (t->kind == T_DATA) {
        (*out)->name = t->text;
        return MPK_OK;
    }
    TRY(jinja_parse_tuple(p, true, NULL, false, &(*out)->a));
    TRY(jinja_grow(p, *out, (*out)->a));
    if (jinja_peek(p)->kind != T_PRINT_END)
        return jinja_unexpected(p, "}}");
    p->at++;
    return MPK_OK;
}

/* Up to a statement that is one of the ends, whose name is next then; NULL: up to the end of the
 * template. The caller reads the end itself: after {% if %} it may be elif, else or endif. */
static mpk_status parse_nodes(jparser *p, jnode *owner, jnodes *out, const char *const *ends)
{
    for (;;) {
        const jtoken *t = jinja_peek(p);
        jnode *n;
        if (t->kind == T_END)
            return ends ? jinja_unexpected(p, ends[0]) : MPK_OK;
        if (t->kind == T_BLOCK) {
            p->at++;
            if (ends_here(p, ends))
                return MPK_OK;
            TRY(parse_statement(p, ends, &n));
            TRY(expect_block_end(p));
        } else
            TRY(parse_text(p, t, &n));
        PUSH(p->cx, p->a, out, n);
        if (owner)
            TRY(jinja_grow(p, owner, n));
    }
}

/* From the end of the opening tag up to one of the names in `ends`, which the caller consumes.  A
 * colon may follow the tag, as in Jinja2. */
static mpk_status parse_body(jparser *p, jnode *owner, jnodes *out, const char *const *ends)
{
    if (p->depth >= JINJA_MAX_HEIGHT)
        return jinja_fail_at(p->cx, MPK_ELIMIT, p->tokens->source, jinja_peek(p)->at,
                             "more than %d levels are nested here", JINJA_MAX_HEIGHT);
    p->depth++;
    jinja_skip(p, ":");
    TRY(expect_block_end(p));
    TRY(parse_nodes(p, owner, out, ends));
    p->depth--;
    return MPK_OK;
}

/* The template keeps pointers into `a`, and the source that it was made of. */
mpk_status jinja_parse(mpk_context *cx, arena *a, str source, const jinja_template **out)
{
    struct jinja_template *t;
    jtokens tokens = {0};
    NEW(cx, a, t, 1);
    TRY(jinja_lex(cx, a, source, &tokens));
    jparser p = {.cx = cx, .a = a, .tokens = &tokens};
    t->source = tokens.source;
    TRY(parse_nodes(&p, NULL, &t->body, NULL));
    TRY(jinja_resolve_names(cx, a, t));
    *out = t;
    return MPK_OK;
}
