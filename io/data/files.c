/* A set of token files as one sequence of windows. A window is T + 1 tokens: T inputs and the target of the last one,
 * which is the first input of the next window. So a file of n tokens has (n - 1) / T windows, no window crosses a
 * border between files, and the rest at a file's end is not used. Window w is found by bisection over the files' first
 * windows. */
#include "io/data/files.h"

#include "io/data/documents.h"
#include "io/data/foreign.h"
#include "io/data/format.h"
#include "io/data/beside.h"
#include "io/file/file.h"
#include "io/file/sample.h"
#include "src/base/mem.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Kinds of files by their header. llm.c's other files have the same form of header and would pass as bare tokens. */
static const struct kind {
    int32_t magic, version;
    int token_bytes; /* 0: not tokens for training */
    const char *what;
} kinds[] = {
    {SH_TOKEN_MAGIC_U16, SH_TOKEN_VERSION_U16, 2, "llm.c tokens (uint16)"},
    {SH_TOKEN_MAGIC_U32, SH_TOKEN_VERSION_U32, 4, "llm.c tokens (uint32)"},
    {20240522, 0, 0, "an llm.c evaluation set"},
    {20240326, 0, 0, "an llm.c model"},
    {20240803, 0, 0, "an llm.c model"},
    {20240328, 0, 0, "an llm.c tokenizer"},
    {20240527, 0, 0, "an llm.c training state"},
    {SH_DOCUMENT_MAGIC, 0, 0, "a document file"},
};

/* Returns NULL if the header is not known: the file is then bare token ids or something foreign. */
static const struct kind *find_kind(int32_t magic)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].magic == magic)
            return &kinds[i];
    return NULL;
}

/* The size must match the header exactly: with a copy that was cut short, training would otherwise use fewer tokens
 * unnoticed. */
static sh_rc take_header(struct sh_data_file *f, const char *path, const struct kind *kind,
                         const struct sh_token_header *h, int64_t bytes)
{
    if (kind->token_bytes == 0)
        return sh_fail(SH_E_DATA, "%s is %s (magic %d), not tokens; give a .bin file of tokens", path, kind->what,
                       h->magic);
    if (h->version != kind->version)
        return sh_fail(SH_E_DATA, "%s: %s of version %d; only version %d is known", path, kind->what, h->version,
                       kind->version);
    int64_t expected = SH_TOKEN_HEADER_BYTES + (int64_t)h->tokens * kind->token_bytes;
    if (h->tokens < 0 || bytes != expected)
        return sh_fail(SH_E_DATA, "%s: its header says %d tokens, which is %lld bytes, but it has %lld; copy it again",
                       path, h->tokens, (long long)expected, (long long)bytes);
    f->token_bytes = kind->token_bytes;
    f->offset = SH_TOKEN_HEADER_BYTES;
    f->tokens = h->tokens;
    return SH_OK;
}

/* Without a header or a configured type the vocabulary decides: ids up to 65535 fit into two bytes. */
static int bare_token_bytes(const struct sh_data_options *opt)
{
    if (opt->type == SH_TOKEN_AUTO)
        return opt->vocab_size <= 65536 ? 2 : 4;
    return opt->type == SH_TOKEN_UINT16 ? 2 : 4;
}

/* If the configuration says that the files are ids, that is trusted; otherwise a file that looks like something else is
 * refused. */
static sh_rc refuse_foreign(const struct sh_data_files *set, const struct sh_data_file *f, const char *path)
{
    const struct sh_foreign *is;

    SH_TRY(sh_data_files_foreign(set, f, &is));
    if (!is)
        return SH_OK;
    return sh_fail(SH_E_DATA, "%s is %s, not token ids; %s (set data.token_type to read it as ids nevertheless)", path,
                   is->what, is->cure);
}

