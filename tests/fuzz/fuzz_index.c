/* Damaged indexes of checkpoints: refused in one line, or accepted with everything that is promised about them, and
 * then packed again to the same bytes.
 *
 *   fuzz_index [RUNS [SEED]]     random indexes, good ones and ones with a wrong place or two, and their bytes mutated,
 *                                alone and at the end of a file; default 40000 runs; see fuzz.h
 *   clang -fsanitize=fuzzer      built with -DSH_LIBFUZZER: guided by coverage */
#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/pack.h"
#include "src/base/mem.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

#define REQUIRE(cond)                                             \
    do {                                                          \
        if (!(cond)) {                                            \
            fprintf(stderr, "%d: not so: %s\n", __LINE__, #cond); \
            abort();                                              \
        }                                                         \
    } while (0)

enum { FILE_BYTES_AT = 16 }; /* in an index */

static void check_refusal(sh_rc rc)
{
    REQUIRE(rc == SH_E_DATA && sh_error_text()[0] && !strchr(sh_error_text(), '\n'));
}

static void check_entry(const struct sh_ckpt_index *x, const struct sh_ckpt_entry *e, int64_t end)
{
    int64_t elems = 1;
    REQUIRE(e->name[0] && !strchr(e->name, '/') && e->ndim >= 1 && e->ndim <= SH_CKPT_DIMS_MAX);
    for (int d = 0; d < e->ndim; d++) {
        REQUIRE(e->dim[d] > 0);
        elems *= e->dim[d];
    }
    REQUIRE(elems == e->elems);
    for (int s = 0; s < x->states.n; s++)
        REQUIRE(e->offset[s] >= x->structure_bytes && e->offset[s] + elems * 4 <= end);
    REQUIRE(e->first_block >= 0 && e->first_block + sh_ckpt_blocks(elems) <= x->n_blocks);
}

static void check_taken(const struct sh_ckpt_index *x, const uint8_t *bytes, size_t n, int64_t end)
{
    int64_t elems = 0;
    REQUIRE(x->n >= 0 && x->n <= SH_CKPT_TENSORS_MAX && x->meta.step >= 0);
    for (int64_t i = 0; i < x->n; i++) {
        check_entry(x, &x->entry[i], end);
        REQUIRE(sh_ckpt_index_find(x, x->entry[i].name, 0) == i);
        elems += x->entry[i].elems;
    }
    REQUIRE(elems * 4 * x->states.n <= end);
    uint8_t *again = sh_ckpt_pack(x);
    int64_t packed = sh_ckpt_packed_bytes(x);
    REQUIRE(packed <= (int64_t)n && packed <= sh_ckpt_packed_most(x->file_bytes));
    REQUIRE(memcmp(again, bytes, (size_t)packed) == 0);
    REQUIRE(packed == (int64_t)n || x->minor > SH_CKPT_MINOR);
    free(again);
}

static sh_rc take(const uint8_t *bytes, size_t n, int64_t file_bytes, int64_t end)
{
    struct sh_ckpt_index index;
    /* Memory of exactly that length, so a sanitizer notices reads past the end. */
    uint8_t *exact = malloc(n + 1);
    memcpy(exact, bytes, n);
    sh_error_clear();
    sh_rc rc = sh_ckpt_unpack(exact, (int64_t)n, "fuzz", file_bytes, end, &index);
    if (rc == SH_OK) {
        check_taken(&index, exact, n, end);
        sh_ckpt_index_free(&index);
    } else {
        check_refusal(rc);
    }
    free(exact);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    int64_t file_bytes = 0;
    if (n >= SH_CKPT_FOOTER_BYTES) {
        struct sh_ckpt_footer footer;
        (void)sh_ckpt_footer_unpack(bytes, &footer);
    }
    if (n >= FILE_BYTES_AT + sizeof file_bytes)
        memcpy(&file_bytes, bytes + FILE_BYTES_AT, sizeof file_bytes);
    if (file_bytes < 0)
        return 0;
    if (file_bytes > (int64_t)n + SH_CKPT_FOOTER_BYTES)
        (void)take(bytes, n, file_bytes, file_bytes - (int64_t)n - SH_CKPT_FOOTER_BYTES);
    return 0;
}

#ifndef SH_LIBFUZZER
enum { MAX_TENSORS = 6, MAX_BYTES = 1 << 16, PAGE = 4096 };

static bool one_in(uint64_t n)
{
    return random_below(n) == 0;
}

static int64_t odd_number(void)
{
    /* clang-format off */
    static const int64_t odd[] = {0, 1, -1, INT64_MAX, INT64_MIN, 1 << 20, (1 << 20) + 1, INT64_MAX / 4, INT64_MAX / 12,
                                  (int64_t)1 << 62, (int64_t)1 << 32, SH_CKPT_TENSORS_MAX, SH_CKPT_TENSORS_MAX + 1, PAGE};
    /* clang-format on */
    return (int64_t)((uint64_t)odd[random_below(sizeof odd / sizeof odd[0])] + (one_in(4) ? random_below(5) - 2 : 0));
}

static char *random_text(void)
{
    char *text = sh_calloc(64, 1);
    for (uint64_t i = random_below(40); i > 0; i--)
        text[i - 1] = (char)(1 + random_below(255));
    return text;
}

static void make_entry(struct sh_ckpt_entry *e, int64_t i)
{
    snprintf(e->name, sizeof e->name, "layers.%lld.%s", (long long)i, one_in(3) ? "w\xc3\xa9ight" : "weight");
    e->ndim = 1 + (int32_t)random_below(SH_CKPT_DIMS_MAX);
    e->elems = 1;
    for (int d = 0; d < e->ndim; d++)
        e->elems *= e->dim[d] = 1 + (int64_t)random_below(d == 0 && one_in(3) ? 3000000 : 5);
}

/* Mostly of format 1. */
static struct sh_ckpt_states random_states(void)
{
    static const char *const names[] = {"momentum", "b", "c", "d"};
    return one_in(2) ? sh_ckpt_states_1 : sh_ckpt_states_of(names, (int)random_below(SH_CKPT_STATES_MAX));
}

/* Make an index as in a file: tensors end to end between structures and index. */
static void make_index(struct sh_ckpt_index *x)
{
    *x = (struct sh_ckpt_index){.minor = one_in(8) ? 3 : one_in(4) ? 2 : 1};
    x->meta = (struct sh_ckpt_meta){.step = 7,
                                    .samples = 1,
                                    .config = random_text(),
                                    .guard = sh_strdup(one_in(2) ? "" : "3 0x1p+0 0x1p-3 0"),
                                    .notes = random_text(),
                                    .base = x->minor < 2 ? sh_strdup("") : random_text()};
    x->states = random_states();
    sh_ckpt_index_alloc(x, 1 + (int64_t)random_below(MAX_TENSORS));
    for (int64_t i = 0; i < x->n; i++)
        make_entry(&x->entry[i], i);
    sh_ckpt_index_number_blocks(x);
    int64_t at = x->structure_bytes = PAGE * (1 + (int64_t)random_below(3));
    for (int s = 0; s < x->states.n; s++)
        for (int64_t i = 0; i < x->n; i++) {
            x->entry[i].offset[s] = at;
            at += x->entry[i].elems * 4;
        }
    x->file_bytes = at + sh_ckpt_packed_bytes(x) + SH_CKPT_FOOTER_BYTES;
}

/* Make the index inconsistent, but with right checksums. */
static void spoil(struct sh_ckpt_index *x)
{
    struct sh_ckpt_entry *e = &x->entry[random_below((uint64_t)x->n)], *other = &x->entry[random_below((uint64_t)x->n)];
    int64_t by = one_in(2) ? odd_number() : (int64_t)random_below(64) - 32;
    switch (random_below(8)) {
    case 0: e->offset[random_below((uint64_t)x->states.n)] += (int64_t)((uint64_t)by & INT64_MAX) / 2; break;
    case 1: e->offset[random_below((uint64_t)x->states.n)] = other->offset[random_below((uint64_t)x->states.n)]; break;
    case 2: memmove(e->name, other->name, sizeof e->name); break;
    case 3: e->dim[random_below((uint64_t)e->ndim)] = by; break;
    case 4: x->structure_bytes = by; break;
    case 5: x->meta.step = by; break;
    case 6: e->name[random_below(strlen(e->name))] = (char)(1 + random_below(255)); break;
    default: x->file_bytes = by;
    }
}

static size_t mutate(uint8_t *bytes, size_t n)
{
    for (uint64_t k = 1 + random_below(4); k > 0; k--) {
        uint64_t at = one_in(2) ? random_below(SH_CKPT_HEAD_BYTES) : random_below(n);
        int64_t number = odd_number();
        if (one_in(3) && at + sizeof number <= n)
            memcpy(bytes + at / 8 * 8, &number, sizeof number);
        else
            bytes[at % n] ^= (uint8_t)(1 << random_below(8));
    }
    if (one_in(8))
        return 1 + random_below(n);
    return one_in(8) && n + 8 < MAX_BYTES ? n + random_below(8) : n;
}

/* Write the bytes with which HDF5's files begin. */
static void put_superblock(int fd, int64_t file_bytes)
{
    uint8_t s[48] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 3, 8, 8};
    memcpy(s + 28, &file_bytes, sizeof file_bytes);
    REQUIRE(pwrite(fd, s, sizeof s, 0) == sizeof s);
}

