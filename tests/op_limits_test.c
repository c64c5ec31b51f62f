/* op_limits_test.c - what operators' records take, against tests/op_limits.txt.
 *
 * Each operand of each case of a record, and each attribute, is changed in one way: another rank,
 * dtype or kind, a dimension or a number one less or one more, none at all.  The file has a mark
 * for each change, in the order of the enums below:
 *
 *   .  the same results       +  other results       a, b ...  refused with this message
 *
 * in which # stands for values.  Operands of later cases are listed where their marks are new.
 * For each case the file also says how it may be cut, what the last and the first part of a cut
 * read and write, what they cost, and how peers may share it.
 */
#include "check.h"

#include <ctype.h>
#include <math.h>

#include "ir/op.h"
#include "limits_file.h"

enum { MOST_SEEN = 4096, MOST_MESSAGES = 52, WORDS = 512 };

static mpk_context cx;

/* What has been printed of the operator at hand. */
typedef struct known {
    char *lines[MOST_SEEN];
    size_t n_lines;
    char messages[MOST_MESSAGES][WORDS];
    size_t n_messages;
} known;

static void forget(known *k)
{
    for (size_t i = 0; i < k->n_lines; i++)
        free(k->lines[i]);
    memset(k, 0, sizeof *k);
}

static bool is_new(known *k, const char *line)
{
    for (size_t i = 0; i < k->n_lines; i++)
        if (strcmp(k->lines[i], line) == 0)
            return false;
    assert_true(k->n_lines < MOST_SEEN);
    k->lines[k->n_lines++] = strdup(line);
    return true;
}

/* ---- changes ---- */

typedef struct bed {
    ir_graph *g;
    ir_op *op; /* the last of the graph */
    ir_tensor results[IR_MAX_OUTPUTS];
} bed;

/* Infer the results; those of dtypes and shapes that no tensor may have are refused as the builder
 * refuses them. */
static mpk_status infer(const bed *b, ir_tensor *out)
{
    memset(out, 0, IR_MAX_OUTPUTS * sizeof *out);
    for (uint32_t i = 0; i < b->op->n_out; i++)
        out[i].shares = IR_NONE;
    TRY(b->op->def->infer(&cx, b->g, b->op, out));
    for (uint32_t i = 0; i < b->op->n_out; i++) {
        out[i].name = str_from("y");
        TRY(ir_check_tensor(&cx, &out[i]));
    }
    return MPK_OK;
}

/* How long the value is that begins here: a number, a dtype, what stands in brackets or between
 * quotation marks, a list of values; 0: none. */
static size_t length_of_value(const char *p, bool begins)
{
    static const char closing[] = {['['] = ']', ['('] = ')', ['"'] = '"'};
    const size_t sign = *p == '-', digits = strspn(p + sign, "0123456789.");
    const char *end = (size_t)*p < sizeof closing && closing[(size_t)*p]
                          ? strchr(p + 1, closing[(size_t)*p])
                          : NULL;
    size_t n = end ? (size_t)(end - p) + 1 : digits ? sign + digits : 0;
    for (int i = 0; begins && !n && i < IR_DTYPES; i++) {
        const size_t length = strlen(ir_dtype_table[i].name);
        if (strncmp(p, ir_dtype_table[i].name, length) == 0 && !isalnum((unsigned char)p[length]))
            n = length;
    }
    const size_t rest = n && strncmp(p + n, ", ", 2) == 0 ? length_of_value(p + n + 2, true) : 0;
    return rest ? n + 2 + rest : n;
}

