/* Headers and indices of safetensors that are wrong in each way are refused with the reason, and what is laid out is
 * read back as it was meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/foreign/safetensors/index.h"
#include "io/foreign/safetensors/layout.h"
#include "io/foreign/safetensors/write.h"
#include "src/base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_60 "123456789012345678901234567890123456789012345678901234567890"
#define NAME_240 NAME_60 NAME_60 NAME_60 NAME_60
#define T(name, type, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

/* Text of a header before 64 bytes of data, and a part of the error message; NULL: fine. */
/* clang-format off */
static const struct {
    const char *text, *says;
} headers[] = {
    {"{" T("a", "F32", "[4,4]", "0", "64") "}", NULL},
    {"{" T("a", "F32", "[4,4]", "0", "64") "}     ", NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}," T("b", "BF16", "[16]", "32", "64") "," T("a", "F16", "[2,8]", "0", "32") "}", NULL},
    {"{" T("a", "F32", "[]", "0", "4") "," T("b", "U8", "[60]", "4", "64") "}", NULL},
    {"{" T("a", "F32", "[0,3]", "0", "0") "," T("b", "U8", "[64]", "0", "64") "}", NULL},
    {"{" T(NAME_240 "123456789012345", "U8", "[64]", "0", "64") "}", NULL},
    {"", "does not begin with {"},
    {" {" T("a", "F32", "[4,4]", "0", "64") "}", "does not begin with {"},
    {"[]", "does not begin with {"},
    {"{", "line 1"},
    {"{" T("a", "F32", "[4,4]", "0", "64") "}x", "line 1"},
    {"{" T("a", "F32", "[4,4]", "0", "64") "," T("a", "F32", "[4,4]", "0", "64") "}", "duplicate"},
    {"{\"a\":5}", "not exactly dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[16]}}", "not exactly"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64],\"x\":1}}", "not exactly"},
    {"{\"__metadata__\":{\"a\":1}," T("a", "F32", "[4,4]", "0", "64") "}", "not an object of strings"},
    {"{\"__metadata__\":[]," T("a", "F32", "[4,4]", "0", "64") "}", "not an object of strings"},
    {"{" T("", "F32", "[4,4]", "0", "64") "}", "name is empty"},
    {"{" T(NAME_240 "1234567890123456", "F32", "[4,4]", "0", "64") "}", "longer than 255"},
    {"{" T("a\\u001b[2J", "F32", "[4,4]", "0", "64") "}", "control characters"},
    {"{" T("a\\u0085", "F32", "[4,4]", "0", "64") "}", "control characters"},
    {"{" T("a\\u0000", "F32", "[4,4]", "0", "64") "}", "NUL"},
    {"{" T("a\xff", "F32", "[4,4]", "0", "64") "}", "line 1"},
    {"{" T("a", "F4", "[4,4]", "0", "64") "}", "dtype is not known"},
    {"{\"a\":{\"dtype\":7,\"shape\":[16],\"data_offsets\":[0,64]}}", "dtype is not known"},
    {"{" T("a", "F32", "16", "0", "64") "}", "not a list of at most 4 dims"},
    {"{" T("a", "F32", "[1,1,1,1,16]", "0", "64") "}", "not a list of at most 4 dims"},
    {"{" T("a", "F32", "[-4,-4]", "0", "64") "}", "not a whole number"},
    {"{" T("a", "F32", "[4.0,4]", "0", "64") "}", "not a whole number"},
    {"{" T("a", "F32", "[9223372036854775807,2]", "0", "64") "}", "not those of its shape"},
    {"{" T("a", "F32", "[4611686018427387904,4]", "0", "64") "}", "not those of its shape"},
    {"{" T("a", "F32", "[4,4]", "0", "60") "," T("b", "U8", "[4]", "60", "64") "}", "not those of its shape"},
    {"{" T("a", "F32", "[4,4]", "0", "65") "}", "outside the file"},
    {"{" T("a", "F32", "[4,4]", "64", "0") "}", "outside the file"},
    {"{" T("a", "F32", "[4,4]", "-64", "0") "}", "outside the file"},
    {"{" T("a", "F32", "[4,4]", "0", "9223372036854775807") "}", "outside the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64,0]}}", "not two whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0.0,64]}}", "not two whole numbers"},
    {"{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[56]", "8", "64") "}", "a hole before"},
    {"{" T("b", "U8", "[60]", "4", "64") "}", "a hole before"},
    {"{" T("a", "U8", "[8]", "0", "8") "," T("b", "U8", "[60]", "4", "64") "}", "overlaps"},
    {"{" T("a", "U8", "[64]", "0", "64") "," T("b", "U8", "[64]", "0", "64") "}", "overlaps"},
    {"{" T("a", "U8", "[60]", "0", "60") "}", "bytes after the last"},
    {"{}", "bytes after the last"},
};
/* clang-format on */

