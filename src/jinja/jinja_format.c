/* jinja_format.c - "%s" % x and "{}".format(x), as far as templates use them.
 *
 * Known: %s %r %d %i %f %e %g %x %X %o %c %% with flags, width and precision; {} {0} {name} {a.b}
 * {a[0]} with !s and !r, and of a format only what alignment, sign, zeros, width, precision and
 * the kinds d f e g x X o b s % say.  The rest is refused.
 *
 * Both kinds of format are read into one record, spec, so that padding, signs and digits are
 * written once:
 *
 *   %[(key)][flags][width][.precision]kind           read_percent_spec     '%05.1f' % x
 *   {field[!conversion][:[[fill]align][sign][#][0][width][,][.precision][kind]]}
 *                                                    read_format_spec      '{:>8}'.format(x) */
#include "jinja/jinja_parts.h"

#include <math.h>

/* A format specification: the part between % or : and the kind. */
typedef struct spec {
    uint32_t fill;
    char align, sign, kind; /* align: < > ^ =, 0: not said; sign: + - space, 0; kind 0: not said */
    bool zero, alternate;
    char group;           /* , or _ */
    int width, precision; /* precision -1: not said */
} spec;

enum { WIDEST = 1 << 16 };

/* Append the character c n times. */
static void add_fill(text *out, uint32_t c, int n)
{
    char bytes[4];
    size_t size = str_put_char(bytes, c);
    for (int i = 0; i < n; i++)
        text_add(out, bytes, size);
}

/* '=': the fill goes between sign and digits. */
static char align_of(const spec *s, bool is_number)
{
    if (s->align)
        return s->align;
    if (!is_number)
        return '<';
    return s->zero ? '=' : '>';
}

/* Append a body with the padding of its specification.  sign_bytes: length of the sign and prefix
 * at its start; fill zeros go after them. "{:06d}".format(-42): body "-42", sign_bytes 1, align
 * '=', so the zeros come after the sign: -00042. Widths count characters; a body longer than the
 * widest field needs no count. */
static mpk_status add_padded(jrun *r, const spec *s, str body, size_t sign_bytes, bool is_number,
                             text *out)
{
    TRY(jinja_charge(r, body.n + (size_t)s->width));
    const int length = body.n < WIDEST * 4 ? (int)jinja_chars(body) : WIDEST * 4;
    const int room = s->width > length ? s->width - length : 0;
    const char align = align_of(s, is_number);
    const uint32_t zero_or_space = s->zero ? '0' : ' ';
    const uint32_t fill = s->fill ? s->fill : zero_or_space;
    int left = align == '<' ? 0 : room;
    if (align == '^')
        left = room / 2;
    if (align == '=') {
        text_add(out, body.at, sign_bytes);
        add_fill(out, fill, room);
        text_add(out, body.at + sign_bytes, body.n - sign_bytes);
        return MPK_OK;
    }
    add_fill(out, fill, left);
    text_add(out, body.at, body.n);
    add_fill(out, fill, room - left);
    return MPK_OK;
}

/* ---- numbers ---- */

/* The digits of an integer in base 2, 8, 10 or 16, with a separator. */
static void add_digits(text *t, uint64_t x, unsigned base, bool upper, char group, unsigned every)
{
    char digits[160];
    size_t at = sizeof digits;
    unsigned n = 0;
    do {
        if (group && n && n % every == 0)
            digits[--at] = group;
        digits[--at] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[x % base];
        n++;
    } while ((x /= base) != 0);
    text_add(t, digits + at, sizeof digits - at);
}

/* Append the sign that must be written, if any; returns its length in bytes. */
static size_t add_sign(text *t, bool negative, char sign)
{
    if (negative || sign == '+' || sign == ' ')
        text_add(t, negative ? "-" : &sign, 1);
    return t->n;
}

/* The base of an integer kind; 10 for d and for every kind without a base of its own. */
static unsigned base_of(char kind)
{
    switch (kind) {
    case 'x':
    case 'X':
        return 16;
    case 'o':
        return 8;
    case 'b':
        return 2;
    default:
        return 10;
    }
}

/* The sign and prefix come first, so that padding by '=' and grouping know where digits begin:
 * *sign is their length. */
