/* body_block.c - products that run as block programs: linear and batch_matmul of floats in any
 * layout, where no body that was written by hand for the shape takes them (src/super,
 * device/task/block.cuh, docs/superoptimizer.md).
 *
 * An operator is described to super as a product with axes m, n and k and, after it, an expression
 * of its sums; super chooses a program for the shape, and block_print.c prints it.  linear with
 * three weights is three such products, each for columns of its own: n_lo and n_hi bound those of
 * the task's box, and a program without columns does nothing.  The rank, 5, is above that of
 * generic bodies and below that of bodies for streamed weights. */
#include "gen/block_print.h"
#include "gen/body_print.h"
#include "gen/choices.h"

enum { X, W0, B0 = 4, NORM = 7, RESIDUAL, EPS = 0, GLU, ACT = 3, FACTOR };
enum { A, B };
/* With fewer rows in fp32, teams of threads that each take a row of the weight are faster
 * (linear.cuh). */
enum { FEWEST_F32_ROWS = 9 };
/* A step of up to FEW_ROWS tokens runs in the smallest graph that holds it, so the number of other
 * tokens decides which graph a token is in.  Its bits must not depend on that, so all these graphs
 * run one program, which sums in one order. */
enum { FEW_ROWS = 16 };

/* ---- what is asked of super ---- */

/* A matrix as an operand of a program.  The stride of an axis of one entry does not matter. */
static block_operand matrix(const char *name, const ir_tensor *t, int row_axis, int column_axis)
{
    const uint32_t r = t->rank;
    block_operand o = {.name = name, .dtype = t->dtype};
    o.stride[row_axis] = t->stride[r - 2];
    o.stride[column_axis] = t->stride[r - 1];
    return o;
}

/* Fill in the work of a task: the size of its box of the result, and its products of a batch. */
static void fill_box(const gen_call *c, super_product *s)
{
    const ir_tensor *y = gen_output(c, 0);
    const ir_box box = c->box ? *c->box : ir_box_whole(y);
    s->boxes = 1;
    for (uint32_t i = 0; i + 2 < y->rank; i++)
        s->boxes *= box.hi[i] - box.lo[i];
    s->box_rows = box.hi[y->rank - 2] - box.lo[y->rank - 2];
    s->box_columns = box.hi[y->rank - 1] - box.lo[y->rank - 1];
    s->box_columns = s->box_columns < s->columns ? s->box_columns : s->columns;
}

/* The product of two matrices of a batch.  Batch axes are not part of it: the printed loop over
 * them moves the pointers. */
static super_product product_of_batch(const gen_call *c)
{
    const ir_tensor *a = gen_input(c, A), *b = gen_input(c, B), *y = gen_output(c, 0);
    const bool transposed = c->op->attributes[0].i != 0;
    super_product s = {.rows = y->dims[y->rank - 2],
                       .columns = y->dims[y->rank - 1],
                       .depth = a->dims[a->rank - 1],
                       .n_b = 1,
                       .a = matrix("in_a", a, SUPER_M, SUPER_K),
                       .y = matrix("out_y", y, SUPER_M, SUPER_N)};
    s.b[0] = transposed ? matrix("in_b", b, SUPER_N, SUPER_K) : matrix("in_b", b, SUPER_K, SUPER_N);
    fill_box(c, &s);
    return s;
}

/* Does a step of this graph share its tokens' bits with smaller graphs? */
static bool is_few(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    return y->live != IR_ALL && y->dims[0] <= FEW_ROWS;
}

/* Give all graphs of few tokens the same size and the same cut into tasks, as far as the choice
 * reads them. */
static void forget_size(const gen_call *c, super_product *s)
{
    const int64_t share = (s->columns + c->n_workers - 1) / c->n_workers;
    s->rows = s->box_rows = FEW_ROWS;
    s->box_columns = (share + 7) / 8 * 8;
}

