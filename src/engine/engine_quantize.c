/* engine_quantize.c - mpk_quantize: a model becomes a GGUF file of other types.
 *
 *     options -> mix of types -> [importances from a text] -> GGUF file -> JSON about it
 *
 * Input: a model's files and checked options; output: the file at `path`, whole or untouched, and a
 * report.  load/quantize.h does the work; if there is a text to read, engine_calibrate.c runs the
 * model over it first.  Called through mpk.h; the calling thread also calls progress.
 */
#include "engine/engine_calibrate.h"

/* What was written, as mpk.h tells it; types without tensors are left out.  n_tokens 0: no text was
 * read.  On MPK_ENOMEM *json keeps its value, and the file stays. */
static mpk_status print_result(mpk_context *cx, const quantize_result *r, size_t n_tokens,
                               char **json)
{
    text t = {0};
    const char *comma = "";
    text_print(&t, "{\"bytes\": %llu, \"weights\": %llu, \"tensors\": {",
               (unsigned long long)r->n_bytes, (unsigned long long)r->n_elements);
    for (int i = 0; i < IR_DTYPES; i++) {
        if (!r->n_tensors[i])
            continue;
        text_print(&t, "%s\"%s\": %u", comma, ir_dtype_table[i].name, r->n_tensors[i]);
        comma = ", ";
    }
    text_print(&t, "}");
    if (n_tokens)
        text_print(&t, ", \"calibration_tokens\": %zu", n_tokens);
    text_print(&t, "}");
    if (t.failed) {
        text_free(&t);
        FAIL(cx, MPK_ENOMEM, "out of memory for a report");
    }
    *json = t.at;
    return MPK_OK;
}

/* The type is looked up first: calibration takes minutes, and a misspelt type should not wait for
 * it.  options.importance points to `found`, whose values lie in a, so both outlive
 * quantize_model. */
static mpk_status quantize(mpk_context *cx, arena *a, const load_model *m, const char *path,
                           const mpk_quantize_options *o, char **json)
{
    quantize_options options = {.progress = o->progress, .progress_user = o->progress_user};
    quantize_result result;
    engine_calibration found = {0};
    TRY(quantize_find_mix(cx, str_from(o->type), &options.mix));
    if (o->calibration) {
        NOTE(cx, engine_calibrate(cx, a, m, o, &found), "calibrating %s", m->path.at);
        options.importance = &found.importance;
    }
    TRY(quantize_model(cx, m, path, &options, &result));
    return json ? print_result(cx, &result, found.n_tokens, json) : MPK_OK;
}

static mpk_status open_and_quantize(mpk_context *cx, arena *a, const char *model, const char *path,
                                    const mpk_quantize_options *o, char **json)
{
    load_model m;
    NOTE(cx, engine_load_model(cx, model, o->adapters, o->n_adapters, &m), "loading %s", model);
    mpk_status status = quantize(cx, a, &m, path, o, json);
    load_close(&m);
    return status;
}

/* The model is mapped, not run; calibration opens an engine of its own on the same files. */
mpk_status mpk_quantize(mpk_context *cx, const char *model, const char *path,
                        const mpk_quantize_options *options, char **json)
{
    mpk_quantize_options o;
    arena a = {0};
    mpk_status status = engine_read_quantize_options(cx, &a, options, &o);
    if (status == MPK_OK)
        status = open_and_quantize(cx, &a, model, path, &o, json);
    arena_free(&a);
    return status;
}
