/* jinja_eval.c - expressions -> values.
 *
 * jinja_eval is the one entry for an expression; eval_kind sends it to a function for its kind of
 * node.  Values are small and passed by value; what they point to lies in the run's arena until
 * the rendering ends.  Called by every file that runs statements, filters or tests. */
#include "jinja/jinja_parts.h"

#include <stdio.h>

/* Fail: an error of the template or of its input, reported at the line of the node that is
 * evaluated. */
mpk_status jinja_fail(jrun *r, const char *format, ...)
{
    char words[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    FAIL(r->cx, MPK_EFORMAT, "chat template, line %u: %s", r->line, words);
}

/* Fail: a feature that Jinja2 has and this implementation does not.  The caller may then try
 * another template or report it. */
mpk_status jinja_refuse(jrun *r, const char *format, ...)
{
    char words[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    FAIL(r->cx, MPK_EUNSUPPORTED, "chat template, line %u: %s", r->line, words);
}

mpk_status jinja_refuse_big(jrun *r)
{
    return jinja_refuse(r, "integers beyond 64 bits are not supported");
}

/* Steps are counted in units of 32 bytes, so that a step costs about the same time whatever it
 * works on. */
mpk_status jinja_work(jrun *r, uint64_t bytes)
{
    r->steps += bytes / 32 + 1;
    CHECK(r->cx, r->steps <= JINJA_MAX_STEPS, MPK_ELIMIT,
          "chat template, line %u: it does not come to an end after %d steps", r->line,
          JINJA_MAX_STEPS);
    return MPK_OK;
}

/* Before an allocation of this many bytes: work, and the run's share of memory. */
mpk_status jinja_charge(jrun *r, size_t bytes)
{
    TRY(jinja_work(r, bytes));
    CHECK(r->cx, bytes <= JINJA_MAX_MEMORY && r->a->reserved_bytes <= JINJA_MAX_MEMORY - bytes,
          MPK_ELIMIT, "chat template, line %u: it takes more than %zu MiB of memory", r->line,
          JINJA_MAX_MEMORY >> 20);
    return MPK_OK;
}

/* Enter one more level of nesting; the caller leaves it with r->depth--. */
mpk_status jinja_deeper(jrun *r)
{
    CHECK(r->cx, r->depth < JINJA_MAX_DEPTH, MPK_ELIMIT,
          "chat template, line %u: more than %d levels deep", r->line, JINJA_MAX_DEPTH);
    r->depth++;
    return MPK_OK;
}

/* ---- calls ---- */

/* *list in a call: its items become arguments by place. */
static mpk_status spread_items(jrun *r, const jnode *star, jlist *all)
{
    jval over, list;
    TRY(jinja_eval(r, star, &over));
    TRY(jinja_collect(r, over, &list));
    for (size_t i = 0; i < list.list->n; i++)
        TRY(jinja_push(r, all, list.list->at[i]));
    return MPK_OK;
}

typedef VEC(jkeyword) keywords;

/* Names are compared with all before them, which is charged: **dict may bring many. */
static mpk_status add_keyword(jrun *r, keywords *all, str name, jval value)
{
    for (size_t i = 0; i < all->n; i++)
        if (str_equal(all->at[i].name, name))
            return jinja_fail(r, "the argument %.*s is given twice", JINJA_SHOWN(name));
    TRY(jinja_charge(r, all->n + sizeof(jkeyword)));
    PUSH(r->cx, r->a, all, ((jkeyword){name, value}));
    return MPK_OK;
}

/* **dict in a call: its entries become arguments by name, and a name may come once only. */
static mpk_status spread_keywords(jrun *r, const jnode *stars, keywords *all)
{
    jval from;
    TRY(jinja_eval(r, stars, &from));
    if (from.kind != J_DICT)
        return jinja_fail(r, "%s after ** is not a dict", jinja_type_name(from));
    for (size_t i = 0; i < from.dict->n; i++) {
        if (from.dict->at[i].key.kind != J_STR)
            return jinja_fail(r, "the names of arguments are strings");
        TRY(add_keyword(r, all, from.dict->at[i].key.text, from.dict->at[i].value));
    }
    return MPK_OK;
}

/* Arguments are computed from left to right: those by place, *list, those by name, **dict, as
 * Python does. The order shows where computing an argument has an effect, as calling a cycler has.
 * What is returned lies in the run's arena. */
mpk_status jinja_eval_arguments(jrun *r, const jarguments *from, jargs *to)
{
    jval list, value;
    keywords all = {0};
    *to = (jargs){0};
    if (!from)
        return MPK_OK;
    TRY(jinja_make_list(r, J_LIST, from->at.n, &list));
    for (size_t i = 0; i < from->at.n; i++) {
        TRY(jinja_eval(r, from->at.at[i], &value));
        TRY(jinja_push(r, list.list, value));
    }
    if (from->star)
        TRY(spread_items(r, from->star, list.list));
    for (size_t i = 0; i < from->names.n; i++) {
        TRY(jinja_eval(r, from->values.at[i], &value));
        TRY(add_keyword(r, &all, from->names.at[i], value));
    }
    if (from->stars)
        TRY(spread_keywords(r, from->stars, &all));
    *to = (jargs){list.list->at, list.list->n, all.at, all.n};
    return MPK_OK;
}

/* The line is set again after the arguments were evaluated, which may stand on other lines.  The
 * functions below do the same. */
static mpk_status eval_call(jrun *r, const jnode *n, jval *out)
{
    jval f;
    jargs args;
    TRY(jinja_eval(r, n->a, &f));
    TRY(jinja_eval_arguments(r, n->arguments, &args));
    r->line = n->line;
    return jinja_call(r, f, &args, out);
}

/* Apply the filter of a node to a subject that is already computed. */
static mpk_status apply_filter(jrun *r, const jnode *n, jval subject, jval *out)
{
    jargs args;
    TRY(jinja_eval_arguments(r, n->arguments, &args));
    r->line = n->line;
    if (!n->filter || !n->filter->call)
        return jinja_refuse(r, "the filter %.*s is not supported", JINJA_SHOWN(n->name));
    return n->filter->call(r, subject, &args, out);
}

/* The innermost filter runs first: the chain of a filter block ends in a node without a value. */
mpk_status jinja_eval_filters(jrun *r, const jnode *n, jval subject, jval *out)
{
    if (n->a)
        TRY(jinja_eval_filters(r, n->a, subject, &subject));
    return apply_filter(r, n, subject, out);
}

static mpk_status eval_filter(jrun *r, const jnode *n, jval *out)
{
    jval subject;
    TRY(jinja_eval(r, n->a, &subject));
    return apply_filter(r, n, subject, out);
}

/* An unknown test is found when the template is read, unless it lies in a branch (jinja_names.c);
 * then only reaching it is an error. */
static mpk_status eval_test(jrun *r, const jnode *n, jval *out)
{
    jval subject;
    jargs args;
    bool holds = false;
    TRY(jinja_eval(r, n->a, &subject));
    TRY(jinja_eval_arguments(r, n->arguments, &args));
    r->line = n->line;
    if (!n->test)
        return jinja_refuse(r, "the test %.*s is not supported", JINJA_SHOWN(n->name));
    TRY(n->test->call(r, subject, &args, &holds));
    *out = jinja_bool(holds);
    return MPK_OK;
}

/* ---- the rest ---- */

/* A list or a tuple. */
static mpk_status eval_items(jrun *r, const jnode *n, jval *out)
{
    jval item;
    TRY(jinja_make_list(r, n->kind == N_LIST ? J_LIST : J_TUPLE, n->items.n, out));
    for (size_t i = 0; i < n->items.n; i++) {
        TRY(jinja_eval(r, n->items.at[i], &item));
        TRY(jinja_push(r, out->list, item));
    }
    return MPK_OK;
}

/* Keys and values alternate in `items`; a key that comes twice has its last value and its first
 * place. */
static mpk_status eval_dict(jrun *r, const jnode *n, jval *out)
{
    jval key, item;
    TRY(jinja_make_dict(r, out));
    for (size_t i = 0; i < n->items.n; i += 2) {
        TRY(jinja_eval(r, n->items.at[i], &key));
        TRY(jinja_check_hashable(r, key));
        TRY(jinja_eval(r, n->items.at[i + 1], &item));
        TRY(jinja_dict_put(r, out->dict, key, item));
    }
    return MPK_OK;
}

/* `~` converts both sides to text.  jinja_binary concatenates them: it can append without
 * copying and knows the rules for marked-safe text. */
static mpk_status eval_concat(jrun *r, const jnode *n, jval *out)
{
    jval joined = jinja_str(STR("")), item;
    for (size_t i = 0; i < n->items.n; i++) {
        TRY(jinja_eval(r, n->items.at[i], &item));
        str s = {0};
        TRY(jinja_to_str(r, item, &s));
        TRY(jinja_binary(r, '+', joined, jinja_str(s), &joined));
    }
    *out = joined;
    return MPK_OK;
}

/* a < b < c means a < b and b < c, with b computed once; evaluation stops at the first
 * comparison that is false. */
static mpk_status eval_compare(jrun *r, const jnode *n, jval *out)
{
    jval left, right;
    bool holds = true;
    TRY(jinja_eval(r, n->a, &left));
    for (size_t i = 0; i < n->items.n && holds; i++) {
        TRY(jinja_eval(r, n->items.at[i]->a, &right));
        r->line = n->line;
        TRY(jinja_compare(r, n->items.at[i]->op, left, right, &holds));
        left = right;
    }
    *out = jinja_bool(holds);
    return MPK_OK;
}

/* The line is set again: computing the operands may have left that of another. */
static mpk_status eval_binary(jrun *r, const jnode *n, jval *out)
{
    jval left, right;
    TRY(jinja_eval(r, n->a, &left));
    TRY(jinja_eval(r, n->b, &right));
    r->line = n->line;
    return jinja_binary(r, n->op, left, right, out);
}

/* `and` and `or` return one of their operands, not a boolean, and evaluate the second only if
 * the first does not decide. */
static mpk_status eval_logic(jrun *r, const jnode *n, jval *out)
{
    TRY(jinja_eval(r, n->a, out));
    return jinja_true(*out) == (n->kind == N_AND) ? jinja_eval(r, n->b, out) : MPK_OK;
}

/* `x if t else y`; without an else the value is undefined, which prints as empty text. */
static mpk_status eval_choice(jrun *r, const jnode *n, jval *out)
{
    jval test;
    TRY(jinja_eval(r, n->b, &test));
    if (jinja_true(test))
        return jinja_eval(r, n->a, out);
    *out = jinja_undefined(STR("an if without else"));
    return n->c ? jinja_eval(r, n->c, out) : MPK_OK;
}

/* A bound that is left out stays J_ABSENT, which is told from none. */
static mpk_status eval_slice(jrun *r, const jnode *n, jval v, jval *out)
{
    jval parts[3] = {{0}};
    const jnode *const from[3] = {n->a, n->b, n->c};
    for (int i = 0; i < 3; i++)
        if (from[i])
            TRY(jinja_eval(r, from[i], &parts[i]));
    r->line = n->line;
    return jinja_get_slice(r, v, parts[0], parts[1], parts[2], out);
}

/* a.name, a[key] and a[slice]. */
static mpk_status eval_member(jrun *r, const jnode *n, jval *out)
{
    jval v, key;
    TRY(jinja_eval(r, n->a, &v));
    if (n->kind == N_ITEM && n->b->kind == N_SLICE)
        return eval_slice(r, n->b, v, out);
    if (n->kind == N_ITEM)
        TRY(jinja_eval(r, n->b, &key));
    r->line = n->line;
    return n->kind == N_ITEM ? jinja_get_item(r, v, key, out)
                             : jinja_get_attribute(r, v, n->name, out);
}

/* N_SIGN: + or -; otherwise `not`, which gives a boolean of any value. */
static mpk_status eval_unary(jrun *r, const jnode *n, jval *out)
{
    jval v;
    TRY(jinja_eval(r, n->a, &v));
    r->line = n->line;
    if (n->kind == N_SIGN)
        return jinja_sign(r, n->op, v, out);
    *out = jinja_bool(!jinja_true(v));
    return MPK_OK;
}

/* Kinds that are statements never come here: the parser makes no expression of them. */
static mpk_status eval_kind(jrun *r, const jnode *n, jval *out)
{
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return MPK_OK;
    case N_NAME:
        return jinja_lookup(r, n->name, out);
    case N_TUPLE:
    case N_LIST:
        return eval_items(r, n, out);
    case N_DICT:
        return eval_dict(r, n, out);
    case N_NOT:
    case N_SIGN:
        return eval_unary(r, n, out);
    case N_BINARY:
        return eval_binary(r, n, out);
    case N_AND:
    case N_OR:
        return eval_logic(r, n, out);
    case N_CONCAT:
        return eval_concat(r, n, out);
    case N_COMPARE:
        return eval_compare(r, n, out);
    case N_CHOICE:
        return eval_choice(r, n, out);
    case N_ATTRIBUTE:
    case N_ITEM:
        return eval_member(r, n, out);
    case N_CALL:
        return eval_call(r, n, out);
    case N_FILTER:
        return eval_filter(r, n, out);
    default: /* N_TEST */
        return eval_test(r, n, out);
    }
}

/* Every expression is charged and counted in depth here, so no template runs for ever or overflows
 * the stack.  After an error `depth` is not restored: nothing runs any more. */
mpk_status jinja_eval(jrun *r, const jnode *n, jval *out)
{
    r->line = n->line;
    TRY(jinja_charge(r, 1));
    TRY(jinja_deeper(r));
    TRY(eval_kind(r, n, out));
    r->depth--;
    return MPK_OK;
}
