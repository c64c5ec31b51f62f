/* fuzz_replay.c - without libFuzzer: run a fuzzer's corpus, then mutations of it, as an ordinary
 * test.
 *
 * usage: NAME_fuzz CORPUS_FOLDER [MUTATIONS]
 * There are 10,000 mutations by default; the seed comes from MPK_SEED or the clock.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    uint8_t *at;
    size_t n;
} input;

static input read_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    input in = {0};
    FILE *f = fopen(path, "rb");
    if (!f)
        return in;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    if (n > 0 && (in.at = malloc((size_t)n)))
        in.n = fread(in.at, 1, (size_t)n, f);
    fclose(f);
    return in;
}

/* A copy with one to four bytes changed, or cut short, or with a run repeated. */
static input mutate(input from, uint64_t seed)
{
    input to = {malloc(from.n ? from.n : 1), from.n};
    if (!to.at)
        return (input){0};
    memcpy(to.at, from.at, from.n);
    uint64_t kind = rng_u64(seed, 0) % 8;
    if (kind == 0)
        to.n = rng_u64(seed, 1) % (from.n + 1);
    for (uint64_t i = 0; kind && from.n && i <= kind % 4; i++)
        to.at[rng_u64(seed, 2 + 2 * i) % from.n] = (uint8_t)rng_u64(seed, 3 + 2 * i);
    return to;
}

int main(int argc, char **argv)
{
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    if (!folder) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER [MUTATIONS]\n", argv[0]);
        return 2;
    }
    input inputs[256];
    size_t n = 0;
    for (struct dirent *entry; n < 256 && (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && (inputs[n] = read_file(argv[1], entry->d_name)).at)
            n++;
    closedir(folder);
    if (!n) {
        fprintf(stderr, "%s is empty\n", argv[1]);
        return 1;
    }
    unsigned long mutations = argc > 2 ? strtoul(argv[2], NULL, 10) : 10000;
    const char *text = getenv("MPK_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
    printf("%zu inputs, %lu mutations, seed: MPK_SEED=%llu\n", n, mutations,
           (unsigned long long)seed);
    fflush(stdout);
    for (size_t i = 0; i < n; i++)
        LLVMFuzzerTestOneInput(inputs[i].at, inputs[i].n);
    for (unsigned long i = 0; i < mutations; i++) {
        input changed = mutate(inputs[i % n], seed + i);
        LLVMFuzzerTestOneInput(changed.at, changed.n);
        free(changed.at);
    }
    for (size_t i = 0; i < n; i++)
        free(inputs[i].at);
    return 0;
}
