/* hf_scheme.c - how a folder's weights were quantised: "quantization_config" of config.json, or
 * "quantization" of the hf_quant_config.json that older versions of modelopt write beside it.
 *
 *   quant_method          who writes it                              layout (quantised.h)
 *   fp8                   DeepSeek-V3, Qwen3-FP8, AutoFP8            numbers of 8 bits, scales
 *   modelopt              NVIDIA: FP8, NVFP4                         the same, or two a byte
 *   compressed-tensors    llm-compressor: FP8, INT8, FP4, W4A16      the same, or packed in words
 *   gptq, auto-round      GPTQModel, AutoGPTQ, AutoRound             packed in words, transposed
 *   awq                   AutoAWQ                                    packed in words, transposed
 *   bitsandbytes          NF4, FP4 and INT8, from Transformers       a table of 16 values; bytes
 *   mxfp4                 gpt-oss                                    interleaved.c
 *
 * Output: load_model.scheme.  What the tensors themselves tell is not read: which matrices are
 * quantised, sizes of groups, whether columns were ordered.  How a runtime should round activations
 * is not read either: programs compute with activations of 16 bits or more.  Called by load.c.
 */
#include "base/json.h"
#include "load/load.h"

/* The layout of qweight and so on depends on the writer's version. */
static mpk_status read_gptq(mpk_context *cx, const json_value *q, load_scheme *s)
{
    str format = {0}, packing = {0};
    TRY(json_read_u32(cx, q, "bits", &s->bits));
    TRY(json_read_str(cx, q, "checkpoint_format", &format));
    TRY(json_read_str(cx, q, "packing_format", &packing));
    CHECK(cx, s->bits == 2 || s->bits == 4 || s->bits == 8, MPK_EUNSUPPORTED,
          "\"bits\" %u of gptq is not supported; 2, 4 and 8 are", s->bits);
    CHECK(cx,
          !format.n || str_is(format, "gptq") || str_is(format, "gptq_v2") ||
              str_begins(format, str_from("auto_round")),
          MPK_EUNSUPPORTED, "\"checkpoint_format\" \"%.*s\" is not supported; gptq and gptq_v2 are",
          STR_SHOWN(format, 64));
    CHECK(cx, !packing.n || str_ends(packing, str_from("gptq")), MPK_EUNSUPPORTED,
          "\"packing_format\" \"%.*s\" is not supported; auto_round:auto_gptq is",
          STR_SHOWN(packing, 64));
    s->zero_more = str_is(format, "gptq_v2") ? 0 : 1;
    return MPK_OK;
}

static mpk_status read_awq(mpk_context *cx, const json_value *q, load_scheme *s)
{
    str version = {0};
    TRY(json_read_u32(cx, q, "bits", &s->bits));
    TRY(json_read_str(cx, q, "version", &version));
    CHECK(cx, s->bits == 4, MPK_EUNSUPPORTED, "\"bits\" %u of awq is not supported; 4 is", s->bits);
    CHECK(cx, !version.n || str_is(version, "gemm") || str_is(version, "GEMM"), MPK_EUNSUPPORTED,
          "\"version\" \"%.*s\" of awq is not supported; gemm is", STR_SHOWN(version, 64));
    return MPK_OK;
}

/* Columns of a scale; -1 in a file: all. */
static mpk_status read_group(mpk_context *cx, const json_value *from, load_scheme *s)
{
    double group = 0;
    TRY(json_read_double(cx, from, "group_size", &group));
    if (group >= 1 && group <= INT32_MAX)
        s->group = (int64_t)group;
    return MPK_OK;
}

/* [rows, columns] of a scale, if the file says it. */
static mpk_status read_block(mpk_context *cx, const json_value *sizes, load_scheme *s)
{
    if (!sizes)
        return MPK_OK;
    CHECK(cx, json_is(sizes, JSON_KIND_LIST) && sizes->n == 2, MPK_EFORMAT,
          "the sizes of a block of weights with one scale are not a list of two");
    for (size_t i = 0; i < 2; i++) {
        CHECK(cx, sizes->items[i].is_integer && sizes->items[i].integer >= 1, MPK_EFORMAT,
              "a size of a block of weights with one scale is no number of 1 or more");
        s->block[i] = sizes->items[i].integer;
    }
    return MPK_OK;
}