static void integer_body(const spec *s, int64_t x, text *t, size_t *sign)
{
    const unsigned base = base_of(s->kind);
    *sign = add_sign(t, x < 0, s->sign);
    if (s->alternate && base != 10) {
        text_print(t, "0%c", s->kind);
        *sign = t->n;
    }
    uint64_t magnitude = x < 0 ? (uint64_t)0 - (uint64_t)x : (uint64_t)x;
    add_digits(t, magnitude, base, s->kind == 'X', s->group, base == 10 ? 3 : 4);
}

/* Insert the separator `group` (, or _) every three digits into the integer part of the number
 * that begins at byte `from` of t. */
static void group_digits(text *t, size_t from, char group)
{
    text copy = {0};
    size_t end = from;
    while (end < t->n && t->at[end] >= '0' && t->at[end] <= '9')
        end++;
    for (size_t i = from; i < t->n; i++) {
        if (i > from && i < end && (end - i) % 3 == 0)
            text_add(&copy, &group, 1);
        text_add(&copy, t->at + i, 1);
    }
    t->n = from;
    text_add(t, copy.at, copy.n);
    t->failed |= copy.failed;
    text_free(&copy);
}

/* inf or nan: in capitals for the kind F, with a % after it for the kind %. */
static void add_special(text *t, bool nan, char kind)
{
    if (kind == 'F')
        text_print(t, "%s", nan ? "NAN" : "INF");
    else
        text_print(t, "%s%s", nan ? "nan" : "inf", kind == '%' ? "%" : "");
}

/* The magnitude; a sign of -0 is written, a sign of nan is not.  Without a kind and precision it is
 * repr, which has the fewest digits that give the same number. */
static mpk_status float_body(jrun *r, const spec *s, double x, text *t, size_t *sign)
{
    char kind = s->kind ? s->kind : 'g';
    *sign = add_sign(t, signbit(x) && !isnan(x), s->sign);
    x = fabs(x);
    if (isnan(x) || isinf(x))
        add_special(t, isnan(x), kind);
    else if (kind == '%')
        text_print(t, "%.*f%%", s->precision < 0 ? 6 : s->precision, x * 100);
    else if (!s->kind && s->precision < 0)
        jinja_float_repr(t, x);
    else if (!s->kind)
        return jinja_refuse(r, "a precision without f, e or g is not supported");
    else {
        const char format[] = {'%', '.', '*', kind, 0};
        int precision = s->precision < 0 ? 6 : s->precision;
        switch (kind) { /* each with a format that the compiler can check */
        case 'f':
        case 'F':
            text_print(t, "%.*f", precision, x);
            break;
        case 'e':
            text_print(t, "%.*e", precision, x);
            break;
        case 'g':
            text_print(t, "%.*g", precision, x);
            break;
        default:
            return jinja_refuse(r, "the format %s is not supported", format);
        }
    }
    if (s->group)
        group_digits(t, *sign, s->group);
    return MPK_OK;
}

/* A float kind makes a float of an integer, but no kind makes an integer of a float. */
static mpk_status number_body(jrun *r, const spec *s, jval v, text *t, size_t *sign)
{
    const bool wants_float = s->kind && strchr("fFeEgG%", s->kind);
    if (v.kind == J_FLOAT || wants_float) {
        if (v.kind == J_FLOAT && s->kind && !wants_float)
            return jinja_fail(r, "a float has no format %c", s->kind);
        return float_body(r, s, v.kind == J_FLOAT ? v.number : (double)jinja_integral(v), t, sign);
    }
    if (s->precision >= 0)
        return jinja_fail(r, "an integer has no precision");
    integer_body(s, jinja_integral(v), t, sign);
    return MPK_OK;
}

/* The text is made apart because its length decides the padding; it is freed on every path. */
static mpk_status add_number(jrun *r, const spec *s, jval v, text *out)
{
    text t = {0};
    size_t sign = 0;
    mpk_status status = number_body(r, s, v, &t, &sign);
    if (status == MPK_OK && t.failed)
        status = status_fail(r->cx, MPK_ENOMEM, "out of memory for a number");
    if (status == MPK_OK)
        status = add_padded(r, s, (str){t.at, t.n}, sign, true, out);
    text_free(&t);
    return status;
}

/* Precision cuts to this many characters; then padding. */
static mpk_status add_str(jrun *r, const spec *s, str v, text *out)
{
    if (s->precision >= 0)
        v.n = jinja_offset(v, (size_t)s->precision);
    return add_padded(r, s, v, 0, false, out);
}

