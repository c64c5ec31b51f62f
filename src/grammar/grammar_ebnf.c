/* grammar_ebnf.c - grammars as llama.cpp writes them (GBNF) -> trees.
 *
 *     root   ::= greeting ("," " "? name)* "!"   # the rule root is the whole
 *     name   ::= [A-Z] [a-z]{1,20}
 *
 * A rule ends with its line, unless a group is open or the line ends with ::= or |.  Taken: "texts"
 * and [classes] with the escapes \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH, . for any character,
 * names, groups, |, and
 * * + ? {n} {n,} {n,m}.
 */
#include "grammar/grammar_parts.h"

typedef struct ebnf_reader {
    maker *k;
    str source;
    size_t at;
    uint32_t nesting;
    map names; /* of rules: number */
} ebnf_reader;

/* The next byte; NUL at the end, which is not a token of the language either. */
static char peek(const ebnf_reader *r)
{
    return r->at < r->source.n ? r->source.at[r->at] : '\0';
}

static bool take(ebnf_reader *r, char c)
{
    bool yes = r->at < r->source.n && r->source.at[r->at] == c;
    r->at += yes;
    return yes;
}

/* An error with its line, which is counted only then. */
static mpk_status fault(const ebnf_reader *r, const char *what)
{
    size_t line = 1;
    for (size_t i = 0; i < r->at && i < r->source.n; i++)
        line += r->source.at[i] == '\n';
    FAIL(r->k->cx, MPK_EFORMAT, "line %zu of the grammar: %s", line, what);
}

