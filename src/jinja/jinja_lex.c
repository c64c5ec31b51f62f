/* jinja_lex.c - the source of a template -> tokens, with Jinja2's rules for white space around
 * tags.
 *
 * Between tags lies data, up to the next {{, {% or {#.  A sign in a tag ({%- or {%+) says what
 * becomes of white space before it; without one, a {% or {# that stands first in its line loses
 * the space before it (lstrip_blocks), and a %} or #} loses the line's end after it (trim_blocks).
 * Brackets inside a tag must match, and while one is open the tag does not end.  Time is linear in
 * the source.
 *
 * An example; ~ stands for a blank, | for the end of a line:
 *
 *   source   ~~{% if x -%} |~~a{{ 1 }}|{# c #}|b
 *   tokens   BLOCK NAME(if) NAME(x) BLOCK_END  DATA(a)  PRINT INTEGER(1) PRINT_END  DATA(|b)
 *
 * The blanks before {% go by lstrip_blocks, those after -%} by its sign, the comment takes the
 * line's end after it by trim_blocks; the line's end after {{ 1 }} stays.
 *
 * Called by jinja_parse alone.  Texts of tokens are slices of the normalised source, but for
 * strings with escapes, which lie in the arena. */
#include "jinja/jinja_parts.h"

#include <stdio.h>

/* The state of one run.  `at` only rises, and `line` follows it lazily: lines are counted when a
 * token is added, from the token before, so that the count costs one pass in all. */
typedef struct lexer {
    mpk_context *cx;
    arena *a;
    jtokens *out;
    str s;
    size_t at;
    size_t seen; /* line was counted up to here */
    uint32_t line;
    bool starts_line; /* what was taken last ended a line */
    char open[JINJA_MAX_HEIGHT];
    unsigned n_open;
} lexer;

/* Used before there is a run: a place in the source instead of a line of a node.  The column
 * counts bytes, from 1. */
mpk_status jinja_fail_at(mpk_context *cx, mpk_status code, str source, size_t at,
                         const char *format, ...)
{
    char words[512];
    unsigned line = 1, column = 1;
    va_list args;
    for (size_t i = 0; i < at && i < source.n; i++, column++)
        if (source.at[i] == '\n')
            line++, column = 0;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    FAIL(cx, code, "chat template, line %u, column %u: %s", line, column, words);
}

/* The source with \n for every end of line, without the last one. */
static mpk_status normalize(lexer *l, str source)
{
    char *to;
    size_t n = 0;
    NEW(l->cx, l->a, to, source.n + 1);
    for (size_t i = 0; i < source.n; i++) {
        bool is_return = source.at[i] == '\r';
        to[n++] = is_return ? '\n' : source.at[i];
        if (is_return && i + 1 < source.n && source.at[i + 1] == '\n')
            i++;
    }
    if (n && to[n - 1] == '\n')
        n--;
    l->s = (str){to, n};
    return MPK_OK;
}

/* A token that begins at byte `at`, which must not lie before the one added last. */
static mpk_status add(lexer *l, jtoken_kind kind, size_t at, str s)
{
    for (; l->seen < at; l->seen++)
        l->line += l->s.at[l->seen] == '\n';
    jtoken token = {.kind = kind, .at = (uint32_t)at, .line = l->line, .text = s};
    PUSH(l->cx, l->a, l->out, token);
    return MPK_OK;
}

/* Does `what` stand at this byte?  at <= l->s.n. */
static bool begins(const lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return l->s.n - at >= n && memcmp(l->s.at + at, what, n) == 0;
}

/* The first byte at or after `at` that is not white space (Unicode white space included). */
static size_t skip_space(const lexer *l, size_t at)
{
    size_t size;
    while (at < l->s.n && jinja_is_space(jinja_char(l->s.at + at, &size)))
        at += size;
    return at;
}

/* The end of a tag: "+%}", "-%}" with the space after it, "%}" with the line's end; 0 if it is not
 * at `at`.  trims: of blocks and comments, whose ends take a line's end with them, and may have a
 * +. */
