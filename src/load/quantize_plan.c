/* quantize_plan.c - which type each tensor of a quantised file takes.
 *
 * Input: the mix that the user named, the model's sizes, a tensor's name and shape.  Output: its
 * type.
 *
 * The choices are those of llama.cpp's llama-quantize, so that a file of ours has the size and
 * the quality for which its name is known: the value and down projections of the first and last
 * eighth of the layers, and of every third in between, take more bits in the _M mixes; the head
 * takes 6 bits; a tensor whose rows are not multiples of 256 takes the next larger format of 32.
 * q4_k_m of a model of 32 layers: .ffn_down of layers 0-3, 6, 9 .. 27 and 28-31 is Q6_K, of
 * others Q4_K.
 */
#include "load/quantize.h"

#include <stdio.h>

/* Name, the type that most tensors take, and general.file_type, llama.cpp's number of the mix. */
static const quantize_mix mixes[] = {
    {"f32", IR_F32, 0},      {"f16", IR_F16, 1},      {"bf16", IR_BF16, 32},
    {"q4_0", IR_Q4_0, 2},    {"q4_1", IR_Q4_1, 3},    {"q5_0", IR_Q5_0, 8},
    {"q5_1", IR_Q5_1, 9},    {"q8_0", IR_Q8_0, 7},    {"q2_k", IR_Q2_K, 10},
    {"q3_k_s", IR_Q3_K, 11}, {"q3_k_m", IR_Q3_K, 12}, {"q3_k_l", IR_Q3_K, 13},
    {"q4_k_s", IR_Q4_K, 14}, {"q4_k_m", IR_Q4_K, 15}, {"q5_k_s", IR_Q5_K, 16},
    {"q5_k_m", IR_Q5_K, 17}, {"q6_k", IR_Q6_K, 18},
};
/* general.file_type of the mixes that have rules of their own. */
enum { Q4_0 = 2, Q5_0 = 8, Q2_K = 10, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M };

/* Are the names equal except for upper and lower case? */
static bool is_name(str name, const char *other)
{
    for (size_t i = 0; i < name.n; i++)
        if ((name.at[i] >= 'A' && name.at[i] <= 'Z' ? name.at[i] + 32 : name.at[i]) != other[i])
            return false;
    return !other[name.n];
}

/* An unknown name gets a list of those that exist. */
mpk_status quantize_find_mix(mpk_context *cx, str name, const quantize_mix **out)
{
    char all[160] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        if (is_name(name, mixes[i].name)) {
            *out = &mixes[i];
            return MPK_OK;
        }
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", mixes[i].name);
    }
    FAIL(cx, MPK_EARG, "there is no type \"%.*s\"; there are: %s", LOAD_NAME(name), all);
}

/* ---- the mixes ---- */

/* Reads at most six digits. */
int quantize_layer(str name)
{
    int layer = 0;
    size_t at = 4;
    if (name.n < 6 || memcmp(name.at, "blk.", 4) != 0)
        return -1;
    for (; at < name.n && at < 10 && name.at[at] >= '0' && name.at[at] <= '9'; at++)
        layer = layer * 10 + (name.at[at] - '0');
    return at > 4 ? layer : -1;
}

