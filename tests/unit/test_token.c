/* Text to token files: all bytes arrive in order, the validation part begins at the start of a line, nothing is left
 * after a failure. */
#include "io/data/data.h"
#include "io/data/format.h"
#include "src/text/corpus/files.h"

#include <dirent.h>
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

static char folder[] = "/tmp/test_token.XXXXXX";
static char a_txt[64], b_txt[64], out_bin[64], val_bin[64];

static void write_text(const char *path, const char *text, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

/* Read the ids of a uint16 file as a text; freed with free(). */
static char *read_bin(const char *path, size_t *n)
{
    struct sh_token_header h;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(&h, sizeof h, 1, f), 1);
    assert_int_equal(h.magic, SH_TOKEN_MAGIC_U16);
    assert_int_equal(h.version, SH_TOKEN_VERSION_U16);
    fseek(f, SH_TOKEN_HEADER_BYTES, SEEK_SET);
    char *text = calloc((size_t)h.tokens + 1, 1);
    for (int32_t i = 0; i < h.tokens; i++) {
        uint16_t id;
        assert_int_equal(fread(&id, sizeof id, 1, f), 1);
        text[i] = (char)id;
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    *n = (size_t)h.tokens;
    return text;
}

static void check_bin(const char *path, const char *expected, size_t bytes)
{
    size_t n;
    char *text = read_bin(path, &n);
    assert_int_equal(n, bytes);
    assert_memory_equal(text, expected, bytes);
    free(text);
}

static void bytes_there_and_back(void **state)
{
    (void)state;
    unsigned char all[256];
    static const uint32_t more[] = {'a', 256, 299, 'b'}; /* a model's words beyond the bytes have no text */
    struct sh_ids ids = {0};
    struct sh_tokenizer *t = NULL;
    char *text;
    size_t n;
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)i;
    assert_int_equal(sh_tokenizer_open("byte", &t), SH_OK);
    struct sh_encoder *e = sh_encoder_create(t);
    assert_int_equal(sh_encode(e, all, 256, SH_ENCODE_BEGIN | SH_ENCODE_END, &ids), SH_OK);
    assert_int_equal(ids.n, 256);
    assert_int_equal(sh_decode_ids(t, ids.id, ids.n, true, &text, &n), SH_OK);
    assert_int_equal(n, 256);
    assert_memory_equal(text, all, 256);
    free(text);
    free(ids.id);
    assert_int_equal(sh_decode_ids(t, more, 4, true, &text, &n), SH_OK);
    assert_int_equal(n, 2);
    assert_string_equal(text, "ab");
    free(text);
    sh_encoder_destroy(e);
    sh_tokenizer_close(t);
    assert_int_equal(sh_tokenizer_open("bpe9", &t), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "give byte, a folder that has tokenizer.json"));
}