/* Take a file of bare ids. Only a file whose type was not configured is checked for being something else. */
static sh_rc take_bare(struct sh_data_files *set, struct sh_data_file *f, const char *path,
                       const struct sh_data_options *opt, int64_t bytes)
{
    f->token_bytes = bare_token_bytes(opt);
    f->offset = 0;
    f->tokens = bytes / f->token_bytes;
    if (opt->type == SH_TOKEN_AUTO)
        SH_TRY(refuse_foreign(set, f, path));
    if (bytes % f->token_bytes != 0)
        return sh_fail(SH_E_DATA,
                       "%s has no known header and its %lld bytes are not a multiple of %d, the size of a token; "
                       "set data.token_type or tokenize it again",
                       path, (long long)bytes, f->token_bytes);
    return SH_OK;
}

/* Bytes after the known fields must be zero: a later version can use them, and this version then refuses the file. */
static sh_rc take_documents(struct sh_data_files *set, struct sh_data_file *f, const char *path,
                            const struct sh_data_options *opt, int64_t bytes)
{
    union {
        struct sh_document_header header;
        unsigned char bytes[SH_TOKEN_HEADER_BYTES];
    } h;

    SH_TRY(sh_handles_read(set->handles, f->handle, h.bytes, sizeof h.bytes, 0));
    for (size_t i = sizeof h.header; i < sizeof h.bytes; i++)
        if (h.bytes[i])
            return sh_fail(SH_E_DATA, "%s: document file: byte %zu of its header is not 0; make it again", path, i);
    return sh_documents_take(f, path, &h.header, bytes, opt->vocab_size, opt->tokenizer);
}

/* Read the header, if any. A file shorter than a header cannot have one. */
static sh_rc read_layout(struct sh_data_files *set, struct sh_data_file *f, const char *path,
                         const struct sh_data_options *opt, int64_t bytes)
{
    struct sh_token_header h = {0};
    const struct kind *kind = NULL;
    if (bytes >= SH_TOKEN_HEADER_BYTES) {
        SH_TRY(sh_handles_read(set->handles, f->handle, &h, sizeof h, 0));
        kind = find_kind(h.magic);
    }
    if (kind && kind->magic == SH_DOCUMENT_MAGIC)
        return take_documents(set, f, path, opt, bytes);
    return kind ? take_header(f, path, kind, &h, bytes) : take_bare(set, f, path, opt, bytes);
}

/* Decide between rows of documents and windows of a stream: the first file decides if the configuration does not. Who
 * wants answers is told of them by sh_data_rows_check(). */
static sh_rc settle_packing(struct sh_data_files *set, const struct sh_data_options *opt, const struct sh_data_file *f,
                            const char *path)
{
    if (set->packing == SH_PACKING_AUTO)
        set->packing = f->has_documents ? SH_PACKING_BFD : SH_PACKING_CONCAT;
    if (set->packing != SH_PACKING_CONCAT && !f->has_documents && !opt->answers)
        return sh_fail(SH_E_DATA,
                       "%s has no documents to pack; make it with `sherd tokenize --documents`, or set "
                       "data.packing=concat",
                       path);
    return SH_OK;
}

/* Append a file to `set`, which has room for it. Windows are numbered in the order of the calls. */
static sh_rc open_one(struct sh_data_files *set, const struct sh_data_options *opt, const char *path)
{
    struct sh_data_file *f = &set->file[set->n];
    int64_t bytes;
    *f = (struct sh_data_file){.first_window = set->windows, .first_document = set->documents};
    SH_TRY(sh_handles_add(set->handles, path, &f->handle, &bytes));
    SH_TRY(read_layout(set, f, path, opt, bytes));
    SH_TRY(settle_packing(set, opt, f, path));
    if (set->packing == SH_PACKING_CONCAT && f->tokens <= opt->seq_len)
        return sh_fail(SH_E_DATA,
                       "%s has %lld tokens, but a sample needs %d (training.seq_len + 1); take it out or join it "
                       "to another file",
                       path, (long long)f->tokens, opt->seq_len + 1);
    SH_TRY(sh_data_beside_open(set, f, opt));
    set->n++;
    set->windows += f->tokens > 0 ? (f->tokens - 1) / opt->seq_len : 0;
    set->tokens += f->tokens;
    set->documents += f->documents;
    return SH_OK;
}

