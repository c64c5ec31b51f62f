/* ir_parse.c - read the text form of a tensor program (docs/text-form.md).
 *
 * Input: any bytes.  Output: a verified graph, or an error with line and column.  Called by `mpk
 * opt`, by tests and goldens, by the records' test cases, and by tg_parse.c for the part before
 * the task graph.
 *
 * A scanner over the bytes and one function for each rule of the grammar; line ends are white
 * space, and `#` starts a comment.  Cost: linear.
 */
#include <errno.h>
#include <stdlib.h>

#include "ir/op.h"

/* The scanner and the graph under construction, both in `arena`. */
typedef struct parser {
    mpk_context *cx;
    arena *arena;
    /* the scanner's place, the text's end and its start; the text needs no zero at its end */
    const char *at, *end, *start;
    ir_graph *graph;
} parser;

/* The scanner's position as line and column, both counted from 1. */
static void locate(const parser *p, unsigned *line, unsigned *column)
{
    *line = *column = 1;
    for (const char *c = p->start; c < p->at; c++) {
        *column = *c == '\n' ? 1 : *column + 1;
        *line += *c == '\n';
    }
}

/* FAIL with the place before the message. */
static mpk_status fail_here(parser *p, const char *what)
{
    unsigned line, column;
    locate(p, &line, &column);
    FAIL(p->cx, MPK_EFORMAT, "line %u, column %u: %s", line, column, what);
}

