/* jinja_expression.c - tokens -> the tree of an expression, by recursive descent.
 *
 * From loosest to tightest: choice, or, and, not, comparison, + -, ~, * / // %, **, sign, then
 * what follows a value: .name [item] (call), and after these | filter and `is` test.  So Jinja2
 * has it: a filter binds tighter than an operator, and ** is grouped from the left.
 *
 * The tree of  a.b[0]|upper ~ -2 if not x is none  from the outside to the inside:
 *
 *   N_CHOICE
 *     a  N_CONCAT: N_FILTER upper ( N_ITEM ( N_ATTRIBUTE b ( N_NAME a ), 0 ) ), N_SIGN - ( 2 )
 *     b  N_NOT ( N_TEST none ( N_NAME x ) )
 *     c  NULL
 *
 * Each parse_ function starts at the next token, takes what belongs to it, and gives the node in
 * *out; after an error the parser is not used again, so depths need not be restored.  Nodes lie in
 * the parser's arena.  The depth of recursion is bounded in parse_unary, parse_not and
 * jinja_parse_expression, the height of trees in jinja_grow: a chain a + b + c makes the tree
 * higher without recursion. */
#include "jinja/jinja_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static mpk_status parse_or(jparser *p, jnode **out);
static mpk_status parse_unary(jparser *p, bool with_filter, jnode **out);

/* ---- the next token ---- */

/* Tokens are compared by kind and text: a string "(" is not the operator (. */
bool jinja_next_is(const jparser *p, const char *op)
{
    return jinja_peek(p)->kind == T_OPERATOR && str_is(jinja_peek(p)->text, op);
}

bool jinja_next_is_name(const jparser *p, const char *name)
{
    return jinja_peek(p)->kind == T_NAME && str_is(jinja_peek(p)->text, name);
}

bool jinja_skip(jparser *p, const char *op)
{
    bool is = jinja_next_is(p, op);
    p->at += is;
    return is;
}

bool jinja_skip_name(jparser *p, const char *name)
{
    bool is = jinja_next_is_name(p, name);
    p->at += is;
    return is;
}

/* A string token's text has no quotes, so what stands in the source is shown instead.  expected:
 * in the message's words, with its quotes. */
mpk_status jinja_unexpected(const jparser *p, const char *expected)
{
    const jtoken *t = jinja_peek(p);
    if (t->kind == T_END)
        return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at,
                             "the template ends, expected %s", expected);
    str source = {p->tokens->source.at + t->at, p->tokens->source.n - t->at};
    str shown = t->kind == T_STRING ? (str){source.at, source.n < 20 ? source.n : 20} : t->text;
    return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at, "expected %s, found %.*s",
                         expected, (int)(shown.n < 40 ? shown.n : 40), shown.at);
}

mpk_status jinja_expect(jparser *p, const char *op)
{
    char quoted[8];
    snprintf(quoted, sizeof quoted, "'%s'", op);
    return jinja_skip(p, op) ? MPK_OK : jinja_unexpected(p, quoted);
}

mpk_status jinja_expect_name(jparser *p, str *out)
{
    if (jinja_peek(p)->kind != T_NAME)
        return jinja_unexpected(p, "a name");
    *out = jinja_peek(p)->text;
    p->at++;
    return MPK_OK;
}

/* ---- nodes ---- */

/* height 1: jinja_grow raises it as children come, and refuses too high a tree. */
mpk_status jinja_node(jparser *p, jnode_kind kind, uint32_t line, jnode **out)
{
    NEW(p->cx, p->a, *out, 1);
    (*out)->kind = kind;
    (*out)->line = line;
    (*out)->height = 1;
    return MPK_OK;
}

/* A node's height is checked when a child is added, because the walks over the tree are
 * recursive and rely on the limit. */
mpk_status jinja_grow(jparser *p, jnode *parent, const jnode *child)
{
    if (child && child->height >= parent->height)
        parent->height = child->height + 1;
    if (parent->height > JINJA_MAX_HEIGHT)
        return jinja_fail_at(p->cx, MPK_ELIMIT, p->tokens->source, jinja_peek(p)->at,
                             "more than %d levels are nested here", JINJA_MAX_HEIGHT);
    return MPK_OK;
}

/* Append a child to a list of the parent and update the parent's height. */
static mpk_status add_item(jparser *p, jnode *parent, jnodes *list, jnode *child)
{
    PUSH(p->cx, p->a, list, child);
    return jinja_grow(p, parent, child);
}