/* Whether a file is a document file, judging by its first bytes only. */
static bool have_documents(const char *path)
{
    int64_t bytes;
    int32_t magic = 0;
    int fd;
    sh_rc rc;

    if (sh_file_open(path, &fd, &bytes) != SH_OK) {
        sh_error_clear();
        return false;
    }
    rc = bytes >= SH_TOKEN_HEADER_BYTES ? sh_file_read(fd, path, &magic, sizeof magic, 0) : SH_OK;
    close(fd);
    if (rc != SH_OK)
        sh_error_clear();
    return magic == SH_DOCUMENT_MAGIC;
}

/* Compare by bytes, not in the locale's order. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Find the files that match the pattern, in the order of their names; freed with globfree(). glob's own order follows
 * the locale, but every rank must number the windows alike. */
static sh_rc find_matches(const char *path, glob_t *found)
{
    int status = glob(path, GLOB_NOSORT, NULL, found);

    if (status == GLOB_NOMATCH) /* or is it that a folder cannot be read? */
        status = glob(path, GLOB_NOSORT | GLOB_ERR, NULL, found);
    if (status != 0)
        return sh_fail(SH_E_DATA, "no file matches %s%s%s", path, status == GLOB_NOMATCH ? "" : ": ",
                       status == GLOB_NOMATCH ? "" : strerror(errno));
    qsort(found->gl_pathv, found->gl_pathc, sizeof *found->gl_pathv, by_name);
    return SH_OK;
}

/* If a file exists whose name contains a * or a bracket, the path is that file, not a pattern. */
static bool is_pattern(const char *path)
{
    return strpbrk(path, "*?[") && access(path, F_OK) != 0;
}

/* What lies beside token files matches a pattern such as *.bin* as well, and is skipped. */
static sh_rc open_matches(struct sh_data_files *set, const struct sh_data_options *opt)
{
    glob_t found;
    SH_TRY(find_matches(opt->path, &found));
    set->file = sh_calloc(found.gl_pathc, sizeof *set->file);
    sh_rc rc = SH_OK;
    for (size_t i = 0; i < found.gl_pathc && rc == SH_OK; i++)
        if (!sh_data_is_beside(found.gl_pathv[i]))
            rc = open_one(set, opt, found.gl_pathv[i]);
    globfree(&found);
    if (rc == SH_OK && set->n == 0)
        return sh_fail(SH_E_DATA, "%s matches masks or weights only; give the files of tokens that they belong to",
                       opt->path);
    return rc;
}

/* Find the first token file of a pattern; freed by the caller. NULL if nothing matches, which opening the set reports. */
static char *first_match(const char *path)
{
    char *first = NULL;
    glob_t found;
    size_t i = 0;

    if (!is_pattern(path))
        return sh_strdup(path);
    if (find_matches(path, &found) != SH_OK) {
        sh_error_clear();
        return NULL;
    }
    while (i + 1 < found.gl_pathc && sh_data_is_beside(found.gl_pathv[i]))
        i++;
    first = sh_strdup(found.gl_pathv[i]);
    globfree(&found);
    return first;
}

enum sh_cfg_packing sh_data_packing_of(const char *path)
{
    char *first = first_match(path);
    bool documents = first && have_documents(first);

    free(first);
    return documents ? SH_PACKING_BFD : SH_PACKING_CONCAT;
}

bool sh_data_has_weights(const char *path)
{
    char *first = first_match(path);
    bool has = first && sh_data_has_beside(first, SH_DATA_WEIGHT);

    free(first);
    return has;
}

/* Two answers share a row, and each may fill half of it; one alone may fill the row. */
static int64_t kept_of(const struct sh_data_options *opt)
{
    if (opt->answers == SH_DATA_NO_ANSWERS || opt->excess != SH_EXCESS_TRUNCATE)
        return 0;
    return (opt->answers == SH_DATA_LABELLED ? opt->seq_len : opt->seq_len / 2) + 1;
}

