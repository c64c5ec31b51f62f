/* hf_weights.c - what the weights of Hugging Face folders need before programs can use them.
 *
 * Input: the tensors of a folder, as they are named there, and the configuration.  Output: the same
 * list with
 *
 *   names    of a model that is held by one that also reads images, without what they begin with:
 *            model.language_model.layers.0.. -> model.layers.0.., as if it were alone; the weights
 *            for images keep their names, which no program asks for, and are not read; and
 *            with the parts that the family replaces (model_def.hf_names)
 *   norms    of families that multiply by 1 + weight: 1 + weight, in f32, in the model's arena
 *
 *   rows     of q and k of families that rotate neighbours, in the order that bodies expect
 *            (gguf_rope.c)
 *   experts  that lie by columns (interleaved.c)
 *
 * GGUF files need none of this.  Called by load.c once for a folder with weights.
 */
#include <stdio.h>

#include "load/gguf.h"

static bool begins_with(str s, const char *head)
{
    size_t n = strlen(head);
    return s.n >= n && memcmp(s.at, head, n) == 0;
}

mpk_status load_rename_held(mpk_context *cx, arena *a, str *name)
{
    static const char *const heads[][2] = {{"model.language_model.", "model."},
                                           {"language_model.model.", "model."},
                                           {"language_model.lm_head.", "lm_head."}};
    char renamed[160];
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        if (!begins_with(*name, heads[i][0]))
            continue;
        const size_t skipped = strlen(heads[i][0]);
        int n = snprintf(renamed, sizeof renamed, "%s%.*s", heads[i][1], (int)(name->n - skipped),
                         name->at + skipped);
        CHECK(cx, n > 0 && (size_t)n < sizeof renamed, MPK_EFORMAT, "the name %.*s is too long",
              LOAD_NAME(*name));
        *name = (str){arena_copy(a, renamed, (size_t)n), (size_t)n};
        CHECK(cx, name->at, MPK_ENOMEM, "out of memory for a tensor's name");
        return MPK_OK;
    }
    return MPK_OK;
}

/* Replace parts of the name as the family says. */
static mpk_status rename_parts(mpk_context *cx, arena *a, const char *const (*pairs)[2], str *name)
{
    char renamed[192];
    for (; pairs && (*pairs)[0]; pairs++) {
        const size_t n = strlen((*pairs)[0]);
        size_t at = 0;
        while (at + n <= name->n && memcmp(name->at + at, (*pairs)[0], n) != 0)
            at++;
        if (at + n > name->n)
            continue;
        int length = snprintf(renamed, sizeof renamed, "%.*s%s%.*s", (int)at, name->at, (*pairs)[1],
                              (int)(name->n - at - n), name->at + at + n);
        CHECK(cx, length > 0 && (size_t)length < sizeof renamed, MPK_EFORMAT,
              "the name %.*s is too long", LOAD_NAME(*name));
        *name = (str){arena_copy(a, renamed, (size_t)length), (size_t)length};
        CHECK(cx, name->at, MPK_ENOMEM, "out of memory for a tensor's name");
    }
    return MPK_OK;
}

/* Is it the weight of a norm?  That of linear attention multiplies as it is in every family. */
static bool is_norm(const load_tensor *t)
{
    if (str_ends(t->name, STR(".linear_attn.norm.weight")))
        return false;
    static const char end[] = "norm.weight";
    const size_t n = sizeof end - 1;
    return t->rank == 1 && t->name.n >= n && begins_with(t->name, "model.") &&
           memcmp(t->name.at + t->name.n - n, end, n) == 0;
}

/* Norms are small: as f32 they keep what 1 + weight would lose in 16 bits. */
static mpk_status add_one(mpk_context *cx, arena *a, load_tensor *t)
{
    float *sum;
    CHECK(cx, t->dtype == IR_F32 || t->dtype == IR_BF16 || t->dtype == IR_F16, MPK_EUNSUPPORTED,
          "the norm %.*s is %s; f32, f16 and bf16 are supported", LOAD_NAME(t->name),
          ir_dtype_table[t->dtype].name);
    NEW(cx, a, sum, (size_t)t->dims[0]);
    for (int64_t i = 0; i < t->dims[0]; i++)
        sum[i] = 1 + load_number(t, i);
    t->dtype = IR_F32;
    t->data = sum;
    t->n_bytes = sizeof *sum * (uint64_t)t->dims[0];
    return MPK_OK;
}

/* The list is made anew, since names change. */
mpk_status load_hf_weights(mpk_context *cx, load_model *m)
{
    const model_def *def;
    const load_tensor *old = m->tensors.at;
    const size_t n = m->tensors.n;
    TRY(model_find(cx, m->config.family, &def));
    load_empty_list(m);
    for (size_t i = 0; i < n; i++) {
        load_tensor t = old[i];
        if (def->holders)
            TRY(load_rename_held(cx, &m->arena, &t.name));
        TRY(rename_parts(cx, &m->arena, def->hf_names, &t.name));
        if (def->unit_norms && is_norm(&t))
            TRY(add_one(cx, &m->arena, &t));
        TRY(load_add_tensor(cx, m, &t));
    }
    if (def->expert_layout != MODEL_EXPERTS_BY_ROWS)
        TRY(load_part_interleaved(cx, m));
    if (def->heads_joined)
        TRY(load_order_joined(cx, m));
    return def->neighbours ? gguf_order_rope_rows(cx, m) : MPK_OK;
}