static struct sh_hash128 structures_of(int fd, int64_t bytes)
{
    uint8_t *all = sh_calloc((size_t)bytes + 1, 1);
    REQUIRE(pread(fd, all, (size_t)bytes, 0) == bytes);
    struct sh_hash128 h = sh_hash128(all, (size_t)bytes);
    free(all);
    return h;
}

/* Write an index at the end of a file with the right footer, or a footer with a wrong number in it. */
static void put_index(int fd, const uint8_t *packed, size_t n, int64_t at, bool wrong)
{
    uint8_t footer[SH_CKPT_FOOTER_BYTES];
    uint32_t major = 2;
    if (n >= 12)
        memcpy(&major, packed + 8, sizeof major);
    sh_ckpt_footer_pack(&(struct sh_ckpt_footer){.at = wrong && one_in(2) ? odd_number() : at,
                                                 .bytes = wrong && one_in(2) ? odd_number() : (int64_t)n,
                                                 .digest = sh_hash128(packed, n),
                                                 .major = major,
                                                 .minor = 1},
                        footer);
    if (wrong && one_in(4))
        footer[random_below(48)] ^= (uint8_t)(1 << random_below(8));
    REQUIRE(pwrite(fd, packed, n, at) == (ssize_t)n);
    REQUIRE(pwrite(fd, footer, sizeof footer, at + (int64_t)n) == (ssize_t)sizeof footer);
}

