/* Document files: their bytes, rows read from them, mixes, and each way in which a file can be wrong. */
#include "io/data/data.h"
#include "io/data/format.h"
#include "io/data/mix.h"
#include "src/text/corpus/bin.h"
#include "src/text/corpus/documents.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 1000, T = 8, DOCS = 5, TOKENS = 22 };

static char folder[] = "/tmp/test_documents.XXXXXX";

/* Documents of 4, 7, 0, 9 and 2 tokens; token i is 100 d + k. */
static const uint32_t lengths[DOCS] = {4, 7, 0, 9, 2};
static const uint32_t ids[TOKENS] = {0,   1,   2,   3,   100, 101, 102, 103, 104, 105, 106,
                                     300, 301, 302, 303, 304, 305, 306, 307, 308, 400, 401};
static const unsigned char mask[TOKENS] = {0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1};

static const char *in_folder(const char *name)
{
    static char path[512][256]; /* options keep them */
    static int turn;

    turn = (turn + 1) % 512;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_small(const char *name, bool masked)
{
    assert_int_equal(
        sh_document_write(in_folder(name), VOCAB, 0x1122334455667788, ids, masked ? mask : NULL, lengths, DOCS), SH_OK);
}

static struct sh_data_options options(const char *name)
{
    return (struct sh_data_options){
        .path = in_folder(name), .seq_len = T, .vocab_size = VOCAB, .seed = 7, .document_separator = -1};
}

static unsigned char *read_bytes(const char *name, size_t *n)
{
    FILE *f = fopen(in_folder(name), "rb");
    unsigned char *bytes = malloc(1 << 20);

    assert_non_null(f);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* Written by hand from doc/data.md, to catch a program that writes and reads some other format. */
static void bytes_are_those_of_the_format(void **state)
{
    static const unsigned char header[80] = {
        'S',  'H',  'R',  'D',  1,    0,    0,    0,
        2,    0,    0,    0,    1,    0,    0,    0, /* magic, version, bytes per token, mask */
        22,   0,    0,    0,    0,    0,    0,    0,
        5,    0,    0,    0,    0,    0,    0,    0, /* tokens, documents */
        0,    0x30, 0,    0,    0,    0,    0,    0,
        0,    0x10, 0,    0,    0,    0,    0,    0, /* offsets, tokens */
        0,    0x20, 0,    0,    0,    0,    0,    0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* mask, tokenizer */
        0xe8, 3,    0,    0,    0,    0,    0,    0,    /* vocabulary, zero */
        11,   0,    0,    0,    0,    0,    0,    0};   /* learned: the first token of a document is no target */
    static const unsigned char bits[3] = {0x86, 0x87, 0x3e};
    static const int64_t offsets[] = {0, 4, 11, 11, 20, 22};
    unsigned char *bytes;
    size_t n;

    (void)state;
    write_small("format.bin", true);
    bytes = read_bytes("format.bin", &n);
    assert_int_equal(n, 0x3000 + sizeof offsets);
    assert_memory_equal(bytes, header, sizeof header);
    for (int i = 0; i < TOKENS; i++)
        assert_int_equal(bytes[0x1000 + 2 * i] | bytes[0x1001 + 2 * i] << 8, ids[i]);
    assert_memory_equal(bytes + 0x2000, bits, sizeof bits);
    assert_memory_equal(bytes + 0x3000, offsets, sizeof offsets);
    for (size_t i = sizeof header; i < 0x1000; i++)
        assert_int_equal(bytes[i], 0);
    free(bytes);
}

/* Documents of 3, 6, 8 and 1 places: the longest alone, 6 with 1 (the 3 does not fit with it), 3. */
static void rows(void **state)
{
    static const int32_t tokens[3][T] = {
        {300, 301, 302, 303, 304, 305, 306, 307}, {400, 100, 101, 102, 103, 104, 105, 0}, {0, 1, 2, 0, 0, 0, 0, 0}};
    static const int32_t targets[3][T] = {{301, 302, 303, 304, 305, 306, 307, 308},
                                          {401, 101, 102, 103, 104, 105, 106, -1},
                                          {1, 2, 3, -1, -1, -1, -1, -1}};
    static const int32_t masked[3][T] = {
        {-1, -1, -1, 304, -1, 306, 307, 308}, {401, -1, -1, 103, 104, 105, 106, -1}, {1, 2, -1, -1, -1, -1, -1, -1}};
    static const int32_t docs[3][T] = {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 1, 1, 1, 1, 1, 7}, {0, 0, 0, 3, 4, 5, 6, 7}};
    int32_t a[3][T], b[3][T], c[3][T];
    int64_t counted, ahead;

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct sh_data_options opt = options("rows.bin");
        struct sh_data *d;
        write_small("rows.bin", m);
        assert_int_equal(sh_data_open(&opt, &d), SH_OK);
        assert_int_equal(sh_data_samples(d), 3);
        assert_true(sh_data_masked(d));
        for (int again = 0; again < 2; again++) {
            if (again)
                sh_data_prefetch(d, 0, 3, true, 3);
            assert_int_equal(sh_data_read(d, 0, 3, &a[0][0], &b[0][0], &c[0][0], &counted), SH_OK);
            assert_memory_equal(a, tokens, sizeof a);
            assert_memory_equal(b, m ? masked : targets, sizeof b);
            assert_memory_equal(c, docs, sizeof c);
            assert_int_equal(counted, m ? 11 : 18);
            assert_int_equal(sh_data_count(d, 0, 3, &ahead), SH_OK);
            assert_int_equal(ahead, counted);
        }
        assert_int_equal(sh_data_read(d, 0, 3, &a[0][0], &b[0][0], NULL, &counted), SH_E_USAGE);
        sh_data_close(d);
    }
}