/* The layers to which the _M mixes give more bits. */
static bool is_sensitive(int layer, int n)
{
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

/* Models of 70B: eight heads share a value projection, which is small and counts more. */
static bool is_70b(const model_config *c)
{
    return c->n_layers == 80 && c->n_heads != c->n_kv_heads;
}

/* The value projection.  Values are the most sensitive weights, and small if several heads share
 * them, so they get the most bits.  The cases are llama-quantize's, with its special ones for
 * 70B and for eight experts. */
static ir_dtype choose_value(const quantize_facts *f, int layer)
{
    const model_config *c = f->config;
    bool shared = c->n_heads / c->n_kv_heads >= 4;
    ir_dtype dtype = f->mix->dtype;
    switch (f->mix->file_type) {
    case Q2_K:
        dtype = shared ? IR_Q4_K : IR_Q3_K;
        break;
    case Q3_K_M:
        dtype = layer < 2 ? IR_Q5_K : IR_Q4_K;
        break;
    case Q3_K_L:
        dtype = IR_Q5_K;
        break;
    case Q4_K_S:
        dtype = layer < 4 ? IR_Q5_K : dtype;
        break;
    case Q4_K_M:
    case Q5_K_M:
        dtype = is_sensitive(layer, (int)c->n_layers) ? IR_Q6_K : dtype;
        break;
    }
    if (is_70b(c) && (dtype == IR_Q3_K || dtype == IR_Q4_K))
        dtype = IR_Q5_K;
    return c->n_experts == 8 ? IR_Q8_0 : dtype;
}

/* The down projection, which ends a layer's feed-forward part; the cases are llama-quantize's. */
static ir_dtype choose_down(const quantize_facts *f, int layer)
{
    const int n = (int)f->config->n_layers;
    switch (f->mix->file_type) {
    case Q2_K:
        return IR_Q3_K;
    case Q3_K_M:
        return layer < n / 16 ? IR_Q5_K : IR_Q4_K;
    case Q3_K_L:
        return IR_Q5_K;
    case Q4_K_S:
        return layer < n / 8 ? IR_Q5_K : IR_Q4_K;
    case Q4_K_M:
    case Q5_K_M:
        return is_sensitive(layer, n) ? IR_Q6_K : f->mix->dtype;
    /* with importances, the search for scales goes wrong in the first layers' down projections */
    case Q4_0:
        return f->has_importance && layer < n / 8 ? IR_Q4_1 : IR_Q4_0;
    case Q5_0:
        return f->has_importance && layer < n / 8 ? IR_Q5_1 : IR_Q5_0;
    }
    return f->mix->dtype;
}

/* The product that ends attention; llama-quantize gives it more bits in models with eight
 * experts. */
static ir_dtype choose_output(const quantize_facts *f)
{
    const uint32_t file_type = f->mix->file_type;
    if (f->config->n_experts == 8)
        return file_type >= Q2_K && file_type <= Q4_K_M && file_type != Q3_K_L ? IR_Q5_K
                                                                               : f->mix->dtype;
    switch (file_type) {
    case Q2_K:
        return IR_Q3_K;
    case Q3_K_M:
        return IR_Q4_K;
    case Q3_K_L:
        return IR_Q5_K;
    }
    return f->mix->dtype;
}

/* The head, or the embedding if it is tied. */
static ir_dtype choose_head(const quantize_facts *f, int64_t columns)
{
    if (columns % ir_dtype_table[f->mix->dtype].block_elements || f->mix->dtype == IR_Q8_0)
        return IR_Q8_0;
    return IR_Q6_K;
}

/* Chosen by the ends of names, as llama-quantize does; all others take the mix's own type. */
static ir_dtype choose_in_mix(const quantize_facts *f, str name, int64_t columns)
{
    int layer = quantize_layer(name);
    if (str_is(name, "output.weight") || (f->tied && str_is(name, "token_embd.weight")))
        return choose_head(f, columns);
    if (layer < 0)
        return f->mix->dtype;
    if (str_ends(name, STR(".attn_v.weight")))
        return choose_value(f, layer);
    if (str_ends(name, STR(".attn_k.weight")) && f->config->n_experts == 8)
        return IR_Q8_0;
    if (str_ends(name, STR(".ffn_down.weight")) || str_ends(name, STR(".ffn_down_exps.weight")))
        return choose_down(f, layer);
    if (str_ends(name, STR(".attn_output.weight")))
        return choose_output(f);
    return f->mix->dtype;
}

/* ---- shapes ---- */

/* The format of 32 that replaces one of 256 if rows are not multiples of that. */
static ir_dtype fit_columns(ir_dtype dtype, int64_t columns)
{
    if (columns % ir_dtype_table[dtype].block_elements == 0)
        return dtype;
    if (dtype == IR_Q2_K || dtype == IR_Q3_K)
        dtype = IR_Q4_0;
    else if (dtype == IR_Q4_K)
        dtype = IR_Q5_0;
    else if (dtype == IR_Q5_K)
        dtype = IR_Q5_1;
    else if (dtype == IR_Q6_K)
        dtype = IR_Q8_0;
    return columns % ir_dtype_table[dtype].block_elements ? IR_F16 : dtype;
}

/* Vectors, norms and routers are small and stay f32. */
static bool stays_exact(str name, uint32_t rank)
{
    return rank < 2 || !str_ends(name, STR("weight")) || str_ends(name, STR("_norm.weight")) ||
           str_ends(name, STR("ffn_gate_inp.weight"));
}

/* The mix's own types for its tensors, e.g. Q6_K for some of Q4_K_M; a type whose blocks do not
 * divide the columns gives way to one that does (fit_columns). */
ir_dtype quantize_choose(const quantize_facts *f, str name, uint32_t rank, const int64_t *dims)
{
    if (stays_exact(name, rank))
        return IR_F32;
    if (ir_dtype_table[f->mix->dtype].block_elements == 1)
        return f->mix->dtype;
    return fit_columns(choose_in_mix(f, name, dims[rank - 1]), dims[rank - 1]);
}