/* The product that makes weight i's columns of linear; with a gate, all columns by two weights. */
static super_product product_of_weight(const gen_call *c, uint32_t i)
{
    static const char *const weights[] = {"in_w0", "in_w1", "in_w2"}, *const biases[] = {"in_b0",
                                                                                         "in_b1",
                                                                                         "in_b2"};
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W0 + i);
    super_product s = {.rows = x->dims[0],
                       .columns = w->dims[0],
                       .depth = x->dims[1],
                       .n_b = c->op->attributes[GLU].s.n ? 2 : 1,
                       .a = matrix("in_x", x, SUPER_M, SUPER_K),
                       .y = matrix("out_y", gen_output(c, 0), SUPER_M, SUPER_N)};
    for (uint32_t k = 0; k < s.n_b; k++) {
        s.b[k] = matrix(weights[i + k], gen_input(c, W0 + i + k), SUPER_N, SUPER_K);
        const ir_tensor *bias = gen_input(c, B0 + i + k);
        if (bias) {
            s.more[s.n_more] = (block_operand){.name = biases[i + k], .dtype = bias->dtype};
            s.more[s.n_more++].stride[SUPER_N] = bias->stride[0];
        }
    }
    if (gen_input(c, RESIDUAL))
        s.more[s.n_more++] = matrix("in_residual", gen_input(c, RESIDUAL), SUPER_M, SUPER_N);
    fill_box(c, &s);
    if (is_few(c))
        /* with few tokens one program serves every number of them: the search must not see it */
        forget_size(c, &s);
    return s;
}

/* Activations of t0, as src/op/activate.h defines them. */
static const char silu[] = "t0 / (1 + exp(-t0))",
                  gelu[] = "0.5 * t0 * erfc(t0 * -0.7071067811865476)",
                  gelu_tanh[] =
                      "t0 / (1 + exp(-1.5957691216057307 * (t0 + 0.044715 * t0 * t0 * t0)))",
                  quick_gelu[] = "t0 / (1 + exp(-1.702 * t0))";

/* An activation of t0; none is t0 itself. */
static const char *expression_of(str activation)
{
    if (str_is(activation, "silu"))
        return silu;
    if (str_is(activation, "gelu"))
        return gelu;
    if (str_is(activation, "quick_gelu"))
        return quick_gelu;
    if (str_is(activation, "relu"))
        return "where(t0 <= 0, 0.0, t0)"; /* max is another number in each run of a proof */
    return activation.n ? gelu_tanh : "t0";
}

/* Is the product multiplied by a constant factor? */
static bool is_scaled(const gen_call *c)
{
    return c->op->attributes[FACTOR].f != 1;
}

/* What linear does with its sums, as an expression of the operator map: x0 and x1 are the sums of
 * one weight or two, then biases, then the residual, as the operands stand in *s.  With two biases
 * and a gate:
 *
 *   "t0 = x0 + x2; t1 = x1 + x3; t0 / (1 + exp(-t0)) * t1" */
static mpk_status write_expression(mpk_context *cx, const gen_call *c, uint32_t i, super_product *s)
{
    text e = {0};
    uint32_t next = s->n_b;
    const str glu = c->op->attributes[GLU].s;
    text_print(&e, "t0 = x0");
    if (is_scaled(c))
        text_print(&e, " * %.9g", (double)(float)c->op->attributes[FACTOR].f);
    if (gen_input(c, B0 + i))
        text_print(&e, " + x%u", next++);
    if (glu.n) {
        text_print(&e, "; t1 = x1");
        if (gen_input(c, B0 + i + 1))
            text_print(&e, " + x%u", next++);
        text_print(&e, "; %s * t1", expression_of(glu));
    } else {
        text_print(&e, "; %s", expression_of(c->op->attributes[ACT].s));
    }
    if (gen_input(c, RESIDUAL))
        text_print(&e, " + x%u", next);
    s->expression = e.failed ? NULL : arena_copy(c->arena, e.at, e.n);
    text_free(&e);
    CHECK(cx, s->expression, MPK_ENOMEM, "out of memory for the expression of a product");
    return MPK_OK;
}

