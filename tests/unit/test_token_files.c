/* Documents to a token file: the same bytes for any number of threads and any pieces, all forms of text, and what
 * is refused. */
#include "io/data/format.h"
#include "sherd_config.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/text/corpus/files.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

static char folder[] = "/tmp/test_token_files.XXXXXX";
static char *in_path, *out_path, *model_path;

/* Words of one letter, no merges; <s> in front, and an end token that config.json names. */
static const char model[] = "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
                            "{\"id\":1,\"content\":\"</s>\",\"special\":true,\"normalized\":false}],"
                            "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                            "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                            "\"special_tokens\":{\"<s>\":{\"ids\":[0]}}},"
                            "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"<s>\":0,\"</"
                            "s>\":1,\"?\":2,\"a\":3,\"b\":4,\"c\":5,\"ab\":6},\"merges\":[\"a b\"]}}";

static char *path_of(const char *name)
{
    return sh_path_join(folder, name);
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    assert_int_equal(sh_write_file_atomic(path, data, bytes), SH_OK);
}

static void write_input(const char *name, const char *text, size_t bytes)
{
    free(in_path);
    in_path = path_of(name);
    write_file(in_path, text, bytes);
}

static int run_threads = 2;
static size_t run_piece;

static sh_rc run(struct sh_token_options more, struct sh_token_report *report)
{
    const char *inputs[] = {in_path};
    if (!more.inputs) {
        more.inputs = inputs;
        more.n_inputs = 1;
    }
    more.tokenizer = more.tokenizer ? more.tokenizer : model_path;
    more.output = out_path;
    more.threads = run_threads;
    more.piece_bytes = run_piece;
    return sh_corpus_tokenize(&more, report);
}

/* Return the ids of the written file as letters: ( ) for <s> and </s>, X for "ab". */
static char *written(void)
{
    char *data, *text;
    size_t bytes, n;
    assert_int_equal(sh_read_file(out_path, 1 << 26, &data, &bytes), SH_OK);
    n = (bytes - SH_TOKEN_HEADER_BYTES) / 2;
    text = sh_calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        text[i] = "()_abcX"[((uint16_t *)(void *)(data + SH_TOKEN_HEADER_BYTES))[i]];
    free(data);
    return text;
}

static void check_written(const char *expected)
{
    char *text = written();
    assert_string_equal(text, expected);
    free(text);
}