/* The mask in the file may be ignored or required; with concat the file is a stream with a mask. */
static void other_ways(void **state)
{
    struct sh_data_options opt = options("ways.bin");
    int32_t a[2 * T], b[2 * T], c[2 * T];
    struct sh_data_rows rows;
    int64_t counted;
    struct sh_data *d;

    (void)state;
    write_small("ways.bin", true);
    opt.masks = SH_MASK_OFF;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_count(d, 0, 3, &counted), SH_OK);
    assert_int_equal(counted, 18);
    sh_data_close(d);
    opt.masks = SH_MASK_MUST;
    opt.packing = SH_PACKING_CONCAT;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 2);
    assert_int_equal(sh_data_read(d, 0, 2, a, b, NULL, &counted), SH_OK);
    for (int t = 0; t < 2 * T; t++) {
        assert_int_equal(a[t], ids[t]);
        assert_int_equal(b[t], mask[t + 1] ? (int32_t)ids[t + 1] : -1);
    }
    sh_data_close(d);
    opt.packing = SH_PACKING_NONE;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 4);
    assert_int_equal(sh_data_read(d, 1, 2, a, b, c, &counted), SH_OK);
    assert_int_equal(a[0], 100);
    assert_int_equal(a[T], 300);
    sh_data_close(d);
    opt.seq_len = 5;
    assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "2 of 5 documents have more than 6 tokens"));
    opt.excess = SH_EXCESS_DROP;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_true(sh_data_rows(d, &rows));
    assert_true(rows.rows == 2 && rows.documents == 5 && rows.left_out == 3 && rows.cut == 2 && rows.full == 0.4);
    sh_data_close(d);
    opt.excess = SH_EXCESS_SPLIT;
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 6);
    assert_int_equal(sh_data_read(d, 1, 1, a, b, c, &counted), SH_OK);
    assert_int_equal(a[4], 304);
    sh_data_close(d);
    write_small("ways.bin", false);
    assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "has no mask in it"));
}

