/* model_ends.c - what stands before the layers of a decoder and after them: step inputs, embedding,
 * tables of rotations; final norm, head and the choice of the next token (model_decoder.h).
 */
#include <stdio.h>

#include "model/model_parts.h"
#include "op/rules.h"

/* The divisors of longrope as the operator's text: those of long contexts if a slot has more pages
 * than the original positions fill, since all keys of a cache must be rotated by the same angles.
 * */
static const char *print_divisors(decoder *d)
{
    const model_config *c = d->c;
    const uint32_t P = d->s->page_tokens, originals = (c->rope_original_positions + P - 1) / P;
    const float *divisors = d->s->max_pages_per_slot > originals ? c->rope_long : c->rope_short;
    text t = {0};
    for (uint32_t i = 0; i < c->rope_size / 2; i++)
        text_print(&t, "%s%.9g", i ? " " : "", (double)divisors[i]);
    const char *copy = text_copy(&t, d->g->arena);
    text_free(&t);
    if (!copy && d->status == MPK_OK)
        d->status = status_fail(d->cx, MPK_ENOMEM, "out of memory for the rope factors");
    return copy;
}

/* Only the attributes of the kind of scaling are set; the others keep the operator's defaults. */
static ir_tensor_id add_rope_table(decoder *d)
{
    const model_config *c = d->c;
    static const char *const names[] = {"default", "linear", "llama3", "yarn", "longrope"};
    ir_set set[IR_MAX_ATTRIBUTES + 1] = {
        {.name = "size", .i = c->rope_size},
        {.name = "plain", .i = model_plain_pairs(c)},
        {.name = "theta", .f = c->rope_theta},
        {.name = "scaling", .s = names[c->rope_scaling]},
    };
    uint32_t n = 4;
    if (c->rope_scaling != MODEL_ROPE_DEFAULT)
        set[n++] = (ir_set){.name = "factor", .f = c->rope_factor};
    if (c->rope_scaling == MODEL_ROPE_LLAMA3) {
        set[n++] = (ir_set){.name = "low_freq_factor", .f = c->rope_low_freq_factor};
        set[n++] = (ir_set){.name = "high_freq_factor", .f = c->rope_high_freq_factor};
        set[n++] = (ir_set){.name = "original_positions", .i = c->rope_original_positions};
    }
    if (c->rope_scaling == MODEL_ROPE_YARN) {
        set[n++] = (ir_set){.name = "beta_fast", .f = c->rope_beta_fast};
        set[n++] = (ir_set){.name = "beta_slow", .f = c->rope_beta_slow};
        set[n++] = (ir_set){.name = "attention_factor", .f = c->rope_attention_factor};
        set[n++] = (ir_set){.name = "mscale", .f = c->rope_mscale};
        set[n++] = (ir_set){.name = "mscale_all_dim", .f = c->rope_mscale_all_dim};
        set[n++] = (ir_set){.name = "original_positions", .i = c->rope_original_positions};
        set[n++] = (ir_set){.name = "truncate", .i = c->rope_truncate};
    }
    if (c->rope_scaling == MODEL_ROPE_LONG) {
        set[n++] = (ir_set){.name = "attention_factor", .f = c->rope_attention_factor};
        set[n++] = (ir_set){.name = "original_positions", .i = c->rope_original_positions};
        set[n++] = (ir_set){.name = "divisors", .s = print_divisors(d)};
    }
    return decoder_op(d, "rope_table", "rope_table", 1, &d->positions, set);
}

/* The tables of layers whose rotation is another than that of most. */
static void add_other_tables(decoder *d)
{
    const model_config *c = d->c;
    const ir_set size = {.name = "size", .i = c->rope_size},
                 plain = {.name = "plain", .i = model_plain_pairs(c)};
    if (c->local_theta != 0 && c->window)
        d->local_rope =
            decoder_op(d, "rope_table", "local_rope_table", 1, &d->positions,
                       (ir_set[]){size, plain, {.name = "theta", .f = c->local_theta}, {0}});
    uint64_t any = 0;
    for (uint32_t i = 0; i < MODEL_MAX_LAYERS / 64; i++)
        any |= c->unrotated_layers[i];
    if (any) /* angles of 0: the same operators and bodies as in other layers, and the same bits */
        d->no_rope = decoder_op(d, "rope_table", "no_rope_table", 1, &d->positions,
                                (ir_set[]){size, plain, {.name = "scaling", .s = "none"}, {0}});
}

/* What queries are multiplied by, where the context is long enough for another factor than 1. */
static ir_tensor_id add_query_scales(decoder *d)
{
    const model_config *c = d->c;
    const int64_t shape[3] = {d->s->n_tokens, 1, 1},
                  context = (int64_t)d->s->max_pages_per_slot * d->s->page_tokens;
    char expr[DECODER_NAME_BYTES];
    if (c->query_growth == 0 || context - 1 + c->query_offset < c->query_step)
        return IR_NONE;
    snprintf(expr, sizeof expr, "1 + %.17g * log(1 + floor((f32(x0) + %u) / %u))", c->query_growth,
             c->query_offset, c->query_step);
    ir_tensor_id column =
        decoder_op(d, "reshape", "token_scalars", 1, &d->positions,
                   (ir_set[]){{.name = "shape", .ints = shape, .n_ints = 3}, {0}});
    return decoder_op(d, "map", "query_scales", 1, &column,
                      (ir_set[]){{.name = "expr", .s = expr}, {.name = "dtype", .s = "f32"}, {0}});
}

