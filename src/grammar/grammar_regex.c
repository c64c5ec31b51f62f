/* grammar_regex.c - regular expressions -> trees.
 *
 * What is taken: characters, ., [...], \d \w \s and their opposites (of ASCII), \t \n \r \f \v \0
 * \xHH \uHHHH \u{H}, groups, |, * + ? {n} {n,} {n,m} with or without a lazy ?, and ^ $ at the ends
 * of the expression or of one of its outermost alternatives.  Whatever makes the language
 * irregular or depends on its surroundings is refused by name.
 *
 * A regular expression in a schema is searched for (`pattern`), as an answer's form it is the
 * whole text; `whole` tells them apart, and open sides are written into the tree as "any
 * characters".  Sets are of characters; the compiler makes bytes of them.  Called by grammar.c,
 * grammar_tag.c and the schema's files, which write JSON's own forms as expressions. */
#include "grammar/grammar_parts.h"

/* The place in the source, and how many groups are open there. */
typedef struct regex_reader {
    maker *k;
    str source;
    size_t at;
    uint32_t nesting;
    bool whole;
} regex_reader;

static bool at_end(const regex_reader *r)
{
    return r->at >= r->source.n;
}
static char peek(const regex_reader *r)
{
    return at_end(r) ? '\0' : r->source.at[r->at];
}
static bool sees(const regex_reader *r, const char *word)
{
    size_t n = strlen(word);
    return r->source.n - r->at >= n && memcmp(r->source.at + r->at, word, n) == 0;
}
/* Skip a word if it comes next. */
static bool take(regex_reader *r, const char *word)
{
    bool yes = sees(r, word);
    r->at += yes ? strlen(word) : 0;
    return yes;
}

static bool is_one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

/* Refuse a construct of other engines that is known but not supported. */
static mpk_status refuse(const regex_reader *r, const char *what)
{
    FAIL(r->k->cx, MPK_EUNSUPPORTED, "%s at byte %zu of the regular expression is not supported",
         what, r->at);
}
/* Refuse what is wrong in every engine. */
static mpk_status fault(const regex_reader *r, const char *what)
{
    FAIL(r->k->cx, MPK_EFORMAT, "byte %zu of the regular expression: %s", r->at, what);
}

/* ---- sets ---- */

/* The sets are of ASCII, the default of most engines; a capital letter is the complement. \s is tab
 * to carriage return and the space. */
static mpk_status add_named(regex_reader *r, char name, char_set *set)
{
    maker *k = r->k;
    char_set made = {0}, inverse;
    if (name == 'd' || name == 'D') {
        TRY(chars_add(k, &made, '0', '9'));
    } else if (name == 'w' || name == 'W') {
        TRY(chars_add(k, &made, '0', '9'));
        TRY(chars_add(k, &made, 'A', 'Z'));
        TRY(chars_add(k, &made, '_', '_'));
        TRY(chars_add(k, &made, 'a', 'z'));
    } else {
        TRY(chars_add(k, &made, '\t', '\r'));
        TRY(chars_add(k, &made, ' ', ' '));
    }
    if (name >= 'a')
        return chars_add_set(k, set, &made);
    TRY(chars_invert(k, &made, &inverse));
    return chars_add_set(k, set, &inverse);
}

/* So many hex digits, all of which must exist. */
static mpk_status read_hex(regex_reader *r, uint32_t digits, uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < digits; i++, r->at++) {
        const int digit = str_hex_digit(peek(r));
        if (digit < 0)
            return fault(r, "a hexadecimal digit is missing");
        *out = *out * 16 + (uint32_t)digit;
    }
    return MPK_OK;
}

/* After \u: four digits, a pair of surrogates, or {digits}. "\ud83d\ude00" is one character,
 * U+1F600, as ECMAScript and JSON write it. */
