/* ir_print.c - the text form of a tensor program (docs/text-form.md).
 *
 * Input: a graph.  Output: text, one statement per line.  Inputs, constants and states are
 * printed in the order of their numbers, between the operators, so that parsing assigns the same
 * numbers again.  Attributes with default values are omitted.  Called by `mpk opt`, `mpk inspect
 * --program` and tg_print.c, which puts the task graph after it.  The result is the canonical
 * form: goldens compare its bytes.
 */
#include "ir/op.h"

/* May the name stand without quotes?  Every character must be one of is_name in ir_parse.c. */
static bool is_plain(str name)
{
    for (size_t i = 0; i < name.n; i++) {
        char c = name.at[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && c != '_' && c != '.' && c != '-' && c != '/' && c != '$' && c != '@')
            return false;
    }
    return name.n > 0;
}

/* Bytes above 127 are written as they are: names are UTF-8, and the reader takes any byte. */
static void print_quoted(str s, text *out)
{
    text_add(out, "\"", 1);
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.at[i];
        if (c == '"' || c == '\\')
            text_print(out, "\\%c", c);
        else if (c < 32 || c == 127)
            text_print(out, "\\x%02x", c);
        else
            text_add(out, s.at + i, 1);
    }
    text_add(out, "\"", 1);
}

/* An absent operand is _. */
static void print_name(const ir_graph *g, ir_tensor_id tensor, text *out)
{
    if (tensor == IR_NONE) {
        text_add(out, "_", 1);
        return;
    }
    str name = g->tensors.at[tensor].name;
    text_add(out, "%", 1);
    if (is_plain(name))
        text_add(out, name.at, name.n);
    else
        print_quoted(name, out);
}

/* Print the fewest digits that read back as the same number, always with a point, an exponent or
 * a letter. */
static void print_float(double x, text *out)
{
    size_t before = out->n;
    text_add_double(out, x);
    if (!out->failed && !strpbrk(out->at + before, ".einf"))
        text_add(out, ".0", 2);
}

static void print_ints(const int64_t *at, uint32_t n, text *out)
{
    text_add(out, "[", 1);
    for (uint32_t i = 0; i < n; i++)
        text_print(out, "%s%lld", i ? ", " : "", (long long)at[i]);
    text_add(out, "]", 1);
}

/* Dtype, dimensions and what axis 0 counts; strides are not printed, since the parser infers them
 * again. */
static void print_type(const ir_tensor *t, text *out)
{
    static const char *const live[IR_LIVES] = {"", " live=tokens", " live=rows"};
    text_print(out, "%s", ir_dtype_table[t->dtype].name);
    print_ints(t->dims, t->rank, out);
    text_print(out, "%s", live[t->live]);
}

static void print_tensor(const ir_graph *g, ir_tensor_id id, text *out)
{
    static const char *const kinds[IR_KINDS] = {"input", "const", "state", "temp"};
    text_print(out, "%s ", kinds[g->tensors.at[id].kind]);
    print_name(g, id, out);
    text_print(out, " : ");
    print_type(&g->tensors.at[id], out);
    text_print(out, "\n");
}

/* Floats are compared by their bits, so that -0 and NaN survive a round trip. */
static bool is_default(const op_attribute *def, const ir_attribute *value)
{
    const ir_attribute *otherwise = &def->otherwise;
    if (def->required)
        return false;
    switch (def->type) {
    case IR_ATTRIBUTE_INT:
        return value->i == otherwise->i;
    case IR_ATTRIBUTE_FLOAT:
        return memcmp(&value->f, &otherwise->f, sizeof value->f) == 0;
    case IR_ATTRIBUTE_STR:
        return str_equal(value->s, otherwise->s);
    default:
        return value->ints.n == otherwise->ints.n &&
               (value->ints.n == 0 ||
                memcmp(value->ints.at, otherwise->ints.at, value->ints.n * sizeof(int64_t)) == 0);
    }
}

static void print_value(const op_attribute *def, const ir_attribute *value, text *out)
{
    if (def->type == IR_ATTRIBUTE_INT)
        text_print(out, "%lld", (long long)value->i);
    else if (def->type == IR_ATTRIBUTE_FLOAT)
        print_float(value->f, out);
    else if (def->type == IR_ATTRIBUTE_STR)
        print_quoted(value->s, out);
    else
        print_ints(value->ints.at, value->ints.n, out);
}

/* Those that differ from their defaults, such as " {eps = 1e-05}"; nothing if none does. */
static void print_attributes(const ir_op *op, text *out)
{
    bool any = false;
    for (uint32_t i = 0; i < op->def->n_attributes; i++) {
        if (is_default(&op->def->attributes[i], &op->attributes[i]))
            continue;
        text_print(out, "%s%s = ", any ? ", " : " {", op->def->attributes[i].name);
        print_value(&op->def->attributes[i], &op->attributes[i], out);
        any = true;
    }
    if (any)
        text_add(out, "}", 1);
}

/* Absent inputs at the end are left out. */
static void print_op(const ir_graph *g, const ir_op *op, text *out)
{
    for (uint32_t i = 0; i < op->n_out; i++) {
        text_print(out, "%s", i ? ", " : "");
        print_name(g, op->out[i], out);
    }
    text_print(out, " = %s(", op->def->name);
    uint32_t n = op->n_in;
    while (n > 0 && op->in[n - 1] == IR_NONE)
        n--;
    for (uint32_t i = 0; i < n; i++) {
        text_print(out, "%s", i ? ", " : "");
        print_name(g, op->in[i], out);
    }
    text_add(out, ")", 1);
    print_attributes(op, out);
    for (uint32_t i = 0; i < op->n_out; i++) {
        text_print(out, "%s", i ? ", " : " : ");
        print_type(&g->tensors.at[op->out[i]], out);
    }
    text_add(out, "\n", 1);
}

/* Print a `peer` line if the next statement's peer is not *before, that of the statements so
 * far. */
static void print_peer(uint32_t peer, uint32_t *before, text *out)
{
    if (peer == *before)
        return;
    if (peer == IR_EVERYWHERE)
        text_print(out, "peer all\n");
    else
        text_print(out, "peer %u\n", peer);
    *before = peer;
}

/* An operator is printed where its first result's number comes.  `peer` lines stand only where the
 * peer changes. Graphs keep operators and tensors in order of creation, so reading the text back
 * gives each the same number. */
void ir_print(const ir_graph *g, text *out)
{
    if (g->name.n) {
        text_print(out, "graph ");
        print_quoted(g->name, out);
        text_print(out, "\n");
    }
    ir_op_id next = 0;
    uint32_t peer = 0;
    for (ir_tensor_id id = 0; id < g->tensors.n; id++) {
        ir_op_id producer = g->tensors.at[id].producer;
        if (producer == IR_NONE) {
            print_peer(g->tensors.at[id].peer, &peer, out);
            print_tensor(g, id, out);
        } else if (producer == next) {
            print_peer(g->ops.at[next].peer, &peer, out);
            print_op(g, &g->ops.at[next++], out);
        }
    }
    for (size_t i = 0; i < g->outputs.n; i++) {
        text_print(out, "output ");
        print_name(g, g->outputs.at[i], out);
        text_print(out, "\n");
    }
}
