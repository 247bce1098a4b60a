/* Converts a folder of transformers into a checkpoint of Sherd: each tensor of the model is matched with an entry of
 * the folder, and its blocks are converted one by one. Memory is needed for only a few blocks, whatever the size of the
 * model. */
#include "io/foreign/hf/import.h"

#include "io/checkpoint/stream.h"
#include "io/file/file.h"
#include "io/foreign/hf/names.h"
#include "io/move/types.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The state of a conversion of a folder of weights into a checkpoint, block by block. */
struct import {
    const char *from;
    const struct sh_hf_import_options *options;
    struct sh_st_index index;
    struct sh_hf_match match;
    int *fd; /* [index.n_files] */
    char **path;
};

/* First mark all files as not open, so a failure closes only those that were opened. */
static sh_rc open_files(struct import *m)
{
    int64_t bytes;
    m->fd = sh_calloc((size_t)m->index.n_files + 1, sizeof *m->fd);
    m->path = sh_calloc((size_t)m->index.n_files + 1, sizeof *m->path);
    for (int64_t i = 0; i < m->index.n_files; i++) {
        m->fd[i] = -1;
        m->path[i] = sh_path_join(m->from, m->index.file[i].name);
    }
    for (int64_t i = 0; i < m->index.n_files; i++) {
        SH_TRY(sh_ckpt_trusted(m->path[i], m->options->trust));
        SH_TRY(sh_file_open(m->path[i], &m->fd[i], &bytes));
    }
    return SH_OK;
}

/* *bad: the index of the first number that is not finite, or n. */
static sh_rc read_floats(const struct import *m, const struct sh_st_entry *e, int64_t first, int64_t n, float *out,
                         void *spare, int64_t *bad)
{
    int size = sh_st_type_bytes(e->type);
    SH_TRY(sh_file_read(m->fd[e->file], m->path[e->file], spare, n * size, e->at + first * size));
    *bad = sh_move_widen(sh_hf_move_type(e), spare, n, (struct sh_floats){.whole = out});
    return SH_OK;
}

/* sh_ckpt_stream() calls this from several threads: it changes no shared data, and `spare` is the thread's own. */
static sh_rc read_block(void *arg, int tensor, int64_t first, int64_t n, float *out, void *spare)
{
    const struct import *m = arg;
    const struct sh_st_entry *e = m->match.entry[tensor];
    int64_t bad;
    SH_TRY(read_floats(m, e, first, n, out, spare, &bad));
    if (bad == n || m->options->allow_nan)
        return SH_OK;
    return sh_fail(SH_E_DATA, "%s: element %lld of %s is not a finite number; --allow-nan takes it as it is",
                   m->path[e->file], (long long)(first + bad), e->name);
}

/* In floats: one mebibyte at a time. */
enum { PIECE = 1 << 18 };

/* Bits are compared: a tied output matrix must be exactly the embedding, not nearly. */
static sh_rc compare_pieces(const struct import *m, float *a, float *b, void *spare)
{
    int64_t bad;
    for (int64_t at = 0, n; at < m->match.of->elems; at += n) {
        n = m->match.of->elems - at < PIECE ? m->match.of->elems - at : PIECE;
        SH_TRY(read_floats(m, m->match.of, at, n, a, spare, &bad));
        SH_TRY(read_floats(m, m->match.copy, at, n, b, spare, &bad));
        if (memcmp(a, b, (size_t)n * sizeof *a) != 0)
            return sh_hf_copy_differs(m->from, &m->match);
    }
    return SH_OK;
}

/* For a tied model whose folder has an output matrix, compare that with the embedding. */
static sh_rc compare_copy(const struct import *m)
{
    if (!m->match.copy)
        return SH_OK;
    /* Three pieces: both matrices as floats, and the bytes from the file. */
    float *memory = sh_calloc(3 * PIECE, sizeof *memory);
    sh_rc rc = compare_pieces(m, memory, memory + PIECE, memory + 2 * PIECE);
    free(memory);
    return rc;
}

/* Everything is matched before the first byte is written. */
static sh_rc import(struct import *m, const char *family, const struct sh_ckpt_set *set,
                    const struct sh_ckpt_meta *meta, const char *folder, char **path)
{
    SH_TRY(sh_st_index_read(m->from, &m->index));
    SH_TRY(sh_hf_match(m->from, &m->index, set, family, &m->match));
    SH_TRY(open_files(m));
    SH_TRY(compare_copy(m));
    return sh_ckpt_stream(folder, set, meta, read_block, m, path);
}

/* Everything is freed here, also after a failure. */
sh_rc sh_hf_import(const char *from, const char *family, const struct sh_hf_import_options *options,
                   const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, const char *folder, char **path)
{
    struct import m = {.from = from, .options = options};
    sh_rc rc = import(&m, family, set, meta, folder, path);
    for (int64_t i = 0; m.fd && i < m.index.n_files; i++) {
        if (m.fd[i] >= 0)
            close(m.fd[i]);
        free(m.path[i]);
    }
    free(m.fd);
    free(m.path);
    sh_hf_match_free(&m.match);
    sh_st_index_free(&m.index);
    return rc;
}