static size_t tag_end(const lexer *l, size_t at, const char *close, bool trims)
{
    bool plus = l->s.at[at] == '+' && trims, minus = l->s.at[at] == '-';
    size_t end = at + (plus || minus);
    if (!begins(l, end, close))
        return 0;
    end += 2;
    if (minus)
        return skip_space(l, end);
    return end + (trims && !plus && end < l->s.n && l->s.at[end] == '\n');
}

/* Go on at `end`, and remember whether a line begins there. */
static void take_to(lexer *l, size_t end)
{
    l->at = end;
    l->starts_line = end && l->s.at[end - 1] == '\n';
}

/* What is left of data before a tag with this sign.  is_print: {{ has no lstrip_blocks.  Whether
 * the data's first line began at the start of a line decides for a tag that has nothing but white
 * space before it. */
static str strip_data(const lexer *l, str data, char sign, bool is_print)
{
    if (sign == '-')
        return jinja_strip(data, (str){0}, false, true);
    if (sign == '+' || is_print)
        return data;
    size_t line = data.n;
    while (line && data.at[line - 1] != '\n')
        line--;
    str rest = {data.at + line, data.n - line};
    bool first = line || l->starts_line;
    return first && rest.n && jinja_strip(rest, (str){0}, false, true).n == 0 ? (str){data.at, line}
                                                                              : data;
}

/* Data from l->at up to `end`, where a tag of this sign begins.  Empty data makes no token. */
static mpk_status add_data(lexer *l, size_t end, char sign, bool is_print)
{
    str data = strip_data(l, (str){l->s.at + l->at, end - l->at}, sign, is_print);
    return data.n ? add(l, T_DATA, l->at, data) : MPK_OK;
}

/* {% raw %} at `at`: the end of the tag; 0 if it is none. */
static size_t raw_begin(const lexer *l, size_t at)
{
    at = skip_space(l, at);
    if (!begins(l, at, "raw"))
        return 0;
    at = skip_space(l, at + 3);
    if (begins(l, at, "-%}"))
        return skip_space(l, at + 3);
    return begins(l, at, "%}") ? at + 2 : 0;
}

/* {% endraw %} at `at`, and its sign. */
static size_t raw_end(const lexer *l, size_t at, char *sign)
{
    if (!begins(l, at, "{%"))
        return 0;
    at += 2;
    *sign = at < l->s.n && (l->s.at[at] == '-' || l->s.at[at] == '+') ? l->s.at[at] : 0;
    at = skip_space(l, at + (*sign != 0));
    if (!begins(l, at, "endraw"))
        return 0;
    at = skip_space(l, at + 6);
    return at < l->s.n ? tag_end(l, at, "%}", true) : 0;
}

/* Everything up to {% endraw %} is data, tags included. */
static mpk_status lex_raw(lexer *l, size_t begin)
{
    char sign = 0;
    for (size_t i = l->at; i < l->s.n; i++) {
        size_t end = l->s.at[i] == '{' ? raw_end(l, i, &sign) : 0;
        if (!end)
            continue;
        TRY(add_data(l, i, sign, false));
        take_to(l, end);
        return MPK_OK;
    }
    return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, begin, "this raw block has no {%% endraw %%}");
}

/* Up to the first #}; comments do not nest. */
static mpk_status lex_comment(lexer *l, size_t begin)
{
    for (size_t i = l->at; i < l->s.n; i++) {
        size_t end = tag_end(l, i, "#}", true);
        if (!end)
            continue;
        take_to(l, end);
        return MPK_OK;
    }
    return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, begin, "this comment has no #}");
}

/* ---- inside a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The character c may stand in a name. */
static bool is_name_char(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_';
    char bytes[4];
    return jinja_is_class((str){bytes, str_put_char(bytes, c)}, J_ALNUM);
}

/* Digits with single underscores between them; the end.  at[-1] is there: a tag's two first bytes
 * come before it. */
