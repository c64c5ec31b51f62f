/* tokenizer_regex.c - the regular expressions of tokenizer.json, by PCRE2.
 *
 * They are written for Oniguruma.  A pattern is translated item by item into PCRE2's syntax with
 * the same meaning: \s, \w, \d and \h are spelled as the sets that Oniguruma means, {n,m}+ repeats
 * the repetition, ^ and $ know lines.  What is not understood is refused with the place.
 * Oniguruma's Unicode tables are newer than PCRE2's: characters that only they know are shown to
 * PCRE2 as a stand-in of the same class and length, so that offsets stay.
 *
 *   \p{L}+        \p{L}+
 *   [^\s]         [^\x{9}-\x{d}\x{20}\x{85}\p{Z}]
 *   (ab){2,3}+    (?:(?:ab){2,3})+
 *
 * Limits on backtracking turn a pattern that explodes on a text into MPK_ELIMIT.  Compiled
 * expressions are shared by threads; each thread has a regex_match of its own.  Called by the
 * makers of tokenizers and by tokenizer_split.c. */
#include "load/tokenizer_parts.h"

#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Compiled, and just-in-time compiled if PCRE2 can; shared by any number of threads. */
struct regex {
    pcre2_code *code;
    str pattern; /* for messages */
};

/* What one thread needs to match: the place for a match, limits on backtracking, and a stack for
 * compiled code, since the thread's own would be too small. */
struct regex_match {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* --- translation --- */

#define SPACE_SET "\\x{9}-\\x{d}\\x{20}\\x{85}\\p{Z}"
#define NOT_SPACE_SET                                                                            \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{"   \
    "1fff}"                                                                                      \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{" \
    "10ffff}"
/* Alone, \w also takes six superscripts and fractions of Latin-1; in brackets it does not. */
#define WORD_IN_BRACKETS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_SET WORD_IN_BRACKETS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* A pattern while it is translated. */
typedef struct translator {
    mpk_context *cx;
    str in;
    size_t at;
    text out;
    /* where in `out` the last item begins that a quantifier may follow; SIZE_MAX: none */
    size_t atom;
} translator;

/* Append to the translation; running out of memory is noticed at the end. */
static void emit(translator *t, const char *s)
{
    text_add(&t->out, s, strlen(s));
}

/* Refuse what the pattern has at this place, in words. */
static mpk_status refuse(translator *t, const char *what)
{
    FAIL(t->cx, MPK_EUNSUPPORTED, "regular expression %.*s: %s at byte %zu is not supported",
         STR_ARG(t->in), what, t->at);
}

/* Does the rest of the pattern begin with this? */
static bool looking_at(const translator *t, const char *s)
{
    size_t n = strlen(s);
    return t->in.n - t->at >= n && memcmp(t->in.at + t->at, s, n) == 0;
}

/* A character by its number, which has no special meaning to PCRE2. */
static void emit_code(translator *t, uint32_t c)
{
    text_print(&t->out, "\\x{%x}", c);
}

/* One literal character, whatever it means to PCRE2.  Letters, digits, blanks and everything
 * beyond ASCII mean nothing there; the others are written by their number. */
static void emit_literal(translator *t)
{
    size_t n = utf8_length(t->in.at + t->at);
    unsigned char c = (unsigned char)t->in.at[t->at];
    bool plain =
        c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == ' ';
    if (plain)
        text_add(&t->out, t->in.at + t->at, n);
    else
        emit_code(t, c);
    t->at += n;
}

/* Long names of the general categories; any other long name is taken for a script's. */
static const char *const category_names[][2] = {
    {"Letter", "L"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Decimal_Number", "Nd"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Alphabetic", "Alphabetic"},
};

/* \p{..} or \P{..}, the same inside and outside of brackets.  A caret within negates again. Only
 * names of letters and underscores are passed on, so nothing else gets into the pattern. \p{Lu} and
 * \p{Letter} are categories, \p{Han} is a script and becomes \p{sc:Han}: PCRE2 would otherwise also
 * take characters that several scripts share. */
static mpk_status translate_property(translator *t)
{
    bool negated = t->in.at[t->at + 1] == 'P';
    size_t start = t->at + 3, end = start;
    if (t->at + 2 >= t->in.n || t->in.at[t->at + 2] != '{')
        return refuse(t, "\\p without {");
    while (end < t->in.n && t->in.at[end] != '}')
        end++;
    if (end == t->in.n)
        return refuse(t, "an open \\p{");
    if (start < end && t->in.at[start] == '^') {
        negated = !negated;
        start++;
    }
    str name = {t->in.at + start, end - start};
    for (size_t i = 0; i < name.n; i++)
        if (!((name.at[i] | 32) >= 'a' && (name.at[i] | 32) <= 'z') && name.at[i] != '_')
            return refuse(t, "the name in \\p{}");
    const char *script = name.n > 2 ? "sc:" : "";
    for (size_t i = 0; i < sizeof category_names / sizeof *category_names; i++)
        if (str_is(name, category_names[i][0])) {
            name = str_from(category_names[i][1]);
            script = "";
        }
    text_print(&t->out, "\\%c{%s%.*s}", negated ? 'P' : 'p', script, STR_ARG(name));
    t->at = end + 1;
    return MPK_OK;
}

/* \xHH, \x{H..}, \uHHHH.  Without braces \x80 and above are bytes to Oniguruma, not characters, and
 * are refused; so are surrogates. One or two digits after \x, up to six in braces. */
static mpk_status translate_code(translator *t)
{
    const bool braces = t->at + 2 < t->in.n && t->in.at[t->at + 2] == '{';
    size_t i = t->at + 2 + braces, most = t->in.at[t->at + 1] == 'u' ? 4 : 2, digits = 0;
    if (braces)
        most = 6;
    uint32_t c = 0;
    for (; i < t->in.n && digits < most; i++, digits++) {
        const int value = str_hex_digit(t->in.at[i]);
        if (value < 0)
            break;
        c = c * 16 + (uint32_t)value;
    }
    bool closed = !braces || (i < t->in.n && t->in.at[i] == '}');
    if (!digits || !closed || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ||
        (!braces && t->in.at[t->at + 1] == 'x' && c >= 0x80))
        return refuse(t, "the character code");
    emit_code(t, c);
    t->at = i + braces;
    return MPK_OK;
}

/* Escapes that stand for a control character: the character, or 0. \e is ESC, which PCRE2 and
 * Oniguruma both know. */
static uint32_t control_escape(char c)
{
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'f':
        return '\f';
    case 'v':
        return '\v';
    case 'a':
        return 7;
    case 'e':
        return 27;
    default:
        return 0;
    }
}

