/* body_unfold.c - the bodies of unfold: a generic one (device/task/unfold.cuh), and one of rank 5
 * for 16 bits, which keeps lines of the image in scratch (unfold_lines.cuh):
 *
 *   constexpr unfold_how how = {{{2, 7}}, {{2, 2}}, {{3, 3}}};
 *   unfold_lines<8, 16, 240, 64>(t, in_x, out_y, how);     lines at a time and what they see */
#include "gen/body_print.h"
#include "shape/unfold_shape.h"

enum { KERNEL, SIZE, ENTRIES, STRIDE, PADDING };
enum { THREADS = 256 };

static int number(const gen_call *c, uint32_t list, uint32_t i)
{
    const ir_attribute *a = &c->op->attributes[list];
    return i < a->ints.n ? (int)a->ints.at[i] : list != PADDING;
}

static void print_how(const gen_call *c, uint32_t n, text *out)
{
    static const uint32_t lists[] = {KERNEL, STRIDE, PADDING};
    gen_print_head(c, n, out);
    text_print(out, "    constexpr unfold_how how = {");
    for (uint32_t i = 0; i < 3; i++) {
        text_print(out, "%s{{", i ? ", " : "");
        gen_print_list(c, lists[i], 2, lists[i] != PADDING, out);
        text_print(out, "}}");
    }
    text_print(out, "};\n");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_how(c, n, out);
    gen_print_call(c, "unfold_run", out);
    text_print(out, ", how);\n}\n");
    return MPK_OK;
}

/* ---- by lines ---- */

static int pitch_of(const gen_call *c)
{
    return unfold_pitch(number(c, PADDING, 1), (int)gen_output(c, 0)->dims[2], number(c, STRIDE, 1),
                        number(c, KERNEL, 1));
}

static int64_t bytes_of(const gen_call *c, int lines)
{
    return (int64_t)unfold_rows(lines, number(c, STRIDE, 0), number(c, KERNEL, 0)) *
           gen_input(c, 0)->dims[1] * pitch_of(c) * 2;
}

/* Lines at a time: those of the box, as far as scratch has room; 0: not for one. */
static int lines_of(const gen_call *c)
{
    const int64_t of_box = c->box ? c->box->hi[1] - c->box->lo[1] : gen_output(c, 0)->dims[1];
    int lines = of_box < UNFOLD_MOST_LINES ? (int)of_box : UNFOLD_MOST_LINES;
    while (lines > 0 && bytes_of(c, lines) > UNFOLD_MOST_BYTES)
        lines--;
    return lines;
}

/* y has no gaps and is aligned, and its rows are words that threads share evenly; numbers of lines
 * and places in scratch have 32 bits. */
static bool accepts_lines(const gen_call *c)
{
    enum { MOST = 1 << 14, MOST_STEP = 256 };
    const ir_tensor *x = gen_input(c, 0), *y = gen_output(c, 0);
    const gen_call whole = {.ir = c->ir, .op = c->op};
    bool small = y->dims[2] < MOST && x->dims[1] < MOST && y->dims[1] < MOST;
    for (uint32_t i = 0; i < 2; i++)
        small = small && number(c, STRIDE, i) < MOST_STEP && number(c, KERNEL, i) < MOST_STEP &&
                number(c, PADDING, i) < MOST_STEP;
    return gen_accepts_plain(c) && (x->dtype == IR_BF16 || x->dtype == IR_F16) && small &&
           gen_is_dense(y, x->dtype) && y->dims[3] % UNFOLD_PIECE == 0 &&
           THREADS % (y->dims[3] / UNFOLD_PIECE) == 0 && lines_of(&whole) > 0;
}

static mpk_status print_lines(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const int lines = lines_of(c);
    (void)cx;
    print_how(c, n, out);
    text_print(out, "    unfold_lines<%d, %d, %d, %lld>(t, in_x, out_y, how);\n}\n", lines,
               unfold_rows(lines, number(c, STRIDE, 0), number(c, KERNEL, 0)), pitch_of(c),
               (long long)gen_output(c, 0)->dims[3]);
    return MPK_OK;
}

static uint32_t scratch_of_lines(const gen_call *c)
{
    return (uint32_t)bytes_of(c, lines_of(c));
}

const gen_body gen_body_unfold = GEN_BODY("unfold", "unfold", print, NULL);
const gen_body gen_body_unfold_lines = {.op = "unfold",
                                        .name = "unfold_lines",
                                        .rank = 5,
                                        .accepts = accepts_lines,
                                        .print = print_lines,
                                        .scratch_bytes = scratch_of_lines};