static size_t digits_end(const lexer *l, size_t at)
{
    while (at < l->s.n &&
           (is_digit(l->s.at[at]) || (l->s.at[at] == '_' && at + 1 < l->s.n &&
                                      is_digit(l->s.at[at + 1]) && is_digit(l->s.at[at - 1]))))
        at++;
    return at;
}

/* A float at the present place: digits, then a fraction, an exponent or both; 0 if it is none. */
static size_t float_end(const lexer *l)
{
    size_t at = digits_end(l, l->at), exponent;
    bool is_float = false;
    if (at == l->at || (l->at && l->s.at[l->at - 1] == '.'))
        return 0;
    if (at + 1 < l->s.n && l->s.at[at] == '.' && is_digit(l->s.at[at + 1])) {
        at = digits_end(l, at + 1);
        is_float = true;
    }
    exponent = at + 1;
    if (at < l->s.n && (l->s.at[at] | 0x20) == 'e') {
        exponent += exponent < l->s.n && (l->s.at[exponent] == '+' || l->s.at[exponent] == '-');
        if (exponent < l->s.n && is_digit(l->s.at[exponent]))
            return digits_end(l, exponent);
    }
    return is_float ? at : 0;
}

/* 0b, 0o, 0x, decimal without leading zeros, or zeros.  A number such as 012 is taken as 0 and then
 * 12, and the parser finds two numbers side by side, as Jinja2 does. An underscore counts only
 * between digits: 1_000 is one number, 1_ is the number 1 and a name. */
static size_t integer_end(const lexer *l)
{
    static const struct {
        char mark;
        const char *digits;
    } bases[] = {{'b', "01"}, {'o', "01234567"}, {'x', "0123456789abcdefABCDEF"}};
    size_t at = l->at;
    if (l->s.at[at] != '0')
        return digits_end(l, at);
    for (int i = 0; i < 3; i++) {
        size_t end = at + 2;
        if (end > l->s.n || (l->s.at[at + 1] | 0x20) != bases[i].mark)
            continue;
        while (end < l->s.n && l->s.at[end] &&
               (strchr(bases[i].digits, l->s.at[end]) ||
                (l->s.at[end] == '_' && end + 1 < l->s.n && l->s.at[end + 1] &&
                 strchr(bases[i].digits, l->s.at[end + 1]))))
            end++;
        if (end > at + 2)
            return end;
    }
    while (at < l->s.n && (l->s.at[at] == '0' ||
                           (l->s.at[at] == '_' && at + 1 < l->s.n && l->s.at[at + 1] == '0')))
        at++;
    return at;
}

/* ---- strings ---- */

static mpk_status bad_escape(const lexer *l, size_t at)
{
    return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, at, "this escape is not a character");
}

/* n hexadecimal digits at *at.  Appends the character's UTF-8 to *to, whose room lex_string has
 * reckoned with. */
static mpk_status read_hex(lexer *l, size_t *at, size_t end, unsigned n, char **to)
{
    uint32_t c = 0;
    size_t begin = *at;
    for (unsigned i = 0; i < n; i++, (*at)++) {
        const int digit = *at < end ? str_hex_digit(l->s.at[*at]) : -1;
        if (digit < 0)
            return bad_escape(l, begin);
        c = c * 16 + (uint32_t)digit;
    }
    if (c > 0x10ffff)
        return bad_escape(l, begin);
    if (c >= 0xd800 && c < 0xe000)
        return jinja_fail_at(l->cx, MPK_EUNSUPPORTED, l->s, begin,
                             "half a character (a surrogate) is not supported");
    *to += str_put_char(*to, c);
    return MPK_OK;
}

/* Python turns what is not ASCII into an escape first: after a backslash its letters remain. */
static void spell_char(lexer *l, size_t *at, char **to)
{
    size_t size;
    uint32_t c = jinja_char(l->s.at + *at, &size);
    char spelled[16];
    int n = snprintf(spelled, sizeof spelled, jinja_escape_of(c), c);
    memcpy(*to, spelled, (size_t)n);
    *to += n;
    *at += size;
}

/* The escape after the backslash at *at - 1. Python's rules: \101 is "A" (up to three octal
 * digits), a backslash before a newline joins the lines, and an unknown escape keeps its backslash.
 * *to is as long as the source at least, which no escape outgrows. */
