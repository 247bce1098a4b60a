/* Token files: the permutation, windows, reading ahead, and every way in which a file can be wrong. */
#include "io/data/data.h"
#include "io/data/format.h"
#include "io/data/mix.h"
#include "io/data/permute.h"
#include "io/file/sample.h"
#include "src/text/corpus/bin.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 1000, T = 8 };

static char folder[] = "/tmp/test_data.XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[8][256];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_raw(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* Token i of the file is (start + i) % VOCAB. */
static void write_tokens(const char *name, int vocab, int n, int start)
{
    uint32_t *ids = calloc((size_t)n + 1, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = (uint32_t)((start + i) % VOCAB);
    assert_int_equal(sh_bin_write(in_folder(name), vocab, ids, (size_t)n), SH_OK);
    free(ids);
}

static struct sh_data_options options(const char *name)
{
    return (struct sh_data_options){
        .path = in_folder(name), .seq_len = T, .vocab_size = VOCAB, .seed = 7, .document_separator = -1};
}

static void check_bijection(int64_t n, uint64_t seed, uint64_t epoch, unsigned char *seen)
{
    memset(seen, 0, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        int64_t p = sh_data_permute(i, n, seed, epoch);
        assert_true(p >= 0 && p < n && !seen[p]);
        seen[p] = 1;
    }
}

static void permutation_is_one_to_one(void **state)
{
    (void)state;
    static const int64_t large[] = {4095, 4096, 4097, 65537, 1000003, (1 << 20) - 1, (1 << 20) + 1};
    unsigned char *seen = malloc((1 << 20) + 1);
    for (int64_t n = 1; n <= 2000; n++)
        check_bijection(n, (uint64_t)n, 0, seen);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        check_bijection(large[i], 1, i, seen);
    free(seen);
    for (int64_t i = 0; i < 1000; i++) {
        int64_t p = sh_data_permute(i, INT64_C(3) << 40, 5, 5);
        assert_true(p >= 0 && p < INT64_C(3) << 40);
    }
}

static void permutation_changes_with_key_and_mixes(void **state)
{
    (void)state;
    enum { N = 10000 };
    int same_epoch = 0, same_seed = 0, neighbours = 0;
    double distance = 0;
    for (int64_t i = 0; i < N; i++) {
        int64_t p = sh_data_permute(i, N, 1, 0);
        same_epoch += p == sh_data_permute(i, N, 1, 1);
        same_seed += p == sh_data_permute(i, N, 2, 0);
        neighbours += llabs(sh_data_permute((i + 1) % N, N, 1, 0) - p) == 1;
        distance += (double)llabs(p - i) / N;
    }
    /* A random order has about one fixed point, two pairs of neighbours, and a mean distance of a third of the length.
     * */
    assert_true(same_epoch < 10 && same_seed < 10 && neighbours < 15);
    assert_true(distance / N > 0.32 && distance / N < 0.347);
}

/* The table in doc/data.md, which another program made from the text there. The order must not change: a later
 * version resumes a run where this one stopped. */
static void order_is_that_of_the_format(void **state)
{
    static const struct {
        uint64_t seed;
        int64_t n, window[10], next_epoch[3];
    } rows[] = {
        {0, 1024, {650, 842, 779, 798, 571, 354, 963, 745, 961, 52}, {124, 213, 85}},
        {5, 100000, {3563, 53650, 98002, 80523, 27563, 84068, 18481, 59484, 36875, 71001}, {67349, 99575, 38628}},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (int i = 0; i < 10; i++)
            assert_int_equal(sh_data_permute(i, rows[r].n, rows[r].seed, 0), rows[r].window[i]);
        for (int i = 0; i < 3; i++)
            assert_int_equal(sh_data_permute(i, rows[r].n, rows[r].seed, 1), rows[r].next_epoch[i]);
    }
}

static void read_in_order(int vocab)
{
    struct sh_data_options opt;
    char text[SH_DATA_TEXT];
    struct sh_data *d;
    int32_t tokens[2 * T], targets[2 * T];
    int64_t counted;
    write_tokens("a.bin", vocab, 3 * T + 1, 0);
    opt = options("a.bin");
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 3);
    assert_int_equal(sh_data_text(d, text), SH_OK);
    assert_non_null(strstr(text, "1 file, 25 tokens, 3 windows, "));
    assert_int_equal(sh_data_read(d, 1, 2, tokens, targets, NULL, &counted), SH_OK);
    assert_int_equal(counted, 2 * T);
    for (int i = 0; i < 2 * T; i++) {
        assert_int_equal(tokens[i], T + i);
        assert_int_equal(targets[i], T + i + 1);
    }
    assert_int_equal(sh_data_read(d, 2, 2, tokens, targets, NULL, &counted), SH_OK); /* into the next epoch */
    assert_int_equal(tokens[T], 0);
    sh_data_close(d);
}