/* A node with two operands; its line is that of the left one, where a reader looks for the
 * error. */
static mpk_status make_pair(jparser *p, jnode_kind kind, int op, jnode *left, jnode *right,
                            jnode **out)
{
    jnode *n;
    TRY(jinja_node(p, kind, left->line, &n));
    n->op = op;
    n->a = left;
    n->b = right;
    TRY(jinja_grow(p, n, left));
    TRY(jinja_grow(p, n, right));
    *out = n;
    return MPK_OK;
}

/* ---- literals ---- */

/* Of an integer that begins 0x, 0o or 0b; else 10.  mark: its second character in lower case. */
static int base_of(char mark)
{
    switch (mark) {
    case 'x':
        return 16;
    case 'o':
        return 8;
    case 'b':
        return 2;
    default:
        return 10;
    }
}

/* Digits as the lexer took them: with underscores, and perhaps 0x, 0o or 0b, which strtoll does
 * not all know.  A minus sign is an operator, so 9223372036854775808 is refused even after one. */
static mpk_status read_integer(jparser *p, const jtoken *t, jval *out)
{
    char digits[128];
    size_t n = 0;
    for (size_t i = 0; i < t->text.n && n < sizeof digits - 1; i++)
        if (t->text.at[i] != '_')
            digits[n++] = t->text.at[i];
    digits[n] = 0;
    const int base = base_of(n > 1 ? (char)(digits[1] | 0x20) : 0);
    char *end = digits;
    errno = 0;
    long long value = strtoll(digits + (base == 10 ? 0 : 2), &end, base);
    if (errno || *end || n == sizeof digits - 1)
        return jinja_fail_at(p->cx, MPK_EUNSUPPORTED, p->tokens->source, t->at,
                             "integers beyond 64 bits are not supported");
    *out = jinja_int(value);
    return MPK_OK;
}

/* 127 characters hold every double with all its digits; a longer spelling is refused rather than
 * cut. */
static mpk_status read_float(jparser *p, const jtoken *t, jval *out)
{
    char digits[128];
    size_t n = 0;
    double x = 0;
    for (size_t i = 0; i < t->text.n && n < sizeof digits; i++)
        if (t->text.at[i] != '_')
            digits[n++] = t->text.at[i];
    if (n == sizeof digits || !str_read_double((str){digits, n}, &x))
        return jinja_fail_at(p->cx, MPK_EUNSUPPORTED, p->tokens->source, t->at,
                             "this number is too long");
    *out = jinja_float(x);
    return MPK_OK;
}

/* Strings side by side are one.  Their length is found first: joining them one by one would take
 * time and memory that grow with the square of their number. */
static mpk_status read_strings(jparser *p, jval *out)
{
    const jtoken *part = jinja_peek(p);
    size_t n = 0;
    char *all;
    for (; part->kind == T_STRING; part++)
        n += part->text.n;
    NEW(p->cx, p->a, all, n + 1);
    *out = jinja_str((str){all, n});
    for (; jinja_peek(p) < part; p->at++) {
        const str s = jinja_peek(p)->text;
        if (s.n)
            memcpy(all, s.at, s.n);
        all += s.n;
    }
    return MPK_OK;
}

/* true, false and none are constants in both spellings, everywhere: a variable cannot have these
 * names. */
static mpk_status parse_name(jparser *p, jnode **out)
{
    const jtoken *t = jinja_peek(p);
    jnode *n;
    TRY(jinja_node(p, N_NAME, t->line, &n));
    p->at++;
    n->name = t->text;
    bool is_true = str_is(t->text, "true") || str_is(t->text, "True");
    if (is_true || str_is(t->text, "false") || str_is(t->text, "False"))
        n->value = jinja_bool(is_true);
    else if (str_is(t->text, "none") || str_is(t->text, "None"))
        n->value = jinja_none();
    if (n->value.kind != J_ABSENT)
        n->kind = N_CONST;
    *out = n;
    return MPK_OK;
}

/* [a, b] after its bracket. */
static mpk_status parse_list(jparser *p, jnode *n)
{
    jnode *item;
    while (!jinja_next_is(p, "]")) {
        if (n->items.n)
            TRY(jinja_expect(p, ","));
        if (jinja_next_is(p, "]"))
            break;
        TRY(jinja_parse_expression(p, true, &item));
        TRY(add_item(p, n, &n->items, item));
    }
    return jinja_expect(p, "]");
}