static mpk_status read_escape(lexer *l, size_t *at, size_t end, char **to)
{
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->s.at[*at];
    const char *letter = c ? strchr(letters, c) : NULL;
    if ((unsigned char)c >= 0x80) {
        spell_char(l, at, to);
        return MPK_OK;
    }
    ++*at;
    if (letter)
        *(*to)++ = meanings[letter - letters];
    else if (c == 'x')
        return read_hex(l, at, end, 2, to);
    else if (c == 'u' || c == 'U')
        return read_hex(l, at, end, c == 'u' ? 4 : 8, to);
    else if (c >= '0' && c <= '7') {
        uint32_t octal = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < end && l->s.at[*at] >= '0' && l->s.at[*at] <= '7'; i++)
            octal = octal * 8 + (uint32_t)(l->s.at[(*at)++] - '0');
        *to += str_put_char(*to, octal);
    } else if (c == 'N')
        return jinja_fail_at(l->cx, MPK_EUNSUPPORTED, l->s, *at - 2,
                             "characters by name (\\N) are not supported");
    else if (c != '\n') {
        *(*to)++ = '\\';
        *(*to)++ = c;
    }
    return MPK_OK;
}

/* A string in quotes.  The end is searched first, as Jinja2's expression for strings does: a
 * backslash always takes one more character with it. */
static mpk_status lex_string(lexer *l)
{
    const size_t begin = l->at;
    size_t end = begin + 1;
    while (end < l->s.n && l->s.at[end] != l->s.at[begin])
        end += l->s.at[end] == '\\' ? 2 : 1;
    if (end >= l->s.n)
        return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, begin, "this string does not end");
    char *to, *first;
    /* what is spelled out grows most: from 3 bytes to 6, 5 to 10 */
    NEW(l->cx, l->a, to, (end - begin) * 5 / 2 + 16);
    first = to;
    for (size_t at = begin + 1; at < end;) {
        char c = l->s.at[at++];
        if (c != '\\')
            *to++ = c;
        else
            TRY(read_escape(l, &at, end, &to));
    }
    TRY(add(l, T_STRING, begin, (str){first, (size_t)(to - first)}));
    take_to(l, end + 1);
    return MPK_OK;
}

/* ---- operators ---- */

/* `open` is a stack of the brackets that must close; its bound also bounds how deep an expression
 * nests. */
static mpk_status check_bracket(lexer *l, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *o = strchr(opening, c), *e = strchr(closing, c);
    if (o) {
        if (l->n_open == sizeof l->open)
            return jinja_fail_at(l->cx, MPK_ELIMIT, l->s, l->at, "more than %zu brackets are open",
                                 sizeof l->open);
        l->open[l->n_open++] = closing[o - opening];
    } else if (e) {
        if (!l->n_open)
            return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, l->at, "unexpected '%c'", c);
        if (l->open[--l->n_open] != c)
            return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, l->at, "unexpected '%c', expected '%c'",
                                 c, l->open[l->n_open]);
    }
    return MPK_OK;
}

/* Two characters before one: ** is not two *. */
static mpk_status lex_operator(lexer *l)
{
    static const char *const doubles[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = l->s.at[l->at];
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++)
        if (begins(l, l->at, doubles[i])) {
            TRY(add(l, T_OPERATOR, l->at, (str){l->s.at + l->at, 2}));
            take_to(l, l->at + 2);
            return MPK_OK;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, l->at, "unexpected character '%c'", c);
    TRY(check_bracket(l, c));
    TRY(add(l, T_OPERATOR, l->at, (str){l->s.at + l->at, 1}));
    take_to(l, l->at + 1);
    return MPK_OK;
}

/* A number or a name.  A float is tried first, since it begins like an integer. What is neither is
 * an operator. */