/* Skip blanks and comments, and line ends where the rule goes on. */
static void skip(ebnf_reader *r, bool lines)
{
    for (; r->at < r->source.n; r->at++) {
        if (peek(r) == '#')
            while (r->at + 1 < r->source.n && r->source.at[r->at + 1] != '\n')
                r->at++;
        else if (peek(r) != ' ' && peek(r) != '\t' &&
                 !(lines && (peek(r) == '\n' || peek(r) == '\r')))
            return;
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* A rule may be used before its definition: it gets its number at its first occurrence. */
static mpk_status read_name(ebnf_reader *r, uint32_t *number)
{
    size_t from = r->at;
    uint64_t known;
    while (is_name(peek(r)))
        r->at++;
    str name = {r->source.at + from, r->at - from};
    if (!name.n)
        return fault(r, "a name, a text in quotes, a class or a group is missing");
    if (map_get(&r->names, name, &known)) {
        *number = (uint32_t)known;
        return MPK_OK;
    }
    char *copy = arena_copy(r->k->a, name.at, name.n);
    CHECK(r->k->cx, copy, MPK_ENOMEM, "out of memory for a rule");
    TRY(rule_new(r->k, (str){copy, name.n}, number));
    return map_put(r->k->cx, r->k->a, &r->names, (str){copy, name.n}, *number);
}

/* ---- characters ---- */

/* Exactly this many hex digits; surrogates are refused. */
static mpk_status read_hex(ebnf_reader *r, uint32_t digits, uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < digits; i++, r->at++) {
        const int digit = str_hex_digit(peek(r));
        if (digit < 0)
            return fault(r, "a hexadecimal digit is missing");
        *out = *out * 16 + (uint32_t)digit;
    }
    if (*out > GRAMMAR_LAST_CHAR || (*out >= 0xd800 && *out < 0xe000))
        return fault(r, "no such character");
    return MPK_OK;
}

/* One character of a text or a class, possibly escaped.  Neither may continue on the next line.
 * \x41, \u00e9 and \U0001f600 are characters by their number; inside a text "]" needs no escape,
 * but may have one. */
static mpk_status read_char(ebnf_reader *r, uint32_t *out)
{
    static const char letters[] = "nrt\\\"[]-^", means[] = "\n\r\t\\\"[]-^";
    if (r->at >= r->source.n || peek(r) == '\n')
        return fault(r, "a text or a class has no end");
    if (!take(r, '\\'))
        return chars_read(r->k, r->source, &r->at, out);
    char c = peek(r);
    const char *letter = c ? strchr(letters, c) : NULL;
    r->at++;
    if (c == 'x')
        return read_hex(r, 2, out);
    if (c == 'u' || c == 'U')
        return read_hex(r, c == 'u' ? 4 : 8, out);
    if (!letter)
        return fault(r, "an escape that is not known");
    *out = (uint32_t)(uint8_t)means[letter - letters];
    return MPK_OK;
}

/* Characters one after the other: later stages join what can be joined. */
static mpk_status read_text(ebnf_reader *r, const node **out)
{
    node *seq;
    const node *one;
    uint32_t c;
    TRY(node_new(r->k, NODE_SEQ, &seq));
    while (!take(r, '"')) {
        TRY(read_char(r, &c));
        TRY(node_range(r->k, c, c, &one));
        TRY(node_add(r->k, seq, one));
    }
    *out = seq;
    return MPK_OK;
}

/* A - directly before ] stands for itself. [^a-z_] is every character but those; an empty class []
 * matches nothing. */
static mpk_status read_class(ebnf_reader *r, const node **out)
{
    char_set set = {0}, others;
    bool inverted = take(r, '^');
    uint32_t low, high;
    while (!take(r, ']')) {
        TRY(read_char(r, &low));
        high = low;
        if (peek(r) == '-' && r->at + 1 < r->source.n && r->source.at[r->at + 1] != ']') {
            r->at++;
            TRY(read_char(r, &high));
        }
        if (high < low)
            return fault(r, "a range whose ends are not in order");
        TRY(chars_add(r->k, &set, low, high));
    }
    chars_settle(&set);
    if (!inverted)
        return node_chars(r->k, &set, out);
    TRY(chars_invert(r->k, &set, &others));
    return node_chars(r->k, &others, out);
}

/* ---- sequences ---- */

static mpk_status read_alternatives(ebnf_reader *r, const node **out);

/* In a group, rules may go over several lines. */
static mpk_status read_group(ebnf_reader *r, const node **out)
{
    if (++r->nesting > GRAMMAR_MOST_NESTING)
        return fault(r, "groups are nested too deeply");
    skip(r, true);
    TRY(read_alternatives(r, out));
    r->nesting--;
    return take(r, ')') ? MPK_OK : fault(r, "( has no end");
}

/* A use of a rule; ebnf_parse_node checks at the end that it is defined. */
static mpk_status read_item(ebnf_reader *r, const node **out)
{
    char_set nothing = {0}, all;
    uint32_t number;
    if (take(r, '"'))
        return read_text(r, out);
    if (take(r, '['))
        return read_class(r, out);
    if (take(r, '('))
        return read_group(r, out);
    if (take(r, '.')) {
        TRY(chars_invert(r->k, &nothing, &all));
        return node_chars(r->k, &all, out);
    }
    TRY(read_name(r, &number));
    return node_rule(r->k, number, out);
}

/* A count; limited to GRAMMAR_FOREVER, so it cannot overflow before it is refused. */
static mpk_status read_count(ebnf_reader *r, uint32_t *out)
{
    uint64_t n = 0;
    if (peek(r) < '0' || peek(r) > '9')
        return fault(r, "a count is missing");
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++)
        n = n * 10 + (uint64_t)(peek(r) - '0') < GRAMMAR_FOREVER
                ? n * 10 + (uint64_t)(peek(r) - '0')
                : GRAMMAR_FOREVER;
    *out = (uint32_t)n;
    return n <= GRAMMAR_MOST_REPEATS ? MPK_OK : fault(r, "a count is too large");
}

