/* body_block_attention.c - attention over tensors as a block program: sdpa of f16 and bf16 with any
 * mask (src/super, device/task/block.cuh, docs/superoptimizer.md).
 *
 * super is asked for one head: rows m of queries, keys s, entries d of a query and e of a value.
 * The instance is a loop over the heads of the task's box around the program that it gives.  Scale
 * and mask are an expression of the scores:
 *
 *   "x0 * 0.125"                           no mask
 *   "x0 * 0.125 + x1"                      a mask of floats
 *   "where(x1 != 0, x0 * 0.125, (-inf))"   a mask of booleans
 *
 * Rank 5: above the generic body of body_index.c, which takes fp32 and all that super refuses. */
#include "gen/block_print.h"
#include "gen/body_print.h"
#include "gen/choices.h"

#include <math.h>

enum { Q, K, V, MASK, SCALE = 0, CAUSAL, WINDOW, BY_ROWS };
enum { M, S, D, E };

/* An operand of one head: axis `axis` of a tensor of rank 4 is axis `rows` of the program, axis 3
 * is `columns`. */
static block_operand head_of(const char *name, const ir_tensor *t, uint32_t axis, int rows,
                             int columns)
{
    block_operand o = {.name = name, .dtype = t->dtype};
    o.stride[rows] = t->stride[axis];
    o.stride[columns] = t->stride[3];
    return o;
}

/* A mask as an operand.  It is broadcast: an axis that it lacks, or whose size is 1, has stride
 * 0. */
static block_operand mask_of(const ir_tensor *t)
{
    block_operand o = {.name = "in_mask", .dtype = t->dtype};
    for (uint32_t side = 0; side < 2; side++)
        if (t->rank > side && t->dims[t->rank - 1 - side] > 1)
            o.stride[side ? M : S] = t->stride[t->rank - 1 - side];
    return o;
}

/* Does each head begin at a multiple of 16 bytes after the start of the storage, as each row then
 * does?  The stride of an axis of one entry leads nowhere, and may be any number. */
static bool has_aligned_heads(const ir_tensor *t)
{
    int64_t starts = t->offset;
    for (uint32_t axis = 0; axis < 2; axis++)
        if (t->dims[axis] > 1)
            starts |= t->stride[axis];
    return starts % 8 == 0;
}

/* What super is asked: the shape of one head, and from the task's box how many rows and heads a
 * task has.  With by_rows the result's axes 1 and 2 are exchanged, and the box with them. */
static super_attention attention_of(const gen_call *c)
{
    const ir_tensor *q = gen_input(c, Q), *k = gen_input(c, K), *v = gen_input(c, V),
                    *y = gen_output(c, 0);
    const ir_box box = c->box ? *c->box : ir_box_whole(y);
    const uint32_t rows = c->op->attributes[BY_ROWS].i ? 1 : 2, heads = 3 - rows;
    super_attention s = {.rows = q->dims[2],
                         .keys = k->dims[2],
                         .width = q->dims[3],
                         .values = v->dims[3],
                         .window = c->op->attributes[WINDOW].i,
                         .causal = c->op->attributes[CAUSAL].i != 0,
                         .has_mask = gen_input(c, MASK) != NULL,
                         .q = head_of("in_q", q, 2, M, D),
                         .k = head_of("in_k", k, 2, S, D),
                         .v = head_of("in_v", v, 2, S, E),
                         .y = head_of("out_y", y, rows, M, E),
                         .box_rows = box.hi[rows] - box.lo[rows],
                         .boxes = (box.hi[0] - box.lo[0]) * (box.hi[heads] - box.lo[heads])};
    if (s.has_mask)
        s.mask = mask_of(gen_input(c, MASK));
    if (c->needs & GEN_WGMMA && has_aligned_heads(k) && has_aligned_heads(v))
        s.group_bytes = c->scratch_most ? c->scratch_most : UINT32_MAX;
    return s;
}

/* An expression with a number in it, in the arena; NULL: there is no memory. */
static const char *with_number(arena *a, const char *before, double number, const char *after)
{
    text e = {0};
    text_print(&e, "%s%.9g%s", before, number, after);
    const char *made = text_copy(&e, a);
    text_free(&e);
    return made;
}

/* Choose the program for this use, with scale and mask as an expression of x0, the product of query
 * and key, and x1, the mask.  A boolean mask keeps where it is true.  The second time it is a
 * look-up. */