/* A comma may stand after the last entry.  Keys and values alternate in items. */
static mpk_status parse_dict(jparser *p, jnode *n)
{
    jnode *key, *item;
    while (!jinja_next_is(p, "}")) {
        if (n->items.n)
            TRY(jinja_expect(p, ","));
        if (jinja_next_is(p, "}"))
            break;
        TRY(jinja_parse_expression(p, true, &key));
        TRY(jinja_expect(p, ":"));
        TRY(jinja_parse_expression(p, true, &item));
        TRY(add_item(p, n, &n->items, key));
        TRY(add_item(p, n, &n->items, item));
    }
    return jinja_expect(p, "}");
}

/* Parentheses make a tuple only with a comma, or when empty. */
static mpk_status parse_bracket(jparser *p, jnode **out)
{
    uint32_t line = jinja_peek(p)->line;
    if (jinja_skip(p, "(")) {
        TRY(jinja_parse_tuple(p, true, NULL, true, out));
        return jinja_expect(p, ")");
    }
    bool list = jinja_skip(p, "[");
    if (!list && !jinja_skip(p, "{"))
        return jinja_unexpected(p, "an expression");
    TRY(jinja_node(p, list ? N_LIST : N_DICT, line, out));
    return list ? parse_list(p, *out) : parse_dict(p, *out);
}

/* A name, a literal, or an expression in brackets. */
static mpk_status parse_primary(jparser *p, jnode **out)
{
    const jtoken *t = jinja_peek(p);
    if (t->kind == T_NAME)
        return parse_name(p, out);
    if (t->kind != T_STRING && t->kind != T_INTEGER && t->kind != T_FLOAT)
        return parse_bracket(p, out);
    TRY(jinja_node(p, N_CONST, t->line, out));
    if (t->kind == T_STRING)
        return read_strings(p, &(*out)->value);
    p->at++;
    return t->kind == T_INTEGER ? read_integer(p, t, &(*out)->value)
                                : read_float(p, t, &(*out)->value);
}

/* ---- what follows a value ---- */

/* The content of the brackets of a[...]: an expression, or start:stop:step. a[1:] is N_SLICE(1,
 * none, none): an omitted bound is NULL, which is not the same as none written out. */
static mpk_status parse_subscript(jparser *p, jnode **out)
{
    uint32_t line = jinja_peek(p)->line;
    jnode *parts[3] = {0}, *n;
    if (!jinja_next_is(p, ":"))
        TRY(jinja_parse_expression(p, true, &parts[0]));
    if (!jinja_next_is(p, ":")) {
        *out = parts[0];
        return MPK_OK;
    }
    for (int i = 1; i < 3 && jinja_skip(p, ":"); i++)
        if (!jinja_next_is(p, ":") && !jinja_next_is(p, "]") && !jinja_next_is(p, ","))
            TRY(jinja_parse_expression(p, true, &parts[i]));
    TRY(jinja_node(p, N_SLICE, line, &n));
    n->a = parts[0], n->b = parts[1], n->c = parts[2];
    for (int i = 0; i < 3; i++)
        TRY(jinja_grow(p, n, parts[i]));
    *out = n;
    return MPK_OK;
}

/* Between brackets: one of these, or several as a tuple. */
static mpk_status parse_subscripts(jparser *p, jnode **out)
{
    jnode *n, *item;
    TRY(jinja_node(p, N_TUPLE, jinja_peek(p)->line, &n));
    while (!jinja_next_is(p, "]")) {
        if (n->items.n)
            TRY(jinja_expect(p, ","));
        TRY(parse_subscript(p, &item));
        if (item->kind == N_SLICE && (n->items.n || jinja_next_is(p, ",")))
            return jinja_fail_at(p->cx, MPK_EUNSUPPORTED, p->tokens->source, jinja_peek(p)->at,
                                 "a slice beside other keys is not supported");
        TRY(add_item(p, n, &n->items, item));
    }
    p->at++;
    *out = n->items.n == 1 ? n->items.at[0] : n;
    return MPK_OK;
}

/* .name, .0 or [...].  a.b asks for an attribute before an item, a["b"] the other way round, hence
 * two kinds of nodes; a.0 is a[0]. */