/* repr in the run's memory, for %r and !r. */
static mpk_status repr_to_str(jrun *r, jval v, str *out)
{
    text t = {0};
    jval s;
    TRY(jinja_take_text(r, jinja_repr(r, v, &t), &t, &s));
    *out = s.text;
    return MPK_OK;
}

/* ---- % ---- */

/* The state of formatting with %: `at` is the next byte to read, `used` the number of arguments
 * consumed, or SIZE_MAX once an argument was taken by name. */
typedef struct percent {
    str format;
    size_t at;
    jval arguments;
    size_t used;
} percent;

/* A value that is not a tuple is the only argument. */
static mpk_status next_argument(jrun *r, percent *p, jval *out)
{
    const bool tuple = p->arguments.kind == J_TUPLE;
    if (p->used >= (tuple ? p->arguments.list->n : 1))
        return jinja_fail(r, "%% has fewer arguments than its format names");
    *out = tuple ? p->arguments.list->at[p->used] : p->arguments;
    p->used++;
    return MPK_OK;
}

/* (key) after the %. */
static mpk_status keyed_argument(jrun *r, percent *p, jval *out)
{
    str rest = {p->format.at + p->at, p->format.n - p->at};
    size_t end = jinja_find(rest, STR(")"));
    const jval *found;
    if (end == SIZE_MAX || memchr(rest.at + 1, '(', end - 1))
        return jinja_fail(r, "the key in the format of %% does not end");
    if (p->arguments.kind != J_DICT)
        return jinja_fail(r, "a format of %% with names needs a dict");
    TRY(jinja_dict_find(r, p->arguments.dict, jinja_str((str){rest.at + 1, end - 1}), &found));
    if (!found)
        return jinja_fail(r, "%% has no argument %.*s", (int)(end < 100 ? end - 1 : 99),
                          rest.at + 1);
    *out = *found;
    p->used = SIZE_MAX;
    p->at += end + 1;
    return MPK_OK;
}

/* Widths are bounded before they are used: a format could otherwise ask for gigabytes of blanks. */
static mpk_status read_number(jrun *r, str s, size_t *at, int *out)
{
    *out = 0;
    for (; *at < s.n && s.at[*at] >= '0' && s.at[*at] <= '9'; ++*at) {
        *out = *out * 10 + (s.at[*at] - '0');
        if (*out > WIDEST)
            return jinja_refuse(r, "a width or precision over %d is not supported", WIDEST);
    }
    return MPK_OK;
}

/* Flags, width, precision and kind. */
static mpk_status read_percent_spec(jrun *r, percent *p, spec *s)
{
    const str f = p->format;
    *s = (spec){.precision = -1, .align = '>'};
    for (; p->at < f.n && f.at[p->at] && strchr("-+ 0#", f.at[p->at]); p->at++) {
        char c = f.at[p->at];
        if (c == '-')
            s->align = '<';
        else if (c == '0')
            s->zero = true;
        else if (c == '#')
            s->alternate = true;
        else if (s->sign != '+')
            s->sign = c;
    }
    s->zero = s->zero && s->align != '<'; /* zeros on the right would be digits */
    TRY(read_number(r, f, &p->at, &s->width));
    if (p->at < f.n && f.at[p->at] == '.') {
        p->at++;
        TRY(read_number(r, f, &p->at, &s->precision));
    }
    if (p->at >= f.n)
        return jinja_fail(r, "the format of %% is incomplete");
    s->kind = f.at[p->at++];
    return MPK_OK;
}

/* A code point or a string of one character; surrogates are not characters. */
static mpk_status add_char(jrun *r, spec *s, jval v, text *out)
{
    char bytes[4];
    str c = v.text;
    if (jinja_is_integral(v) && jinja_integral(v) >= 0 && jinja_integral(v) < 0x110000 &&
        (jinja_integral(v) < 0xd800 || jinja_integral(v) >= 0xe000))
        c = (str){bytes, str_put_char(bytes, (uint32_t)jinja_integral(v))};
    else if (v.kind != J_STR || jinja_chars(v.text) != 1)
        return jinja_fail(r, "%%c needs a character");
    return add_str(r, s, c, out);
}

