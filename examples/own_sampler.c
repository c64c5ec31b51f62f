/* own_sampler.c - choose the tokens yourself, from the logits: own_sampler MODEL TEXT
 *
 * The sampler of this example takes the most probable token that has not come yet.
 */
#include <mpk/mpk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 12 };

static int32_t choose(const float *logits, uint32_t n, const char *used)
{
    int32_t best = 0;
    float top = -1e30f;
    for (uint32_t i = 0; i < n; i++)
        if (!used[i] && logits[i] > top) {
            top = logits[i];
            best = (int32_t)i;
        }
    return best;
}

static mpk_status print_token(mpk_context *cx, mpk_engine *engine, int32_t token)
{
    char *bytes;
    size_t n;
    mpk_status status = mpk_detokenize(cx, mpk_engine_tokenizer(engine), &token, 1, &bytes, &n);
    if (status)
        return status;
    printf("%.*s|", (int)n, bytes);
    mpk_free(bytes);
    return MPK_OK;
}

/* Feed the prompt, then one chosen token after the other. */
static mpk_status generate(mpk_context *cx, mpk_engine *engine, mpk_sequence *sequence,
                           const int32_t *prompt, size_t n)
{
    mpk_engine_facts facts = {.size = sizeof facts};
    mpk_engine_describe(engine, &facts);
    float *logits = malloc(facts.vocab_size * sizeof *logits);
    char *used = calloc(facts.vocab_size, 1);
    mpk_status status =
        logits && used ? mpk_sequence_feed(cx, sequence, prompt, n, logits) : MPK_ENOMEM;
    for (int i = 0; i < N_TOKENS && !status; i++) {
        int32_t token = choose(logits, facts.vocab_size, used);
        used[token] = 1;
        status = print_token(cx, engine, token);
        if (!status)
            status = mpk_sequence_feed(cx, sequence, &token, 1, logits);
    }
    printf("\n");
    free(logits);
    free(used);
    return status;
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "", *text = argc > 2 ? argv[2] : "Once upon a time";
    mpk_context *cx = mpk_context_create();
    mpk_engine *engine = NULL;
    mpk_sequence *sequence = NULL;
    int32_t *prompt = NULL;
    size_t n;
    int failed =
        !cx || mpk_engine_open(cx, model, NULL, &engine) ||
        mpk_tokenize(cx, mpk_engine_tokenizer(engine), text, strlen(text), true, &prompt, &n) ||
        mpk_sequence_open(cx, engine, false, &sequence) ||
        generate(cx, engine, sequence, prompt, n);
    if (failed)
        fprintf(stderr, "own_sampler: %s\n", cx ? mpk_error_message(cx) : "out of memory");
    mpk_free(prompt);
    mpk_sequence_close(sequence);
    mpk_engine_close(engine);
    mpk_context_free(cx);
    return failed;
}