/* The set that a letter after \ stands for, inside and outside of brackets.  NULL: none. \W and \H
 * within brackets would need a complement there, which PCRE2 cannot spell: they are refused. */
static const char *escape_set(char c, bool inside)
{
    switch (c) {
    case 's':
        return inside ? SPACE_SET : "[" SPACE_SET "]";
    case 'S':
        return inside ? NOT_SPACE_SET : "[^" SPACE_SET "]";
    case 'w':
        return inside ? WORD_IN_BRACKETS : "[" WORD_SET "]";
    case 'W':
        return inside ? NULL : "[^" WORD_SET "]";
    case 'd':
        return "\\p{Nd}";
    case 'D':
        return "\\P{Nd}";
    case 'h':
        return inside ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
    case 'H':
        return inside ? NULL : "[^0-9A-Fa-f]";
    default:
        return NULL;
    }
}

/* Escapes that are not sets: a boundary or an anchor, outside of brackets. */
static const char *escape_place(char c)
{
    switch (c) {
    case 'b':
        return "(?:(?<=[" WORD_SET "])(?![" WORD_SET "])|(?<![" WORD_SET "])(?=[" WORD_SET "]))";
    case 'B':
        return "(?:(?<=[" WORD_SET "])(?=[" WORD_SET "])|(?<![" WORD_SET "])(?![" WORD_SET "]))";
    case 'A':
        return "\\A";
    case 'z':
        return "\\z";
    case 'Z':
        return "\\Z";
    default:
        return NULL;
    }
}

/* An escape.  inside: within a bracket, where places such as \\b have no meaning.  An unknown
 * letter or digit is refused; any other character stands for itself. Sets first, then places,
 * properties, codes and control characters. */