/* On failure the set is closed here, and *out is unchanged. */
sh_rc sh_data_files_open(const struct sh_data_options *opt, struct sh_data_files *out)
{
    struct sh_data_files set = {.seq_len = opt->seq_len,
                                .vocab_size = opt->vocab_size,
                                .packing = opt->packing,
                                .mismatched = opt->answers == SH_DATA_MISMATCHED,
                                .kept = kept_of(opt)};
    sh_rc rc;
    SH_REQUIRE(opt->seq_len > 0 && opt->vocab_size > 0);
    set.handles = sh_handles_create(opt->sets ? opt->sets : 1);
    if (is_pattern(opt->path)) {
        rc = open_matches(&set, opt);
    } else if (sh_data_is_beside(opt->path)) {
        rc = sh_fail(SH_E_DATA, "%s is the name of a mask or of weights; give the file of tokens that it belongs to",
                     opt->path);
    } else {
        set.file = sh_calloc(1, sizeof *set.file);
        rc = open_one(&set, opt, opt->path);
    }
    if (rc != SH_OK) {
        sh_data_files_close(&set);
        return rc;
    }
    *out = set;
    return SH_OK;
}

/* Also works for a set that was only partly opened. */
void sh_data_files_close(struct sh_data_files *set)
{
    sh_handles_destroy(set->handles);
    free(set->file);
    *set = (struct sh_data_files){0};
}

sh_rc sh_data_files_sample(const struct sh_data_files *set, uint64_t *hash)
{
    enum { BLOCKS = 1024, BLOCKS_OF_A_FILE = 64 };
    int blocks = set->n < BLOCKS ? BLOCKS / set->n : 1;

    blocks = blocks < BLOCKS_OF_A_FILE ? blocks : BLOCKS_OF_A_FILE;
    for (int i = 0; i < set->n; i++) {
        const struct sh_data_file *f = &set->file[i];

        SH_TRY(sh_file_sample_all(sh_handles_path(set->handles, f->handle), blocks, hash));
        for (int k = 0; k < SH_DATA_BESIDES; k++)
            if (set->has[k] && !(k == SH_DATA_MASK && f->has_documents))
                SH_TRY(sh_file_sample_all(sh_handles_path(set->handles, f->beside[k]), blocks, hash));
    }
    return SH_OK;
}

/* Find the last file whose first window is at or before w. */
static const struct sh_data_file *file_of_window(const struct sh_data_files *set, int64_t w)
{
    int low = 0, high = set->n;
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (set->file[mid].first_window <= w)
            low = mid;
        else
            high = mid;
    }
    return &set->file[low];
}

/* ids [T + 1]. */
sh_rc sh_data_files_window(const struct sh_data_files *set, int64_t w, int32_t *ids)
{
    const struct sh_data_file *f = file_of_window(set, w);

    return sh_data_files_ids(set, f, (w - f->first_window) * set->seq_len, set->seq_len + 1, ids);
}

/* What is about targets is read from the second token of the window on. */
static int64_t first_target(const struct sh_data_files *set, const struct sh_data_file *f, int64_t w)
{
    return (w - f->first_window) * set->seq_len + 1;
}

sh_rc sh_data_files_mask(const struct sh_data_files *set, int64_t w, unsigned char *mask)
{
    const struct sh_data_file *f = file_of_window(set, w);

    return (f->has_documents ? sh_documents_bits : sh_data_mask_read)(set, f, first_target(set, f, w), set->seq_len,
                                                                      mask);
}

sh_rc sh_data_files_weights(const struct sh_data_files *set, int64_t w, float *weight)
{
    const struct sh_data_file *f = file_of_window(set, w);

    return sh_data_weight_read(set, f, first_target(set, f, w), set->seq_len, weight);
}