static mpk_status choose(mpk_context *cx, const gen_call *c, const super_choice **out)
{
    super_attention s = attention_of(c);
    const double asked = c->op->attributes[SCALE].f,
                 scale = asked != 0 ? asked : 1 / sqrt((double)s.width);
    const bool is_raw = !s.has_mask && scale > 0; /* candidates need not scale scores first */
    if (s.has_mask && s.mask.dtype == IR_BOOL)
        s.scores = with_number(c->arena, "where(x1 != 0, x0 * ", scale, ", (-inf))");
    else
        s.scores = with_number(c->arena, "x0 * ", scale, s.has_mask ? " + x1" : "");
    if (is_raw) {
        s.weights = with_number(c->arena, "exp(x0 * ", scale, " - x1)");
        s.scaled = with_number(c->arena, "x0 * ", scale, "");
        s.apart = with_number(c->arena, "exp((x0 - x1) * ", scale, ")");
    }
    CHECK(cx, s.scores && (!is_raw || (s.weights && s.scaled && s.apart)), MPK_ENOMEM,
          "out of memory for the expression of scores");
    return gen_choose_attention(cx, c->arena, c->choices, &s, out);
}

/* Plain dtypes, and what super has programs for; nothing is chosen yet. */
static bool accepts(const gen_call *c)
{
    const super_attention s = attention_of(c);
    return gen_accepts_plain(c) && super_accepts_attention(&s);
}

/* Print has chosen already: the answer is there. */
static uint32_t scratch_bytes(const gen_call *c)
{
    mpk_context quiet = {0};
    const super_choice *chosen;
    return choose(&quiet, c, &chosen) == MPK_OK ? block_scratch_bytes(&chosen->program) : 0;
}

/* "g_NAME": where the operand of the head at hand begins, `at` entries after the tensor's first. */
static void print_pointer(const char *name, const char *at, bool written, text *out)
{
    text_print(out, "        %schar *g_%s = mpk_data(t, %s) + (%s) * mpk_dtype_bytes(%s.dtype);\n",
               written ? "" : "const ", name, name, at, name);
}

/* A loop over the heads of the box around the block program, which sees one head.  With a causal
 * mask the keys after the last row are not visited at all. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const super_choice *chosen;
    const super_attention s = attention_of(c);
    const bool by_rows = c->op->attributes[BY_ROWS].i;
    const char *seen = s.causal ? "m_hi < in_k.dims[2] ? m_hi : in_k.dims[2]" : "in_k.dims[2]";
    TRY(choose(cx, c, &chosen));
    (chosen->program.by_groups ? gen_print_head_of_groups : gen_print_head_of_waiting)(c, n, out);
    gen_print_note(c->choices, chosen, out);
    text_print(out,
               "    const mpk_box box = mpk_box_of(t, 4);\n    const mpk_box heads = %s;\n"
               "    const rt_i64 m_lo = heads.lo[2], m_hi = heads.hi[2], s_lo = 0, s_hi = %s, d_lo "
               "= 0, d_hi = %lld, "
               "e_lo = 0, e_hi = %lld;\n"
               "    if (!mpk_count(heads, 2))\n        mpk_wait(t);\n"
               "    for (rt_u32 image = heads.lo[0]; image < heads.hi[0]; image++)\n"
               "    for (rt_u32 head = heads.lo[1]; head < heads.hi[1]; head++) {\n"
               "        const rt_i64 at[RT_MAX_RANK] = {image, head};\n"
               "        const rt_i64 group = head / (rt_u32)(in_q.dims[1] / in_k.dims[1]);\n",
               by_rows ? "mpk_swapped(box, 1, 2)" : "box", seen, (long long)s.width,
               (long long)s.values);
    print_pointer("in_q", "mpk_offset(in_q, at)", false, out);
    print_pointer("in_k", "at[0] * in_k.stride[0] + group * in_k.stride[1]", false, out);
    print_pointer("in_v", "at[0] * in_v.stride[0] + group * in_v.stride[1]", false, out);
    print_pointer("out_y",
                  by_rows ? "at[0] * out_y.stride[0] + at[1] * out_y.stride[2]"
                          : "mpk_offset(out_y, at)",
                  true, out);
    if (s.has_mask)
        print_pointer("in_mask", "mpk_spread(in_mask, 4, at)", false, out);
    text_print(
        out,
        "        if (image == heads.lo[0] && head == heads.lo[1])\n            mpk_wait(t);\n");
    TRY(gen_print_block(cx, &chosen->program, out));
    text_print(out, "    }\n    mpk_trigger(t);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_block_sdpa = {.op = "sdpa",
                                      .name = "block",
                                      .rank = 5,
                                      .waits = true,
                                      .accepts = accepts,
                                      .print = print,
                                      .scratch_bytes = scratch_bytes};