/* Is the operator batch_matmul?  Else it is linear. */
static bool is_batch(const gen_call *c)
{
    return strcmp(c->op->def->name, "batch_matmul") == 0;
}

/* How many products the operator is: linear without a gate has one for each weight, which covers
 * columns of its own; all else is one product. */
static uint32_t count_products(const gen_call *c)
{
    uint32_t n = 1;
    while (!is_batch(c) && !c->op->attributes[GLU].s.n && n < 3 && gen_input(c, W0 + n))
        n++;
    return n;
}

/* What super chooses for product i of the operator: a search and a proof the first time, a look-up
 * when the same is asked again (choices.c).  *out lives as long as the arena. */
static mpk_status choose(mpk_context *cx, const gen_call *c, uint32_t i, const super_choice **out)
{
    super_product s = is_batch(c) ? product_of_batch(c) : product_of_weight(c, i);
    if (s.n_more || s.n_b > 1 || (!is_batch(c) && (c->op->attributes[ACT].s.n || is_scaled(c))))
        TRY(write_expression(cx, c, i, &s));
    return gen_choose_product(cx, c->arena, c->choices, &s, &super_target_usual, out);
}

/* ---- records ---- */

/* Dtypes of GGUF blocks are refused: a block program reads entries one by one. */
static bool accepts_batch(const gen_call *c)
{
    super_product s = product_of_batch(c);
    return gen_accepts_plain(c) && super_accepts_product(&s);
}

/* A norm of x before the product is refused: it needs whole rows first, which no block program
 * has. */
static bool accepts_linear(const gen_call *c)
{
    const bool many = !is_few(c) && gen_output(c, 0)->dims[0] >= FEWEST_F32_ROWS;
    bool floats = gen_accepts_plain(c) && !gen_input(c, NORM);
    for (uint32_t i = 0; i < count_products(c) && floats; i++) {
        super_product s = product_of_weight(c, i);
        floats = super_accepts_product(&s) && (s.a.dtype != IR_F32 || many);
    }
    return floats;
}

/* The scratch of the program that needs most, since a task runs its programs one after the other.
 * `print` has chosen them already, so nothing is searched here and nothing can fail. */
static uint32_t scratch_bytes(const gen_call *c)
{
    mpk_context quiet = {0};
    uint32_t most = 0;
    for (uint32_t i = 0; i < count_products(c); i++) {
        const super_choice *chosen;
        if (choose(&quiet, c, i, &chosen) == MPK_OK && block_scratch_bytes(&chosen->program) > most)
            most = block_scratch_bytes(&chosen->program);
    }
    return most;
}

/* A loop over the batch entries of the task's box around the program, which sees one matrix.
 * Pointers are moved by mpk_spread, so that a batch axis of one entry is broadcast.  The body
 * waits for its event in the first iteration, after all that does not depend on it; a task without
 * work waits at once. */
static mpk_status print_batch(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const uint32_t rank = gen_output(c, 0)->rank;
    const super_choice *chosen;
    TRY(choose(cx, c, 0, &chosen));
    gen_print_head_of_waiting(c, n, out);
    gen_print_note(c->choices, chosen, out);
    text_print(
        out,
        "    mpk_box batches = mpk_box_of(t, %u);\n"
        "    const rt_i64 m_lo = batches.lo[%u], m_hi = batches.hi[%u], n_lo = batches.lo[%u], "
        "n_hi = "
        "batches.hi[%u], k_lo = 0, k_hi = %lld;\n"
        "    batches.lo[%u] = batches.lo[%u] = 0;\n    batches.hi[%u] = batches.hi[%u] = 1;\n"
        "    if (!mpk_count(batches, %u))\n        mpk_wait(t);\n"
        "    for (rt_u64 i = 0; i < mpk_count(batches, %u); i++) {\n"
        "    rt_i64 at[RT_MAX_RANK];\n    block_find(batches, %u, i, at);\n",
        rank, rank - 2, rank - 2, rank - 1, rank - 1,
        (long long)gen_input(c, A)->dims[gen_input(c, A)->rank - 1], rank - 2, rank - 1, rank - 2,
        rank - 1, rank, rank, rank);
    for (uint32_t i = 0; i < 3; i++) {
        static const char *const names[] = {"in_a", "in_b", "out_y"};
        const char *name = names[i];
        text_print(out,
                   "    %schar *g_%s = mpk_data(t, %s) + mpk_spread(%s, %u, at) * "
                   "mpk_dtype_bytes(%s.dtype);\n",
                   i == 2 ? "" : "const ", name, name, name, rank, name);
    }
    text_print(out, "    if (!i)\n        mpk_wait(t);\n");
    TRY(gen_print_block(cx, &chosen->program, out));
    text_print(out, "    }\n    mpk_trigger(t);\n}\n");
    return MPK_OK;
}

