#include "io/foreign/safetensors/layout.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 99999 };

/* Bytes of a tensor in a file, in its own type. */
static int64_t bytes_of(const struct sh_st_entry *e)
{
    return e->elems * sh_st_type_bytes(e->type);
}

/* Distribute the tensors over files in their order; a file is closed before it would exceed max_bytes. A tensor that is
 * larger than that gets its own file, and each stem begins a new one. Example: 3, 4 and 5 GB with at most 8 GB per file give files of 7 and 5 GB. */
static void share_out(struct sh_st_layout *l, int64_t max_bytes)
{
    int64_t used = 0, share = l->index.n / l->n_stems;
    struct sh_st_index *x = &l->index;
    x->n_files = 1;
    for (int64_t i = 0; i < x->n; i++) {
        struct sh_st_entry *e = &x->entry[i];
        if ((used > 0 && used + bytes_of(e) > max_bytes) || (i > 0 && i % share == 0)) {
            x->n_files++;
            used = 0;
        }
        e->file = (int32_t)x->n_files - 1;
        e->at = used; /* offset after the header */
        used += bytes_of(e);
    }
}

int sh_st_layout_files(const struct sh_st_layout *l, int stem, int *first)
{
    int64_t share = l->index.n / l->n_stems;
    *first = share ? l->index.entry[stem * share].file : 0;
    return share ? l->index.entry[(stem + 1) * share - 1].file - *first + 1 : 1;
}

/* Name the files like save_pretrained(); a single file has no number. */
static void name_files(struct sh_st_layout *l)
{
    l->index.file = sh_calloc((size_t)l->index.n_files, sizeof *l->index.file);
    for (int s = 0; s < l->n_stems; s++) {
        int first, n = sh_st_layout_files(l, s, &first);
        for (int i = 0; i < n; i++) {
            struct sh_st_file *f = &l->index.file[first + i];
            if (n == 1)
                snprintf(f->name, sizeof f->name, "%s.safetensors", l->stem[s]);
            else
                snprintf(f->name, sizeof f->name, "%s-%05d-of-%05d.safetensors", l->stem[s], i + 1, n);
        }
    }
}

/* Offsets here count from the end of the header: place() adds the header's length later. */
static void print_tensor(const struct sh_st_entry *e, FILE *f)
{
    char shape[100];
    fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%lld,%lld]}", e->name,
            sh_st_type_name(e->type), sh_str_shape(e->ndim, e->dim, shape), (long long)e->at,
            (long long)(e->at + bytes_of(e)));
}

/* Make a header: eight bytes of length, the JSON, and blanks up to a multiple of 8. */
static void make_header(struct sh_st_layout *l, int file)
{
    size_t bytes = 0;
    FILE *f = sh_memstream(&l->header[file], &bytes);
    fprintf(f, "12345678{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = 0; i < l->index.n; i++)
        if (l->index.entry[i].file == file)
            print_tensor(&l->index.entry[i], f);
    fputc('}', f);
    for (long at = ftell(f); at % 8 != 0; at++)
        fputc(' ', f);
    fclose(f);
    for (int i = 0; i < 8; i++)
        l->header[file][i] = (char)((bytes - 8) >> (8 * i) & 0xff);
    l->header_bytes[file] = (int64_t)bytes;
}

/* Names are printed into JSON without escapes, so a name that would need one is a bug. */
static sh_rc check_names(const struct sh_st_entry *tensor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        SH_REQUIRE(sh_st_name_plain(tensor[i].name) && !strpbrk(tensor[i].name, "\"\\"));
    return SH_OK;
}

/* The header's length depends on the digits of the offsets, and the places in the file depend on the header's length.
 * But offsets are relative to the end of the header, so one pass is enough. */
static sh_rc place(struct sh_st_layout *l)
{
    struct sh_st_index *x = &l->index;
    for (int i = 0; i < x->n_files; i++) {
        make_header(l, i);
        /* No reader takes more, the one here included. */
        if (l->header_bytes[i] - 8 > SH_ST_HEADER_MAX)
            return sh_fail(SH_E_USAGE,
                           "a header of %lld bytes, where at most %d are allowed: give a smaller "
                           "checkpoint.max_shard_size",
                           (long long)l->header_bytes[i], SH_ST_HEADER_MAX);
        x->file[i].bytes = l->header_bytes[i];
    }
    for (int64_t i = 0; i < x->n; i++) {
        x->entry[i].at += l->header_bytes[x->entry[i].file];
        x->file[x->entry[i].file].bytes += bytes_of(&x->entry[i]);
    }
    return SH_OK;
}

/* On success free *out with sh_st_layout_free(). */
sh_rc sh_st_layout_make(const struct sh_st_entry *tensor, int64_t n, const char *const *stem, int n_stems,
                        int64_t max_bytes, struct sh_st_layout *out)
{
    struct sh_st_layout l = {.index.n = n, .stem = stem, .n_stems = n_stems};
    SH_TRY(check_names(tensor, n));
    l.index.entry = sh_calloc((size_t)n + 1, sizeof *l.index.entry);
    /* Places are filled in by share_out() and place(). */
    memcpy(l.index.entry, tensor, (size_t)n * sizeof *tensor);
    share_out(&l, max_bytes);
    if (l.index.n_files > DIGITS_MAX) {
        free(l.index.entry);
        return sh_fail(SH_E_USAGE, "more than %d files: make them larger than %lld bytes", DIGITS_MAX,
                       (long long)max_bytes);
    }
    name_files(&l);
    l.header = sh_calloc((size_t)l.index.n_files, sizeof *l.header);
    l.header_bytes = sh_calloc((size_t)l.index.n_files, sizeof *l.header_bytes);
    sh_rc rc = place(&l);
    if (rc == SH_OK)
        *out = l;
    else
        sh_st_layout_free(&l);
    return rc;
}

/* Also works for a zeroed layout that was never made. */
void sh_st_layout_free(struct sh_st_layout *l)
{
    for (int64_t i = 0; l->header && i < l->index.n_files; i++)
        free(l->header[i]);
    free(l->header);
    free(l->header_bytes);
    sh_st_index_free(&l->index);
    *l = (struct sh_st_layout){0};
}

/* The caller frees it. */
char *sh_st_layout_index_text(const struct sh_st_layout *l, int stem)
{
    const struct sh_st_index *x = &l->index;
    int64_t share = x->n / l->n_stems, total_bytes = 0, total_elems = 0;
    const struct sh_st_entry *e = x->entry + stem * share;
    char *text = NULL;
    size_t bytes;
    FILE *f = sh_memstream(&text, &bytes);
    for (int64_t i = 0; i < share; i++) {
        total_bytes += bytes_of(&e[i]);
        total_elems += e[i].elems;
    }
    /* This is the form that save_pretrained() writes, so a diff of two exports shows only differences in weights. */
    fprintf(
        f, "{\n  \"metadata\": {\n    \"total_parameters\": %lld,\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
        (long long)total_elems, (long long)total_bytes);
    for (int64_t i = 0; i < share; i++)
        fprintf(f, "%s\n    \"%s\": \"%s\"", i ? "," : "", e[i].name, x->file[e[i].file].name);
    fprintf(f, "\n  }\n}\n");
    fclose(f);
    return text;
}