static void documents(void **state)
{
    static const struct {
        const char *name, *text;
        struct sh_token_options opt;
        const char *ids;
    } rows[] = {
        {"a.txt", "ab\nc", {0}, "(X_c)"},
        {"a.txt", "ab\nc", {.no_begin = true}, "X_c)"},
        {"a.txt", "ab\nc", {.no_end = true}, "(X_c"},
        {"a.txt", "ab</s>", {0}, "(X)"}, /* it already ends with the end token */
        {"a.txt", "ab", {.end = "c"}, "(Xc"},
        {"a.txt", "a\n--\nb\r\n--\r\n--\nc\n--", {.separator = "--"}, "(a_)(b__)(c_)"},
        {"a.jsonl",
         "{\"text\":\"ab\"}\n\n{\"id\":[1,{}],\"text\":\"\\u0061\\u0062c\"}\r\n{\"text\":\"\"}\n{\"text\":\"c\"}",
         {0},
         "(X)(Xc)(c)"},
        {"a.jsonl", "{\"body\":\"a\",\"text\":\"b\"}\n", {.field = "body"}, "(a)"},
        {"a.txt", "{\"text\":\"c\"}\n", {.format = SH_FORMAT_JSONL}, "(c)"},
        {"a.jsonl", "ab", {.format = SH_FORMAT_TEXT}, "(X)"},
        {"a.txt", "a\xff\xe2\x82z", {.replace_invalid = true}, "(a___)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (run_piece = 1; run_piece < 40; run_piece += 19) {
            struct sh_token_report report;
            write_input(rows[i].name, rows[i].text, strlen(rows[i].text));
            if (run(rows[i].opt, &report) != SH_OK)
                print_error("row %zu: %s\n", i, sh_error_text());
            assert_int_equal(run(rows[i].opt, &report), SH_OK);
            check_written(rows[i].ids);
            assert_int_equal(report.tokens, strlen(rows[i].ids));
            assert_int_equal(report.vocab_size, 7);
        }
    run_piece = 0;
}

/* A document file has the same ids, and where each document begins. */
static void document_files(void **state)
{
    static const int64_t offsets[] = {0, 3, 7, 10};
    struct sh_token_report report;
    struct sh_tokenizer *t;
    const struct sh_document_header *h;
    char *data;
    size_t bytes;

    (void)state;
    static const char text[] = "{\"text\":\"ab\"}\n{\"text\":\"abc\"}\n{\"text\":\"c\"}\n";
    write_input("a.jsonl", text, strlen(text));
    assert_int_equal(run((struct sh_token_options){.documents = true}, &report), SH_OK);
    assert_int_equal(report.documents, 3);
    assert_int_equal(sh_read_file(out_path, 1 << 20, &data, &bytes), SH_OK);
    h = (const void *)data;
    assert_int_equal(h->magic, SH_DOCUMENT_MAGIC);
    assert_int_equal(h->tokens, 10);
    assert_int_equal(h->documents, 3);
    assert_int_equal(h->vocab_size, 7);
    assert_int_equal(bytes, h->offsets_at + 32);
    assert_memory_equal(data + h->offsets_at, offsets, sizeof offsets);
    assert_int_equal(sh_tokenizer_open(model_path, &t), SH_OK);
    assert_true(t->hash != 0 && h->tokenizer == t->hash);
    sh_tokenizer_close(t);
    free(data);
    assert_int_equal(
        run((struct sh_token_options){.documents = true, .tokenizer = "byte", .format = SH_FORMAT_TEXT}, &report),
        SH_E_USAGE);
}

/* Make random documents, as jsonl and as text. */
static char *make_lines(int n, size_t *bytes)
{
    char *text = sh_calloc((size_t)n, 120), *at = text;
    unsigned random = 1;
    for (int i = 0; i < n; i++) {
        at += sprintf(at, "{\"id\":%d,\"text\":\"", i);
        for (unsigned k = random % 60 + 1; k > 0; k--) {
            random = random * 1664525 + 1013904223;
            *at++ = "abcab"[random >> 16 & 3];
        }
        at += sprintf(at, "\"}\n");
    }
    *bytes = (size_t)(at - text);
    return text;
}

static void same_bytes_for_any_threads_and_pieces(void **state)
{
    static const size_t pieces[] = {0, 1, 7, 1000, 4 << 20};
    (void)state;
    size_t bytes;
    char *text = make_lines(2000, &bytes), *first = NULL;
    struct sh_token_report report;
    for (int jsonl = 1; jsonl >= 0; jsonl--) {
        write_input(jsonl ? "a.jsonl" : "a.txt", text, bytes);
        for (int t = 1; t <= 8; t = t < 2 ? 2 : t + 6)
            for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
                run_threads = t;
                run_piece = pieces[p];
                assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
                assert_int_equal(report.documents, jsonl ? 2000 : 1);
                char *now = written();
                if (first)
                    assert_string_equal(now, first);
                free(first);
                first = now;
            }
        free(first);
        first = NULL;
    }
    run_threads = 2;
    run_piece = 0;
    free(text);
}

static void validation_is_cut_at_a_line(void **state)
{
    (void)state;
    char *val = path_of("val.bin");
    static const char text[] = "{\"text\":\"a\"}\n{\"text\":\"ab\"}\n{\"text\":\"c\"}\n";
    struct sh_token_report report;
    write_input("a.jsonl", text, strlen(text));
    for (run_piece = 1; run_piece < 20; run_piece += 6) {
        assert_int_equal(run((struct sh_token_options){.val_output = val, .val_fraction = 0.4}, &report), SH_OK);
        check_written("(a)(X)");
        assert_int_equal(report.val_tokens, 3);
    }
    run_piece = 0;
    free(val);
}

#ifdef HAVE_ZLIB