/* The algorithm stands beside the method, or in a part of its own. */
static mpk_status read_modelopt(mpk_context *cx, const json_value *q, load_scheme *s)
{
    const json_value *part = json_get(q, "quantization");
    str algorithm = {0};
    TRY(json_read_str(cx, part ? part : q, "quant_algo", &algorithm));
    CHECK(cx, str_is(algorithm, "FP8") || str_is(algorithm, "NVFP4"), MPK_EUNSUPPORTED,
          "\"quant_algo\" \"%.*s\" of modelopt is not supported; FP8 and NVFP4 are",
          STR_SHOWN(algorithm, 64));
    s->method = LOAD_FP8;
    return MPK_OK;
}

/* Formats that pack numbers in other ways are refused by name. */
static mpk_status read_compressed(mpk_context *cx, const json_value *q, load_scheme *s)
{
    static const char *const formats[] = {"pack-quantized",       "float-quantized",
                                          "int-quantized",        "naive-quantized",
                                          "nvfp4-pack-quantized", "mxfp4-pack-quantized"};
    const json_value *sparse = json_get(q, "sparsity_config"),
                     *groups = json_get(q, "config_groups");
    str format = {0}, sparsity = {0};
    bool known = false;
    TRY(json_read_str(cx, q, "format", &format));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        known |= str_is(format, formats[i]);
    CHECK(cx, known, MPK_EUNSUPPORTED,
          "\"format\" \"%.*s\" of compressed-tensors is not supported; pack-quantized, "
          "float-quantized, int-quantized, nvfp4-pack-quantized and mxfp4-pack-quantized are",
          STR_SHOWN(format, 64));
    TRY(json_read_str(cx, sparse, "format", &sparsity));
    CHECK(cx, !sparsity.n || str_is(sparsity, "dense"), MPK_EUNSUPPORTED,
          "sparse weights (\"sparsity_config\" \"%.*s\") are not supported",
          STR_SHOWN(sparsity, 64));
    for (size_t i = 0; json_is(groups, JSON_KIND_OBJECT) && i < groups->n; i++) {
        const json_value *weights = json_get(&groups->items[i], "weights");
        TRY(read_block(cx, json_get(weights, "block_structure"), s));
        TRY(read_group(cx, weights, s));
    }
    return MPK_OK;
}

static mpk_status read_scheme(mpk_context *cx, const json_value *q, load_scheme *s)
{
    str method = {0};
    CHECK(cx, json_is(q, JSON_KIND_OBJECT), MPK_EFORMAT,
          "\"quantization_config\" is not an object");
    TRY(json_read_str(cx, q, "quant_method", &method));
    if (str_is(method, "fp8")) {
        s->method = LOAD_FP8;
        return read_block(cx, json_get(q, "weight_block_size"), s);
    }
    if (str_is(method, "modelopt") || (!method.n && json_get(q, "quant_algo")))
        return read_modelopt(cx, q, s);
    TRY(read_group(cx, q, s));
    if (str_is(method, "compressed-tensors")) {
        s->method = LOAD_COMPRESSED;
        return read_compressed(cx, q, s);
    }
    if (str_is(method, "gptq") || str_is(method, "auto-round")) {
        s->method = LOAD_GPTQ;
        return read_gptq(cx, q, s);
    }
    if (str_is(method, "awq")) {
        s->method = LOAD_AWQ;
        return read_awq(cx, q, s);
    }
    if (str_is(method, "bitsandbytes")) {
        s->method = LOAD_BITS_AND_BYTES;
        return MPK_OK;
    }
    CHECK(cx, str_is(method, "mxfp4"), MPK_EUNSUPPORTED,
          "\"quant_method\" \"%.*s\" is not supported; fp8, modelopt, compressed-tensors, gptq, "
          "awq, bitsandbytes and mxfp4 are",
          STR_SHOWN(method, 64));
    s->method = LOAD_MXFP4;
    return MPK_OK;
}

mpk_status load_hf_scheme(mpk_context *cx, str json, load_scheme *out)
{
    arena scratch = {0};
    const json_value *j = NULL;
    load_scheme s = {.block = {128, 128}};
    mpk_status status = json_parse(cx, &scratch, json, &j);
    /* of models that also read images some files say it of the text part alone */
    const json_value *places[] = {json_get(j, "quantization_config"),
                                  json_get(json_get(j, "text_config"), "quantization_config"),
                                  json_get(j, "compression_config"), json_get(j, "quantization")};
    for (int i = 0; status == MPK_OK && i < 4 && s.method == LOAD_PLAIN; i++)
        if (places[i])
            status = read_scheme(cx, places[i], &s);
    arena_free(&scratch);
    TRY(status);
    *out = s;
    return MPK_OK;
}
