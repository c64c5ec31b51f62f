/* Where a program runs: words, the environment, targets and images, with a stand-in for the GPU's
 * driver. */
#include "check.h"

#include <stdlib.h>

#include "engine/engine.h"
#include "fake_cuda.h"
#include "gen/arch.h"

static bool is_gpu(const target_device *d)
{
    return strcmp(d->target->name, "cuda") == 0;
}

/* Choose a device and leave it. It stays open in between exactly if it is a GPU that is to run
 * something. */
static mpk_status choose(mpk_context *cx, const char *device, const char *target, bool for_running,
                         target_device *out)
{
    mpk_status status = engine_choose_device(
        cx, &(mpk_engine_options){.device = device, .target = target}, for_running, out);
    assert_true((out->held != NULL) == (status == MPK_OK && for_running && is_gpu(out)));
    engine_leave_device(out);
    return status;
}

/* The same for an image that was compiled for `arch` ("": the CPU) with n_workers. */
static mpk_status choose_for_image(mpk_context *cx, const mpk_engine_options *o, const char *arch,
                                   uint32_t n_workers, bool for_running, target_device *out)
{
    *out = (target_device){0};
    engine_plan plan = {.threads = n_workers, .n_peers = 1};
    snprintf(plan.arch, sizeof plan.arch, "%s", arch);
    mpk_status status = engine_image_device(cx, o, &plan, for_running, out);
    engine_leave_device(out);
    return status;
}

/* Without a GPU, or without its driver, "auto" is the CPU, while a GPU that was named is an
 * error that says what is missing. */