static void gz(const char *text, const char *how)
{
    free(in_path);
    in_path = path_of("a.jsonl.gz");
    gzFile f = gzopen(in_path, how);
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), (int)strlen(text));
    gzclose(f);
}

static void gzip_streams(void **state)
{
    (void)state;
    struct sh_token_report report;
    size_t bytes;
    char *data;
    gz("{\"text\":\"ab\"}\n", "wb");
    gz("{\"text\":\"c\"}\n", "ab"); /* a second stream in the same file */
    for (run_piece = 1; run_piece < 40; run_piece += 19) {
        assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
        check_written("(X)(c)");
    }
    run_piece = 0;
    assert_int_equal(sh_read_file(in_path, 1 << 20, &data, &bytes), SH_OK);
    char *padded = calloc(bytes + 512 * 1024, 1); /* more than is read at once */
    memcpy(padded, data, bytes);
    write_file(in_path, padded, bytes + 512 * 1024);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
    check_written("(X)(c)");
    padded[bytes + 5000] = 'x';
    write_file(in_path, padded, bytes + 512 * 1024);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
    free(padded);
    for (size_t n = bytes - 1; n > bytes - 12; n--) {
        write_file(in_path, data, n);
        assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), "a.jsonl.gz ends in the middle"));
    }
    data[14] ^= 0x55;
    write_file(in_path, data, bytes);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
    free(data);
}

#endif
#ifdef HAVE_ZSTD

static void zstd_frames(void **state)
{
    (void)state;
    static const char text[] = "{\"text\":\"ab\"}\n";
    struct sh_token_report report;
    char packed[400];
    size_t n = ZSTD_compress(packed, sizeof packed, text, strlen(text), 3);
    n += ZSTD_compress(packed + n, sizeof packed - n, text, strlen(text), 3);
    write_input("a.jsonl.zst", packed, n);
    for (run_piece = 1; run_piece < 40; run_piece += 19) {
        assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
        check_written("(X)(X)");
    }
    run_piece = 0;
    write_input("a.jsonl.zst", packed, n - 3);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "a.jsonl.zst ends in the middle"));
    write_input("a.jsonl.zst", text, strlen(text));
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "does not unpack"));
}

/* As `zstd --long=28` does it: the frame does not say how short it is. */
static void zstd_window(void **state)
{
    (void)state;
    static const char text[] = "{\"text\":\"ab\"}\n";
    struct sh_token_report report;
    char packed[400];
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_inBuffer in = {text, strlen(text), 0}, none = {text, 0, 0};
    ZSTD_outBuffer out = {packed, sizeof packed, 0};
    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 28)));
    assert_false(ZSTD_isError(ZSTD_compressStream2(c, &out, &in, ZSTD_e_flush)));
    assert_int_equal(ZSTD_compressStream2(c, &out, &none, ZSTD_e_end), 0);
    ZSTD_freeCCtx(c);
    write_input("a.jsonl.zst", packed, out.pos);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
    check_written("(X)");
}

#endif

/* A mark of UTF-8 at the start of jsonl is no part of the first line. */
static void mark_of_utf8(void **state)
{
    (void)state;
    struct sh_token_report report;
    write_input("a.jsonl", "\xef\xbb\xbf{\"text\":\"ab\"}\n{\"text\":\"c\"}\n", 30);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
    check_written("(X)(c)");
    write_input("a.jsonl", "{\"text\":\"ab\"}\n\xef\xbb\xbf{\"text\":\"c\"}\n", 30);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "a.jsonl: line 2: column 1"));
}

/* `text` through a pipe, as from another program. */
static sh_rc run_piped(const char *text, struct sh_token_options more, struct sh_token_report *report)
{
    static const char *const input[] = {"-"};
    int before = dup(STDIN_FILENO), ends[2];

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), (int)strlen(text));
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    if (!more.inputs) {
        more.inputs = input;
        more.n_inputs = 1;
    }
    sh_rc rc = run(more, report);
    dup2(before, STDIN_FILENO);
    close(before);
    return rc;
}

