/* body_conv_flat.c - the generic body of conv_flat (device/task/conv_flat.cuh), for whatever the
 * products of boxes (body_conv_tile.c) do not take:
 *
 *   constexpr conv_flat_how how = {{{3, 3}}, {{1, 1}}, {{1, 1}}, {{1, 1}}, {{14, 14}}, true};
 *   conv_flat_run(t, in_x, in_w, in_scale, in_bias, in_shift, in_residual, out_y, how); */
#include "gen/body_print.h"
#include "gen/image_of.h"

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { KERNEL, STRIDE, PADDING, DILATION, RELU };
    const gen_image m = gen_image_of(c->ir, c->op);
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    constexpr conv_flat_how how = {");
    for (uint32_t i = KERNEL; i <= DILATION; i++) {
        text_print(out, "{{");
        gen_print_list(c, i, 2, i != PADDING, out);
        text_print(out, "}}, ");
    }
    text_print(out, "{{%d, %d}}, %s};\n", m.out[0], m.out[1], str_bool(c->op->attributes[RELU].i));
    gen_print_call(c, "conv_flat_run", out);
    text_print(out, ", how);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_conv_flat = GEN_BODY("conv_flat", "conv_flat", print, NULL);