static void both_sizes_of_tokens(void **state)
{
    (void)state;
    read_in_order(VOCAB);
    read_in_order(100000);
}

static void bare_files(void **state)
{
    (void)state;
    uint16_t narrow[T + 1];
    uint32_t wide[T + 1];
    for (int i = 0; i <= T; i++)
        narrow[i] = (uint16_t)(wide[i] = (uint32_t)(i + 100));
    write_raw("narrow.bin", narrow, sizeof narrow);
    write_raw("wide.bin", wide, sizeof wide);
    struct sh_data_options opt[] = {options("narrow.bin"), options("wide.bin"), options("narrow.bin")};
    char path[2][256];
    snprintf(path[0], sizeof path[0], "%s/narrow.bin", folder);
    snprintf(path[1], sizeof path[1], "%s/wide.bin", folder);
    opt[0].path = opt[2].path = path[0];
    opt[1].path = path[1];
    opt[1].type = SH_TOKEN_UINT32;
    opt[2].type = SH_TOKEN_UINT16;
    for (int k = 0; k < 3; k++) {
        struct sh_data *d;
        int32_t tokens[T], targets[T];
        int64_t counted;
        assert_int_equal(sh_data_open(&opt[k], &d), SH_OK);
        assert_int_equal(sh_data_read(d, 0, 1, tokens, targets, NULL, &counted), SH_OK);
        assert_int_equal(tokens[0], 100);
        assert_int_equal(targets[T - 1], 100 + T);
        sh_data_close(d);
    }
}

static void each_window_once_an_epoch(void **state)
{
    (void)state;
    enum { A = 37, B = 12, N = A + B };
    write_tokens("s-1.bin", VOCAB, A * T + 3, 0);
    write_tokens("s-2.bin", VOCAB, B * T + 1, 500);
    struct sh_data_options opt = options("s-*.bin");
    struct sh_data *d;
    opt.shuffle = true;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), N);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[VOCAB] = {0};
        for (int i = 0; i < N; i++) {
            int32_t tokens[T], targets[T];
            int64_t counted;
            assert_int_equal(sh_data_read(d, epoch * N + i, 1, tokens, targets, NULL, &counted), SH_OK);
            seen[tokens[0]]++;
            for (int t = 0; t < T; t++)
                assert_int_equal(targets[t], tokens[t] + 1);
        }
        for (int w = 0; w < N; w++)
            assert_int_equal(seen[w < A ? w * T : 500 + (w - A) * T], 1);
    }
    sh_data_close(d);
}

/* Names are compared by bytes, so capitals come first. With a locale's order, ranks with another locale
 * would disagree. */
static void files_are_in_the_order_of_their_bytes(void **state)
{
    static const char *const names[] = {"o-B.bin", "o-a.bin", "o-a_.bin", "o-aB.bin", "o-b.bin"};
    static const int order[] = {0, 1, 3, 2, 4};
    struct sh_data_options opt;
    struct sh_data *d;

    (void)state;
    for (int i = 4; i >= 0; i--)
        write_tokens(names[i], VOCAB, T + 1, 100 * i);
    opt = options("o-*.bin");
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    for (int i = 0; i < 5; i++) {
        int32_t tokens[T], targets[T];
        int64_t counted;

        assert_int_equal(sh_data_read(d, i, 1, tokens, targets, NULL, &counted), SH_OK);
        assert_int_equal(tokens[0], 100 * order[i]);
    }
    sh_data_close(d);
}