/* The numbers of all heads, for each token. */
static void add_head_ids(decoder *d)
{
    const int64_t shape[2] = {d->s->n_tokens, 1};
    ir_tensor_id in[2] = {
        decoder_op(d, "reshape", "token_column", 1, &d->positions,
                   (ir_set[]){{.name = "shape", .ints = shape, .n_ints = 2}, {0}}),
        decoder_op(
            d, "iota", "heads", 0, NULL,
            (ir_set[]){{.name = "n", .i = d->c->n_heads}, {.name = "dtype", .s = "i32"}, {0}})};
    d->head_ids = decoder_op(
        d, "map", "head_ids", 2, in,
        (ir_set[]){{.name = "expr", .s = "x0 * 0 + x1"}, {.name = "dtype", .s = "i32"}, {0}});
}

/* A row for each slot, its masks, and those of drafts after each mask. */
static int64_t rows_of_rules(const model_shape *s)
{
    return (int64_t)s->n_slots * (1 + MODEL_MASKS * (1 + (int64_t)s->n_guesses));
}

/* Add the step inputs of model.h; returns x[T, D], the rows of the embedding that the tokens
 * name. */
static ir_tensor_id add_begin(decoder *d)
{
    const model_shape *s = d->s;
    const int64_t tokens[1] = {s->n_tokens}, rows[1] = {s->n_rows}, four[2] = {s->n_rows, 4};
    const int64_t pages[2] = {s->n_slots, s->max_pages_per_slot};
    d->tokens = decoder_tensor(d, IR_INPUT, IR_TOKENS, "tokens", IR_I32, 1, tokens);
    d->positions = decoder_tensor(d, IR_INPUT, IR_TOKENS, "positions", IR_I32, 1, tokens);
    d->slots = decoder_tensor(d, IR_INPUT, IR_TOKENS, "slots", IR_I32, 1, tokens);
    d->pages = decoder_tensor(d, IR_INPUT, IR_ALL, "pages", IR_I32, 2, pages);
    d->rows = decoder_tensor(d, IR_INPUT, IR_ROWS, "rows", IR_I32, 1, rows);
    d->sampling = decoder_tensor(d, IR_INPUT, IR_ROWS, "sampling", IR_F32, 2, four);
    d->seeds = decoder_tensor(d, IR_INPUT, IR_ROWS, "seeds", IR_I64, 1, rows);
    d->draws = decoder_tensor(d, IR_INPUT, IR_ROWS, "draws", IR_I32, 1, rows);
    if (!s->greedy_only) {
        d->asks =
            decoder_tensor(d, IR_INPUT, IR_ROWS, "asks", IR_I32, 2, (int64_t[]){s->n_rows, ASKS});
        const uint32_t V = d->c->vocab_size;
        int64_t mask = rules_mask_words(V > s->rule_vocab ? V : s->rule_vocab),
                words = mask > RULES_WORDS ? mask : RULES_WORDS;
        d->rules = decoder_tensor(d, IR_INPUT, IR_ALL, "rules", IR_I32, 2,
                                  (int64_t[]){rows_of_rules(s), words});
        d->history = decoder_tensor(
            d, IR_INPUT, IR_ALL, "history", IR_I32, 1,
            (int64_t[]){(int64_t)s->n_slots * s->max_pages_per_slot * s->page_tokens});
    }
    d->embedding =
        decoder_weight(d, "model.embed_tokens.weight", 2, d->c->vocab_size, d->c->hidden_size);
    const double factor = d->c->embedding_scale != 0 ? d->c->embedding_scale : 1;
    ir_tensor_id x =
        decoder_op(d, "embedding", "embedding", 2, (ir_tensor_id[]){d->tokens, d->embedding},
                   (ir_set[]){{.name = "dtype", .s = ir_dtype_table[s->activation_dtype].name},
                              {.name = "factor", .f = factor},
                              {0}});
    d->rope = add_rope_table(d);
    add_other_tables(d);
    d->query_scales = add_query_scales(d);
    if (d->c->latent_size)
        add_head_ids(d);
    return x;
}

/* Columns of the logits, or of the norm in their place. */
static int64_t end_columns(const decoder *d)
{
    return d->s->no_head ? d->c->hidden_size : d->c->vocab_size;
}

/* Greedy choice in two stages (paper §6.1's tail), with enough parts for every worker of a large
 * GPU. */