static void test_without_gpu(void **state)
{
    (void)state;
    mpk_context cx = {0};
    target_device d;
    unsetenv("MPK_DEVICE");
    assert_non_null(fake_cuda_start("gpus:0"));
    check_ok(&cx, choose(&cx, NULL, NULL, true, &d));
    assert_false(is_gpu(&d));
    assert_true(d.n_workers > 0 && d.free_bytes > 0);
    check_fails(&cx, MPK_EUNSUPPORTED, "shows no GPU", choose(&cx, "cuda", NULL, true, &d));
    setenv("MPK_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    check_ok(&cx, choose(&cx, "auto", NULL, true, &d));
    check_fails(&cx, MPK_EUNSUPPORTED, "/nowhere/libcuda.so.1",
                choose(&cx, "cuda:0", NULL, true, &d));
}

/* "auto" takes the GPU only if kernels could be compiled for it; a GPU that is named is taken in
 * any case. */
static void test_with_gpu(void **state)
{
    (void)state;
    mpk_context cx = {0};
    target_device d;
    unsetenv("MPK_DEVICE");
    const fake_cuda_face *fake = fake_cuda_start("capability:90,sms:132");
    char leaks[256];
    assert_non_null(fake);
    setenv("MPK_NVRTC", "/nowhere/libnvrtc.so.13", 1);
    check_ok(&cx, choose(&cx, NULL, NULL, true, &d)); /* nothing could be compiled for it */
    assert_false(is_gpu(&d));
    unsetenv("MPK_NVRTC");
    check_ok(&cx, choose(&cx, "cuda", NULL, true, &d));
    assert_true(is_gpu(&d) && d.runs_code);
    check_ok(&cx, choose(&cx, "cuda", "sm_90a", true, &d)); /* held, with its workers */
    assert_int_equal(d.n_workers, 132);
    assert_string_equal(d.arch, "sm_90a");
    check_ok(&cx, choose(&cx, "cpu", NULL, true, &d));
    assert_false(is_gpu(&d));
    check_fails(&cx, MPK_EUNSUPPORTED, "GPU 3", choose(&cx, "cuda:3", NULL, true, &d));
    check_fails(&cx, MPK_EARG, "each holds one",
                engine_choose_device(&cx, &(mpk_engine_options){.device = "cuda", .threads = 133},
                                     true, &d));
    engine_leave_device(&d);
    setenv("MPK_DEVICE", "cpu", 1);
    check_ok(&cx, choose(&cx, NULL, NULL, true, &d));
    assert_false(is_gpu(&d));
    check_ok(&cx, choose(&cx, "cuda", NULL, true, &d)); /* who says it gets it */
    assert_true(is_gpu(&d));
    unsetenv("MPK_DEVICE");
    fake->leaks(leaks, sizeof leaks);
    assert_string_equal(leaks, "");
    assert_non_null(fake_cuda_start("capability:75"));
    check_fails(&cx, MPK_EUNSUPPORTED, "7.5", choose(&cx, "cuda", NULL, true, &d));
    assert_non_null(fake_cuda_start("capability:120"));
    check_ok(&cx, choose(&cx, "cuda", NULL, true, &d));
    assert_false(d.runs_code);
}

/* Spellings that are nearly a device's name, architectures without code, and options that belong
 * to the other kind of device. */
static void test_words(void **state)
{
    static const char *const wrong[] = {"gpu",     "",      "cuda:",           "cuda:x",
                                        "cuda:1x", "cuda1", "cuda:4294967296", "CPU"};
    (void)state;
    mpk_context cx = {0};
    target_device d;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check_fails(&cx, MPK_EARG, "there is no device", choose(&cx, wrong[i], NULL, true, &d));
    check_fails(&cx, MPK_EARG, "sm_80, sm_86, sm_90a, sm_100a are",
                choose(&cx, NULL, "sm_70", false, &d));
    check_fails(&cx, MPK_EARG, "the device is the CPU", choose(&cx, "cpu", "sm_80", false, &d));
    setenv("MPK_DEVICE", "cpu", 1);
    check_ok(&cx, choose(&cx, NULL, "sm_100a", false, &d)); /* a target says enough */
    unsetenv("MPK_DEVICE");
    assert_true(is_gpu(&d) && d.n_workers == gen_arch_find("sm_100a")->n_sms);
    check_fails(&cx, MPK_EARG, "are for a GPU",
                engine_choose_device(
                    &cx, &(mpk_engine_options){.device = "cpu", .mode = MPK_MODE_GRAPH}, true, &d));
}

/* An image runs only on the kind of device, architecture and number of workers that it was
 * compiled for; to be looked at it needs no device. */
static void test_images(void **state)
{
    (void)state;
    mpk_context cx = {0};
    target_device d;
    mpk_engine_options none = {0}, cpu = {.device = "cpu"}, gpu = {.device = "cuda"},
                       other = {.target = "sm_80"};
    char leaks[256];
    unsetenv("MPK_DEVICE");
    const fake_cuda_face *fake = fake_cuda_start("capability:90,sms:132");
    assert_non_null(fake);
    check_ok(&cx, choose_for_image(&cx, &none, "", 3, true, &d));
    assert_true(!is_gpu(&d) && d.n_workers == 3);
    check_fails(&cx, MPK_EARG, "compiled for the CPU",
                choose_for_image(&cx, &gpu, "", 3, true, &d));
    check_ok(&cx, choose_for_image(&cx, &none, "sm_90a", 132, true, &d));
    assert_true(is_gpu(&d) && d.n_workers == 132);
    check_ok(&cx, choose_for_image(&cx, &none, "sm_100a", 148, false, &d)); /* to look at */
    check_fails(&cx, MPK_EARG, "sm_100a", choose_for_image(&cx, &none, "sm_100a", 100, true, &d));
    check_fails(&cx, MPK_EARG, "not for cpu", choose_for_image(&cx, &cpu, "sm_90a", 132, true, &d));
    check_fails(&cx, MPK_EARG, "not for sm_80",
                choose_for_image(&cx, &other, "sm_90a", 132, false, &d));
    fake->leaks(leaks, sizeof leaks);
    assert_string_equal(leaks, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_gpu),
        cmocka_unit_test(test_with_gpu),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