/* Documents are numbered across files, and the order does not depend on the caller. */
static void several_files(void **state)
{
    struct sh_data_options opt = options("many-*.bin");
    int32_t tokens[T], targets[T], docs[T];
    int64_t counted, sum = 0;
    struct sh_data *d;

    (void)state;
    assert_int_equal(sh_document_write(in_folder("many-1.bin"), VOCAB, 0, NULL, NULL, NULL, 0), SH_OK);
    write_small("many-2.bin", false);
    write_small("many-3.bin", false);
    assert_int_equal(sh_data_packing_of(opt.path), SH_PACKING_BFD);
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(sh_data_read(d, i, 1, tokens, targets, docs, &counted), SH_OK);
        sum += counted;
    }
    assert_int_equal(sum, 36);
    sh_data_close(d);
    assert_int_equal(sh_bin_write(in_folder("many-4.bin"), VOCAB, ids, TOKENS), SH_OK);
    assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "many-4.bin has no documents to pack"));
    assert_int_equal(sh_data_packing_of(in_folder("many-4.bin")), SH_PACKING_CONCAT);
    assert_int_equal(sh_data_packing_of(in_folder("nothing.bin")), SH_PACKING_CONCAT);
}

/* Change one field of a good header, or a byte after it. */
static void wrong_headers(void **state)
{
    static const struct {
        size_t at;
        int bytes;
        int64_t value;
        const char *says;
    } rows[] = {
        {4, 4, 2, "version is 2"},
        {8, 4, 3, "bytes of a token is 3"},
        {12, 4, 16, "flags is 16"},
        {12, 4, 8, "flags (numbers without a mask) is 8"},
        {12, 4, 9, "its numbers are"},
        {12, 4, 3, "number of documents in pairs is 5"},
        {12, 4, 2, "flags (pairs without a mask) is 2"},
        {12, 4, 4, "flags (labels of pairs, or without a mask) is 4"},
        {12, 4, 0, "place of the mask is 8192"},
        {16, 8, -1, "number of tokens is -1"},
        {16, 8, INT64_MAX, "number of tokens is 9223372036854775807"},
        {16, 8, INT64_C(1) << 56, "its tokens are"},
        {16, 8, 2049, "its mask are"}, /* the tokens extend to the mask */
        {24, 8, -1, "number of documents is -1"},
        {24, 8, INT64_C(1) << 60, "number of documents"},
        {24, 8, 6, "its offsets are 56 bytes at byte 12288"},
        {24, 8, 4, "its header says 12328 bytes, and it has 12336"},
        {32, 8, 0, "its offsets are"},
        {32, 8, 12289, "its offsets are"},
        {32, 8, -4096, "its offsets are"},
        {32, 8, INT64_MAX - 4095, "its offsets are"},
        {40, 8, 0, "its tokens are"},
        {40, 8, 8192, "its "},
        {48, 8, 4096, "its "},
        {56, 8, 5, "was made with another tokenizer.json (hash 0000000000000005)"},
        {64, 4, 1001, "a tokenizer of 1001 words, but model.vocab_size is 1000"},
        {64, 4, 0, "vocabulary is 0"},
        {68, 4, 1, "field at byte 68 is 1"},
        {72, 8, -1, "number of learned tokens is -1"},
        {72, 8, 99999, "number of learned tokens is 99999"},
        {80, 1, 'A', "its chat template is not a name"},
        {82, 1, 'a', "its chat template is not a name"},
        {103, 1, 'a', "its chat template is not a name"},
        {104, 1, 1, "place of the numbers is 1"},
        {112, 8, 3, "count of a document's numbers is 3"}, /* without any */
        {112, 8, -1, "count of a document's numbers is -1"},
        {120, 1, 1, "byte 120 of its header is not 0"},
        {1023, 1, 1, "byte 1023 of its header is not 0"},
        {0x3000, 8, 1, "offset 0 is 1"},
        {0x3008, 8, 12, "offset 2 is 11"},
        {0x3008, 8, -1, "offset 1 is -1"},
        {0x3020, 8, 23, "offset 4 is 23"},
        {0x3028, 8, 21, "offset 5 is 21"},
    };
    struct sh_data_options opt = options("wrong.bin");
    struct sh_data *d;
    size_t n;

    (void)state;
    opt.tokenizer = 0x1122334455667788;
    write_small("right.bin", true);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char *bytes = read_bytes("right.bin", &n);
        memcpy(bytes + rows[i].at, &rows[i].value, (size_t)rows[i].bytes);
        write_bytes("wrong.bin", bytes, n);
        if (sh_data_open(&opt, &d) != SH_E_DATA || !strstr(sh_error_text(), rows[i].says))
            fail_msg("row %zu: %s", i, sh_error_text());
        free(bytes);
    }
    for (int cut = 0; cut < 2; cut++) {
        unsigned char *bytes = read_bytes("right.bin", &n);
        write_bytes("wrong.bin", bytes, cut ? n - 1 : n + 1);
        assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
        free(bytes);
    }
}

