/* complete.c - continue a text: complete MODEL TEXT */
#include <mpk/mpk.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "", *prompt = argc > 2 ? argv[2] : "Once upon a time";
    mpk_request_options wanted = {.size = sizeof wanted, .max_tokens = 30};
    mpk_context *cx = mpk_context_create();
    mpk_engine *engine = NULL;
    mpk_request *request = NULL;
    mpk_answer answer;
    int failed = !cx || mpk_engine_open(cx, model, NULL, &engine) ||
                 mpk_submit_text(cx, engine, prompt, strlen(prompt), &wanted, &request) ||
                 mpk_request_wait(cx, request, &answer);
    if (failed)
        fprintf(stderr, "complete: %s\n", cx ? mpk_error_message(cx) : "out of memory");
    else
        printf("%s%s\n", prompt, answer.text);
    mpk_request_free(request);
    mpk_engine_close(engine);
    mpk_context_free(cx);
    return failed;
}