static void documents(void **state)
{
    (void)state;
    static const uint32_t ids[T + 1] = {5, 0, 6, 7, 0, 0, 8, 9, 1};
    static const int32_t expected[T] = {0, 0, 2, 2, 2, 5, 6, 6};
    assert_int_equal(sh_bin_write(in_folder("docs.bin"), VOCAB, ids, T + 1), SH_OK);
    struct sh_data_options opt = options("docs.bin");
    struct sh_data *d;
    int32_t tokens[T], targets[T], docs[T];
    int64_t counted;
    opt.document_separator = 0;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    for (int ahead = 0; ahead < 2; ahead++) {
        if (ahead)
            sh_data_prefetch(d, 0, 1, true, 0);
        assert_int_equal(sh_data_read(d, 0, 1, tokens, targets, docs, &counted), SH_OK);
        assert_memory_equal(docs, expected, sizeof expected);
    }
    sh_data_close(d);
    opt = options("docs.bin");
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_read(d, 0, 1, tokens, targets, docs, &counted), SH_E_USAGE);
    sh_data_close(d);
}

static void reading_ahead_changes_nothing(void **state)
{
    (void)state;
    enum { N = 3 };
    write_tokens("p.bin", VOCAB, 50 * T + 1, 0);
    struct sh_data_options opt = options("p.bin");
    struct sh_data *with, *without;
    opt.shuffle = true;
    assert_int_equal(sh_data_open(&opt, &with), SH_OK);
    assert_int_equal(sh_data_open(&opt, &without), SH_OK);
    for (int i = 0; i < 40; i++) {
        int32_t a[2][N * T], b[2][N * T];
        int64_t counted;
        if (i % 5 != 4)
            sh_data_prefetch(with, i % 7 == 6 ? 3 : i * N, N, false, 0); /* now and then a range that is never read */
        assert_int_equal(sh_data_read(with, i * N, N, a[0], a[1], NULL, &counted), SH_OK);
        assert_int_equal(sh_data_read(without, i * N, N, b[0], b[1], NULL, &counted), SH_OK);
        assert_memory_equal(a, b, sizeof a);
    }
    sh_data_prefetch(with, 0, N, false, 0); /* closed while a range is read */
    sh_data_close(with);
    sh_data_close(without);
}

/* If documents were not part of the range read ahead, they are read when they are wanted. */
static void documents_of_a_range_read_without(void **state)
{
    enum { N = 2 };
    struct sh_data_options opt;
    struct sh_data *d;
    int32_t tokens[N * T], targets[N * T], docs[N * T];
    int64_t counted;

    (void)state;
    write_tokens("q.bin", VOCAB, N * T + 1, 0);
    opt = options("q.bin");
    opt.document_separator = 3;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    for (int ahead = 0; ahead < 2; ahead++) {
        memset(docs, 0x5a, sizeof docs);
        sh_data_prefetch(d, 0, N, ahead, 0);
        assert_int_equal(sh_data_read(d, 0, N, tokens, targets, docs, &counted), SH_OK);
        for (int t = 0; t < T; t++)
            assert_int_equal(docs[t], t > 3 ? 4 : 0);
    }
    sh_data_close(d);
}