/* White space includes line ends: a statement ends where the next one begins. */
static void skip_space(parser *p)
{
    while (p->at < p->end) {
        if (*p->at == '#')
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        else if (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')
            p->at++;
        else
            return;
    }
}

/* Skip white space and comments; then consume this character if it follows.  On false only the
 * white space is gone. */
static bool take(parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

/* Consume this character, or fail with "expected" and the character. */
static mpk_status expect(parser *p, char c)
{
    char what[] = "expected ' '";
    what[10] = c;
    return take(p, c) ? MPK_OK : fail_here(p, what);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Characters of a name without quotes; ir_print.c quotes any other. */
static bool is_name(char c)
{
    return is_word(c) || c == '.' || c == '-' || c == '/' || c == '$' || c == '@';
}

/* Skip white space; then take the longest run of such characters, which may be empty. */
static str scan(parser *p, bool (*belongs)(char))
{
    skip_space(p);
    const char *from = p->at;
    while (p->at < p->end && belongs(*p->at))
        p->at++;
    return (str){from, (size_t)(p->at - from)};
}

/* Decode one character of a quoted text; -1 if it is invalid or the text ends.  Escapes are \" \\
 * and \xHH; bytes of UTF-8 stand for themselves. */
static int scan_char(parser *p)
{
    /* a text ends on its line, so that a missing quote is reported there and not at the end of
     * the file */
    if (p->at == p->end || *p->at == '\n')
        return -1;
    if (*p->at != '\\')
        return (unsigned char)*p->at++;
    if (p->end - p->at < 2)
        return -1;
    char c = p->at[1];
    p->at += 2;
    if (c == '"' || c == '\\')
        return c;
    if (c != 'x' || p->end - p->at < 2 || str_hex_digit(p->at[0]) < 0 ||
        str_hex_digit(p->at[1]) < 0)
        return -1;
    int value = str_hex_digit(p->at[0]) * 16 + str_hex_digit(p->at[1]);
    p->at += 2;
    return value;
}

/* A quoted text with its escapes decoded, in the arena.  It may be empty and may hold any bytes. */
static mpk_status parse_quoted(parser *p, str *out)
{
    VEC(char) bytes = {0};
    TRY(expect(p, '"'));
    while (p->at == p->end || *p->at != '"') {
        int c = scan_char(p);
        if (c < 0)
            return fail_here(p, "bad character or escape in a quoted text, or no closing quote");
        PUSH(p->cx, p->arena, &bytes, (char)c);
    }
    p->at++;
    *out = (str){bytes.at ? bytes.at : "", bytes.n};
    return MPK_OK;
}

/* %name or %"name" */
static mpk_status parse_name(parser *p, str *out)
{
    TRY(expect(p, '%'));
    if (p->at < p->end && *p->at == '"') {
        TRY(parse_quoted(p, out));
        /* names are handed to C functions as they are */
        return memchr(out->at, 0, out->n) ? fail_here(p, "a name may not hold the byte 0") : MPK_OK;
    }
    const char *from = p->at;
    while (p->at < p->end && is_name(*p->at))
        p->at++;
    *out = (str){from, (size_t)(p->at - from)};
    return out->n ? MPK_OK : fail_here(p, "expected a tensor's name after %");
}

/* The name of an existing tensor. */
static mpk_status parse_tensor(parser *p, ir_tensor_id *out)
{
    str name;
    uint64_t id;
    TRY(parse_name(p, &name));
    if (!map_get(&p->graph->names, name, &id))
        return fail_here(p, "there is no tensor of this name above");
    *out = (ir_tensor_id)id;
    return MPK_OK;
}

/* The longest number, with the zero at its end. */
enum { NUMBER_BYTES = 64 };

static bool is_number(char c)
{
    return is_word(c) || c == '+' || c == '-' || c == '.';
}

/* The digits of a number as a C string. */
static mpk_status scan_number(parser *p, char digits[NUMBER_BYTES])
{
    str s = scan(p, is_number);
    if (s.n == 0 || s.n >= NUMBER_BYTES)
        return fail_here(p, "expected a number");
    memcpy(digits, s.at, s.n);
    digits[s.n] = 0;
    return MPK_OK;
}

/* scan_number has bounded the digits and put a zero after them, which strtoll needs.  A letter
 * inside, as in 1e3, is not a whole number. */
static mpk_status parse_int(parser *p, int64_t *out)
{
    char digits[NUMBER_BYTES], *end;
    TRY(scan_number(p, digits));
    errno = 0;
    *out = strtoll(digits, &end, 10);
    return *end || errno ? fail_here(p, "expected a whole number of 64 bits") : MPK_OK;
}

/* Also takes inf and nan, which ir_print writes for such values. */
static mpk_status parse_float(parser *p, double *out)
{
    return str_read_double(scan(p, is_number), out) ? MPK_OK : fail_here(p, "expected a number");
}

/* [1, 2, 3]; the list lies in the arena. */
static mpk_status parse_ints(parser *p, const int64_t **at, uint32_t *n)
{
    VEC(int64_t) list = {0};
    TRY(expect(p, '['));
    if (!take(p, ']')) {
        do {
            int64_t value;
            TRY(parse_int(p, &value));
            PUSH(p->cx, p->arena, &list, value);
        } while (take(p, ','));
        TRY(expect(p, ']'));
    }
    *at = list.at;
    *n = (uint32_t)list.n;
    return MPK_OK;
}

/* live=tokens, live=rows, or nothing: then the scanner goes back, since another word may follow
 * (the next statement's). */
static mpk_status parse_live(parser *p, ir_live *live)
{
    const char *before = p->at;
    *live = IR_ALL;
    if (!str_is(scan(p, is_word), "live")) {
        p->at = before;
        return MPK_OK;
    }
    TRY(expect(p, '='));
    str what = scan(p, is_word);
    if (!str_is(what, "tokens") && !str_is(what, "rows"))
        return fail_here(p, "expected live=tokens or live=rows");
    *live = str_is(what, "tokens") ? IR_TOKENS : IR_ROWS;
    return MPK_OK;
}

/* f32[4, 64] live=tokens */
static mpk_status parse_type(parser *p, ir_tensor *t)
{
    const int64_t *dims;
    if (!ir_dtype_from_name(scan(p, is_word), &t->dtype))
        return fail_here(p, "expected a dtype");
    TRY(parse_ints(p, &dims, &t->rank));
    if (t->rank > IR_MAX_RANK)
        return fail_here(p, "too many dimensions");
    for (uint32_t i = 0; i < t->rank; i++)
        t->dims[i] = dims[i];
    return parse_live(p, &t->live);
}

/* The rest of an input, const or state statement: NAME : TYPE.  The graph copies the name again;
 * the copy here only adds the zero that ir_add_tensor wants. */
static mpk_status parse_given(parser *p, ir_kind kind)
{
    ir_tensor t = {0};
    str name;
    ir_tensor_id id;
    TRY(parse_name(p, &name));
    TRY(expect(p, ':'));
    TRY(parse_type(p, &t));
    char *copy = arena_copy(p->arena, name.at, name.n);
    CHECK(p->cx, copy, MPK_ENOMEM, "out of memory");
    return ir_add_tensor(p->cx, p->graph, kind, t.live, copy, t.dtype, t.rank, t.dims, &id);
}

/* The record says of which type an attribute is; the text does not, so 1 may be a float. */
static mpk_status parse_value(parser *p, ir_attribute_type type, ir_attribute *out)
{
    switch (type) {
    case IR_ATTRIBUTE_INT:
        return parse_int(p, &out->i);
    case IR_ATTRIBUTE_FLOAT:
        return parse_float(p, &out->f);
    case IR_ATTRIBUTE_STR:
        return parse_quoted(p, &out->s);
    default:
        return parse_ints(p, &out->ints.at, &out->ints.n);
    }
}

/* {name = value, ...} or nothing.  Fills all of out[n_attributes], with defaults where the text
 * is silent. */
static mpk_status parse_attributes(parser *p, const op_def *def, ir_attribute *out)
{
    bool given[IR_MAX_ATTRIBUTES] = {false};
    for (uint32_t i = 0; i < def->n_attributes; i++)
        out[i] = def->attributes[i].otherwise;
    if (take(p, '{')) {
        do {
            str name = scan(p, is_word);
            uint32_t i = 0;
            while (i < def->n_attributes && !str_is(name, def->attributes[i].name))
                i++;
            /* the record decides what there is: a text for another version is refused, not
             * guessed at */
            if (i == def->n_attributes || given[i])
                return fail_here(
                    p, "the operator has no attribute of this name, or it is given twice");
            given[i] = true;
            TRY(expect(p, '='));
            /* the default goes whole: a list may be shorter than it */
            out[i] = (ir_attribute){0};
            TRY(parse_value(p, def->attributes[i].type, &out[i]));
        } while (take(p, ','));
        TRY(expect(p, '}'));
    }
    for (uint32_t i = 0; i < def->n_attributes; i++)
        if (def->attributes[i].required && !given[i]) {
            unsigned line, column;
            locate(p, &line, &column);
            FAIL(p->cx, MPK_EFORMAT, "line %u, column %u: %s needs the attribute %s", line, column,
                 def->name, def->attributes[i].name);
        }
    return MPK_OK;
}

/* (%a, _, %b); `_` is an absent input. */
static mpk_status parse_inputs(parser *p, ir_tensor_id *in, uint32_t *n)
{
    *n = 0;
    TRY(expect(p, '('));
    if (take(p, ')'))
        return MPK_OK;
    do {
        if (*n == IR_MAX_INPUTS)
            return fail_here(p, "too many inputs");
        if (take(p, '_'))
            in[*n] = IR_NONE;
        else
            TRY(parse_tensor(p, &in[*n]));
        ++*n;
    } while (take(p, ','));
    return expect(p, ')');
}

/* : f32[4, 64], i32[4] live=rows; optional, but stated types must equal the inferred ones. */
static mpk_status parse_stated_types(parser *p, const ir_tensor_id *out, uint32_t n)
{
    if (!take(p, ':'))
        return MPK_OK;
    for (uint32_t i = 0; i < n; i++) {
        ir_tensor stated = {0};
        const ir_tensor *t = &p->graph->tensors.at[out[i]];
        if (i)
            TRY(expect(p, ','));
        TRY(parse_type(p, &stated));
        if (stated.dtype != t->dtype || stated.live != t->live || stated.rank != t->rank ||
            memcmp(stated.dims, t->dims, t->rank * sizeof *t->dims) != 0)
            return fail_here(p, "the stated type is not the one that the operator gives");
    }
    return MPK_OK;
}

/* %a, %b = op(...) {...} : types */
static mpk_status parse_op(parser *p)
{
    str names[IR_MAX_OUTPUTS];
    uint32_t n = 0, n_in;
    do {
        if (n == IR_MAX_OUTPUTS)
            return fail_here(p, "too many results");
        TRY(parse_name(p, &names[n++]));
    } while (take(p, ','));
    TRY(expect(p, '='));
    const op_def *def = op_find(scan(p, is_word));
    if (!def)
        return fail_here(p, "there is no operator of this name");
    if (def->n_out != n)
        return fail_here(p, "the operator has another number of results");
    ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
    ir_attribute attributes[IR_MAX_ATTRIBUTES] = {0};
    TRY(parse_inputs(p, in, &n_in));
    TRY(parse_attributes(p, def, attributes));
    /* shapes are inferred here; types in the text are only compared with them */
    TRY(ir_add_op_as(p->cx, p->graph, def, names, n_in, in, attributes, out));
    return parse_stated_types(p, out, n);
}

static mpk_status parse_output(parser *p)
{
    ir_tensor_id id = IR_NONE;
    TRY(parse_tensor(p, &id));
    return ir_add_output(p->cx, p->graph, id);
}

/* peer 1, or peer all: the peer of the statements that follow. */
static mpk_status parse_peer(parser *p)
{
    const char *before = p->at;
    int64_t peer;
    if (str_is(scan(p, is_word), "all")) {
        p->graph->peer = IR_EVERYWHERE;
        return MPK_OK;
    }
    p->at = before;
    TRY(parse_int(p, &peer));
    if (peer < 0 || peer >= IR_MAX_PEERS)
        return fail_here(p, "expected all or the number of a peer, 0 to 15");
    p->graph->peer = (uint32_t)peer;
    return MPK_OK;
}

/* Anything that begins with % is an operator's line; all other statements begin with a word. */
static mpk_status parse_statement(parser *p)
{
    if (*p->at == '%')
        return parse_op(p);
    const char *from = p->at;
    str word = scan(p, is_word);
    if (str_is(word, "input"))
        return parse_given(p, IR_INPUT);
    if (str_is(word, "const"))
        return parse_given(p, IR_CONST);
    if (str_is(word, "state"))
        return parse_given(p, IR_STATE);
    if (str_is(word, "output"))
        return parse_output(p);
    if (str_is(word, "peer"))
        return parse_peer(p);
    if (str_is(word, "graph"))
        return parse_quoted(p, &p->graph->name);
    p->at = from;
    return fail_here(p,
                     "expected graph, peer, input, const, state, output or %name = operator(...)");
}

/* The graph is verified at the end: a text can say more than the builders refuse (outputs that
 * were overwritten, say).  A failure of a builder has no place of its own, so the line is added
 * to its message. */
mpk_status ir_parse(mpk_context *cx, arena *a, str source, ir_graph **out)
{
    const char *empty = "";
    parser p = {.cx = cx, .arena = a, .start = source.n ? source.at : empty};
    p.at = p.start;
    p.end = p.start + source.n;
    TRY(ir_create(cx, a, "", &p.graph));
    for (skip_space(&p); p.at < p.end; skip_space(&p)) {
        mpk_status status = parse_statement(&p);
        if (status == MPK_OK)
            continue;
        unsigned line, column;
        locate(&p, &line, &column);
        return status == MPK_EFORMAT
                   ? status
                   : status_note(cx, status, "parsing up to line %u, column %u", line, column);
    }
    TRY(ir_verify(cx, p.graph));
    *out = p.graph;
    return MPK_OK;
}