static void each_header_is_judged(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        int64_t n = (int64_t)strlen(headers[i].text);
        struct sh_st_header h = {0};
        sh_rc rc = sh_st_header_parse(headers[i].text, n, 8 + n, 8 + n + 64, "m", &h);

        if (rc != (headers[i].says ? SH_E_DATA : SH_OK) || (rc && !strstr(sh_error_text(), headers[i].says)))
            fail_msg("header %zu, %s: %s", i, headers[i].text, rc ? sh_error_text() : "accepted");
        free(h.entry);
    }
}

static void write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char *path = sh_path_join(folder, name);

    assert_int_equal(sh_write_file_atomic(path, data, bytes), SH_OK);
    free(path);
}

/* Write a file with this header and `data` bytes of data. */
static void write_tensors(const char *folder, const char *name, const char *text, uint64_t length, size_t data)
{
    char bytes[4096] = {0};

    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> (8 * i));
    memcpy(bytes + 8, text, strlen(text));
    write_file(folder, name, bytes, 8 + strlen(text) + data);
}

static void expect(const char *folder, const char *says)
{
    struct sh_st_index x = {0};
    sh_rc rc = sh_st_index_read(folder, &x);

    if (rc != (says ? SH_E_DATA : SH_OK) || (rc && !strstr(sh_error_text(), says)))
        fail_msg("%s wanted: %s", says ? says : "success", rc ? sh_error_text() : "accepted");
    sh_st_index_free(&x);
}

static void delete_all(const char *folder)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "a.safetensors",     "b.safetensors",
                                        "pytorch_model.bin", "fifo"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = sh_path_join(folder, names[i]);

        (void)unlink(path);
        free(path);
    }
}