/* %d of a float truncates; %x of a float is an error.  Zeros go between the sign and the digits
 * ('='), unless the text is to stand left. For example "%05d" % -42 is "-0042", and "%-5d" % 42 is
 * "42   ": a text that stands left is not filled with zeros. */
static mpk_status add_percent_number(jrun *r, spec *s, jval v, text *out)
{
    const bool decimal = s->kind == 'd' || s->kind == 'i' || s->kind == 'u';
    if (!jinja_is_integral(v) && v.kind != J_FLOAT)
        return v.kind == J_BIG
                   ? jinja_refuse_big(r)
                   : jinja_fail(r, "%%%c needs a number, not %s", s->kind, jinja_type_name(v));
    if (decimal && v.kind == J_FLOAT) {
        if (!(fabs(v.number) < 0x1p63))
            return jinja_refuse_big(r);
        v = jinja_int((int64_t)v.number);
    }
    if (decimal)
        s->kind = 'd';
    else if (strchr("xXo", s->kind) ? v.kind == J_FLOAT : false)
        return jinja_fail(r, "%%%c needs an integer", s->kind);
    if (s->alternate || (s->precision >= 0 && strchr("dxXo", s->kind)))
        return jinja_refuse(r, "this format of %% is not supported");
    if (s->align == '>' && s->zero)
        s->align = '=';
    return add_number(r, s, v, out);
}

/* One directive, after its %.  %s and %r take any value, and zeros do not pad them. */
static mpk_status add_percent(jrun *r, percent *p, text *out)
{
    spec s;
    jval v = {0};
    str shown = {0};
    const bool keyed = p->at < p->format.n && p->format.at[p->at] == '(';
    if (keyed)
        TRY(keyed_argument(r, p, &v));
    TRY(read_percent_spec(r, p, &s));
    if (s.kind == '%') {
        text_add(out, "%", 1);
        return MPK_OK;
    }
    if (!keyed)
        TRY(next_argument(r, p, &v));
    if (s.kind == 's' || s.kind == 'r') {
        s.zero = false;
        TRY(s.kind == 's' ? jinja_to_str(r, v, &shown) : repr_to_str(r, v, &shown));
        return add_str(r, &s, shown, out);
    }
    if (s.kind == 'c') {
        s.zero = false;
        s.precision = -1;
        return add_char(r, &s, v, out);
    }
    if (!s.kind || !strchr("diufFegxXo", s.kind)) /* * takes a width, h l L mean nothing */
        return s.kind && strchr("EGa*hlL", s.kind)
                   ? jinja_refuse(r, "%%%c is not supported", s.kind)
                   : jinja_fail(r, "the format of %% has an unknown kind");
    return add_percent_number(r, &s, v, out);
}

/* Text between directives is copied.  Arguments that no directive consumed are an error, unless
 * the argument is a mapping. */
static mpk_status percent_text(jrun *r, percent *p, text *out)
{
    while (p->at < p->format.n) {
        str rest = {p->format.at + p->at, p->format.n - p->at};
        size_t n = jinja_find(rest, STR("%"));
        TRY(jinja_charge(r, 1));
        text_add(out, rest.at, n == SIZE_MAX ? rest.n : n);
        if (n == SIZE_MAX)
            break;
        p->at += n + 1;
        TRY(add_percent(r, p, out));
    }
    const jval a = p->arguments;
    /* a mapping may have more than is asked for */
    const bool any_number = a.kind == J_DICT || a.kind == J_LIST;
    if (p->used != SIZE_MAX &&
        ((a.kind == J_TUPLE && p->used < a.list->n) ||
         (a.kind != J_TUPLE && !any_number && a.kind != J_RANGE && p->used < 1)))
        return jinja_fail(r, "%% has more arguments than its format names");
    return MPK_OK;
}

/* arguments: a tuple, or one value, or a dict for names. */
mpk_status jinja_percent(jrun *r, str format, jval arguments, jval *out)
{
    percent p = {.format = format, .arguments = arguments};
    text t = {0};
    return jinja_take_text(r, percent_text(r, &p, &t), &t, out);
}

/* ---- format ---- */

/* The state of one str.format. */
typedef struct formatter {
    const jargs *args;
    str format;
    size_t at;
    int64_t next; /* argument of the next {}; -1: numbers were given */
} formatter;

/* Every fault in braces; Python tells them apart, a template's author can see which. */
static mpk_status format_error(jrun *r)
{
    return jinja_fail(r, "the text before .format has a fault in its braces");
}