static mpk_status parse_member(jparser *p, jnode **node)
{
    const jtoken *t = jinja_peek(p);
    jnode *n, *key;
    TRY(jinja_node(p, N_ITEM, t->line, &n));
    n->a = *node;
    p->at++;
    if (str_is(t->text, "[")) {
        TRY(parse_subscripts(p, &n->b));
    } else if (jinja_peek(p)->kind == T_INTEGER) {
        TRY(parse_primary(p, &key));
        n->b = key;
    } else {
        n->kind = N_ATTRIBUTE;
        TRY(jinja_expect_name(p, &n->name));
    }
    TRY(jinja_grow(p, n, n->a));
    TRY(jinja_grow(p, n, n->b));
    *node = n;
    return MPK_OK;
}

/* At the call's opening parenthesis, as the fault lies between its arguments. */
static mpk_status bad_call(const jparser *p, const jtoken *t)
{
    return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at,
                         "the arguments of this call are out of order");
}

/* One argument of a call.  The order is Python's: by place, then *list (one), by name, then **dict
 * (one) at the end.  begin: the opening parenthesis, for messages; owner: the node whose arguments
 * these are. */
static mpk_status parse_argument(jparser *p, const jtoken *begin, jarguments *g, jnode *owner)
{
    const jtoken *t = jinja_peek(p);
    jnode *item;
    const bool star = jinja_skip(p, "*"), stars = !star && jinja_skip(p, "**");
    bool keyword = false;
    if ((star && (g->star || g->stars)) || (stars && g->stars))
        return bad_call(p, begin);
    if (!star && !stars && t->kind == T_NAME && t[1].kind == T_OPERATOR && str_is(t[1].text, "=")) {
        keyword = true;
        p->at += 2;
    }
    if (!star && !stars && (g->stars || (!keyword && (g->star || g->names.n))))
        return bad_call(p, begin);
    TRY(jinja_parse_expression(p, true, &item));
    TRY(jinja_grow(p, owner, item));
    if (star)
        g->star = item;
    else if (stars)
        g->stars = item;
    else if (keyword) {
        for (size_t i = 0; i < g->names.n; i++)
            if (str_equal(g->names.at[i], t->text))
                return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at,
                                     "this argument is given twice");
        PUSH(p->cx, p->a, &g->names, t->text);
        PUSH(p->cx, p->a, &g->values, item);
    } else
        PUSH(p->cx, p->a, &g->at, item);
    return MPK_OK;
}

/* (a, b, c=d, *e, **f); a comma after the last is allowed */
static mpk_status parse_arguments(jparser *p, jnode *owner)
{
    const jtoken *begin = jinja_peek(p);
    jarguments *g;
    NEW(p->cx, p->a, g, 1);
    owner->arguments = g;
    TRY(jinja_expect(p, "("));
    for (bool first = true; !jinja_next_is(p, ")"); first = false) {
        if (!first)
            TRY(jinja_expect(p, ","));
        if (!first && jinja_next_is(p, ")"))
            break;
        TRY(parse_argument(p, begin, g, owner));
        if (g->at.n + g->names.n > JINJA_MAX_ARGS)
            return jinja_fail_at(p->cx, MPK_ELIMIT, p->tokens->source, begin->at,
                                 "more than %d arguments", JINJA_MAX_ARGS);
    }
    return jinja_expect(p, ")");
}

/* *node becomes the callee of a new call node, which replaces it. */
static mpk_status parse_call(jparser *p, jnode **node)
{
    jnode *n;
    TRY(jinja_node(p, N_CALL, jinja_peek(p)->line, &n));
    n->a = *node;
    TRY(jinja_grow(p, n, n->a));
    TRY(parse_arguments(p, n));
    *node = n;
    return MPK_OK;
}

/* .name, [item] and (call), repeated: each wraps the expression to its left. */
static mpk_status parse_postfix(jparser *p, jnode **node)
{
    for (;;) {
        if (jinja_next_is(p, ".") || jinja_next_is(p, "["))
            TRY(parse_member(p, node));
        else if (jinja_next_is(p, "("))
            TRY(parse_call(p, node));
        else
            return MPK_OK;
    }
}

/* The name of a filter or test, which may have dots. */
static mpk_status parse_dotted(jparser *p, str *out)
{
    TRY(jinja_expect_name(p, out));
    while (jinja_skip(p, ".")) {
        str more = {0};
        TRY(jinja_expect_name(p, &more));
        out->n = (size_t)(more.at + more.n - out->at);
    }
    return MPK_OK;
}