static ir_tensor_id add_argmax(decoder *d, ir_tensor_id logits)
{
    ir_tensor_id part[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    int64_t parts = end_columns(d) < 128 ? end_columns(d) : 128;
    if (d->status == MPK_OK)
        d->status = ir_add_op(d->cx, d->g, "argmax_partial", "argmax_partial", 1, &logits,
                              (ir_set[]){{.name = "parts", .i = parts}, {0}}, part);
    return decoder_op(d, "argmax_reduce", "next", 2, (ir_tensor_id[]){part[0], part[1]}, NULL);
}

/* Draw the token as the request asks; outputs: next, logprobs. */
static mpk_status add_sample(decoder *d, ir_tensor_id logits)
{
    const int64_t n = d->s->n_choices > d->s->n_slots ? d->s->n_choices : d->s->n_slots;
    const int64_t choice_dims[2] = {n, end_columns(d)};
    ir_tensor_id out[IR_MAX_OUTPUTS],
        choice = decoder_tensor(d, IR_STATE, IR_ALL, "choice", IR_F32, 2, choice_dims);
    TRY(d->status);
    ir_tensor_id in[] = {logits,  d->sampling, d->seeds,   d->draws,
                         d->asks, d->rules,    d->history, choice};
    TRY(ir_add_op_as(d->cx, d->g, op_find(STR("sample")),
                     (str[]){STR("next"), STR("chosen"), STR("logprobs")}, sizeof in / sizeof *in,
                     in, NULL, out));
    TRY(ir_add_output(d->cx, d->g, out[0]));
    return ir_add_output(d->cx, d->g, out[2]);
}

/* Does anything follow the head's product, but a cast? */
static bool bends_logits(const decoder *d)
{
    return !d->s->no_head && (d->c->logits_scale != 0 || d->c->logits_cap != 0);
}

/* Factor and cap of the logits f32[R, V]; the last result is named "logits". */
static ir_tensor_id bend_logits(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    if (c->logits_scale != 0)
        x = decoder_map(d, c->logits_cap != 0 ? "logits_scaled" : "logits", 1, &x, "x0 * ",
                        c->logits_scale);
    if (c->logits_cap == 0)
        return x;
    char expr[DECODER_NAME_BYTES];
    snprintf(expr, sizeof expr, "tanh(x0 / %.17g) * %.17g", c->logits_cap, c->logits_cap);
    return decoder_op(d, "map", "logits", 1, &x, (ir_set[]){{.name = "expr", .s = expr}, {0}});
}

/* In f32 the product is the result itself; otherwise a cast follows, so the name `logits` is
 * left for that. */
static ir_tensor_id add_head(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    ir_tensor_id head = c->tied_embeddings
                            ? d->embedding
                            : decoder_weight(d, "lm_head.weight", 2, c->vocab_size, c->hidden_size);
    bool last = d->s->activation_dtype == IR_F32 && !bends_logits(d);
    const char *name = last ? "logits" : "lm_head";
    ir_tensor_id in[] = {x, head, IR_NONE, IR_NONE, IR_NONE};
    if (c->head_bias)
        in[4] = decoder_weight(d, "lm_head.bias", 1, c->vocab_size, 0);
    return decoder_op(d, "linear", name, c->head_bias ? 5 : 2, in, NULL);
}

/* x[T, D] -> the wanted rows [R, D] -> logits f32[R, V] -> next i32[R].  Rows are chosen before
 * the norm: in a chunk of a prompt most tokens need no logits, and the head is the largest
 * product. */
static mpk_status add_end(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    const model_shape *s = d->s;
    bool f32 = s->activation_dtype == IR_F32;
    if (!(s->greedy_only && s->n_rows == s->n_tokens))
        x = decoder_op(d, "gather", "last", 2, (ir_tensor_id[]){x, d->rows}, NULL);
    x = decoder_add_norm(d, x, "model.norm", s->no_head && f32 ? "logits" : "norm", c->hidden_size);
    ir_tensor_id logits = s->no_head ? x : add_head(d, x);
    if (!f32)
        logits = decoder_op(d, "cast", bends_logits(d) ? "lm_head_f32" : "logits", 1, &logits,
                            (ir_set[]){{.name = "dtype", .s = "f32"}, {0}});
    if (bends_logits(d))
        logits = bend_logits(d, logits);
    TRY(d->status);
    TRY(ir_add_output(d->cx, d->g, logits));
    if (!s->greedy_only)
        return add_sample(d, logits);
    ir_tensor_id next = add_argmax(d, logits);
    TRY(d->status);
    return ir_add_output(d->cx, d->g, next);
}

/* Embedding, layers, final norm and head; `layer` is the family's. */
mpk_status decoder_build(mpk_context *cx, const model_config *c, const model_shape *s,
                         const model_weights *w, ir_graph *g,
                         ir_tensor_id (*layer)(decoder *d, ir_tensor_id x))
{
    decoder d = {.cx = cx, .c = c, .s = s, .w = w, .g = g};
    ir_tensor_id x = add_begin(&d);
    for (d.layer = 0; d.layer < c->n_layers && d.status == MPK_OK; d.layer++)
        x = layer(&d, x);
    return add_end(&d, x);
}