/* Argument number i. */
static mpk_status positional(jrun *r, const formatter *f, int64_t i, jval *out)
{
    if (i < 0 || (size_t)i >= f->args->n)
        return jinja_fail(r, "format has no argument number %lld", (long long)i);
    *out = f->args->at[i];
    return MPK_OK;
}

/* Argument by name. */
static mpk_status named(jrun *r, const formatter *f, str name, jval *out)
{
    for (size_t i = 0; i < f->args->n_keywords; i++)
        if (str_equal(f->args->keywords[i].name, name)) {
            *out = f->args->keywords[i].value;
            return MPK_OK;
        }
    return jinja_fail(r, "format has no argument %.*s", JINJA_SHOWN(name));
}

/* A text of digits as a number; -1 if it is not one. */
static int64_t read_index(str s)
{
    int64_t x = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] < '0' || s.at[i] > '9' || x > INT32_MAX)
            return -1;
        x = x * 10 + (s.at[i] - '0');
    }
    return s.n ? x : -1;
}

/* {} takes the next argument, {0} the one of that number, {name} the keyword.  A format may count
 * by itself or be counted, and not both: `next` is -1 once a number was seen. */
static mpk_status first_field(jrun *r, formatter *f, str name, jval *out)
{
    int64_t index = read_index(name);
    if (!name.n) {
        if (f->next < 0)
            return format_error(r);
        return positional(r, f, f->next++, out);
    }
    if (index < 0)
        return named(r, f, name, out);
    if (f->next > 0)
        return format_error(r);
    f->next = -1;
    return positional(r, f, index, out);
}

/* name.attribute[item] ... "{0.name[key]}": argument 0, its attribute `name`, of that the item
 * "key"; digits in brackets are an index. Quotation marks would be a part of the key. */
static mpk_status field_value(jrun *r, formatter *f, str field, jval *out)
{
    size_t n = 0;
    while (n < field.n && field.at[n] != '.' && field.at[n] != '[')
        n++;
    TRY(first_field(r, f, (str){field.at, n}, out));
    while (n < field.n) {
        const bool item = field.at[n++] == '[';
        size_t from = n;
        while (n < field.n &&
               (item ? field.at[n] != ']' : field.at[n] != '.' && field.at[n] != '['))
            n++;
        str part = {field.at + from, n - from};
        if (!part.n || (item && n == field.n))
            return format_error(r);
        int64_t index = read_index(part);
        if (!item)
            TRY(jinja_get_attribute(r, *out, part, out));
        else
            TRY(jinja_get_item(r, *out, index < 0 ? jinja_str(part) : jinja_int(index), out));
        n += item;
        if (item && n < field.n && field.at[n] != '.' && field.at[n] != '[')
            return format_error(r);
    }
    return MPK_OK;
}

/* [[fill]align][sign][#][0][width][,][.precision][kind].  The fill may be any character, also one
 * of several bytes; it is one only if an alignment follows. */
static mpk_status read_format_spec(jrun *r, str f, spec *s)
{
    size_t at = 0, size = 0;
    *s = (spec){.precision = -1};
    uint32_t first = f.n ? jinja_char(f.at, &size) : 0;
    if (f.n > size && strchr("<>^=", f.at[size]) && f.at[size]) {
        s->fill = first;
        s->align = f.at[size];
        at = size + 1;
    } else if (f.n && first && first < 0x80 && strchr("<>^=", (int)first)) {
        s->align = (char)first;
        at = 1;
    }
    if (at < f.n && (f.at[at] == '+' || f.at[at] == '-' || f.at[at] == ' '))
        s->sign = f.at[at++];
    if (at < f.n && f.at[at] == '#')
        s->alternate = f.at[at++];
    if (at < f.n && f.at[at] == '0')
        s->zero = f.at[at++];
    TRY(read_number(r, f, &at, &s->width));
    if (at < f.n && (f.at[at] == ',' || f.at[at] == '_'))
        s->group = f.at[at++];
    if (at < f.n && f.at[at] == '.') {
        size_t digits = ++at;
        TRY(read_number(r, f, &at, &s->precision));
        if (at == digits)
            return format_error(r);
    }
    if (at < f.n)
        s->kind = f.at[at++];
    return at == f.n ? MPK_OK : jinja_fail(r, "format: \"%.*s\" is not a format", JINJA_SHOWN(f));
}

