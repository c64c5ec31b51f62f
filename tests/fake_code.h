/* fake_code.h - code of a program for machines on the stand-in for the driver (fake_cuda.h), so that none is compiled.
 * For cuda_bed.h and serve_bed.h.
 */
#ifndef TESTS_FAKE_CODE_H
#define TESTS_FAKE_CODE_H

#include "check.h"

#include "cuda/cuda_machine.h"

/* What cuda_compile would give for an image. */
static inline str fake_code(mpk_context *cx, arena *a, const program_image *image, gen_whole whole)
{
    gen_source source;
    static const char elf[] = "\177ELF of the kernel";
    char *code = arena_alloc(a, 1, sizeof(cuda_code_head) + 2 * sizeof elf);
    gen_arch arch = *gen_arch_find("sm_90a");
    check_ok(cx, gen_source_of_image(cx, a, image, &arch, whole, &source));
    uint32_t shared = arch.n_pages * arch.page_bytes + source.scratch_bytes + RT_OWN_BYTES;
    if (shared > arch.shared_bytes) { /* pages give way to scratch */
        arch.n_pages -= (shared - arch.shared_bytes + arch.page_bytes - 1) / arch.page_bytes;
        check_ok(cx, gen_source_of_image(cx, a, image, &arch, whole, &source));
    }
    cuda_code_head head = cuda_head_of(source.text, sizeof elf);
    memcpy(code, &head, sizeof head);
    memcpy(code + sizeof head, elf, sizeof elf);
    memcpy(code + sizeof head + sizeof elf, elf, sizeof elf);
    return (str){code, sizeof head + 2 * sizeof elf};
}

#endif