static mpk_status read_unicode(regex_reader *r, uint32_t *out)
{
    uint32_t low, digits = 0;
    if (take(r, "{")) {
        while (r->at + digits < r->source.n && r->source.at[r->at + digits] != '}' && digits < 7)
            digits++;
        if (!digits || digits > 6)
            return fault(r, "\\u{...} has one to six digits");
        TRY(read_hex(r, digits, out));
        if (!take(r, "}"))
            return fault(r, "\\u{ has no end");
    } else {
        TRY(read_hex(r, 4, out));
        if (*out >= 0xd800 && *out < 0xdc00 && take(r, "\\u")) {
            TRY(read_hex(r, 4, &low));
            if (low < 0xdc00 || low > 0xdfff)
                return fault(r, "the first half of a pair of surrogates has no second half");
            *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (*out > GRAMMAR_LAST_CHAR || (*out >= 0xd800 && *out < 0xe000))
        return fault(r, "no such character");
    return MPK_OK;
}

/* After a backslash: a set (*is_set), or one character. Letters whose meaning an automaton cannot
 * have (references, assertions) are refused by name; any other punctuation stands for itself. */
static mpk_status read_escape(regex_reader *r, bool in_class, char_set *set, bool *is_set,
                              uint32_t *one)
{
    if (at_end(r))
        return fault(r, "\\ at the end");
    char c = peek(r);
    *is_set = is_one_of(c, "dDwWsS");
    if (*is_set) {
        r->at++;
        return add_named(r, c, set);
    }
    static const char letters[] = "tnrfv0", means[] = "\t\n\r\f\v";
    const char *letter = c ? strchr(letters, c) : NULL;
    if (c >= '1' && c <= '9')
        return refuse(r, "a reference to a group (\\1)");
    /* inside a class \b is a backspace, outside an assertion */
    if (c == 'b' && in_class)
        letter = "b";
    else if (is_one_of(c, "bBAZzG"))
        return refuse(r, "an assertion (\\b, \\B, \\A, \\Z, \\G)");
    if (is_one_of(c, "pPXRKkNHhgCEQL"))
        return refuse(r,
                      "a class or an escape that is not \\d \\w \\s \\t \\n \\r \\f \\v \\x \\u");
    if (take(r, "x") || sees(r, "u")) {
        if (c == 'x')
            return read_hex(r, 2, one);
        r->at++;
        return read_unicode(r, one);
    }
    if (!letter && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
        return refuse(r, "an escape that is not known");
    if (!letter)
        return chars_read(r->k, r->source, &r->at, one);
    r->at++;
    *one = c == 'b' ? '\b' : (uint32_t)(uint8_t)means[letter - letters];
    return MPK_OK;
}

/* One end of a range, or a set. */
static mpk_status read_member(regex_reader *r, char_set *set, bool *is_set, uint32_t *one)
{
    *is_set = false;
    if (sees(r, "[:") || sees(r, "[=") || sees(r, "[."))
        return refuse(r, "a POSIX class ([:alpha:])");
    if (take(r, "\\"))
        return read_escape(r, true, set, is_set, one);
    return chars_read(r->k, r->source, &r->at, one);
}

/* A member, or two with a - between them, which are a range.  If one of the two is a set, there is
 * no range and the - stands for itself (ECMAScript without the flag u: [a-\d] is [a\-\d]). [a-z] is
 * a range; in [a-] and [-a] the - is a member. */
static mpk_status read_range(regex_reader *r, char_set *set)
{
    bool is_set, also;
    uint32_t low, high;
    TRY(read_member(r, set, &is_set, &low));
    if (peek(r) != '-' || sees(r, "-]") || r->at + 1 >= r->source.n)
        return is_set ? MPK_OK : chars_add(r->k, set, low, low);
    r->at++;
    TRY(read_member(r, set, &also, &high));
    if (!is_set && !also) {
        if (high < low)
            return fault(r, "a range whose ends are not in order");
        return chars_add(r->k, set, low, high);
    }
    TRY(chars_add(r->k, set, '-', '-'));
    if (!is_set)
        TRY(chars_add(r->k, set, low, low));
    return also ? MPK_OK : chars_add(r->k, set, high, high);
}

/* A ] that comes first stands for itself, and so does a - at either end. */
static mpk_status read_class(regex_reader *r, const node **out)
{
    char_set set = {0}, inverse;
    bool inverted = take(r, "^");
    for (bool first = true; first || peek(r) != ']'; first = false) {
        if (at_end(r))
            return fault(r, "[ has no end");
        TRY(read_range(r, &set));
    }
    r->at++;
    chars_settle(&set);
    if (!inverted)
        return node_chars(r->k, &set, out);
    TRY(chars_invert(r->k, &set, &inverse));
    return node_chars(r->k, &inverse, out);
}

/* ---- parts ---- */

static mpk_status read_alternatives(regex_reader *r, bool outermost, const node **out);

/* Groups only bind: captures have no meaning for a grammar. (?<name>...) and (?P<name>...) are
 * groups whose name is not used. */
static mpk_status read_group(regex_reader *r, const node **out)
{
    if (take(r, "?")) {
        bool named =
            take(r, "P<") || (sees(r, "<") && !sees(r, "<=") && !sees(r, "<!") && take(r, "<"));
        if (!named && !take(r, ":"))
            return refuse(r, "a group that is neither (...), (?:...) nor (?<name>...): assertions, "
                             "flags, references");
        while (named && !at_end(r) && !take(r, ">"))
            r->at++;
    } else if (sees(r, "*")) {
        return refuse(r, "a verb (*...)");
    }
    if (++r->nesting > GRAMMAR_MOST_NESTING)
        return fault(r, "groups are nested too deeply");
    TRY(read_alternatives(r, false, out));
    r->nesting--;
    return take(r, ")") ? MPK_OK : fault(r, "( has no end");
}

/* Everything but a line feed, the default of most engines. */
static mpk_status read_dot(regex_reader *r, const node **out)
{
    char_set newline = {0}, others;
    TRY(chars_add(r->k, &newline, '\n', '\n'));
    TRY(chars_invert(r->k, &newline, &others));
    return node_chars(r->k, &others, out);
}

/* One character, class or group, without its quantifier. ^ at the beginning and $ at the end of the
 * whole were taken off before: the expression always means all of the answer. */
static mpk_status read_atom(regex_reader *r, const node **out)
{
    char_set set = {0};
    bool is_set;
    uint32_t one;
    if (is_one_of(peek(r), "*+?"))
        return fault(r, "there is nothing to repeat");
    if (sees(r, "^") || sees(r, "$"))
        return refuse(r, "an anchor that is not at an end of the expression");
    if (take(r, "("))
        return read_group(r, out);
    if (take(r, "["))
        return read_class(r, out);
    if (take(r, "."))
        return read_dot(r, out);
    if (!take(r, "\\")) {
        TRY(chars_read(r->k, r->source, &r->at, &one));
        return node_range(r->k, one, one, out);
    }
    TRY(read_escape(r, false, &set, &is_set, &one));
    if (!is_set)
        return node_range(r->k, one, one, out);
    chars_settle(&set);
    return node_chars(r->k, &set, out);
}

/* A count; false if there is none. */
static bool read_number(regex_reader *r, uint32_t *out)
{
    uint64_t n = 0;
    size_t from = r->at;
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++)
        n = n * 10 + (uint64_t)(peek(r) - '0') < GRAMMAR_FOREVER
                ? n * 10 + (uint64_t)(peek(r) - '0')
                : GRAMMAR_FOREVER;
    *out = (uint32_t)n;
    return r->at > from;
}

/* {n}, {n,}, {,m} or {n,m}; any other text that begins with { is literal, as elsewhere. */
static bool read_braces(regex_reader *r, uint32_t *min, uint32_t *max)
{
    size_t from = r->at;
    bool good = take(r, "{");
    bool low = good && read_number(r, min), comma = good && take(r, ","),
         high = comma && read_number(r, max);
    good = good && (low || high) && take(r, "}");
    if (!good) {
        r->at = from;
        return false;
    }
    if (!low)
        *min = 0;
    if (!high)
        *max = comma ? GRAMMAR_FOREVER : *min;
    return true;
}

/* The quantifier of the atom before; false: there is none, and the atom comes once. */
static bool read_quantifier(regex_reader *r, uint32_t *min, uint32_t *max)
{
    *min = sees(r, "+");
    *max = sees(r, "?") ? 1 : GRAMMAR_FOREVER;
    if (take(r, "*") || take(r, "+") || take(r, "?"))
        return true;
    return read_braces(r, min, max);
}

/* A lazy quantifier matches the same texts as a greedy one; a possessive one does not, and is
 * refused. */
static mpk_status read_repeated(regex_reader *r, const node **out)
{
    uint32_t min, max;
    TRY(read_atom(r, out));
    if (!read_quantifier(r, &min, &max))
        return MPK_OK;
    if (min > max)
        return fault(r, "a count ends below its beginning");
    if (min > GRAMMAR_MOST_REPEATS || (max > GRAMMAR_MOST_REPEATS && max != GRAMMAR_FOREVER))
        return fault(r, "a count is too large");
    if (sees(r, "+"))
        return refuse(r, "a possessive quantifier");
    take(r, "?"); /* lazy: the same texts */
    if (is_one_of(peek(r), "*+?"))
        return fault(r, "two quantifiers in a row");
    return node_repeat(r->k, *out, min, max, out);
}

/* Any text, on the side of an alternative that has no anchor. */
static mpk_status add_open_side(regex_reader *r, bool anchored, node *seq)
{
    char_set all = {0};
    const node *any;
    if (r->whole || anchored)
        return MPK_OK;
    TRY(chars_add(r->k, &all, 0, 0xd7ff));
    TRY(chars_add(r->k, &all, 0xe000, GRAMMAR_LAST_CHAR));
    TRY(node_chars(r->k, &all, &any));
    TRY(node_repeat(r->k, any, 0, GRAMMAR_FOREVER, &any));
    return node_add(r->k, seq, any);
}

/* The characters that end a sequence. */
static bool ends_alternative(const regex_reader *r)
{
    return at_end(r) || peek(r) == '|' || peek(r) == ')';
}

/* Without ^ or $ on a side, an expression may match anywhere in the text: that side is then
 * open. */
static mpk_status read_sequence(regex_reader *r, bool outermost, const node **out)
{
    node *seq;
    const node *child = NULL;
    TRY(node_new(r->k, NODE_SEQ, &seq));
    if (outermost)
        TRY(add_open_side(r, take(r, "^"), seq));
    while (!ends_alternative(r) &&
           !(outermost && (sees(r, "$|") || (sees(r, "$") && r->at + 1 == r->source.n)))) {
        TRY(read_repeated(r, &child));
        TRY(node_add(r->k, seq, child));
    }
    if (outermost)
        TRY(add_open_side(r, take(r, "$"), seq));
    *out = seq;
    return MPK_OK;
}

/* outermost: anchors are read here, and open sides added; within a group anchors are refused. */
static mpk_status read_alternatives(regex_reader *r, bool outermost, const node **out)
{
    node *alt;
    const node *child = NULL;
    TRY(node_new(r->k, NODE_ALT, &alt));
    do {
        TRY(read_sequence(r, outermost, &child));
        TRY(node_add(r->k, alt, child));
    } while (take(r, "|"));
    *out = alt;
    return MPK_OK;
}

mpk_status regex_parse_node(maker *k, str source, bool whole, const node **out)
{
    regex_reader r = {.k = k, .source = source, .whole = whole};
    TRY(read_alternatives(&r, true, out));
    return at_end(&r) ? MPK_OK : fault(&r, ") without (");
}