/* Header fields, length of the body, and what the message must say. */
static void wrong_headers(void **state)
{
    (void)state;
    static const struct {
        int32_t magic, version, tokens;
        int body_bytes;
        const char *says;
    } rows[] = {
        {SH_TOKEN_MAGIC_U16, 2, 100, 200, "of version 2"},
        {SH_TOKEN_MAGIC_U16, 1, 101, 200, "says 101 tokens"},
        {SH_TOKEN_MAGIC_U16, 1, 99, 200, "says 99 tokens"},
        {SH_TOKEN_MAGIC_U16, 1, -1, 200, "says -1 tokens"},
        {SH_TOKEN_MAGIC_U16, 1, 100, 199, "1223"},
        {SH_TOKEN_MAGIC_U32, 7, 100, 200, "1424 bytes"},
        {SH_TOKEN_MAGIC_U32, 1, 100, 400, "of version 1"},
        {SH_TOKEN_MAGIC_U16, 1, 0, 0, "has 0 tokens"},
        {SH_TOKEN_MAGIC_U16, 1, T, 2 * T, "a sample needs 9"},
        {20240522, 1, 100, 200, "evaluation set"},
        {20240326, 3, 100, 200, "an llm.c model"},
        {20240527, 1, 100, 200, "training state"},
        {0, 0, 0, 101, "not a multiple of 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char bytes[SH_TOKEN_HEADER_BYTES + 400] = {0};
        struct sh_token_header h = {rows[i].magic, rows[i].version, rows[i].tokens};
        memcpy(bytes, &h, sizeof h);
        write_raw("bad.bin", bytes, (size_t)(SH_TOKEN_HEADER_BYTES + rows[i].body_bytes));
        struct sh_data_options opt = options("bad.bin");
        struct sh_data *d = NULL;
        assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
        assert_null(d);
        if (!strstr(sh_error_text(), rows[i].says) || !strstr(sh_error_text(), "bad.bin"))
            fail_msg("\"%s\" does not say \"%s\"", sh_error_text(), rows[i].says);
    }
}

static void things_that_are_no_files(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
    } rows[] = {{"dir", "is a directory"},    {"fifo", "is a FIFO"},          {"none", "No such file"},
                {"none*", "no file matches"}, {"empty", "has 0 tokens"},      {"dangling", "No such file"},
                {"none/*", "No such file"},   {"secret", "Permission denied"}};
    mkdir(in_folder("dir"), 0755);
    mkfifo(in_folder("fifo"), 0644);
    write_raw("empty", "", 0);
    write_raw("secret", "abc", 3);
    chmod(in_folder("secret"), 0);
    assert_int_equal(symlink("nowhere", in_folder("dangling")), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_data_options opt = options(rows[i].name);
        struct sh_data *d;
        if (strcmp(rows[i].name, "secret") == 0 && geteuid() == 0)
            continue; /* root may read everything */
        assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
        if (!strstr(sh_error_text(), rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", sh_error_text(), rows[i].says);
    }
}

/* A folder that cannot be read does not hide what is in another one. */
static void a_closed_folder_beside_others(void **state)
{
    struct sh_data_options opt = options("*/found*");
    struct sh_data *d;
    uid_t user = geteuid();

    (void)state;
    mkdir(in_folder("open"), 0755);
    mkdir(in_folder("closed"), 0);
    write_tokens("open/found.bin", VOCAB, T + 1, 0);
    chmod(folder, 0755);
    assert_int_equal(seteuid(user ? user : 65534), 0); /* root may read everything */
    sh_rc rc = sh_data_open(&opt, &d);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(rc, SH_OK);
    sh_data_close(d);
}

static void an_id_past_the_vocabulary(void **state)
{
    (void)state;
    uint32_t ids[2 * T + 1] = {0};
    ids[T + 3] = VOCAB;
    assert_int_equal(sh_bin_write(in_folder("id.bin"), VOCAB, ids, 2 * T + 1), SH_OK);
    struct sh_data_options opt = options("id.bin");
    struct sh_data *d;
    int32_t tokens[2 * T], targets[2 * T];
    int64_t counted = -1;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    sh_data_prefetch(d, 0, 2, false, 0);
    assert_int_equal(sh_data_read(d, 0, 2, tokens, targets, NULL, &counted), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "token 11 is 1000"));
    assert_int_equal(counted, -1);
    assert_int_equal(sh_data_read(d, 0, 1, tokens, targets, NULL, &counted), SH_OK);
    sh_data_close(d);
}

static void a_file_that_shrinks(void **state)
{
    (void)state;
    write_tokens("shrink.bin", VOCAB, 4 * T + 1, 0);
    struct sh_data_options opt = options("shrink.bin");
    struct sh_data *d;
    int32_t tokens[T], targets[T];
    int64_t counted;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(truncate(in_folder("shrink.bin"), SH_TOKEN_HEADER_BYTES + 2 * T + 6), 0);
    sh_data_prefetch(d, 1, 1, false, 0);
    assert_int_equal(sh_data_read(d, 1, 1, tokens, targets, NULL, &counted), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "too early"));
    sh_data_close(d);
}

/* A file of 3 windows; every third of its 25 tokens counts as a target, except in the second window, where
 * none does. */
static void write_masked(const char *name, unsigned char *mask)
{
    char path[64];
    write_tokens(name, VOCAB, 3 * T + 1, 0);
    for (int i = 0; i <= 3 * T; i++)
        mask[i] = i % 3 == 0 && (i <= T || i > 2 * T);
    snprintf(path, sizeof path, "%s.mask", name);
    write_raw(path, mask, 3 * T + 1);
}