/* Filters of a value, or those that begin a filter block (inline_start: without the first |, and
 * without a value). */
mpk_status jinja_parse_filters(jparser *p, jnode *node, bool inline_start, jnode **out)
{
    while (inline_start || jinja_skip(p, "|")) {
        jnode *n;
        TRY(jinja_node(p, N_FILTER, jinja_peek(p)->line, &n));
        TRY(parse_dotted(p, &n->name));
        n->a = node;
        TRY(jinja_grow(p, n, node));
        if (jinja_next_is(p, "("))
            TRY(parse_arguments(p, n));
        node = n;
        inline_start = false;
    }
    *out = node;
    return MPK_OK;
}

/* The argument of a test without brackets: `x is divisibleby 3`.  `else`, `or` and `and` end a
 * test; any other name begins an operand. */
static bool test_has_operand(const jparser *p)
{
    const jtoken *t = jinja_peek(p);
    if (t->kind == T_STRING || t->kind == T_INTEGER || t->kind == T_FLOAT)
        return true;
    if (t->kind == T_NAME)
        return !str_is(t->text, "else") && !str_is(t->text, "or") && !str_is(t->text, "and");
    return jinja_next_is(p, "[") || jinja_next_is(p, "{");
}

/* `is divisibleby 3` needs no parentheses around its one operand, which is a value with postfixes
 * and no operator; so x is eq 1 + 2 means (x is eq 1) + 2, as in Jinja2. */
static mpk_status parse_test_operand(jparser *p, jnode *n)
{
    if (jinja_next_is(p, "("))
        return parse_arguments(p, n);
    if (!test_has_operand(p))
        return MPK_OK;
    if (jinja_next_is_name(p, "is"))
        return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, jinja_peek(p)->at,
                             "tests cannot follow each other");
    jnode *operand;
    TRY(parse_primary(p, &operand));
    TRY(parse_postfix(p, &operand));
    NEW(p->cx, p->a, n->arguments, 1);
    PUSH(p->cx, p->a, &n->arguments->at, operand);
    return jinja_grow(p, n, operand);
}

/* Parse a test; `is` has already been consumed. */
static mpk_status parse_test(jparser *p, uint32_t line, jnode **node)
{
    jnode *n, *negated;
    bool is_not = jinja_skip_name(p, "not");
    TRY(jinja_node(p, N_TEST, line, &n));
    TRY(parse_dotted(p, &n->name));
    n->a = *node;
    TRY(jinja_grow(p, n, n->a));
    TRY(parse_test_operand(p, n));
    *node = n;
    if (!is_not)
        return MPK_OK;
    TRY(jinja_node(p, N_NOT, line, &negated));
    negated->a = n;
    *node = negated;
    return jinja_grow(p, negated, n);
}

/* What binds loosest after a value: filters, tests, and a call of their result. */
static mpk_status parse_filter_expression(jparser *p, jnode **node)
{
    for (;;) {
        uint32_t line = jinja_peek(p)->line;
        if (jinja_next_is(p, "|"))
            TRY(jinja_parse_filters(p, *node, false, node));
        else if (jinja_skip_name(p, "is"))
            TRY(parse_test(p, line, node));
        else if (jinja_next_is(p, "("))
            TRY(parse_call(p, node));
        else
            return MPK_OK;
    }
}

/* ---- operators ---- */

/* A sign binds tighter than a filter: -x|abs is (-x)|abs. */
static mpk_status parse_sign(jparser *p, jnode **out)
{
    const jtoken *t = jinja_peek(p);
    p->at++;
    jnode *n;
    TRY(jinja_node(p, N_SIGN, t->line, &n));
    n->op = t->text.at[0];
    TRY(parse_unary(p, false, &n->a));
    *out = n;
    return jinja_grow(p, n, n->a);
}

/* The same words as jinja_grow's: to the author of a template it is one limit. */
static mpk_status too_deep(const jparser *p)
{
    return jinja_fail_at(p->cx, MPK_ELIMIT, p->tokens->source, jinja_peek(p)->at,
                         "more than %d levels are nested here", JINJA_MAX_HEIGHT);
}