static void wrong_files_are_refused(void **state)
{
    static const char head[] = "{" T("a", "F32", "[4,4]", "0", "64") "}";
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
    char folder[] = "test_st.XXXXXX", fifo[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    expect(folder, "has neither model.safetensors nor");
    write_file(folder, "pytorch_model.bin", "x", 1);
    expect(folder, "pickle is code");
    write_tensors(folder, "model.safetensors", head, strlen(head), 64);
    expect(folder, NULL);
    write_tensors(folder, "model.safetensors", head, strlen(head), 63);
    expect(folder, "outside the file");
    write_tensors(folder, "model.safetensors", head, strlen(head), 65);
    expect(folder, "bytes after the last");
    write_tensors(folder, "model.safetensors", head, 1ull << 63, 64);
    expect(folder, "a header of 9223372036854775808 bytes");
    write_tensors(folder, "model.safetensors", head, 100000001, 64);
    expect(folder, "a header of 100000001 bytes");
    write_tensors(folder, "model.safetensors", head, strlen(head) + 65, 64);
    expect(folder, "a header of");
    write_file(folder, "model.safetensors", "1234567", 7);
    expect(folder, "a file of 7 bytes cannot be a safetensors file");
    write_file(folder, "model.safetensors", "", 0);
    expect(folder, "a file of 0 bytes cannot be a safetensors file");
    write_file(folder, "model.safetensors", pointer, strlen(pointer));
    expect(folder, "the file was not fetched");
    delete_all(folder);
    snprintf(fifo, sizeof fifo, "%s/model.safetensors", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect(folder, "model.safetensors");
    delete_all(folder);
    rmdir(folder);
}

#define MAP(rows) "{\"metadata\":{\"total_size\":128},\"weight_map\":{" rows "}}"
static const struct {
    const char *text, *says;
} maps[] = {
    {MAP("\"a\":\"a.safetensors\",\"b\":\"b.safetensors\""), NULL},
    {MAP("\"a\":\"a.safetensors\""), NULL}, /* the map has all tensors of the file that it names */
    {MAP("\"a\":\"a.safetensors\",\"b\":\"a.safetensors\""), "b is not in a.safetensors"},
    {MAP("\"a\":\"b.safetensors\",\"b\":\"b.safetensors\""), "a is not in b.safetensors"},
    {MAP("\"a\":\"a.safetensors\",\"b\":\"c.safetensors\""), "c.safetensors"},
    {MAP("\"x\":\"a.safetensors\""), "x is not in a.safetensors"},
    {MAP("\"a\":\"../a.safetensors\""), "not a plain file name"},
    {MAP("\"a\":\"/etc/passwd\""), "not a plain file name"},
    {MAP("\"a\":\"..\""), "not a plain file name"},
    {MAP("\"a\":\"\""), "not a plain file name"},
    {MAP("\"a\":\"a.safetensors\\u0000\""), "not a plain file name"},
    {MAP("\"a\":7"), "not a plain file name"},
    {MAP("\"a\\u001b\":\"a.safetensors\""), "control characters"},
    {MAP(""), "no weight_map"},
    {"[]", "no weight_map"},
    {"{\"weight_map\":[]}", "no weight_map"},
    {"{", "line 1"},
};

static void each_index_is_judged(void **state)
{
    static const char a[] = "{" T("a", "F32", "[4,4]", "0", "64") "}", b[] = "{" T("b", "F32", "[4,4]", "0", "64") "}";
    char folder[] = "test_st.XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(folder));
    write_tensors(folder, "a.safetensors", a, strlen(a), 64);
    write_tensors(folder, "b.safetensors", b, strlen(b), 64);
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        write_file(folder, "model.safetensors.index.json", maps[i].text, strlen(maps[i].text));
        expect(folder, maps[i].says);
    }
    write_tensors(folder, "b.safetensors", a, strlen(a), 64); /* a tensor in two files */
    write_file(folder, "model.safetensors.index.json", maps[0].text, strlen(maps[0].text));
    expect(folder, "both have a");
    delete_all(folder);
    rmdir(folder);
}

static struct sh_st_entry tensor(const char *name, int type, int64_t rows, int64_t columns)
{
    struct sh_st_entry e = {.type = type, .ndim = 2, .dim = {rows, columns}, .elems = rows * columns};

    snprintf(e.name, sizeof e.name, "%s", name);
    return e;
}

/* A file is closed before a tensor that would exceed its limit; a tensor larger than the limit gets its own file. */
static void files_are_cut_where_they_are_full(void **state)
{
    const struct sh_st_entry t[] = {tensor("a", SH_ST_BF16, 2, 5), tensor("b", SH_ST_BF16, 2, 5),
                                    tensor("c", SH_ST_BF16, 1, 1), tensor("d", SH_ST_BF16, 100, 1),
                                    tensor("e", SH_ST_BF16, 1, 1)};
    const int file[] = {0, 0, 1, 2, 3};
    struct sh_st_layout l;
    char *text;

    (void)state;
    assert_int_equal(sh_st_layout_make(t, 5, sh_st_stem_model, 1, 40, &l), SH_OK);
    assert_int_equal(l.index.n_files, 4);
    assert_string_equal(l.index.file[3].name, "model-00004-of-00004.safetensors");
    for (int i = 0; i < 5; i++)
        assert_int_equal(l.index.entry[i].file, file[i]);
    for (int i = 0; i < 4; i++) { /* each header is read back */
        struct sh_st_header h;

        assert_int_equal(l.header_bytes[i] % 8, 0);
        assert_int_equal(sh_st_header_parse(l.header[i] + 8, l.header_bytes[i] - 8, l.header_bytes[i],
                                            l.index.file[i].bytes, "m", &h),
                         SH_OK);
        assert_int_equal(h.n, i == 0 ? 2 : 1);
        for (int64_t k = 0; k < h.n; k++) /* tensors of two files do not mix: a and b, then one each */
            assert_int_equal(h.entry[k].at, l.index.entry[i + (i > 0) + k].at);
        free(h.entry);
    }
    text = sh_st_layout_index_text(&l, 0);
    assert_non_null(strstr(text, "\"total_size\": 244"));
    assert_non_null(strstr(text, "\"d\": \"model-00003-of-00004.safetensors\""));
    free(text);
    sh_st_layout_free(&l);
    assert_int_equal(sh_st_layout_make(t, 5, sh_st_stem_model, 1, 1000, &l), SH_OK);
    assert_int_equal(l.index.n_files, 1);
    assert_string_equal(l.index.file[0].name, "model.safetensors");
    sh_st_layout_free(&l);
}

/* Names of 255 bytes, so that a file of one byte each has a header that no reader takes. */
static void a_header_is_not_longer_than_is_read(void **state)
{
    enum { N = 330000 };
    struct sh_st_entry *t = calloc(N, sizeof *t);
    struct sh_st_layout l;

    (void)state;
    for (int i = 0; i < N; i++) {
        t[i] = tensor("", SH_ST_U8, 1, 1);
        snprintf(t[i].name, sizeof t[i].name, "%0255d", i);
    }
    assert_int_equal(sh_st_layout_make(t, N, sh_st_stem_model, 1, N, &l), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "at most 100000000 are allowed: give a smaller checkpoint.max_shard_size"));
    assert_int_equal(sh_st_layout_make(t, N, sh_st_stem_model, 1, N / 2, &l), SH_OK);
    assert_int_equal(l.index.n_files, 2);
    sh_st_layout_free(&l);
    free(t);
}