static void masks_leave_targets_out(void **state)
{
    (void)state;
    unsigned char mask[3 * T + 1];
    struct sh_data_options opt = options("m.bin");
    struct sh_data *d;
    int32_t tokens[3 * T], targets[3 * T];
    int64_t counted, all = 0;
    write_masked("m.bin", mask);
    opt.masks = SH_MASK_MUST;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_true(sh_data_masked(d));
    for (int ahead = 0; ahead < 2; ahead++) {
        if (ahead)
            sh_data_prefetch(d, 0, 3, false, 0);
        assert_int_equal(sh_data_read(d, 0, 3, tokens, targets, NULL, &counted), SH_OK);
        for (int i = 0; i < 3 * T; i++) {
            assert_int_equal(tokens[i], i);
            assert_int_equal(targets[i], mask[i + 1] ? i + 1 : -1);
        }
        assert_int_equal(counted, 2 + 0 + 3);
    }
    for (int w = 0; w < 3; w++) {
        static const int in_window[] = {2, 0, 3};
        assert_int_equal(sh_data_count(d, w, 1, &counted), SH_OK);
        assert_int_equal(counted, in_window[w]);
    }
    sh_data_close(d);
    opt.masks = SH_MASK_OFF;
    opt.shuffle = true;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_read(d, 0, 3, tokens, targets, NULL, &counted), SH_OK);
    assert_int_equal(counted, 3 * T);
    sh_data_close(d);
    opt.masks = SH_MASK_AUTO;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    for (int64_t i = 0; i < 30; i++) { /* the count matches what is read, in the order of the run, ahead or not */
        if (i % 3)
            sh_data_prefetch(d, i, 1, false, i % 3);
        assert_int_equal(sh_data_read(d, i, 1, tokens, targets, NULL, &counted), SH_OK);
        assert_int_equal(sh_data_count(d, i, 1, &all), SH_OK);
        assert_int_equal(counted, all);
        assert_int_equal(sh_data_count(d, i, 2, &all), SH_OK);
        assert_int_equal(sh_data_read(d, i + 1, 1, tokens, targets, NULL, &counted), SH_OK);
        all -= counted;
        assert_int_equal(sh_data_read(d, i, 1, tokens, targets, NULL, &counted), SH_OK);
        assert_int_equal(counted, all);
    }
    sh_data_close(d);
}

static void refused(const struct sh_data_options *opt, const char *says)
{
    struct sh_data *d;
    int32_t tokens[T], targets[T];
    int64_t counted;
    sh_rc rc = sh_data_open(opt, &d);
    if (rc == SH_OK) {
        rc = sh_data_read(d, 0, 1, tokens, targets, NULL, &counted);
        sh_data_close(d);
    }
    assert_int_equal(rc, SH_E_DATA);
    if (!strstr(sh_error_text(), says))
        fail_msg("\"%s\" does not say \"%s\"", sh_error_text(), says);
}

static void wrong_masks(void **state)
{
    (void)state;
    unsigned char mask[3 * T + 2];
    struct sh_data_options opt;
    write_masked("w-1.bin", mask);
    opt = options("w-1.bin");
    write_raw("w-1.bin.mask", mask, 3 * T);
    refused(&opt, "w-1.bin.mask has 24 bytes, but");
    write_raw("w-1.bin.mask", mask, 3 * T + 2);
    refused(&opt, "one byte a token");
    mask[5] = 2;
    write_raw("w-1.bin.mask", mask, 3 * T + 1);
    refused(&opt, "w-1.bin.mask: byte 5 is 2;");
    memset(mask, 0, sizeof mask);
    mask[0] = 1; /* nothing predicts the first token */
    write_raw("w-1.bin.mask", mask, 3 * T + 1);
    refused(&opt, "no token counts");
    write_masked("w-1.bin", mask);
    opt = options("w-1.bin.mask");
    refused(&opt, "name of a mask");
    write_tokens("w-2.bin", VOCAB, 3 * T + 1, 0);
    opt = options("w-2.bin");
    opt.masks = SH_MASK_MUST;
    refused(&opt, "there is no ");
    opt = options("w-*");
    refused(&opt, "w-2.bin lacks a mask");
    write_tokens("w-0.bin", VOCAB, 3 * T + 1, 0);
    refused(&opt, "w-1.bin has a mask");
    opt = options("w-*.mask");
    refused(&opt, "masks or weights only");
}

