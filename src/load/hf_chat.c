/* hf_chat.c - chat templates and texts of special tokens from a Hugging Face folder's
 * tokenizer_config.json.
 *
 * A template is one text, or a list of {"name", "template"}, of which "default" and "tool_use"
 * are used.  A special token is a text or an object with "content".  In older folders, those
 * without "added_tokens_decoder", special_tokens_map.json takes precedence.
 *
 *   {"chat_template": "{% for m in messages %}..", "bos_token": {"content": "<s>"},
 *    "eos_token": "</s>", "added_tokens_decoder": {..}}
 *
 * Members of another kind are skipped, not refused: a folder with an odd template can still
 * continue texts.  Called by load.c; load_set_special also by gguf_config.c.
 */
#include "base/json.h"
#include "load/load.h"

/* Copy a text to the model's arena, since the document is freed by the caller. */
static mpk_status copy_text(mpk_context *cx, load_model *m, str from, str *out)
{
    char *copy = arena_copy(&m->arena, from.at, from.n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for a chat template");
    *out = (str){copy, from.n};
    return MPK_OK;
}

/* Find the templates; of several with one name the last counts. */
static mpk_status fill_templates(mpk_context *cx, const json_value *value, load_model *m)
{
    if (json_is(value, JSON_KIND_STRING))
        return copy_text(cx, m, value->text, &m->chat_template);
    for (size_t i = 0; json_is(value, JSON_KIND_LIST) && i < value->n; i++) {
        const json_value *name = json_get(&value->items[i], "name"),
                         *source = json_get(&value->items[i], "template");
        if (!json_is(name, JSON_KIND_STRING) || !json_is(source, JSON_KIND_STRING))
            continue;
        if (str_is(name->text, "default"))
            TRY(copy_text(cx, m, source->text, &m->chat_template));
        if (str_is(name->text, "tool_use"))
            TRY(copy_text(cx, m, source->text, &m->tool_template));
    }
    return MPK_OK;
}

/* Set the text of a special token, replacing an earlier one.  `name` is a constant, which is not
 * copied. */
mpk_status load_set_special(mpk_context *cx, load_model *m, const char *name, str token)
{
    str copy;
    TRY(copy_text(cx, m, token, &copy));
    for (size_t i = 0; i < m->n_specials; i++)
        if (str_is(str_from(m->specials[i].name), name)) {
            m->specials[i].token = copy;
            return MPK_OK;
        }
    if (m->n_specials < sizeof m->specials / sizeof *m->specials)
        m->specials[m->n_specials++] = (load_special){name, copy};
    return MPK_OK;
}

/* The special tokens that a chat template may name, as in {{ bos_token }}. */
static mpk_status fill_specials(mpk_context *cx, const json_value *j, load_model *m)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_value *value = json_get(j, names[i]);
        if (json_is(value, JSON_KIND_OBJECT))
            value = json_get(value, "content");
        if (json_is(value, JSON_KIND_STRING))
            TRY(load_set_special(cx, m, names[i], value->text));
    }
    return MPK_OK;
}

/* A template that was found before, in a file of its own (chat_template.jinja), is kept. */
mpk_status load_hf_chat_template(mpk_context *cx, str json, load_model *m)
{
    const json_value *j = NULL;
    TRY(json_parse(cx, &m->arena, json, &j));
    if (!m->chat_template.at)
        TRY(fill_templates(cx, json_get(j, "chat_template"), m));
    m->lists_added_tokens = json_get(j, "added_tokens_decoder") != NULL;
    return fill_specials(cx, j, m);
}

mpk_status load_hf_special_tokens(mpk_context *cx, str json, load_model *m)
{
    const json_value *j = NULL;
    TRY(json_parse(cx, &m->arena, json, &j));
    return fill_specials(cx, j, m);
}