/* The task's columns are clipped to those of this weight; where none are left n_lo >= n_hi, and the
 * program does nothing.  Pointers are shifted so that column 0 of the program is the weight's
 * first. */
static mpk_status print_weight(mpk_context *cx, const gen_call *c, uint32_t i, int64_t column,
                               text *out)
{
    const super_choice *chosen;
    TRY(choose(cx, c, i, &chosen));
    const block_program *p = &chosen->program;
    text_print(out, "    {\n");
    gen_print_note(c->choices, chosen, out);
    text_print(out,
               "    const rt_i64 first = %lld, rows = %lld;\n    const rt_i64 m_lo = mpk_lo(t, 0), "
               "m_hi = mpk_hi(t, 0);\n"
               "    const rt_i64 n_lo = (rt_i64)mpk_lo(t, 1) > first ? mpk_lo(t, 1) - first : 0;\n"
               "    const rt_i64 n_hi = (rt_i64)mpk_hi(t, 1) - first < rows ? mpk_hi(t, 1) - first "
               ": rows;\n"
               "    const rt_i64 k_lo = 0, k_hi = %lld;\n",
               (long long)column, (long long)p->axes[SUPER_N].extent,
               (long long)p->axes[SUPER_K].extent);
    for (uint32_t k = 0; k < p->n_operands; k++) {
        const block_operand *o = &p->operands[k];
        const bool is_result = strcmp(o->name, "out_y") == 0;
        /* operands with columns of y begin at this weight's first; weights and biases are its
         * own */
        const bool shifted = is_result || strcmp(o->name, "in_residual") == 0;
        text_print(out, is_result ? "    " : "    const ");
        text_print(out, "char *g_%s = mpk_data(t, %s) + %s * %lld;\n", o->name, o->name,
                   shifted ? "first" : "0",
                   (long long)(o->stride[SUPER_N] * ir_dtype_table[o->dtype].block_bytes));
    }
    text_print(out, i ? "" : "    mpk_wait(t);\n");
    TRY(gen_print_block(cx, p, out));
    text_print(out, "    }\n");
    return MPK_OK;
}

/* Print the programs of all weights, each in a block of its own; `column` is where the columns of
 * the next weight begin. */
static mpk_status print_linear(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    int64_t column = 0;
    gen_print_head_of_waiting(c, n, out);
    for (uint32_t i = 0; i < count_products(c); i++) {
        TRY(print_weight(cx, c, i, column, out));
        column += gen_input(c, W0 + i)->dims[0];
    }
    text_print(out, "    mpk_trigger(t);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_block_linear = {.op = "linear",
                                        .name = "block",
                                        .rank = 5,
                                        .waits = true,
                                        .accepts = accepts_linear,
                                        .print = print_linear,
                                        .scratch_bytes = scratch_bytes};
const gen_body gen_body_block_matmul = {.op = "batch_matmul",
                                        .name = "block",
                                        .rank = 5,
                                        .waits = true,
                                        .accepts = accepts_batch,
                                        .print = print_batch,
                                        .scratch_bytes = scratch_bytes};