static void standard_input(void **state)
{
    static const char *const twice[] = {"-", "-"};
    static const struct {
        const char *text;
        struct sh_token_options opt;
        sh_rc rc;
        const char *says;
    } rows[] = {
        {"{\"text\":\"ab\"}\n{\"text\":\"c\"}", {.format = SH_FORMAT_JSONL}, SH_OK, "(X)(c)"},
        {"a\n--\nb", {.format = SH_FORMAT_TEXT, .separator = "--"}, SH_OK, "(a_)(b)"},
        {"{}", {.format = SH_FORMAT_JSONL}, SH_E_DATA, "standard input: line 1: the object has no \"text\""},
        {"", {.format = SH_FORMAT_TEXT}, SH_E_DATA, "standard input is empty"},
        {"", {.format = SH_FORMAT_TEXT, .tokenizer = "byte"}, SH_E_DATA, "standard input is empty"},
        {"a", {0}, SH_E_USAGE, "give --format text or jsonl"},
        {"a",
         {.format = SH_FORMAT_TEXT, .val_output = "val.bin", .val_fraction = 0.1},
         SH_E_USAGE,
         "standard input has no size"},
        {"a", {.format = SH_FORMAT_TEXT, .inputs = twice, .n_inputs = 2}, SH_E_USAGE, "- is given twice"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (run_piece = 0; run_piece < 4; run_piece += 3) {
            struct sh_token_report report;

            assert_int_equal(run_piped(rows[i].text, rows[i].opt, &report), rows[i].rc);
            if (rows[i].rc == SH_OK)
                check_written(rows[i].says);
            else
                assert_non_null(strstr(sh_error_text(), rows[i].says));
        }
    run_piece = 0;
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void bad_inputs(void **state)
{
    static const struct {
        const char *name, *text;
        struct sh_token_options opt;
        sh_rc rc;
        const char *says;
    } rows[] = {
        {"a.jsonl",
         "{\"text\":\"a\"}\n{\"text\":1}\n",
         {0},
         SH_E_DATA,
         "a.jsonl: line 2: column 9: \"text\" is not a string"},
        {"a.jsonl",
         "{\"text\":\"a\"}\n\n{\"body\":\"a\"}\n",
         {0},
         SH_E_DATA,
         "a.jsonl: line 3: the object has no \"text\""},
        {"a.jsonl",
         "{\"conversations\":[]}",
         {0},
         SH_E_DATA,
         "a.jsonl: line 1: the object has no \"text\"; give --format sharegpt"},
        {"a.jsonl", "{\"text\":\"a\",\"text\":\"a\"}", {0}, SH_E_DATA, "\"text\" appears twice"},
        {"a.jsonl", "{\"text\":\"a\"", {0}, SH_E_DATA, "line 1: column 12: the line ends within an object"},
        {"a.jsonl", "[1]\n", {0}, SH_E_DATA, "line 1: column 1: the line is not an object"},
        {"a.jsonl", "{\"text\":\"\\ud800\"}", {0}, SH_E_DATA, "surrogate pair"},
        {"a.jsonl",
         "{\"text\":\"a\"}\n{\"text\":\"\xff\"}\n",
         {0},
         SH_E_DATA,
         "a.jsonl: something in line 2 is not UTF-8 (0xff)"},
        {"a.txt",
         "abc\xff",
         {0},
         SH_E_DATA,
         "a.txt: byte 4 is not UTF-8 (0xff); convert the text, or give --invalid replace"},
        {"a.txt", "<s>a", {0}, SH_E_DATA, "begins with the token that the tokenizer puts in front"},
        {"a.txt", "", {0}, SH_E_DATA, "is empty"},
        {"a.jsonl", "{\"text\":\"\"}\n", {0}, SH_E_DATA, "no document in it has any text"},
        {"a.txt",
         "abcabcabc",
         {.document_bytes = 4, .piece_bytes = 1},
         SH_E_DATA,
         "the document at byte 1 has more than 4 bytes"},
        {"a.txt", "a", {.end = "nothing"}, SH_E_USAGE, "has no word \"nothing\""},
        {"a.txt", "a", {.end = "c", .no_end = true}, SH_E_USAGE, "--eos and --no-eos"},
        {"a.jsonl",
         "{}",
         {.tokenizer = "byte"},
         SH_E_USAGE,
         "a.jsonl is read as documents, and the tokenizer byte has no token that ends one"},
        {"a.txt", "a", {.tokenizer = "byte", .no_end = true}, SH_E_USAGE, "the tokenizer byte takes all bytes"},
        {"a.txt", "a", {.tokenizer = "hub/name"}, SH_E_USAGE, "no tokenizer is called \"hub/name\""},
        {"a.parquet", "a", {0}, SH_E_DATA, "a.parquet is a table; make jsonl of it"},
        {"a.txt.xz", "a", {0}, SH_E_DATA, "packed in a form that is not read"},
    };
    (void)state;
    unlink(out_path);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_token_report report;
        write_input(rows[i].name, rows[i].text, strlen(rows[i].text));
        int before = files_in_folder();
        run_piece = rows[i].opt.piece_bytes;
        sh_rc rc = run(rows[i].opt, &report);
        if (rc != rows[i].rc || !strstr(sh_error_text(), rows[i].says))
            print_error("row %zu: %s\n", i, sh_error_text());
        assert_int_equal(rc, rows[i].rc);
        assert_non_null(strstr(sh_error_text(), rows[i].says));
        assert_null(strchr(sh_error_text(), '\n'));
        assert_int_equal(files_in_folder(), before);
    }
    run_piece = 0;
}

static void the_end_is_that_of_the_folder(void **state)
{
    (void)state;
    char *config = path_of("config.json"), *generation = path_of("generation_config.json");
    struct sh_token_report report;
    write_input("a.txt", "a", 1);
    write_file(generation, "{\"eos_token_id\":[5,1]}", 22);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
    check_written("(ac");
    write_file(generation, "{}", 2);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_OK);
    check_written("(a)");
    write_file(config, "{\"eos_token_id\":99}", 19);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "eos_token_id in its folder is 99"));
    write_file(config, "{}", 2);
    assert_int_equal(run((struct sh_token_options){0}, &report), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "give --eos TOKEN"));
    write_file(config, "{\"eos_token_id\":1}", 18);
    unlink(generation);
    free(config);
    free(generation);
}