static void ids_of_other_tools_that_do_not_count(void **state)
{
    (void)state;
    static const int32_t ids[T + 1] = {1, 2, -100, 3};
    struct sh_data_options opt = options("hundred.bin");
    write_raw("hundred.bin", ids, sizeof ids);
    opt.type = SH_TOKEN_UINT32;
    refused(&opt, "token 2 is 4294967196, but model.vocab_size is 1000; targets that do not count go into a mask");
}

/* More files than may be open: each is read, in any order, from two threads; a file that has been replaced
 * is refused. */
static void many_files(void **state)
{
    (void)state;
    enum { FILES = 400, LIMIT = 64 };
    struct rlimit old, limit;
    struct sh_data_options opt;
    struct sh_data *d;
    int32_t tokens[2 * T], targets[2 * T];
    int64_t counted;
    char name[32];
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "many-%03d.bin", i);
        write_tokens(name, VOCAB, T + 1, i);
    }
    opt = options("many-*.bin");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = LIMIT;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), FILES);
    for (int i = 0; i < FILES; i++) {
        int64_t w = (int64_t)i * 7 % (FILES - 2);
        sh_data_prefetch(d, (w + 50) % (FILES - 2), 2, false, 0);
        assert_int_equal(sh_data_read(d, w, 2, tokens, targets, NULL, &counted), SH_OK);
        assert_int_equal(tokens[0], w);
        assert_int_equal(tokens[T], w + 1);
    }
    assert_int_equal(rename(in_folder("many-000.bin"), in_folder("first")), 0);
    write_tokens("many-000.bin", VOCAB, T + 1, 0);
    for (int i = 0; i < LIMIT; i++) /* until it is closed */
        assert_int_equal(sh_data_read(d, 100 + i, 1, tokens, targets, NULL, &counted), SH_OK);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(sh_data_read(d, 0, 1, tokens, targets, NULL, &counted), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), "many-000.bin is not the file that the run began with"));
    }
    sh_data_close(d);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

static void too_many_open_elsewhere(void **state)
{
    (void)state;
    struct rlimit old, limit;
    struct sh_data_options opt = options("one.bin");
    write_tokens("one.bin", VOCAB, T + 1, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    refused(&opt, "has reached its limit of 3 open files; raise the limit (ulimit -n)");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

#define BYTES(text) .bytes = text, .n = sizeof text - 1
#define TEN(text) text text text text text text text text text text

static void files_that_are_no_ids(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *says; /* NULL: taken as ids */
    } rows[] = {
        {BYTES(TEN("It was a bright cold day in April.\r\n")), "is text, not token ids; `sherd tokenize FILE"},
        {BYTES(TEN("\xe2\x80\xa2 Gr\xc3\xbc\xc3\x9f"
                   "e\n")),
         "is text"},
        {BYTES("\xef\xbb\xbf" TEN("with a mark of byte order ")), "is text"},
        {BYTES(TEN("{\"text\": \"once\"}\n")), "is JSON, "},
        {BYTES("[\n" TEN("  {\"text\": 1},\n") "]"), "is JSON, "},
        {BYTES("\x1f\x8b\x08\0" TEN("abcd")), "is a gzip file, not token ids; unpack it"},
        {BYTES("\x28\xb5\x2f\xfd" TEN("abcd")), "is a zstd file"},
        {BYTES("PK\x03\x04" TEN("\0\0\1\0")), "is a zip file"},
        {BYTES("PAR1" TEN("\x15\x04\x15\x10")), "is a Parquet file"},
        {BYTES("\x89HDF\r\n\x1a\n" TEN("\0\0\1\0")), "is an HDF5 file"},
        {BYTES("\x40\0\0\0\0\0\0\0{\"__metadata__\":" TEN("0123")), "is a safetensors file"},
        {BYTES("\x93NUMPY\1\0" TEN("\0\0\1\0")), "is a numpy file"},
        {BYTES(TEN("a\0b\0c\0")), NULL}, /* bytes as uint16 */
        {BYTES(TEN("almost only text") "\0\1"), NULL},
        {BYTES(TEN("half a letter\xc3")), NULL}, /* followed by 'h' */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_data_options opt = options("foreign");
        struct sh_data *d;
        char even[1024] = {0};
        memcpy(even, rows[i].bytes, rows[i].n);
        opt.vocab_size = 65536;
        write_raw("foreign", even, rows[i].n / 2 * 2);
        if (rows[i].says)
            refused(&opt, rows[i].says);
        opt.type = rows[i].says ? SH_TOKEN_UINT16 : SH_TOKEN_AUTO;
        if (sh_data_open(&opt, &d) != SH_OK)
            fail_msg("row %zu: %s", i, sh_error_text());
        sh_data_close(d);
    }
}

static void the_largest_id(void **state)
{
    (void)state;
    struct sh_data_options opt = options("large.bin");
    struct sh_data *d;
    int id;
    write_tokens("large.bin", VOCAB, 20 * T + 1, 100);
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_largest(d, &id), SH_OK);
    assert_int_equal(id, 100 + 20 * T);
    sh_data_close(d);
}