static mpk_status lex_word(lexer *l)
{
    size_t end = float_end(l), size = 1;
    jtoken_kind kind = T_FLOAT;
    if (!end && is_digit(l->s.at[l->at])) {
        kind = T_INTEGER;
        end = integer_end(l);
    } else if (!end) {
        kind = T_NAME;
        for (end = l->at; end < l->s.n && is_name_char(jinja_char(l->s.at + end, &size));
             end += size)
            ;
        if (end == l->at)
            return lex_operator(l);
    }
    TRY(add(l, kind, l->at, (str){l->s.at + l->at, end - l->at}));
    take_to(l, end);
    return MPK_OK;
}

/* From after {{ or {% to its end.  `begin` is the tag's first byte, for the message. Only outside
 * of brackets can the tag end: in {{ {"a": {}} }} the first }} closes the inner dict and the outer
 * one. */
static mpk_status lex_tag(lexer *l, bool is_print, size_t begin)
{
    l->n_open = 0;
    while (l->at < l->s.n) {
        char c = l->s.at[l->at];
        const char *close = is_print ? "}}" : "%}";
        size_t size, end = l->n_open ? 0 : tag_end(l, l->at, close, !is_print);
        if (end) {
            TRY(add(l, is_print ? T_PRINT_END : T_BLOCK_END, l->at, (str){l->s.at + l->at, 2}));
            take_to(l, end);
            return MPK_OK;
        }
        if (jinja_is_space(jinja_char(l->s.at + l->at, &size)))
            take_to(l, skip_space(l, l->at));
        else
            TRY(c == '"' || c == '\'' ? lex_string(l) : lex_word(l));
    }
    return jinja_fail_at(l->cx, MPK_EFORMAT, l->s, begin, "this tag does not end");
}

/* The next tag at or after `at`, l->s.n if there is none. */
static size_t find_tag(const lexer *l, size_t at)
{
    for (; at + 1 < l->s.n; at++)
        if (l->s.at[at] == '{' &&
            (l->s.at[at + 1] == '{' || l->s.at[at + 1] == '%' || l->s.at[at + 1] == '#'))
            return at;
    return l->s.n;
}

/* Data up to the next tag, then the tag.  At the end of the source the data keeps its white space
 * ('+'). A sign after the tag's opening ({%- or {%+) rules the white space of the data before it:
 * '-' strips all, '+' keeps it, and without one lstrip_blocks applies to statements, not to {{. */
static mpk_status lex_part(lexer *l)
{
    size_t begin = find_tag(l, l->at);
    if (begin == l->s.n) {
        TRY(add_data(l, begin, '+', false));
        l->at = begin;
        return MPK_OK;
    }
    char kind = l->s.at[begin + 1], sign = begin + 2 < l->s.n ? l->s.at[begin + 2] : 0;
    if (sign != '-' && sign != '+')
        sign = 0;
    TRY(add_data(l, begin, sign, kind == '{'));
    take_to(l, begin + 2 + (sign != 0));
    if (kind == '#')
        return lex_comment(l, begin);
    size_t raw = kind == '%' ? raw_begin(l, l->at) : 0;
    if (raw) {
        take_to(l, raw);
        return lex_raw(l, begin);
    }
    TRY(add(l, kind == '{' ? T_PRINT : T_BLOCK, begin, (str){l->s.at + begin, 2}));
    return lex_tag(l, kind == '{', begin);
}

/* The source is checked whole before it is read: UTF-8, and a length for which offsets and work
 * stay small. */
mpk_status jinja_lex(mpk_context *cx, arena *a, str source, jtokens *out)
{
    lexer l = {.cx = cx, .a = a, .out = out, .line = 1, .starts_line = true};
    CHECK(cx, source.n <= JINJA_MAX_SOURCE, MPK_ELIMIT,
          "the chat template has %zu bytes; at most %d are read", source.n, JINJA_MAX_SOURCE);
    CHECK(cx, jinja_is_valid(source), MPK_EFORMAT, "the chat template is not UTF-8");
    TRY(normalize(&l, source));
    out->source = l.s;
    while (l.at < l.s.n)
        TRY(lex_part(&l));
    return add(&l, T_END, l.s.n, (str){l.s.at + l.s.n, 0});
}
