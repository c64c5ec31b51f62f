/* net_completion.c - /v1/completions: prompts -> answers; and what other endpoints share with
 * it: reading the body, checking the model's name, waiting for answers.
 *
 * The connection's thread waits for a document in net_completion_answer; a stream is written
 * from libmicrohttpd's callback on the same thread (net_stream.c).  From there on the body and
 * the request read from it are freed: what answers still need was copied to the work
 * (net_work.c).
 */
#include "net/net_exchange.h"
#include "net/net_infill.h"

/* An upper estimate of the memory that a body becomes: bytes for each JSON value, in trees that
 * grow by doubling, and copies of its text. */
enum { VALUE_BYTES = 3 * sizeof(json_value), COPIES = 3 };

mpk_status net_completion_hold(net_exchange *x, str source)
{
    size_t n;
    TRY(net_request_count_values(x->cx, source, &n, &x->refusal));
    return net_exchange_hold(x, n * VALUE_BYTES + source.n * COPIES);
}

/* The memory is charged before the body is parsed, so that many large bodies together are
 * refused, not fatal. */
mpk_status net_completion_parse(net_exchange *x, const json_value **out)
{
    const str source = text_str(&x->body);
    TRY(net_completion_hold(x, source));
    mpk_status status = json_parse(x->cx, &x->arena, source, out);
    if (status == MPK_EFORMAT)
        return net_refuse(x->cx, &x->refusal, 400, NULL, NULL, "the body is %s",
                          mpk_error_message(x->cx)); /* "not valid JSON: ..." */
    return status;
}

/* A server has one model: another name is 404, unless any_model_name. */
mpk_status net_completion_open(net_exchange *x, const json_value **out)
{
    const char *name = x->server->options.model_name;
    TRY(net_completion_parse(x, out));
    const json_value *model = json_get(*out, "model");
    if (!model)
        return MPK_OK;
    if (model->kind != JSON_KIND_STRING)
        return net_refuse(x->cx, &x->refusal, 400, "model", NULL, "'model' must be a string");
    if (!x->server->options.any_model_name && !str_is(model->text, name))
        return net_refuse(x->cx, &x->refusal, 404, "model", "model_not_found",
                          "there is no model '%.*s', this server has '%.200s'",
                          STR_SHOWN(model->text, 200), name);
    return MPK_OK;
}

mpk_request_options net_completion_suggested(const net_exchange *x)
{
    mpk_request_options o = {.size = sizeof o};
    mpk_engine_suggest(x->server->engine, &o);
    return o;
}

/* Documents only: wait until all answers have ended; meanwhile libmicrohttpd must not count the
 * connection as idle. */
mpk_status net_completion_answer(net_exchange *x, const net_request *q)
{
    const bool stream = q->stream; /* the request lies in memory that is freed here */
    net_exchange_drop_body(x);
    if (stream)
        return net_stream_begin(x);
    mpk_status status = MPK_OK;
    net_exchange_stop_clock(x, true);
    while (status == MPK_OK && x->work.n_running)
        status = net_work_wait(x);
    net_exchange_stop_clock(x, false);
    TRY(status);
    net_work_choose(x);
    text document = {0};
    x->work.dialect->write_document(x, &document);
    return net_reply_json(x, &document);
}

/* Submit the answers of one prompt.  A prompt with a text after the answer (suffix) becomes the
 * tokens of a gap. */
static mpk_status submit(net_exchange *x, const net_request *q, size_t at)
{
    net_prompt prompt = q->prompts[at];
    const net_gap gap = {.before = prompt.text, .after = q->suffix, .begun = STR("")};
    if (q->suffix.at) {
        prompt = (net_prompt){0};
        TRY(net_infill_ids(x, &gap, &prompt.ids, &prompt.n_ids));
    }
    return net_work_submit(x, q, at, &prompt);
}

/* POST /v1/completions. */
mpk_status net_completion_run(net_exchange *x, const char *path)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    net_request q;
    (void)path;
    TRY(net_completion_open(x, &body));
    TRY(net_request_read_completion(x->cx, &x->arena, body, &suggested, &q, &x->refusal));
    TRY(net_work_open(x, &q, &net_dialect_completion, q.n_prompts));
    for (size_t i = 0; i < q.n_prompts; i++)
        TRY(submit(x, &q, i));
    return net_completion_answer(x, &q);
}