static void split_at_lines(void **state)
{
    (void)state;
    static const char text[] = "one\ntwo\nthree\nfour\nfive\n"; /* 24 bytes; lines begin at 0 4 8 14 19 */
    static const struct {
        double fraction;
        size_t cut; /* 0: refused */
    } rows[] = {{0.5, 14}, {0.25, 19},   {0.2, 19},       {0.15, 0},     {0.0001, 0},
                {0.9, 4},  {0.99999, 4}, {10.0 / 24, 14}, {16.5 / 24, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *inputs[] = {a_txt, b_txt};
        struct sh_token_options opt = {.inputs = inputs,
                                       .n_inputs = 2,
                                       .output = out_bin,
                                       .val_output = val_bin,
                                       .val_fraction = rows[i].fraction};
        struct sh_token_report report;
        write_text(a_txt, text, 10);
        write_text(b_txt, text + 10, 14);
        if (rows[i].cut == 0) {
            assert_int_equal(sh_corpus_tokenize(&opt, &report), SH_E_DATA);
            assert_non_null(strstr(sh_error_text(), "leaves nothing"));
            continue;
        }
        assert_int_equal(sh_corpus_tokenize(&opt, &report), SH_OK);
        assert_int_equal(report.bytes, 24);
        assert_int_equal(report.tokens, rows[i].cut);
        assert_int_equal(report.val_tokens, 24 - rows[i].cut);
        check_bin(out_bin, text, rows[i].cut);
        check_bin(val_bin, text + rows[i].cut, 24 - rows[i].cut);
    }
}

/* Texts longer than a piece, with lines longer than a piece, and without any line end. */
static void long_texts(void **state)
{
    (void)state;
    size_t bytes = 11000001;
    char *text = malloc(bytes);
    for (int line = 0; line < 3; line++) {
        const char *inputs[] = {a_txt};
        struct sh_token_options opt = {
            .inputs = inputs, .n_inputs = 1, .output = out_bin, .val_output = val_bin, .val_fraction = 0.25};
        struct sh_token_report report;
        for (size_t i = 0; i < bytes; i++)
            text[i] = line < 2 && i % (line ? 5000011 : 71) == 17 ? '\n' : (char)('a' + i % 23);
        write_text(a_txt, text, bytes);
        assert_int_equal(sh_corpus_tokenize(&opt, &report), SH_OK);
        assert_int_equal(report.tokens + report.val_tokens, bytes);
        check_bin(out_bin, text, (size_t)report.tokens);
        check_bin(val_bin, text + report.tokens, (size_t)report.val_tokens);
        assert_true(line == 2 || text[report.tokens - 1] == '\n');
    }
    free(text);
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void refusals(void **state)
{
    (void)state;
    const char *inputs[] = {a_txt}, *missing[] = {a_txt, "/nowhere/x.txt"};
    const struct {
        struct sh_token_options opt;
        sh_rc rc;
    } rows[] = {
        {{.output = out_bin}, SH_E_USAGE},
        {{.inputs = inputs, .n_inputs = 1, .output = out_bin, .val_output = val_bin}, SH_E_USAGE},
        {{.inputs = inputs, .n_inputs = 1, .output = out_bin, .val_output = val_bin, .val_fraction = 1}, SH_E_USAGE},
        {{.inputs = inputs, .n_inputs = 1, .output = out_bin, .val_fraction = 0.5}, SH_E_USAGE},
        {{.inputs = inputs, .n_inputs = 1, .output = out_bin, .val_output = out_bin, .val_fraction = 0.5}, SH_E_USAGE},
        {{.inputs = inputs, .n_inputs = 1, .output = out_bin, .tokenizer = "x"}, SH_E_USAGE},
        {{.inputs = missing, .n_inputs = 2, .output = out_bin}, SH_E_DATA},
        {{.inputs = inputs, .n_inputs = 1, .output = "/nowhere/out.bin"}, SH_E_DATA},
        {{.inputs = inputs, .n_inputs = 1, .output = out_bin, .val_output = "/nowhere/v.bin", .val_fraction = 0.5},
         SH_E_DATA},
    };
    write_text(a_txt, "x\ny\n", 4);
    unlink(out_bin);
    unlink(val_bin);
    int before = files_in_folder();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_token_report report;
        assert_int_equal(sh_corpus_tokenize(&rows[i].opt, &report), rows[i].rc);
        assert_int_equal(files_in_folder(), before);
    }
    write_text(a_txt, "", 0);
    struct sh_token_report report;
    assert_int_equal(sh_corpus_tokenize(&rows[7].opt, &report), SH_E_DATA);
}

static void written_file_is_private_and_readable(void **state)
{
    (void)state;
    const char *inputs[] = {a_txt};
    struct sh_token_options opt = {.inputs = inputs, .n_inputs = 1, .output = out_bin};
    struct sh_data_options data = {.path = out_bin, .seq_len = 4, .vocab_size = 256, .document_separator = -1};
    struct sh_token_report report;
    struct sh_data *d;
    struct stat st;
    mode_t old = umask(0);
    write_text(a_txt, "abcdefgh\n", 9);
    assert_int_equal(sh_corpus_tokenize(&opt, &report), SH_OK);
    umask(old);
    assert_int_equal(stat(out_bin, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(sh_data_open(&data, &d), SH_OK);
    assert_int_equal(sh_data_samples(d), 2);
    sh_data_close(d);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(a_txt, sizeof a_txt, "%s/a.txt", folder);
    snprintf(b_txt, sizeof b_txt, "%s/b.txt", folder);
    snprintf(out_bin, sizeof out_bin, "%s/out.bin", folder);
    snprintf(val_bin, sizeof val_bin, "%s/val.bin", folder);
    return 0;
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
        cmocka_unit_test(bytes_there_and_back),
        cmocka_unit_test(split_at_lines),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(refusals),
        cmocka_unit_test(written_file_is_private_and_readable),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