/* The mark of a message, in which values do not count. */
static char mark_of(known *k, const char *message)
{
    static const char marks[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char words[WORDS];
    size_t n = 0, at = 0;
    for (const char *p = message; *p && n + 1 < sizeof words; n++) {
        const size_t length = length_of_value(p, p == message || !isalnum((unsigned char)p[-1]));
        words[n] = length ? '#' : *p;
        p += length ? length : 1;
    }
    words[n] = 0;
    while (at < k->n_messages && strcmp(k->messages[at], words) != 0)
        at++;
    assert_true(at < MOST_MESSAGES);
    if (at == k->n_messages)
        strcpy(k->messages[k->n_messages++], words);
    return marks[at];
}

static char try_it(const bed *b, known *k)
{
    ir_tensor out[IR_MAX_OUTPUTS];
    if (infer(b, out) != MPK_OK)
        return mark_of(k, cx.text);
    return memcmp(out, b->results, sizeof out) ? '+' : '.';
}

enum { LESS_RANK, MORE_RANK, OTHER_LIVE, OTHER_KIND, SHAPES };

/* Change the shape or the place of t; false: it cannot be changed so. */
static bool change_shape(ir_tensor *t, uint32_t n)
{
    if (n == LESS_RANK && t->rank)
        t->dims[--t->rank] = 0;
    else if (n == MORE_RANK && t->rank < IR_MAX_RANK)
        t->dims[t->rank++] = ir_dtype_table[t->dtype].block_elements;
    else if (n == OTHER_LIVE && t->rank)
        t->live = t->live == IR_TOKENS ? IR_ALL : IR_TOKENS;
    else if (n == OTHER_KIND)
        t->kind = t->kind == IR_CONST ? IR_INPUT : IR_CONST;
    else
        return false;
    return true;
}

/* Each dimension 1, one less, one more, twice as long; a dtype of a block as long as a block. */
static bool change_axis(ir_tensor *t, uint32_t axis, uint32_t n)
{
    const int64_t was = t->dims[axis],
                  unit = axis + 1 == t->rank ? ir_dtype_table[t->dtype].block_elements : 1,
                  to[] = {unit, was - unit, was + unit, 2 * was};
    t->dims[axis] = to[n];
    return to[n] > 0 && to[n] != was;
}

static void put_mark(const bed *b, ir_tensor *t, bool changes, known *k, text *out)
{
    const uint32_t block = ir_dtype_table[t->dtype].block_elements;
    if (changes && (block == 1 || (t->rank && t->dims[t->rank - 1] % block == 0))) {
        ir_dense_strides(t->rank, t->dims, t->stride);
        text_print(out, "%c", try_it(b, k));
    } else {
        text_print(out, "-");
    }
}

static void print_operand(const bed *b, uint32_t i, known *k, text *out)
{
    static const ir_dtype dtypes[] = {IR_F32, IR_F16, IR_BF16, IR_F64,  IR_I32,  IR_I64,  IR_BOOL,
                                      IR_U8,  IR_I8,  IR_I16,  IR_Q4_0, IR_Q4_K, IR_MXFP4};
    ir_tensor *t = &b->g->tensors.at[b->op->in[i]];
    const ir_tensor was = *t;
    for (uint32_t n = 0; n < SHAPES; n++, *t = was)
        put_mark(b, t, change_shape(t, n), k, out);
    for (uint32_t axis = 0; axis < was.rank; axis++) {
        text_print(out, " ");
        for (uint32_t n = 0; n < 4; n++, *t = was)
            put_mark(b, t, change_axis(t, axis, n), k, out);
    }
    text_print(out, " ");
    for (size_t n = 0; n < sizeof dtypes / sizeof *dtypes; n++, *t = was) {
        t->dtype = dtypes[n];
        put_mark(b, t, was.dtype != dtypes[n], k, out);
    }
    const uint32_t given = b->op->def->n_in - 1 < i ? b->op->def->n_in - 1 : i;
    if (b->op->def->in[given].presence == OP_OPTIONAL) {
        const ir_tensor_id id = b->op->in[i];
        b->op->in[i] = IR_NONE;
        text_print(out, " %c", try_it(b, k));
        b->op->in[i] = id;
    }
}

static void print_number(const bed *b, int64_t *at, known *k, text *out)
{
    const int64_t was = *at,
                  to[] = {-1, 0, 1, was - 1, was + 1, 2 * was, 1048576 - 1, 1048576 + 1, INT32_MAX};
    for (size_t n = 0; n < sizeof to / sizeof *to; n++) {
        *at = to[n];
        text_print(out, "%c", to[n] == was ? '-' : try_it(b, k));
    }
    *at = was;
}

/* Each number of a list, and the list one shorter and one longer. */
static void print_list(const bed *b, ir_attribute *a, known *k, text *out)
{
    int64_t list[64] = {0};
    const ir_attribute was = *a;
    assert_true(a->ints.n < 64);
    if (a->ints.n)
        memcpy(list, a->ints.at, a->ints.n * sizeof *list);
    a->ints.at = list;
    a->ints.n = was.ints.n + 1;
    list[was.ints.n] = 1;
    text_print(out, "%c", try_it(b, k));
    a->ints.n = was.ints.n - !!was.ints.n;
    text_print(out, "%c", was.ints.n ? try_it(b, k) : '-');
    a->ints.n = was.ints.n;
    for (uint32_t i = 0; i < was.ints.n; i++) {
        text_print(out, " ");
        print_number(b, &list[i], k, out);
    }
    *a = was;
}

static void print_attribute(const bed *b, uint32_t i, known *k, text *out)
{
    ir_attribute *a = &b->op->attributes[i];
    const ir_attribute was = *a;
    const double floats[] = {0, -1, 1, 2, NAN, INFINITY};
    const char *const words[] = {"", "x", "a0"};
    if (b->op->def->attributes[i].type == IR_ATTRIBUTE_INT)
        print_number(b, &a->i, k, out);
    else if (b->op->def->attributes[i].type == IR_ATTRIBUTE_INTS)
        print_list(b, a, k, out);
    else if (b->op->def->attributes[i].type == IR_ATTRIBUTE_FLOAT)
        for (size_t n = 0; n < sizeof floats / sizeof *floats; n++) {
            a->f = floats[n];
            text_print(out, "%c", try_it(b, k));
        }
    else
        for (size_t n = 0; n < sizeof words / sizeof *words; n++) {
            a->s = str_from(words[n]);
            text_print(out, "%c", try_it(b, k));
        }
    *a = was;
}

/* ---- cuts ---- */

static void print_box(const ir_box *box, uint32_t rank, text *out)
{
    text_print(out, "[");
    for (uint32_t i = 0; i < rank; i++)
        text_print(out, "%s%lld:%lld", i ? ", " : "", (long long)box->lo[i], (long long)box->hi[i]);
    text_print(out, "]");
}

/* The part of t that a task touches: "=" where it is the task's box, "all". */
static void print_part(const ir_tensor *t, const ir_box *part, const ir_box *box, text *out)
{
    const ir_box whole = ir_box_whole(t);
    const size_t bytes = t->rank * sizeof *box->lo;
    text_print(out, " ");
    if (memcmp(part->lo, box->lo, bytes) == 0 && memcmp(part->hi, box->hi, bytes) == 0)
        text_print(out, "=");
    else if (ir_box_contains(part, &whole, t->rank))
        text_print(out, "all");
    else
        print_box(part, t->rank, out);
}

/* What the task of a box of result 0 reads, writes and costs. */
static void print_task(const bed *b, const ir_box *box, text *out)
{
    const op_def *def = b->op->def;
    text_print(out, "    ");
    print_box(box, b->results[0].rank, out);
    text_print(out, " <-");
    for (uint32_t i = 0; i < b->op->n_in; i++) {
        ir_box read = {0};
        if (b->op->in[i] == IR_NONE)
            continue;
        def->reads(b->g, b->op, i, box, &read);
        print_part(&b->g->tensors.at[b->op->in[i]], &read, box, out);
    }
    for (uint32_t i = 1; i < b->op->n_out && def->writes; i++) {
        ir_box written = {0};
        def->writes(b->g, b->op, i, box, &written);
        text_print(out, " ->");
        print_part(&b->results[i], &written, box, out);
    }
    if (def->scratch_bytes)
        text_print(out, " scratch %zu", def->scratch_bytes(b->g, b->op, box));
    if (def->effort)
        text_print(out, " effort %lld", (long long)def->effort(b->g, b->op, box));
    text_print(out, "\n");
}

static void print_cuts(const bed *b, text *out)
{
    const ir_tensor *y = &b->g->tensors.at[b->op->out[0]];
    op_axis axes[IR_MAX_RANK] = {{0}};
    ir_box first = ir_box_whole(y), last = first;
    bool any = false;
    if (b->op->def->axes)
        b->op->def->axes(b->g, b->op, axes);
    text_print(out, "  cut");
    for (uint32_t i = 0; i < y->rank; i++) {
        const op_axis *a = &axes[i];
        text_print(out, " %lld", (long long)a->grain);
        if (a->fastest || a->tile || a->together)
            text_print(out, "/%lld/%lld/%lld", (long long)a->fastest, (long long)a->tile,
                       (long long)a->together);
        text_print(out, "%s%s%s", a->even ? "e" : "", a->rises ? "r" : "", a->context ? "c" : "");
        if (a->grain > 0 && a->grain < y->dims[i]) {
            first.hi[i] = a->grain;
            last.lo[i] = (y->dims[i] - 1) / a->grain * a->grain;
            any = true;
        }
    }
    text_print(out, "\n");
    print_task(b, &first, out);
    if (any)
        print_task(b, &last, out);
}

static void print_axis(int axis, text *out)
{
    static const char *const names[] = {"whole", "first", "sum", "ids"};
    if (axis < 0)
        text_print(out, " %s", names[-axis - 1]);
    else
        text_print(out, " %d", axis);
}

static void print_ways(const bed *b, text *out)
{
    op_split way;
    uint32_t n = 0;
    for (; op_find_split(b->g, b->op, n, &way); n++) {
        text_print(out, n ? ";" : "  peers");
        for (uint32_t i = 0; i < b->op->n_in; i++)
            print_axis(b->op->in[i] == IR_NONE ? OP_WHOLE : way.in[i], out);
        text_print(out, " ->");
        for (uint32_t i = 0; i < b->op->n_out; i++)
            print_axis(way.out[i], out);
        if (way.groups || way.covers || way.sized >= 0)
            text_print(out, " %lld/%x/%d", (long long)way.groups, way.covers, way.sized);
    }
    text_print(out, n ? "\n" : "");
}

/* ---- the text ---- */

static const char *operand_name(const op_def *def, uint32_t i)
{
    return def->in[i < def->n_in ? i : def->n_in - 1].name;
}

/* "  NAME: MARKS" if no case before had the same. */
static void print_marks(const char *name, text *marks, known *k, text *out)
{
    char line[4096];
    assert_false(marks->failed);
    snprintf(line, sizeof line, "  %s: %s\n", name, marks->at);
    if (is_new(k, line))
        text_print(out, "%s", line);
    text_free(marks);
    *marks = (text){0};
}

static void print_case(const op_def *def, uint32_t number, known *k, text *out)
{
    arena a = {0};
    bed b = {0};
    text marks = {0};
    check_ok(&cx, ir_parse(&cx, &a, str_from(def->cases[number].graph), &b.g));
    b.op = &b.g->ops.at[b.g->ops.n - 1];
    check_ok(&cx, infer(&b, b.results));
    text_print(out, "%s %u\n", def->name, number);
    for (uint32_t i = 0; i < b.op->n_in; i++)
        if (b.op->in[i] != IR_NONE) {
            print_operand(&b, i, k, &marks);
            print_marks(operand_name(def, i), &marks, k, out);
        }
    for (uint32_t i = 0; i < def->n_attributes; i++) {
        print_attribute(&b, i, k, &marks);
        print_marks(def->attributes[i].name, &marks, k, out);
    }
    print_cuts(&b, out);
    print_ways(&b, out);
    arena_free(&a);
}

static void operators_take_what_the_file_says(void **state)
{
    static known k;
    text made = {0};
    (void)state;
    for (const op_def *const *def = op_table; *def; def++) {
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            print_case(*def, i, &k, &made);
        for (size_t i = 0; i < k.n_messages; i++)
            text_print(&made, "  %c  %s\n", (char)(i < 26 ? 'a' + i : 'A' + i - 26), k.messages[i]);
        forget(&k);
    }
    check_limits("op_limits.txt", &made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operators_take_what_the_file_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
