/* graph.c - build a tensor program by hand, compile it, run it: graph
 *
 * y = softmax(gelu(x w0^T) w1^T), and the sum of y, which must be the number of rows.
 */
#include <math.h>
#include <mpk/graph.h>
#include <stdio.h>

enum { ROWS = 8, IN = 48, HIDDEN = 96, OUT = 10 };

static float x[ROWS * IN], w0[HIDDEN * IN], w1[OUT * HIDDEN], y[ROWS * OUT], sum[1];

static void fill(float *values, int n, float scale)
{
    for (int i = 0; i < n; i++)
        values[i] = scale * sinf((float)i * 1.7f);
}

static mpk_status build(mpk_context *cx, mpk_graph *g)
{
    mpk_tensor tx, t0, t1, t, total;
    const int64_t all[] = {0, 1}, dims_x[] = {ROWS, IN}, dims0[] = {HIDDEN, IN},
                  dims1[] = {OUT, HIDDEN};
    mpk_attribute tanh_form = mpk_int("tanh", 1);
    mpk_attribute over_all[] = {mpk_ints("axes", all, 2), mpk_string("kind", "sum")};
    mpk_status status = mpk_graph_tensor(cx, g, MPK_TENSOR_INPUT, "x", MPK_F32, 2, dims_x, &tx);
    if (!status)
        status = mpk_graph_tensor(cx, g, MPK_TENSOR_CONSTANT, "w0", MPK_F32, 2, dims0, &t0);
    if (!status)
        status = mpk_graph_tensor(cx, g, MPK_TENSOR_CONSTANT, "w1", MPK_F32, 2, dims1, &t1);
    if (!status)
        status = mpk_graph_operator(cx, g, "linear", "h", 2, (mpk_tensor[]){tx, t0}, 0, NULL, &t);
    if (!status)
        status = mpk_graph_operator(cx, g, "gelu", "a", 1, &t, 1, &tanh_form, &t);
    if (!status)
        status = mpk_graph_operator(cx, g, "linear", "z", 2, (mpk_tensor[]){t, t1}, 0, NULL, &t);
    if (!status)
        status = mpk_graph_operator(cx, g, "softmax", "y", 1, &t, 0, NULL, &t);
    if (!status)
        status = mpk_graph_operator(cx, g, "reduce", "sum", 1, &t, 2, over_all, &total);
    if (!status)
        status = mpk_graph_output(cx, g, t);
    return status ? status : mpk_graph_output(cx, g, total);
}

static mpk_status run(mpk_context *cx, mpk_graph *g)
{
    mpk_program *program;
    mpk_binding constants[] = {{"w0", w0, sizeof w0}, {"w1", w1, sizeof w1}};
    mpk_binding bindings[] = {{"x", x, sizeof x}, {"y", y, sizeof y}, {"sum", sum, sizeof sum}};
    mpk_status status = mpk_program_compile(cx, g, 2, constants, NULL, &program);
    if (status)
        return status;
    status = mpk_program_run(cx, program, 3, bindings);
    mpk_program_close(program);
    return status;
}

int main(void)
{
    mpk_context *cx = mpk_context_create();
    mpk_graph *g = NULL;
    fill(x, ROWS * IN, 1);
    fill(w0, HIDDEN * IN, 0.2f);
    fill(w1, OUT * HIDDEN, 0.3f);
    int failed = !cx || mpk_graph_create(cx, "example", &g) || build(cx, g) || run(cx, g);
    if (failed)
        fprintf(stderr, "graph: %s\n", cx ? mpk_error_message(cx) : "out of memory");
    else
        printf("the probabilities of %d rows add up to %.4f\n", ROWS, sum[0]);
    mpk_graph_free(g);
    mpk_context_free(cx);
    return failed || fabsf(sum[0] - ROWS) > 1e-3f;
}
