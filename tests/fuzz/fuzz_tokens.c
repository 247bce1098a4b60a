/* Token files with random contents: opened and read without a crash, a hang, or an id outside the vocabulary.
 *
 *   fuzz_tokens [RUNS [SEED]]    random mutations of good files; default 2000 runs; see fuzz.h
 *   clang -fsanitize=fuzzer      built with -DSH_LIBFUZZER: guided by coverage */
#include "io/data/data.h"
#include "io/data/format.h"
#include "src/base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 16, VOCAB = 300, MAX_BYTES = 8192 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static char path[64];

static void write_file(const uint8_t *bytes, size_t n)
{
    if (!path[0])
        snprintf(path, sizeof path, "/tmp/fuzz_tokens.%d.bin", (int)getpid());
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        abort();
}

static void read_samples(struct sh_data *d)
{
    int32_t tokens[2 * T], targets[2 * T], docs[2 * T];
    int64_t counted, samples = sh_data_samples(d);
    for (int64_t i = 0; i < samples && i < 8; i++) {
        sh_data_prefetch(d, i + 2, 2, true, 0);
        if (sh_data_read(d, i, 2, tokens, targets, docs, &counted) != SH_OK)
            continue;
        for (int t = 0; t < 2 * T; t++)
            if (tokens[t] < 0 || tokens[t] >= VOCAB || targets[t] < 0 || targets[t] >= VOCAB || docs[t] < 0 ||
                docs[t] > t % T)
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const enum sh_cfg_token_type types[] = {SH_TOKEN_AUTO, SH_TOKEN_UINT16, SH_TOKEN_UINT32};
    write_file(bytes, n);
    for (int i = 0; i < 3; i++) {
        struct sh_data_options opt = {.path = path,
                                      .seq_len = T,
                                      .vocab_size = VOCAB,
                                      .type = types[i],
                                      .shuffle = i > 0,
                                      .seed = n,
                                      .document_separator = 0};
        struct sh_data *d;
        if (sh_data_open(&opt, &d) != SH_OK)
            continue;
        read_samples(d);
        sh_data_close(d);
    }
    unlink(path);
    return 0;
}

#ifndef SH_LIBFUZZER
#include "tests/fuzz/fuzz.h"

/* Make a good file with either size of tokens, or one without a header. Returns its length. */
static size_t make_good(uint8_t *bytes)
{
    int kind = (int)random_below(3), token_bytes = kind == 1 ? 4 : 2, n = 1 + (int)random_below(200);
    size_t begin = kind == 2 ? 0 : SH_TOKEN_HEADER_BYTES;
    struct sh_token_header h = {kind ? SH_TOKEN_MAGIC_U32 : SH_TOKEN_MAGIC_U16,
                                kind ? SH_TOKEN_VERSION_U32 : SH_TOKEN_VERSION_U16, n};
    memset(bytes, 0, begin + (size_t)n * 4);
    if (begin)
        memcpy(bytes, &h, sizeof h);
    for (int i = 0; i < n; i++)
        bytes[begin + (size_t)i * (size_t)token_bytes] = (uint8_t)random_below(256);
    return begin + (size_t)n * (size_t)token_bytes;
}

static size_t mutate(uint8_t *bytes, size_t n)
{
    for (uint64_t k = random_below(4); k > 0; k--) {
        uint64_t at = random_below(2) ? random_below(16) : random_below(n);
        bytes[at % n] = (uint8_t)random_below(256);
    }
    return random_below(3) == 0 ? 1 + random_below(n) : n;
}

int main(int argc, char **argv)
{
    struct fuzz f = fuzz_begin(argc, argv, 2000);
    uint8_t bytes[MAX_BYTES];
    while (fuzz_more(&f))
        LLVMFuzzerTestOneInput(bytes, mutate(bytes, make_good(bytes)));
    printf("fuzz_tokens: %ld files: ok\n", f.done);
    return 0;
}
#endif
