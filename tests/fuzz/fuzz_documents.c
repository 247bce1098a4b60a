/* Document files with random contents: opened, packed in each way and read without a crash, a hang, an id outside the
 * vocabulary, a document that extends into another row, or a mask that is not 0 or 1.
 *
 *   fuzz_documents [RUNS [SEED]]  random mutations of good files; default 2000 runs; with SHERD_LONG as fuzz.h says
 *   clang -fsanitize=fuzzer       built with -DSH_LIBFUZZER: guided by coverage */
#include "io/data/data.h"
#include "io/data/format.h"
#include "src/base/hash.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 16, VOCAB = 300, MAX_BYTES = 5 * 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static char path[64];

static void write_file(const uint8_t *bytes, size_t n)
{
    if (!path[0])
        snprintf(path, sizeof path, "/tmp/fuzz_documents.%d.bin", (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || close(fd) != 0)
        abort();
}

/* docs says where the document of each place begins: at or before that place. */
static void check_row(const int32_t *tokens, const int32_t *targets, const int32_t *docs)
{
    for (int t = 0; t < T; t++)
        if (tokens[t] < 0 || tokens[t] >= VOCAB || targets[t] < -1 || targets[t] >= VOCAB || docs[t] < 0 ||
            docs[t] > t || docs[docs[t]] != docs[t])
            abort();
}

static void read_samples(struct sh_data *d)
{
    int32_t tokens[2 * T], targets[2 * T], docs[2 * T];
    int64_t counted, again, samples = sh_data_samples(d);

    for (int64_t i = 0; i < samples && i < 8; i++) {
        sh_data_prefetch(d, i + 2, 2, true, 0);
        if (sh_data_read(d, i, 2, tokens, targets, docs, &counted) != SH_OK)
            continue;
        check_row(tokens, targets, docs);
        check_row(tokens + T, targets + T, docs + T);
        if (sh_data_count(d, i, 2, &again) != SH_OK || again != counted)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    write_file(bytes, n);
    for (int i = 0; i < 8; i++) {
        struct sh_data_options opt = {.path = path,
                                      .seq_len = T,
                                      .vocab_size = VOCAB,
                                      .shuffle = i % 2,
                                      .packing = i / 4 ? SH_PACKING_NONE : SH_PACKING_BFD,
                                      .excess = (enum sh_cfg_excess)(i % 4),
                                      .masks = i % 3 ? SH_MASK_AUTO : SH_MASK_OFF,
                                      .seed = n,
                                      .document_separator = -1};
        struct sh_data *d;
        sh_error_clear();
        if (sh_data_open(&opt, &d) != SH_OK) {
            if (!sh_error_text()[0])
                abort();
            continue;
        }
        read_samples(d);
        sh_data_close(d);
    }
    unlink(path);
    return 0;
}

#ifndef SH_LIBFUZZER
/* Make a good file. Returns its length. */
static size_t make_good(uint8_t *bytes)
{
    struct sh_document_header h = {.magic = SH_DOCUMENT_MAGIC,
                                   .version = SH_DOCUMENT_VERSION,
                                   .token_bytes = random_below(2) ? 2 : 4,
                                   .flags = (const int[]){0, 1, 9}[random_below(3)],
                                   .documents = (int64_t)random_below(40),
                                   .tokens_at = 4096,
                                   .vocab_size = VOCAB};
    int64_t offsets[41] = {0};

    memset(bytes, 0, MAX_BYTES);
    for (int d = 0; d < h.documents; d++)
        offsets[d + 1] = offsets[d] + (int64_t)random_below(random_below(4) ? 20 : 60);
    h.tokens = offsets[h.documents];
    for (int64_t i = 0; i < h.tokens; i++)
        bytes[4096 + i * h.token_bytes] = (uint8_t)random_below(256);
    size_t end = 4096 + (size_t)(h.tokens * h.token_bytes);
    if (h.flags) {
        h.mask_at = (int64_t)(end + 4095) / 4096 * 4096;
        end = (size_t)h.mask_at;
        for (int64_t i = 0; i < (h.tokens + 7) / 8; i++)
            bytes[end++] = (uint8_t)random_below(256);
    }
    if (h.flags & SH_DOCUMENT_NUMBERS) {
        h.numbers_at = (int64_t)(end + 4095) / 4096 * 4096;
        h.width = random_below(2) ? 0 : 1 + (int64_t)random_below(3);
        end = (size_t)h.numbers_at + (size_t)(h.documents * (h.width ? h.width : 1)) * 8;
    }
    h.offsets_at = (int64_t)(end + 4095) / 4096 * 4096;
    memcpy(bytes + h.offsets_at, offsets, (size_t)(h.documents + 1) * 8);
    memcpy(bytes, &h, sizeof h);
    return (size_t)h.offsets_at + (size_t)(h.documents + 1) * 8;
}

/* Mutate mostly the fields of the header and the offsets, which are at the end of the file. */
static size_t mutate(uint8_t *bytes, size_t n)
{
    for (uint64_t k = random_below(4); k > 0; k--) {
        uint64_t where = random_below(4), at = where == 0  ? random_below(n)
                                               : where < 3 ? random_below(80)
                                                           : n - 1 - random_below(n < 300 ? n : 300);
        bytes[at % n] = random_below(3) ? (uint8_t)random_below(256)
                                        : (uint8_t)(bytes[at % n] + 1 - 2 * (int)random_below(2));
    }
    return random_below(8) == 0 ? 1 + random_below(n) : n;
}

int main(int argc, char **argv)
{
    struct fuzz f = fuzz_begin(argc, argv, 2000);
    static uint8_t bytes[MAX_BYTES];

    while (fuzz_more(&f))
        LLVMFuzzerTestOneInput(bytes, mutate(bytes, make_good(bytes)));
    printf("fuzz_documents: %ld files: ok\n", f.done);
    return 0;
}
#endif