/* Shares are rounded down, and the samples that are then missing go to the largest remainders, one each. */
static void shares_of_a_mix(void **state)
{
    static const struct {
        const char *text;
        int share[3];
    } rows[] = {
        {"a=3,b=1", {3072, 1024}},
        {"a=5,b=5,c=1", {1862, 1862, 372}}, /* 1861.8, 1861.8 and 372.4: two are missing */
        {"a=1,b=5,c=5", {372, 1862, 1862}},
        {"a=1,b=1,c=1", {1366, 1365, 1365}}, /* among equals the first */
        {"a=0.5,b=4095.5", {1, 4095}},
    };
    struct sh_mix m;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(sh_mix_parse(rows[i].text, &m), SH_OK);
        for (int k = 0; k < m.n; k++)
            if (m.share[k] != rows[i].share[k])
                fail_msg("%s: %s has %d samples", rows[i].text, m.path[k], m.share[k]);
        sh_mix_free(&m);
    }
    assert_int_equal(sh_mix_parse("a=1,b=10000", &m), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "a has 9.999e-05 of the weight; the least is 1 of 4096 samples"));
}

/* The text of a set in files of these bytes; the first one has a mask if `mask` is one. */
static void text_of(const unsigned char *bytes, size_t n, int files, int mask, char text[SH_DATA_TEXT])
{
    unsigned char *counts = calloc(n / 2, 1);
    struct sh_data_options opt;
    struct sh_data *d;
    for (int i = 0; i < 3; i++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "text-%d.bin", i);
        snprintf(name[1], sizeof name[1], "text-%d.bin.mask", i);
        unlink(in_folder(name[0]));
        unlink(in_folder(name[1]));
        if (i < files)
            write_raw(name[0], bytes, n);
        memset(counts, 1, n / 2);
        counts[n / 4] = mask != 2 || i != 0;
        if (i < files && mask)
            write_raw(name[1], counts, n / 2);
    }
    free(counts);
    opt = options("text-*.bin"); /* the last of the names, which take turns */
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_text(d, text), SH_OK);
    sh_data_close(d);
}

/* A set is known by its sizes and by samples: all bytes of a short file, beginning, end and most changes of a long one. */
static void a_set_is_known_by_its_content(void **state)
{
    enum { SHORT = 1000, LONG = 3 << 20, FILES = 3, BYTES_OF_A_FILE = 1 << 20 };
    static const struct {
        size_t n;
        int64_t at; /* of the byte that changes; -1: none */
        int files, mask;
        bool same;
    } rows[] = {{SHORT, -1, 1, 0, true},
                {SHORT, 0, 1, 0, false},
                {SHORT, SHORT - 2, 1, 0, false},
                {SHORT, -1, 2, 0, false},
                {SHORT, -1, 1, 1, false},
                {BYTES_OF_A_FILE, BYTES_OF_A_FILE / 2 + 4, 1, 0, false},
                {LONG, -1, 1, 0, true},
                {LONG, 0, 1, 0, false},
                {LONG, LONG - 2, 1, 0, false},
                {LONG, (1 << 14) - 2, 1, 0, false},
                {LONG, 1 << 14, 1, 0, true}, /* between two blocks: the price of reading a third of it */
                {LONG, (LONG - (1 << 14)) / 63 + 2, 1, 0, false}};
    unsigned char *bytes = calloc(LONG, 1);
    char before[SH_DATA_TEXT], after[SH_DATA_TEXT];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text_of(bytes, rows[i].n, 1, 0, before);
        if (rows[i].at >= 0)
            bytes[rows[i].at] ^= 1;
        text_of(bytes, rows[i].n, rows[i].files, rows[i].mask, after);
        if (rows[i].at >= 0)
            bytes[rows[i].at] ^= 1;
        if ((strcmp(before, after) == 0) != rows[i].same)
            fail_msg("row %zu: %s, %s", i, before, after);
    }
    text_of(bytes, SHORT, 1, 1, before);
    text_of(bytes, SHORT, 1, 2, after);
    assert_string_not_equal(before, after);
    text_of(bytes, SHORT, FILES, 0, after);
    assert_non_null(strstr(after, "3 files, 1500 tokens, 186 windows, XXH3 "));
    free(bytes);
}