/* Ids outside the vocabulary, a mask without a target, a file that changes during the run. */
static void wrong_contents(void **state)
{
    static const unsigned char none[TOKENS] = {0};
    static const uint32_t shorter[DOCS] = {4, 6, 1, 9, 2}, longer[DOCS] = {4, 9, 0, 7, 2};
    struct sh_data_options opt = options("contents.bin");
    int32_t tokens[3 * T], targets[3 * T], docs[3 * T];
    unsigned char *bytes;
    int64_t counted;
    struct sh_data *d;
    size_t n;

    (void)state;
    assert_int_equal(sh_document_write(opt.path, VOCAB, 0, ids, none, lengths, DOCS), SH_OK);
    assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "no token counts as a target"));
    write_small("contents.bin", false);
    bytes = read_bytes("contents.bin", &n);
    bytes[4096 + 2 * 6 + 1] = 4; /* token 6: 102 + 1024 */
    write_bytes("contents.bin", bytes, n);
    assert_int_equal(sh_data_open(&opt, &d), SH_OK);
    assert_int_equal(sh_data_read(d, 0, 3, tokens, targets, docs, &counted), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "token 6 is 1126, but model.vocab_size is 1000"));
    assert_int_equal(sh_document_write(in_folder("other.bin"), VOCAB, 0, ids, NULL, shorter, DOCS), SH_OK);
    free(bytes);
    bytes = read_bytes("other.bin", &n);
    write_bytes("contents.bin", bytes, n); /* the same inode */
    assert_int_equal(sh_data_read(d, 1, 1, tokens, targets, docs, &counted), SH_OK);
    assert_int_equal(docs[6], 6); /* one place fewer */
    assert_int_equal(sh_document_write(in_folder("other.bin"), VOCAB, 0, ids, NULL, longer, DOCS), SH_OK);
    free(bytes);
    bytes = read_bytes("other.bin", &n);
    write_bytes("contents.bin", bytes, n);
    assert_int_equal(sh_data_read(d, 1, 1, tokens, targets, docs, &counted), SH_E_DATA); /* 1 place and 8 */
    assert_non_null(strstr(sh_error_text(), "document 1 has another length"));
    write_small("longer.bin", true);
    free(bytes);
    bytes = read_bytes("longer.bin", &n);
    write_bytes("contents.bin", bytes, 4096);
    assert_int_equal(sh_data_read(d, 1, 1, tokens, targets, docs, &counted), SH_E_DATA);
    sh_data_close(d);
    free(bytes);
}

/* 0.7, 0.2 and 0.1 of each block; the k-th sample of a set is sample k of that set alone, whatever else is in
 * the mix. */