/* An empty format is str(x).  Which parts of a format fit which type is Python's table; what is
 * rare there is refused here rather than printed wrong: forms that Python has and no template was
 * seen to use.  A mistake in the format is the template's error, as in Python. */
static mpk_status add_formatted(jrun *r, jval v, str format, text *out)
{
    spec s;
    str shown = {0};
    if (!format.n) {
        TRY(jinja_to_str(r, v, &shown));
        text_add(out, shown.at, shown.n);
        return MPK_OK;
    }
    TRY(read_format_spec(r, format, &s));
    if (v.kind == J_STR) {
        if ((s.kind && s.kind != 's') || s.sign || s.alternate || s.group || s.align == '=')
            return jinja_fail(r, "format: \"%.*s\" is not a format for a string",
                              JINJA_SHOWN(format));
        return add_str(r, &s, v.text, out);
    }
    if (v.kind == J_BIG)
        return jinja_refuse_big(r);
    if (v.kind != J_INT && v.kind != J_FLOAT && v.kind != J_BOOL)
        return jinja_fail(r, "format: \"%.*s\" is not a format for %s", JINJA_SHOWN(format),
                          jinja_type_name(v));
    if ((s.group &&
         (s.zero || s.kind == 'n' || (s.group == ',' && s.kind && strchr("xXob", s.kind)))) ||
        (s.alternate && v.kind == J_FLOAT) || (v.kind == J_BOOL && !s.kind))
        return jinja_refuse(r, "format: \"%.*s\" is not supported", JINJA_SHOWN(format));
    if (s.kind && !strchr("dfFegxXob%", s.kind))
        return strchr("EGcn", s.kind)
                   ? jinja_refuse(r, "format: the kind %c is not supported", s.kind)
                   : jinja_fail(r, "format: numbers have no kind %c", s.kind);
    return add_number(r, &s, v, out);
}

/* {field!conversion:format} after its brace. "{0!r:>5}" is the repr of argument 0 at the right of
 * five columns. !a (ASCII only) and formats within formats are refused. */
static mpk_status add_field(jrun *r, formatter *f, text *out)
{
    str rest = {f->format.at + f->at, f->format.n - f->at};
    size_t end = jinja_find(rest, STR("}")), n = 0;
    jval v;
    str shown = {0};
    if (end == SIZE_MAX)
        return format_error(r);
    if (memchr(rest.at, '{', end))
        return jinja_refuse(r, "format: braces in braces are not supported");
    while (n < end && rest.at[n] != '!' && rest.at[n] != ':')
        n++;
    TRY(field_value(r, f, (str){rest.at, n}, &v));
    if (n < end && rest.at[n] == '!') {
        char kind = n + 1 < end ? rest.at[n + 1] : 0;
        if (kind == 'a')
            return jinja_refuse(r, "format: !a is not supported");
        if ((kind != 's' && kind != 'r') || (n + 2 < end && rest.at[n + 2] != ':'))
            return format_error(r);
        TRY(kind == 's' ? jinja_to_str(r, v, &shown) : repr_to_str(r, v, &shown));
        v = jinja_str(shown);
        n += 2;
    }
    f->at += end + 1;
    return add_formatted(r, v, n < end ? (str){rest.at + n + 1, end - n - 1} : (str){0}, out);
}

/* {{ and }} are braces; a single } is an error. */
static mpk_status format_text(jrun *r, formatter *f, text *out)
{
    while (f->at < f->format.n) {
        char c = f->format.at[f->at++];
        TRY(jinja_charge(r, 1));
        if (c != '{' && c != '}') {
            text_add(out, &c, 1);
            continue;
        }
        bool twice = f->at < f->format.n && f->format.at[f->at] == c;
        if (twice) {
            f->at++;
            text_add(out, &c, 1);
        } else if (c == '{')
            TRY(add_field(r, f, out));
        else
            return format_error(r);
    }
    return MPK_OK;
}

/* The sandbox of Jinja2 looks attributes up by its own rules, and so does this: get_attribute and
 * get_item. */
mpk_status jinja_str_format(jrun *r, str format, const jargs *args, jval *out)
{
    formatter f = {.args = args, .format = format};
    text t = {0};
    return jinja_take_text(r, format_text(r, &f, &t), &t, out);
}