/* Recursion passes through here for every bracket and sign, so the depth is bounded here. */
static mpk_status parse_unary(jparser *p, bool with_filter, jnode **out)
{
    if (p->depth >= JINJA_MAX_HEIGHT)
        return too_deep(p);
    p->depth++;
    TRY(jinja_next_is(p, "-") || jinja_next_is(p, "+") ? parse_sign(p, out)
                                                       : parse_primary(p, out));
    TRY(parse_postfix(p, out));
    if (with_filter)
        TRY(parse_filter_expression(p, out));
    p->depth--;
    return MPK_OK;
}

/* Operators of levels that are grouped from the left, loosest first; level 1 is ~, which joins all
 * at once. */
static const char *const levels[4][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};

/* The operator of this level that is next, as its characters packed in an int (J_FLOORDIV ...),
 * taken; 0: none is. */
static int take_operator(jparser *p, int level)
{
    for (int i = 0; levels[level][i]; i++)
        if (jinja_skip(p, levels[level][i]))
            return levels[level][i][0] | levels[level][i][1] << 8;
    return 0;
}

/* One level of binary operators, from 0 (+ -) over 1 (~), 2 (* / // %) to 3 (**), each grouped from
 * the left.  A chain of ~ becomes one node, so that joining n texts is not n nested
 * concatenations. */
static mpk_status parse_level(jparser *p, int level, jnode **out)
{
    jnode *right, *joined = NULL;
    int op;
    TRY(level < 3 ? parse_level(p, level + 1, out) : parse_unary(p, true, out));
    while ((op = take_operator(p, level)) != 0) {
        TRY(level < 3 ? parse_level(p, level + 1, &right) : parse_unary(p, true, &right));
        if (level != 1) {
            TRY(make_pair(p, N_BINARY, op, *out, right, out));
            continue;
        }
        if (!joined) {
            TRY(jinja_node(p, N_CONCAT, (*out)->line, &joined));
            TRY(add_item(p, joined, &joined->items, *out));
            *out = joined;
        }
        TRY(add_item(p, joined, &joined->items, right));
    }
    return MPK_OK;
}

/* `not in` is two tokens; a `not` before anything else does not belong to the comparison. */
static int take_comparison(jparser *p)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (int i = 0; i < 6; i++)
        if (jinja_skip(p, operators[i]))
            return operators[i][0] | operators[i][1] << 8;
    if (jinja_skip_name(p, "in"))
        return J_IN;
    const jtoken *t = jinja_peek(p);
    if (jinja_next_is_name(p, "not") && t[1].kind == T_NAME && str_is(t[1].text, "in")) {
        p->at += 2;
        return J_NOT_IN;
    }
    return 0;
}

/* A chain of comparisons is one node with a list of operands, because it is computed as one
 * (eval_compare). 1 < x < 3 is a = 1 and the operands (<, x), (<, 3): x is computed once. */
static mpk_status parse_comparison(jparser *p, jnode **out)
{
    jnode *chain = NULL, *operand;
    int op;
    TRY(parse_level(p, 0, out));
    while ((op = take_comparison(p)) != 0) {
        if (!chain) {
            TRY(jinja_node(p, N_COMPARE, (*out)->line, &chain));
            chain->a = *out;
            TRY(jinja_grow(p, chain, *out));
            *out = chain;
        }
        TRY(jinja_node(p, N_OPERAND, jinja_peek(p)->line, &operand));
        operand->op = op;
        TRY(parse_level(p, 0, &operand->a));
        TRY(jinja_grow(p, operand, operand->a));
        TRY(add_item(p, chain, &chain->items, operand));
    }
    return MPK_OK;
}

/* Recursion for `not not x`: bounded like every other. */
static mpk_status parse_not(jparser *p, jnode **out)
{
    uint32_t line = jinja_peek(p)->line;
    if (!jinja_skip_name(p, "not"))
        return parse_comparison(p, out);
    if (p->depth >= JINJA_MAX_HEIGHT)
        return too_deep(p);
    p->depth++;
    jnode *n;
    TRY(jinja_node(p, N_NOT, line, &n));
    TRY(parse_not(p, &n->a));
    p->depth--;
    *out = n;
    return jinja_grow(p, n, n->a);
}

/* Left-associative, though the order cannot be seen: each `and` stops at the first false. */
static mpk_status parse_and(jparser *p, jnode **out)
{
    jnode *right;
    TRY(parse_not(p, out));
    while (jinja_skip_name(p, "and")) {
        TRY(parse_not(p, &right));
        TRY(make_pair(p, N_AND, 0, *out, right, out));
    }
    return MPK_OK;
}