static int entries_of(const char *folder)
{
    char command[256];
    FILE *f;
    int n = -1;

    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

/* An uncommitted write leaves nothing behind; a folder that exists, or appears meanwhile, is refused. */
static void a_folder_appears_whole_or_not_at_all(void **state)
{
    const struct sh_st_entry t = tensor("a", SH_ST_F32, 4, 4);
    float data[16] = {1, 2, 3};
    char top[] = "test_st.XXXXXX", folder[64];
    struct sh_st_writing w;
    struct sh_st_index x;

    (void)state;
    assert_non_null(mkdtemp(top));
    snprintf(folder, sizeof folder, "%s/deep/out/", top);
    for (int commit = 0; commit < 3; commit++) {
        assert_int_equal(sh_st_writing_begin(&w, folder, &t, 1, sh_st_stem_model, 1, 1000, SH_ST_FROM_DISK), SH_OK);
        assert_int_equal(sh_st_writing_create(&w), SH_OK);
        struct sh_move_part part = {
            .name = "a", .at = w.layout.index.entry[0].at, .elems = 16, .data = {.whole = data}};
        assert_int_equal(sh_st_writing_put(&w, &part, 1), SH_OK);
        assert_int_equal(sh_st_writing_sync(&w), SH_OK);
        assert_int_equal(sh_st_writing_compare(&w), SH_OK);
        assert_int_equal(sh_st_writing_note(&w, "config.json", "{}"), SH_OK);
        if (commit == 1)
            assert_int_equal(mkdir(folder, 0700), 0);
        if (commit > 0)
            assert_int_equal(sh_st_writing_commit(&w), commit == 1 ? SH_E_USAGE : SH_OK);
        sh_st_writing_end(&w);
        snprintf(folder, sizeof folder, "%s/deep", top);
        assert_int_equal(entries_of(folder), commit == 0 ? 0 : 1);
        snprintf(folder, sizeof folder, "%s/deep/out/", top);
        if (commit == 1)
            assert_int_equal(rmdir(folder), 0);
    }
    assert_int_equal(sh_st_writing_begin(&w, folder, &t, 1, sh_st_stem_model, 1, 1000, SH_ST_FROM_DISK), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "exists already"));
    sh_st_writing_end(&w);
    assert_int_equal(sh_st_index_read(folder, &x), SH_OK);
    assert_int_equal(x.n, 1);
    sh_st_index_free(&x);
    snprintf(folder, sizeof folder, "rm -r %s", top);
    assert_int_equal(system(folder), 0);
}

/* Only the folders that a killed job has left are deleted. */
static void unfinished_folders_are_swept(void **state)
{
    static const char *const names[] = {".hf-00000004.0123456789abcdef.tmp", ".hf-00000004.0123456789abcdeg.tmp",
                                        "hf-00000004", ".other.0123456789abcdef.tmp", ".hf-.tmp"};
    char top[] = "test_st.XXXXXX", path[128];
    struct stat st;
    int n = 0;

    (void)state;
    assert_non_null(mkdtemp(top));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", top, names[i]);
        assert_int_equal(mkdir(path, 0700), 0);
        write_file(path, "model.safetensors", "x", 1);
    }
    snprintf(path, sizeof path, "%s/.hf-1.0123456789abcdef.tmp", top);
    assert_int_equal(symlink(names[2], path), 0);
    sh_st_writing_sweep(top, "hf-", &n);
    assert_int_equal(n, 1);
    assert_int_equal(lstat(path, &st), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", top, names[i]);
        assert_int_equal(lstat(path, &st), i == 0 ? -1 : 0);
    }
    snprintf(path, sizeof path, "rm -r %s", top);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_header_is_judged),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(each_index_is_judged),
        cmocka_unit_test(files_are_cut_where_they_are_full),
        cmocka_unit_test(a_header_is_not_longer_than_is_read),
        cmocka_unit_test(a_folder_appears_whole_or_not_at_all),
        cmocka_unit_test(unfinished_folders_are_swept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