static mpk_status translate_escape(translator *t, bool inside)
{
    if (t->at + 1 >= t->in.n)
        return refuse(t, "a final \\");
    char c = t->in.at[t->at + 1];
    const char *other = escape_set(c, inside);
    if (!other && !inside)
        other = escape_place(c);
    if (other) {
        emit(t, other);
        t->at += 2;
        return MPK_OK;
    }
    if (c == 'p' || c == 'P')
        return translate_property(t);
    if (c == 'x' || c == 'u')
        return translate_code(t);
    if (control_escape(c)) {
        emit_code(t, control_escape(c));
        t->at += 2;
        return MPK_OK;
    }
    if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
        return refuse(t, "the escape");
    t->at++;
    emit_literal(t);
    return MPK_OK;
}

/* [..]: a flat list of characters, ranges and escapes.  Nested and intersected sets of Oniguruma
 * are refused.  A - is a range between two characters, and itself at the beginning and the end. */
static mpk_status translate_class(translator *t)
{
    emit(t, "[");
    t->at++;
    const size_t begin = t->out.n;
    if (looking_at(t, "^")) {
        emit(t, "^");
        t->at++;
    }
    if (looking_at(t, "]"))
        return refuse(t, "] at the beginning of a bracket");
    bool range = false; /* the last item was a character and - */
    while (t->at < t->in.n && t->in.at[t->at] != ']') {
        if (looking_at(t, "["))
            return refuse(t, "a bracket within a bracket");
        if (looking_at(t, "&&"))
            return refuse(t, "&& in a bracket");
        if (looking_at(t, "\\")) {
            TRY(translate_escape(t, true));
            range = false;
        } else if (looking_at(t, "-") && !looking_at(t, "-]") && t->out.n > begin && !range) {
            emit(t, "-");
            t->at++;
            range = true;
        } else {
            emit_literal(t);
            range = false;
        }
    }
    if (t->at == t->in.n)
        return refuse(t, "an open bracket");
    emit(t, "]");
    t->at++;
    return MPK_OK;
}

/* ( and what may follow it. */
static mpk_status translate_group(translator *t)
{
    static const char *const same[] = {"(?:", "(?=",  "(?!",  "(?<=",  "(?<!",
                                       "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (looking_at(t, same[i])) {
            emit(t, same[i]);
            t->at += strlen(same[i]);
            return MPK_OK;
        }
    if (looking_at(t, "(?m:")) { /* in Oniguruma m means that the dot is any character */
        emit(t, "(?s:");
        t->at += 4;
        return MPK_OK;
    }
    if (looking_at(t, "(?") || looking_at(t, "(*"))
        return refuse(t, "the group");
    emit(t, "(?:"); /* captures are never referred to */
    t->at++;
    return MPK_OK;
}

/* {n}, {n,}, {n,m}, {,m}; anything else is a literal brace.  {n}? means "n times or not at all"
 * to Oniguruma and a lazy repetition to PCRE2: it is refused. */
static mpk_status translate_braces(translator *t)
{
    unsigned low = 0, high = 0, low_digits = 0, high_digits = 0;
    size_t i = t->at + 1;
    for (; i < t->in.n && t->in.at[i] >= '0' && t->in.at[i] <= '9' && low_digits < 6;
         i++, low_digits++)
        low = low * 10 + (unsigned)(t->in.at[i] - '0');
    bool comma = i < t->in.n && t->in.at[i] == ',';
    i += comma;
    for (; comma && i < t->in.n && t->in.at[i] >= '0' && t->in.at[i] <= '9' && high_digits < 6;
         i++, high_digits++)
        high = high * 10 + (unsigned)(t->in.at[i] - '0');
    if (i >= t->in.n || t->in.at[i] != '}' || low_digits + high_digits == 0) {
        t->atom = t->out.n;
        emit_literal(t);
        return MPK_OK;
    }
    if (t->atom == SIZE_MAX)
        return refuse(t, "a quantifier of nothing");
    if (high_digits && high < low)
        return refuse(t, "a quantifier whose limits are swapped");
    t->at = i + 1;
    text_print(&t->out, "{%u%s", low, comma ? "," : "");
    if (high_digits)
        text_print(&t->out, "%u", high);
    emit(t, "}");
    if (looking_at(t, "?")) {
        if (!comma)
            return refuse(t, "{n}?");
        emit(t, "?");
        t->at++;
    }
    if (looking_at(t, "+") || looking_at(t, "*") || looking_at(t, "?")) {
        /* to PCRE2 {n,m}+ would be possessive; to Oniguruma it repeats the whole */
        text tail = {0};
        text_add(&tail, t->out.at + t->atom, t->out.n - t->atom);
        t->out.n = t->atom;
        emit(t, "(?:");
        if (tail.failed)
            t->out.failed = true;
        else
            text_add(&t->out, tail.at, tail.n);
        emit(t, ")");
        text_free(&tail);
    }
    return MPK_OK;
}

