/* Token files: the permutation, windows, reading ahead, and every way in which a file can be wrong. */
#include "io/data/data.h"
#include "io/data/format.h"
#include "io/data/permute.h"
#include "io/token/bin.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 1000, T = 8 };

static char folder[] = "/tmp/test_data.XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
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
    assert_int_equal(sh_token_write(in_folder(name), vocab, ids, (size_t)n), SH_OK);
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
    /* A random order has about one fixed place, two neighbours, and a third of the length as mean distance. */
    assert_true(same_epoch < 10 && same_seed < 10 && neighbours < 15);
    assert_true(distance / N > 0.32 && distance / N < 0.347);
}

static void read_in_order(int vocab)
{
    struct sh_data_options opt;
    struct sh_data *d;
    int32_t tokens[2 * T], targets[2 * T];
    int64_t counted;
    write_tokens("a.bin", vocab, 3 * T + 1, 0);
    opt = options("a.bin");
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 3);
    assert_int_equal(sh_data_tokens(d), 3 * T + 1);
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
    opt[1].type = SH_TOKENS_U32;
    opt[2].type = SH_TOKENS_U16;
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

static void documents(void **state)
{
    (void)state;
    static const uint32_t ids[T + 1] = {5, 0, 6, 7, 0, 0, 8, 9, 1};
    static const int32_t expected[T] = {0, 0, 2, 2, 2, 5, 6, 6};
    assert_int_equal(sh_token_write(in_folder("docs.bin"), VOCAB, ids, T + 1), SH_OK);
    struct sh_data_options opt = options("docs.bin");
    struct sh_data *d;
    int32_t tokens[T], targets[T], docs[T];
    int64_t counted;
    opt.document_separator = 0;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    for (int ahead = 0; ahead < 2; ahead++) {
        if (ahead)
            sh_data_prefetch(d, 0, 1, true);
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
            sh_data_prefetch(with, i % 7 == 6 ? 3 : i * N, N, false); /* now and then a range that is not read */
        assert_int_equal(sh_data_read(with, i * N, N, a[0], a[1], NULL, &counted), SH_OK);
        assert_int_equal(sh_data_read(without, i * N, N, b[0], b[1], NULL, &counted), SH_OK);
        assert_memory_equal(a, b, sizeof a);
    }
    sh_data_prefetch(with, 0, N, false); /* closed while a range is read */
    sh_data_close(with);
    sh_data_close(without);
}

/* Header fields and length of the body; what the message must say. */
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
    } rows[] = {{"dir", "is a directory"},      {"fifo", "is a FIFO"},     {"none", "No such file"},
                {"none*", "no file matches"},   {"empty", "has 0 tokens"}, {"dangling", "No such file"},
                {"secret", "Permission denied"}};
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

static void an_id_past_the_vocabulary(void **state)
{
    (void)state;
    uint32_t ids[2 * T + 1] = {0};
    ids[T + 3] = VOCAB;
    assert_int_equal(sh_token_write(in_folder("id.bin"), VOCAB, ids, 2 * T + 1), SH_OK);
    struct sh_data_options opt = options("id.bin");
    struct sh_data *d;
    int32_t tokens[2 * T], targets[2 * T];
    int64_t counted = -1;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    sh_data_prefetch(d, 0, 2, false);
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
    sh_data_prefetch(d, 1, 1, false);
    assert_int_equal(sh_data_read(d, 1, 1, tokens, targets, NULL, &counted), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "too early"));
    sh_data_close(d);
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
        cmocka_unit_test(permutation_is_one_to_one),
        cmocka_unit_test(permutation_changes_with_key_and_mixes),
        cmocka_unit_test(both_sizes_of_tokens),
        cmocka_unit_test(bare_files),
        cmocka_unit_test(each_window_once_an_epoch),
        cmocka_unit_test(documents),
        cmocka_unit_test(reading_ahead_changes_nothing),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(things_that_are_no_files),
        cmocka_unit_test(an_id_past_the_vocabulary),
        cmocka_unit_test(a_file_that_shrinks),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