static void mixes(void **state)
{
    static const char *const names[] = {"x.bin", "y.bin", "z.bin"};
    static const int shares[] = {2867, 819, 410};
    struct sh_data *d, *alone[3];
    int32_t a[2][T], b[2][T];
    int64_t counted, at[3] = {0}, in_block[3] = {0}, switches = 0;
    struct sh_data_options opt = options("");
    char mix[1024];
    int last = -1;

    (void)state;
    for (int i = 0; i < 3; i++) {
        uint32_t stream[40 * T + 1];
        for (int t = 0; t <= 40 * T; t++)
            stream[t] = (uint32_t)(i * 330 + t);
        assert_int_equal(sh_bin_write(in_folder(names[i]), VOCAB, stream, (size_t)(10 + 15 * i) * T + 1), SH_OK);
    }
    snprintf(mix, sizeof mix, "%s=7,%s=2,%s=1.0", in_folder("x.bin"), in_folder("y.bin"), in_folder("z.bin"));
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        opt.shuffle = shuffle;
        opt.path = "";
        opt.mix = mix;
        assert_int_equal(sh_data_open(&opt, &d), SH_OK);
        assert_int_equal(sh_data_samples(d), 75);
        opt.mix = NULL;
        for (int i = 0; i < 3; i++) {
            opt.path = in_folder(names[i]);
            assert_int_equal(sh_data_open(&opt, &alone[i]), SH_OK);
            at[i] = 0;
        }
        for (int64_t i = 0; i < 2 * SH_MIX_BLOCK; i++) {
            assert_int_equal(sh_data_read(d, i, 1, a[0], a[1], NULL, &counted), SH_OK);
            int set = a[0][0] / 330;
            assert_int_equal(sh_data_read(alone[set], at[set]++, 1, b[0], b[1], NULL, &counted), SH_OK);
            assert_memory_equal(a, b, sizeof a);
            switches += set != last;
            last = set;
            in_block[set]++;
            for (int k = 0; k < 3 && i % SH_MIX_BLOCK == SH_MIX_BLOCK - 1; k++) {
                assert_int_equal(in_block[k], shares[k]);
                in_block[k] = 0;
            }
        }
        /* Read across the border of two blocks in one call, as a resumed run does. */
        assert_int_equal(sh_data_read(d, SH_MIX_BLOCK - 1, 2, a[0], b[0], NULL, &counted), SH_OK);
        sh_data_close(d);
        for (int i = 0; i < 3; i++)
            sh_data_close(alone[i]);
    }
    assert_true(switches > SH_MIX_BLOCK); /* 0.46 of 4 blocks are expected: the sets are shuffled well */
}

/* Another program made these from doc/data.md: a later version must continue in the same order. */
static void mixes_are_those_of_the_format(void **state)
{
    static const char *const blocks[] = {"110000101001000011000110", "001100100001000001001001"};
    struct sh_mix_block *b = malloc(sizeof *b);
    struct sh_mix m;

    (void)state;
    assert_int_equal(sh_mix_parse("a.bin=3,b.bin=1", &m), SH_OK);
    assert_true(m.share[0] == 3072 && m.share[1] == 1024);
    b->number = -1;
    for (int i = 0; i < 2; i++) {
        int taken[2] = {0};
        sh_mix_order(&m, 5, i, b);
        for (int p = 0; p < 24; p++) {
            assert_int_equal(b->set[p], blocks[i][p] - '0');
            assert_int_equal(b->rank[p], taken[b->set[p]]++);
        }
    }
    sh_mix_free(&m);
    free(b);
}

static void wrong_mixes(void **state)
{
    static const struct {
        const char *mix, *says;
    } rows[] = {
        {"a.bin", "\"a.bin\" is not FILE=WEIGHT"},
        {"a.bin=", "is not FILE=WEIGHT"},
        {"=1", "is not FILE=WEIGHT"},
        {"a.bin=0", "weight above 0"},
        {"a.bin=-1", "weight above 0"},
        {"a.bin=nan", "weight above 0"},
        {"a.bin=inf", "weight above 0"},
        {"a.bin=1x", "weight above 0"},
        {"a.bin=1,,b.bin=1", "\"\" is not"},
        {"a.bin=1,a.bin=1", "a.bin appears twice"},
        {"a.bin=1,b.bin=1e-5", "b.bin has 9.9999e-06 of the weight"},
    };
    struct sh_mix m;
    struct sh_data *d;
    struct sh_data_options opt = options("");
    char mix[600];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(sh_mix_parse(rows[i].mix, &m), SH_E_USAGE);
        if (!strstr(sh_error_text(), rows[i].says))
            fail_msg("%s: %s", rows[i].mix, sh_error_text());
    }
    write_small("kind.bin", false);
    snprintf(mix, sizeof mix, "%s=1,%s=1", in_folder("kind.bin"), in_folder("x.bin"));
    opt.mix = mix;
    assert_int_equal(sh_data_open(&opt, &d), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "kind.bin has documents and"));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[300];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_the_format),
        cmocka_unit_test(rows),
        cmocka_unit_test(other_ways),
        cmocka_unit_test(several_files),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(wrong_contents),
        cmocka_unit_test(mixes),
        cmocka_unit_test(mixes_are_those_of_the_format),
        cmocka_unit_test(wrong_mixes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
