/* draw_sizes.h - random sizes of latent and of linear attention (model_config), for tests that
 * build models of every family. */
#ifndef DRAW_SIZES_H
#define DRAW_SIZES_H

#include "base/rng.h"
#include "model/model.h"

/* Latent attention, with DeepSeek's sizes among them. */
static inline void draw_latent(uint64_t seed, model_config *c)
{
    uint32_t bits[8];
    for (uint32_t i = 0; i < 8; i++)
        bits[i] = (uint32_t)(rng_u64(seed, i) >> 16);
    c->n_kv_heads = 1;
    c->latent_size = bits[0] % 2 ? 512 : 32 * (1 + bits[1] % 8);
    c->query_latent_size = bits[2] % 2 ? 32 * (1 + bits[3] % 20) : 0;
    c->rope_size = bits[4] % 2 ? 64 : 8 * (1 + bits[5] % 5);
    c->head_size = c->rope_size + 32 * (1 + bits[6] % 4);
    c->value_size = 32 * (1 + bits[7] % 4);
}

/* Linear attention.  Layers 0 and 1 may have it, one of them at least, and the last layer never.
 * most_key, most_value: the largest sizes; every other time a head has the largest. */
static inline void draw_delta(uint64_t seed, uint32_t most_key, uint32_t most_value,
                              model_config *c)
{
    uint32_t bits[8];
    for (uint32_t i = 0; i < 8; i++)
        bits[i] = (uint32_t)(rng_u64(seed, i) >> 16);
    c->delta_key_heads = 1 + bits[0] % 4;
    c->delta_heads = c->delta_key_heads * (1 + bits[1] % 3);
    c->delta_key_size = bits[2] % 2 ? most_key : 1 + bits[2] / 2 % most_key;
    c->delta_value_size = bits[3] % 2 ? most_value : 1 + bits[3] / 2 % most_value;
    c->delta_conv = 2 + bits[4] % 7;
    c->delta_layers[0] = c->n_layers > 2 ? 1 + bits[5] % 3 : c->n_layers - 1;
    c->delta_tiled = bits[6] % 2;
    c->attention_gate = true;
}

#endif