static mpk_status parse_or(jparser *p, jnode **out)
{
    jnode *right;
    TRY(parse_and(p, out));
    while (jinja_skip_name(p, "or")) {
        TRY(parse_and(p, &right));
        TRY(make_pair(p, N_OR, 0, *out, right, out));
    }
    return MPK_OK;
}

/* `a if b else c`; the else belongs to the nearest if, and without it the value is undefined. */
static mpk_status parse_choice(jparser *p, jnode **out)
{
    TRY(parse_or(p, out));
    while (jinja_skip_name(p, "if")) {
        jnode *n;
        TRY(jinja_node(p, N_CHOICE, (*out)->line, &n));
        n->a = *out;
        TRY(parse_or(p, &n->b));
        if (jinja_skip_name(p, "else"))
            TRY(jinja_parse_expression(p, true, &n->c));
        TRY(jinja_grow(p, n, n->a));
        TRY(jinja_grow(p, n, n->b));
        TRY(jinja_grow(p, n, n->c));
        *out = n;
    }
    return MPK_OK;
}

/* with_choice: may an `a if b else c` stand here?  Not in `for x in a if b`, where the if belongs
 * to the loop. */
mpk_status jinja_parse_expression(jparser *p, bool with_choice, jnode **out)
{
    if (p->depth >= JINJA_MAX_HEIGHT)
        return too_deep(p);
    p->depth++;
    TRY(with_choice ? parse_choice(p, out) : parse_or(p, out));
    p->depth--;
    return MPK_OK;
}

/* ---- tuples and targets ---- */

/* What cannot begin a further item; end: a name that ends the tuple here, as `in` does in a for. */
static bool tuple_ends(const jparser *p, const char *end)
{
    jtoken_kind kind = jinja_peek(p)->kind;
    return kind == T_PRINT_END || kind == T_BLOCK_END || jinja_next_is(p, ")") ||
           (end && jinja_next_is_name(p, end));
}

typedef mpk_status (*parse_one)(jparser *p, bool option, jnode **out);

/* What may be a tuple without parentheses: one item without a comma is the item itself. */
static mpk_status parse_several(jparser *p, parse_one one, bool option, const char *end,
                                bool may_be_empty, jnode **out)
{
    bool is_tuple = false;
    jnode *n, *item;
    TRY(jinja_node(p, N_TUPLE, jinja_peek(p)->line, &n));
    while (!tuple_ends(p, end)) {
        TRY(one(p, option, &item));
        TRY(add_item(p, n, &n->items, item));
        if (!jinja_skip(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && !n->items.n && !may_be_empty)
        return jinja_unexpected(p, "an expression");
    *out = is_tuple || !n->items.n ? n : n->items.at[0];
    return MPK_OK;
}

mpk_status jinja_parse_tuple(jparser *p, bool with_choice, const char *end, bool may_be_empty,
                             jnode **out)
{
    return parse_several(p, jinja_parse_expression, with_choice, end, may_be_empty, out);
}

/* A name, name.member, or a tuple of these in brackets. {% set ns.x = 1 %} sets a member of a
 * namespace; with_member false, as in a for, that is not a target. Constants such as none and true
 * parse as names and are refused here. */
static mpk_status parse_one_target(jparser *p, bool with_member, jnode **out)
{
    const jtoken *t = jinja_peek(p);
    if (jinja_skip(p, "(")) {
        if (p->depth >= JINJA_MAX_HEIGHT)
            return too_deep(p);
        p->depth++;
        TRY(parse_several(p, parse_one_target, false, NULL, true, out));
        p->depth--;
        return jinja_expect(p, ")");
    }
    if (t->kind != T_NAME)
        return jinja_unexpected(p, "a name to set");
    TRY(parse_name(p, out));
    if ((*out)->kind != N_NAME)
        return jinja_fail_at(p->cx, MPK_EFORMAT, p->tokens->source, t->at, "%.*s cannot be set",
                             JINJA_SHOWN(t->text));
    if (with_member && jinja_skip(p, ".")) {
        (*out)->kind = N_MEMBER;
        TRY(jinja_expect_name(p, &(*out)->member));
    }
    return MPK_OK;
}

/* Without brackets several targets with commas are a tuple, which is taken apart when it is
 * assigned. */
mpk_status jinja_parse_target(jparser *p, bool with_member, const char *end, jnode **out)
{
    return parse_several(p, parse_one_target, with_member, end, false, out);
}