/* Each id of a list ends a generated text; the first one ends documents. */
static void any_of_a_list_ends_a_text(void **state)
{
    static const struct {
        const char *json;
        bool ends[4];
    } rows[] = {
        {"{\"eos_token_id\":[2,1]}", {false, true, true, false}},
        {"{\"eos_token_id\":3}", {false, false, false, true}},
        {"{\"eos_token_id\":null}", {false, true, false, false}}, /* as in config.json */
    };
    char *generation = path_of("generation_config.json");

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_tokenizer *t;

        write_file(generation, rows[i].json, strlen(rows[i].json));
        assert_int_equal(sh_tokenizer_open(folder, &t), SH_OK);
        for (uint32_t id = 0; id < 4; id++)
            assert_int_equal(sh_tokenizer_ends(t, id), rows[i].ends[id]);
        sh_tokenizer_close(t);
    }
    unlink(generation);
    free(generation);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    char *config = path_of("config.json");
    model_path = path_of("tokenizer.json");
    out_path = path_of("out.bin");
    write_file(model_path, model, strlen(model));
    write_file(config, "{\"eos_token_id\":1}", 18);
    free(config);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    free(model_path);
    free(out_path);
    free(in_path);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents),
        cmocka_unit_test(document_files),
        cmocka_unit_test(same_bytes_for_any_threads_and_pieces),
        cmocka_unit_test(validation_is_cut_at_a_line),
#ifdef HAVE_ZLIB
        cmocka_unit_test(gzip_streams),
        cmocka_unit_test(mark_of_utf8),
#endif
#ifdef HAVE_ZSTD
        cmocka_unit_test(zstd_window),
        cmocka_unit_test(zstd_frames),
#endif
        cmocka_unit_test(standard_input),
        cmocka_unit_test(bad_inputs),
        cmocka_unit_test(the_end_is_that_of_the_folder),
        cmocka_unit_test(any_of_a_list_ends_a_text),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