/* {n} is {n,n}; {n,} has no upper end. */
static mpk_status read_braces(ebnf_reader *r, uint32_t *min, uint32_t *max)
{
    skip(r, false);
    *min = 0;
    if (peek(r) != ',')
        TRY(read_count(r, min));
    skip(r, false);
    *max = *min;
    if (take(r, ',')) {
        skip(r, false);
        *max = GRAMMAR_FOREVER;
        if (peek(r) != '}')
            TRY(read_count(r, max));
    }
    skip(r, false);
    return take(r, '}') && *min <= *max ? MPK_OK
                                        : fault(r, "counts are {n}, {n,} or {n,m}, in order");
}

/* Quantifiers of the item before; several in a row apply one after the other.  Each makes the
 * tree one level deeper, and the compiler recurses over the tree, so their number is limited
 * like that of groups. */
static mpk_status read_repeats(ebnf_reader *r, const node **item)
{
    for (uint32_t n = 0;; n++) {
        uint32_t min = peek(r) == '+', max = peek(r) == '?' ? 1 : GRAMMAR_FOREVER;
        if (take(r, '{'))
            TRY(read_braces(r, &min, &max));
        else if (!take(r, '*') && !take(r, '+') && !take(r, '?'))
            return MPK_OK;
        if (n >= GRAMMAR_MOST_NESTING)
            return fault(r, "too many repetitions of one item in a row");
        TRY(node_repeat(r->k, *item, min, max, item));
        skip(r, r->nesting > 0);
    }
}

/* The end of a line ends a sequence; in groups read_sequence has skipped it. */
static bool ends_sequence(const ebnf_reader *r)
{
    char c = peek(r);
    return r->at >= r->source.n || c == '|' || c == ')' || c == '\n' || c == '\r';
}

/* A sequence may be empty: an alternative that matches the empty text. */
static mpk_status read_sequence(ebnf_reader *r, const node **out)
{
    node *seq;
    const node *item;
    TRY(node_new(r->k, NODE_SEQ, &seq));
    while (!ends_sequence(r)) {
        TRY(read_item(r, &item));
        skip(r, r->nesting > 0);
        TRY(read_repeats(r, &item));
        TRY(node_add(r->k, seq, item));
    }
    *out = seq;
    return MPK_OK;
}

/* After a bar the rule goes on, also on the next line. */
static mpk_status read_alternatives(ebnf_reader *r, const node **out)
{
    node *alt;
    const node *child;
    TRY(node_new(r->k, NODE_ALT, &alt));
    do {
        skip(r, true);
        TRY(read_sequence(r, &child));
        TRY(node_add(r->k, alt, child));
    } while (take(r, '|'));
    *out = alt;
    return MPK_OK;
}

/* A rule that is defined twice is refused. */
static mpk_status read_rule(ebnf_reader *r)
{
    uint32_t number;
    const node *body;
    TRY(read_name(r, &number));
    skip(r, false);
    if (!take(r, ':') || !take(r, ':') || !take(r, '='))
        return fault(r, "::= is missing after the name of a rule");
    if (r->k->rules.at[number].body)
        return fault(r, "a rule stands twice");
    TRY(read_alternatives(r, &body));
    r->k->rules.at[number].body = body;
    if (!ends_sequence(r) || peek(r) == ')')
        return fault(r, ") without (");
    skip(r, true);
    return MPK_OK;
}

/* Rule 0 is the caller's (the whole), so names are checked from 1 on. */
mpk_status ebnf_parse_node(maker *k, str source, const node **out)
{
    ebnf_reader r = {.k = k, .source = source};
    uint64_t root;
    skip(&r, true);
    while (r.at < source.n)
        TRY(read_rule(&r));
    if (!map_get(&r.names, STR("root"), &root))
        return fault(&r, "there is no rule named root");
    for (size_t i = 1; i < k->rules.n; i++)
        CHECK(k->cx, k->rules.at[i].body, MPK_EFORMAT, "the grammar has no rule named %.*s",
              STR_ARG(k->rules.at[i].name));
    return node_rule(k, (uint32_t)root, out);
}
