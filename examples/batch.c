/* batch.c - several requests at once, each printed as it comes: batch MODEL TEXT... */
#include <mpk/mpk.h>
#include <stdio.h>
#include <string.h>

enum { MAX_REQUESTS = 64 };

/* Print what has come of request i; false when it is finished or has failed. */
static int print_piece(mpk_context *cx, int i, mpk_request *request)
{
    mpk_piece piece;
    if (mpk_request_read(cx, request, 10, &piece)) {
        fprintf(stderr, "batch: request %d: %s\n", i, mpk_error_message(cx));
        return 0;
    }
    if (piece.n_bytes)
        printf("[%d] %.*s\n", i, (int)piece.n_bytes, piece.text);
    if (piece.finish != MPK_RUNNING)
        printf("[%d] ends: %s\n", i, mpk_finish_name(piece.finish));
    return piece.finish == MPK_RUNNING;
}

static int run(mpk_context *cx, mpk_engine *engine, int n, char **prompts)
{
    mpk_request *requests[MAX_REQUESTS] = {0};
    int left = 0, failed = 0, running[MAX_REQUESTS] = {0};
    for (int i = 0; i < n; i++) {
        /* Each draws from a stream of its own; what it gets does not depend on the others. */
        mpk_request_options wanted = {
            .size = sizeof wanted, .max_tokens = 20, .temperature = 0.8f, .seed = (uint64_t)i};
        if (mpk_submit_text(cx, engine, prompts[i], strlen(prompts[i]), &wanted, &requests[i])) {
            fprintf(stderr, "batch: request %d: %s\n", i, mpk_error_message(cx));
            failed = 1;
        } else
            left += running[i] = 1;
    }
    while (left)
        for (int i = 0; i < n; i++)
            if (running[i] && !print_piece(cx, i, requests[i])) {
                running[i] = 0;
                left--;
            }
    for (int i = 0; i < n; i++)
        mpk_request_free(requests[i]);
    return failed;
}

int main(int argc, char **argv)
{
    mpk_context *cx = mpk_context_create();
    mpk_engine *engine = NULL;
    int n = argc - 2 < MAX_REQUESTS ? argc - 2 : MAX_REQUESTS, failed = 1;
    if (!cx || n < 1)
        fprintf(stderr, "usage: batch MODEL TEXT...\n");
    else if (mpk_engine_open(cx, argv[1], NULL, &engine))
        fprintf(stderr, "batch: %s\n", mpk_error_message(cx));
    else
        failed = run(cx, engine, n, argv + 2);
    mpk_engine_close(engine);
    mpk_context_free(cx);
    return failed;
}