static uint64_t sample_of(const unsigned char *content, size_t bytes, int blocks)
{
    uint64_t hash = 1;
    write_raw("sampled", content, bytes);
    assert_int_equal(sh_file_sample_all(in_folder("sampled"), blocks, &hash), SH_OK);
    return hash;
}

/* Up to `blocks` blocks every byte counts; above, those of the blocks at the beginning, in the middle and at the end. */
static void a_sample_sees_what_it_says(void **state)
{
    (void)state;
    enum { BLOCK = SH_FILE_SAMPLE_BYTES, BLOCKS = 3, LARGE = 9 * BLOCK };
    static const struct {
        size_t bytes, at;
        bool seen;
    } table[] = {{1, 0, true},
                 {BLOCK + 7, BLOCK - 1, true},
                 {BLOCK + 7, BLOCK, true},
                 {BLOCK + 7, BLOCK + 6, true},
                 {BLOCKS * BLOCK, 2 * BLOCK - 1, true},
                 {BLOCKS * BLOCK, BLOCKS * BLOCK - 1, true},
                 {BLOCKS * BLOCK + 1, BLOCK - 1, true},
                 {BLOCKS * BLOCK + 1, BLOCK, true},
                 {BLOCKS * BLOCK + 1, BLOCKS * BLOCK, true},
                 {LARGE, 0, true},
                 {LARGE, BLOCK - 1, true},
                 {LARGE, BLOCK, false},
                 {LARGE, 4 * BLOCK - 1, false},
                 {LARGE, 4 * BLOCK, true},
                 {LARGE, 5 * BLOCK - 1, true},
                 {LARGE, 5 * BLOCK, false},
                 {LARGE, LARGE - BLOCK - 1, false},
                 {LARGE, LARGE - BLOCK, true},
                 {LARGE, LARGE - 1, true}};
    static unsigned char content[LARGE + 1];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint64_t before = sample_of(content, table[i].bytes, BLOCKS);
        content[table[i].at] = 1;
        assert_int_equal(sample_of(content, table[i].bytes, BLOCKS) != before, table[i].seen);
        content[table[i].at] = 0;
        assert_int_not_equal(sample_of(content, table[i].bytes + 1, BLOCKS), before);
    }
    uint64_t hash = 2;
    write_raw("sampled", content, LARGE);
    assert_int_equal(sh_file_sample_all(in_folder("sampled"), BLOCKS, &hash), SH_OK);
    assert_int_not_equal(hash, sample_of(content, LARGE, BLOCKS));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_is_known_by_its_content),
        cmocka_unit_test(permutation_is_one_to_one),
        cmocka_unit_test(permutation_changes_with_key_and_mixes),
        cmocka_unit_test(order_is_that_of_the_format),
        cmocka_unit_test(both_sizes_of_tokens),
        cmocka_unit_test(bare_files),
        cmocka_unit_test(each_window_once_an_epoch),
        cmocka_unit_test(files_are_in_the_order_of_their_bytes),
        cmocka_unit_test(documents),
        cmocka_unit_test(reading_ahead_changes_nothing),
        cmocka_unit_test(documents_of_a_range_read_without),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(things_that_are_no_files),
        cmocka_unit_test(a_closed_folder_beside_others),
        cmocka_unit_test(an_id_past_the_vocabulary),
        cmocka_unit_test(a_file_that_shrinks),
        cmocka_unit_test(masks_leave_targets_out),
        cmocka_unit_test(wrong_masks),
        cmocka_unit_test(ids_of_other_tools_that_do_not_count),
        cmocka_unit_test(many_files),
        cmocka_unit_test(too_many_open_elsewhere),
        cmocka_unit_test(files_that_are_no_ids),
        cmocka_unit_test(the_largest_id),
        cmocka_unit_test(shares_of_a_mix),
        cmocka_unit_test(a_sample_sees_what_it_says),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