/* + * ? after an item, with a possessive + or a lazy ? after it. */
static mpk_status translate_quantifier(translator *t)
{
    if (t->atom == SIZE_MAX)
        return refuse(t, "a quantifier of nothing");
    text_add(&t->out, t->in.at + t->at, 1);
    t->at++;
    if (looking_at(t, "+") || looking_at(t, "?")) {
        text_add(&t->out, t->in.at + t->at, 1);
        t->at++;
    }
    if (looking_at(t, "+") || looking_at(t, "?") || looking_at(t, "*"))
        return refuse(t, "a quantifier of a quantifier");
    return MPK_OK;
}

enum { MAX_GROUPS = 64 };

/* Translate the whole pattern, item by item; MPK_EUNSUPPORTED with the place of what is not
 * known.  `groups` holds where each open group begins, so that a quantifier after it applies to
 * the whole group. */
static mpk_status translate(translator *t)
{
    size_t groups[MAX_GROUPS], depth = 0;
    while (t->at < t->in.n) {
        char c = t->in.at[t->at];
        size_t begin = t->out.n;
        if (c == '*' || c == '+' || c == '?') {
            TRY(translate_quantifier(t));
            continue;
        }
        if (c == '{') {
            TRY(translate_braces(t));
            continue;
        }
        t->atom = begin;
        if (c == '(') {
            if (depth == MAX_GROUPS)
                return refuse(t, "a group nested so deep");
            groups[depth++] = begin;
            TRY(translate_group(t));
            /* (?i): applies to the end of the group, and opens none */
            bool option = t->in.at[t->at - 1] == ')';
            depth -= option;
            t->atom = SIZE_MAX;
        } else if (c == ')') {
            if (!depth)
                return refuse(t, ") without (");
            emit(t, ")");
            t->at++;
            t->atom = groups[--depth];
        } else if (c == '[') {
            TRY(translate_class(t));
        } else if (c == '\\') {
            TRY(translate_escape(t, false));
        } else if (c == '|' || c == '^' || c == '$' || c == '.') {
            text_add(&t->out, &c, 1);
            t->at++;
            if (c != '.')
                t->atom = SIZE_MAX;
        } else {
            emit_literal(t);
        }
    }
    return depth ? refuse(t, "an open (") : MPK_OK;
}

/* --- compiling --- */

/* Compile a pattern that is in PCRE2's syntax already.  A newline is LF only, and ^ and $ match
 * at lines, as in Oniguruma. */
mpk_status regex_compile_native(mpk_context *cx, arena *a, str pattern, regex **out)
{
    regex *r;
    NEW(cx, a, r, 1);
    char *copy = arena_copy(a, pattern.at, pattern.n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for a regular expression");
    r->pattern = (str){copy, pattern.n};
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    CHECK(cx, context, MPK_ENOMEM, "out of memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    r->code = pcre2_compile((PCRE2_SPTR)pattern.at, pattern.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        char reason[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        FAIL(cx, error == PCRE2_ERROR_HEAP_FAILED ? MPK_ENOMEM : MPK_EUNSUPPORTED,
             "regular expression %.*s: %s", STR_ARG(pattern), reason);
    }
    /* without it matching is slower, but the same */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    *out = r;
    return MPK_OK;
}

enum { LONGEST_PATTERN = 1 << 16 };

/* Compile a pattern of the file: translated first.  Errors show the original, cut to a length
 * that fits a message. */