/* The tensors are holes in the file. Whatever the index says, reading it returns with a result. */
static void try_file(int fd, const uint8_t *packed, size_t n, int64_t at, bool good)
{
    struct sh_ckpt_index index;
    char path[64];
    bool wrong = !good && one_in(4);
    REQUIRE(ftruncate(fd, 0) == 0 && ftruncate(fd, at + (int64_t)n + SH_CKPT_FOOTER_BYTES) == 0);
    put_superblock(fd, at + (int64_t)n + SH_CKPT_FOOTER_BYTES);
    put_index(fd, packed, n, at, wrong);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    sh_rc rc = sh_ckpt_index_read(path, &index);
    REQUIRE(rc == SH_OK || !good);
    if (rc == SH_OK)
        sh_ckpt_index_free(&index);
    else
        check_refusal(rc);
}

static void one_run(int fd)
{
    static uint8_t bytes[MAX_BYTES];
    struct sh_ckpt_index x;
    bool good = one_in(4), spoilt = !good && one_in(2), mutated = !good && !(spoilt && one_in(2));
    make_index(&x);
    int64_t file_bytes = x.file_bytes, at = file_bytes - SH_CKPT_FOOTER_BYTES - sh_ckpt_packed_bytes(&x);
    REQUIRE(ftruncate(fd, 0) == 0 && ftruncate(fd, x.file_bytes) == 0);
    put_superblock(fd, x.file_bytes);
    x.structure = structures_of(fd, x.structure_bytes);
    if (spoilt)
        spoil(&x);
    x.sum = sh_ckpt_index_digest(&x);
    size_t n = (size_t)sh_ckpt_packed_bytes(&x);
    uint8_t *packed = sh_ckpt_pack(&x);
    REQUIRE(n < MAX_BYTES);
    memcpy(bytes, packed, n);
    if (mutated)
        n = mutate(bytes, n);
    sh_rc rc = take(bytes, n, file_bytes, at);
    REQUIRE(rc == SH_OK || !good);
    LLVMFuzzerTestOneInput(bytes, n);
    try_file(fd, bytes, n, at, good && x.minor == 1);
    free(packed);
    sh_ckpt_index_free(&x);
}

int main(int argc, char **argv)
{
    struct fuzz f = fuzz_begin(argc, argv, 40000);
    int fd = memfd_create("fuzz", 0);

    REQUIRE(fd >= 0);
    while (fuzz_more(&f))
        one_run(fd);
    printf("fuzz_index: %ld indexes: ok\n", f.done);
    return 0;
}
#endif
