/* map_text.c - expressions of several operators as one text (map_text.h).
 *
 *   %a = silu(%gate) : bf16   %b = mul(%x, %a) : bf16
 *   -> "t0 = bf16(x0 / (1 + exp(-x0))); bf16(x1 * t0)" of %gate and %x
 *
 * The text is parsed again by the record of map (op/map_compile.c), which the limits keep within
 * what it takes.  Cost: linear in the text. */
#include "pass/map_text.h"

/* Expressions that compute the bits of gelu's reference code, erf and tanh form. */
static const char gelu[] = "0.5 * x0 * erfc(x0 * -0.70710678118654752)";
static const char gelu_tanh[] =
    "x0 / (1 + exp(-1.59576912160573072 * (x0 + 0.044715 * x0 * x0 * x0)))";

str map_text_of(const ir_op *op)
{
    static const char *const rows[][2] = {{"add", "x0 + x1"},
                                          {"mul", "x0 * x1"},
                                          {"cast", "x0"},
                                          {"silu", "x0 / (1 + exp(-x0))"},
                                          {"silu_mul", "x0 / (1 + exp(-x0)) * x1"}};
    if (strcmp(op->def->name, "map") == 0)
        return op->attributes[0].s;
    if (strcmp(op->def->name, "gelu") == 0)
        return str_from(op->attributes[0].i ? gelu_tanh : gelu);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(op->def->name, rows[i][0]) == 0)
            return str_from(rows[i][1]);
    return (str){0};
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || c == '_';
}

str map_text_token(str s, size_t at)
{
    str token = {s.at + at, 1};
    bool number = is_digit(s.at[at]) || s.at[at] == '.', word = is_letter(s.at[at]);
    while ((number || word) && at + token.n < s.n) {
        char c = s.at[at + token.n], before = s.at[at + token.n - 1];
        bool sign = number && (before == 'e' || before == 'E') && (c == '+' || c == '-');
        if (!(is_digit(c) || sign || (word && is_letter(c)) ||
              (number && (c == '.' || c == 'e' || c == 'E'))))
            break;
        token.n++;
    }
    return token;
}

bool map_text_is_numbered(str token, char letter, uint32_t *number)
{
    if (token.n < 2 || token.n > 3 || token.at[0] != letter || !is_digit(token.at[1]))
        return false;
    *number = (uint32_t)(token.at[1] - '0');
    if (token.n == 3 && !is_digit(token.at[2]))
        return false;
    if (token.n == 3)
        *number = *number * 10 + (uint32_t)(token.at[2] - '0');
    return true;
}

uint32_t map_text_count_temps(const ir_op *op)
{
    str s = map_text_of(op);
    uint32_t n = 0, number;
    for (size_t at = 0; at < s.n;) {
        str token = map_text_token(s, at);
        if (map_text_is_numbered(token, 't', &number) && number >= n)
            n = number + 1;
        at += token.n;
    }
    return n + 1;
}

/* The number of the temporary (returns true) or of the map's operand (false) that stands for
 * tensor t; a new tensor becomes the next operand.  in[] cannot overflow: the group's n_in
 * counts each read, and FUSE_INPUTS bounds that. */
static bool find_operand(map_writer *to, ir_tensor_id t, uint32_t *number)
{
    for (uint32_t k = 0; k < to->n_made; k++)
        if (to->made[k] == t) {
            *number = to->temp_of[k];
            return true;
        }
    for (*number = 0; *number < to->n_in && to->in[*number] != t;)
        ++*number;
    if (*number == to->n_in)
        to->in[to->n_in++] = t;
    return false;
}

static void write_operand(map_writer *to, ir_tensor_id t)
{
    uint32_t number;
    bool is_temp = find_operand(to, t, &number);
    text_print(&to->out, "%c%u", is_temp ? 't' : 'x', number);
}

/* Write a part of an operator's expression: xK becomes its operand's new name, tK is shifted by
 * first_temp. */
static void write_part(map_writer *to, const ir_op *op, str part, uint32_t first_temp)
{
    uint32_t number;
    for (size_t at = 0; at < part.n;) {
        str token = map_text_token(part, at);
        if (map_text_is_numbered(token, 'x', &number) && number < op->n_in)
            write_operand(to, op->in[number]);
        else if (map_text_is_numbered(token, 't', &number))
            text_print(&to->out, "t%u", first_temp + number);
        else
            text_add(&to->out, token.at, token.n);
        at += token.n;
    }
}

/* A value is the text after the last semicolon. */
void map_text_add(map_writer *to, const ir_op *op, bool is_last)
{
    str expression = map_text_of(op);
    size_t result = expression.n;
    while (result > 0 && expression.at[result - 1] != ';')
        result--;
    for (uint32_t i = 0, number; i < op->n_in; i++)
        find_operand(to, op->in[i], &number); /* unused operands too: they give the shape */
    uint32_t first = to->n_temps;
    to->n_temps += map_text_count_temps(op);
    write_part(to, op, (str){expression.at, result}, first);
    text_print(&to->out, result ? " " : "");
    if (!is_last)
        text_print(&to->out, "t%u = ", to->n_temps - 1);
    text_print(&to->out, "%s(", ir_dtype_table[to->w->g->tensors.at[op->out[0]].dtype].name);
    while (result < expression.n && expression.at[result] == ' ')
        result++;
    write_part(to, op, (str){expression.at + result, expression.n - result}, first);
    text_print(&to->out, is_last ? ")" : "); ");
    to->made[to->n_made] = op->out[0];
    to->temp_of[to->n_made++] = to->n_temps - 1;
}

bool map_text_fits(const map_writer *to)
{
    map_program program;
    ir_dtype dtypes[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < to->n_in; i++)
        dtypes[i] = to->w->g->tensors.at[to->in[i]].dtype;
    return !to->out.failed && to->out.n < FUSE_TEXT &&
           map_compile(NULL, (str){to->out.at, to->out.n}, to->n_in, dtypes, &program) == MPK_OK;
}