mpk_status regex_compile(mpk_context *cx, arena *a, str pattern, regex **out)
{
    CHECK(cx, pattern.n <= LONGEST_PATTERN, MPK_ELIMIT,
          "a regular expression has %zu bytes, the limit is %d", pattern.n, LONGEST_PATTERN);
    translator t = {.cx = cx, .in = pattern, .atom = SIZE_MAX};
    emit(&t, "");
    mpk_status status = translate(&t);
    if (status == MPK_OK)
        status = text_check(cx, &t.out);
    if (status == MPK_OK)
        status = regex_compile_native(cx, a, (str){t.out.at, t.out.n}, out);
    if (status != MPK_OK)
        status = status_note(cx, status, "reading the pattern %.*s", STR_SHOWN(pattern, 400));
    text_free(&t.out);
    return status;
}

void regex_free(regex *r)
{
    if (r)
        pcre2_code_free(r->code);
}

/* --- matching --- */

enum { STACK_FIRST = 32 << 10, STACK_MOST = 16 << 20, LEAST_LIMIT = 1000000 };

/* The memory of one thread; expressions are shared, this is not. */
mpk_status regex_match_new(mpk_context *cx, regex_match **out)
{
    regex_match *m = calloc(1, sizeof *m);
    CHECK(cx, m, MPK_ENOMEM, "out of memory for matching");
    m->data = pcre2_match_data_create(4, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL);
    if (!m->data || !m->context || !m->stack) {
        regex_match_free(m);
        FAIL(cx, MPK_ENOMEM, "out of memory for matching");
    }
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return MPK_OK;
}

/* NULL is allowed. */
void regex_match_free(regex_match *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

/* Replace the character at byte i of the copy by one of the same length. */
static void put_stand_in(text *copy, size_t i, uint32_t c)
{
    char bytes[8];
    text one = {.at = bytes, .capacity = sizeof bytes};
    utf8_add(&one, c);
    memcpy(copy->at + i, bytes, one.n);
}

/* `shown` is what PCRE2 sees: the original, unless a character has a stand-in; stand-ins have
 * the same length, so offsets are the same in both. */
mpk_status subject_set(mpk_context *cx, subject *s, str original)
{
    s->original = s->shown = original;
    for (size_t i = 0; i < original.n; i += utf8_length(original.at + i)) {
        if ((unsigned char)original.at[i] < 0xe0) /* stand-ins have 3 or 4 bytes */
            continue;
        uint32_t c = utf8_get(original.at + i), stand_in = char_stand_in(c);
        if (c == stand_in)
            continue;
        if (s->shown.at == original.at) {
            s->copy.n = 0;
            text_add(&s->copy, original.at, original.n);
            TRY(text_check(cx, &s->copy));
            s->shown.at = s->copy.at;
        }
        put_stand_in(&s->copy, i, stand_in);
    }
    return MPK_OK;
}

void subject_free(subject *s)
{
    text_free(&s->copy);
}

/* The limit on backtracking grows with the text: linear patterns never reach it, exploding ones
 * do. */
mpk_status regex_find(mpk_context *cx, regex_match *m, const regex *r, const subject *in,
                      size_t from, bool *found, size_t *start, size_t *end)
{
    PCRE2_SPTR at = (PCRE2_SPTR)(in->shown.at ? in->shown.at : "");
    size_t n = in->shown.n, limit = LEAST_LIMIT + 64 * n;
    pcre2_set_match_limit(m->context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    int result = pcre2_match(r->code, at, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    /* the interpreter has its stack on the heap */
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = pcre2_match(r->code, at, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                             m->context);
    *found = result >= 0;
    if (result == PCRE2_ERROR_NOMATCH)
        return MPK_OK;
    if (result < 0) {
        char reason[128] = "";
        pcre2_get_error_message(result, (PCRE2_UCHAR *)reason, sizeof reason);
        FAIL(cx, result == PCRE2_ERROR_NOMEMORY ? MPK_ENOMEM : MPK_ELIMIT,
             "regular expression %.*s gave up at byte %zu of a text of %zu: %s",
             STR_ARG(r->pattern), from, n, reason);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m->data);
    *start = range[0];
    *end = range[1] < range[0] ? range[0] : range[1];
    return MPK_OK;
}
