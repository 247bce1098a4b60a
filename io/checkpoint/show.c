/* The output of `sherd ckpt info` and `verify`, and the check of one file on which other code builds. info reads only
 * the index, which is quick for any size of model; verify reads all data and compares the digests of all blocks. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/index.h"
#include "src/base/string/str.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The texts are moved out of the index, so that they are freed once. */
sh_rc sh_ckpt_read_meta(const char *path, struct sh_ckpt_meta *meta)
{
    struct sh_ckpt_index index;
    SH_TRY(sh_ckpt_index_read(path, &index));
    *meta = index.meta;
    index.meta = (struct sh_ckpt_meta){0};
    sh_ckpt_index_free(&index);
    return SH_OK;
}

/* Of everything but the notes; it is that of the index, which has the digests of all data. */
sh_rc sh_ckpt_digest(const char *path, uint64_t *digest)
{
    struct sh_ckpt_index index;
    SH_TRY(sh_ckpt_index_read(path, &index));
    *digest = sh_ckpt_index_digest(&index);
    sh_ckpt_index_free(&index);
    return SH_OK;
}

/* Elements of the model. */
static int64_t elements(const struct sh_ckpt_index *index)
{
    int64_t elems = 0;
    for (int64_t i = 0; i < sh_ckpt_index_models(index); i++)
        elems += index->entry[i].elems;
    return elems;
}

/* The file is independent of the mesh, so only tensors and version decide who can load it. */
static void print_loaders(const struct sh_ckpt_index *index, FILE *out)
{
    /* One rank, a node, eight nodes: three sizes show how the share of a rank falls. */
    static const int ranks[] = {1, 8, 64};
    double bytes = 0;
    for (int64_t i = 0; i < index->n; i++)
        bytes += (double)sh_ckpt_all_elems(&index->entry[i]) * 4;
    fprintf(out,
            "loads into: a model with exactly these tensors, on any mesh and strategy, in any compute type, by a Sherd "
            "that reads format %d\n",
            sh_ckpt_major(&index->states));
    fprintf(out, "a rank reads");
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        fprintf(out, "%s %.1f MB over %d shard%s", i ? "," : "", bytes / ranks[i] / 1e6, ranks[i],
                ranks[i] > 1 ? "s" : "");
    fputc('\n', out);
}

static void print_text(const char *title, const char *text, FILE *out)
{
    if (text[0])
        fprintf(out, "%s%s%s", title, text, text[strlen(text) - 1] == '\n' ? "" : "\n");
}

/* A load compares all data with the digests, whatever was read back when the file was made. */
static void print_verified(const struct sh_ckpt_meta *m, FILE *out)
{
    static const char *const words[] = {[SH_VERIFY_DISK] = "read back from the disk",
                                        [SH_VERIFY_CACHE] = "read back from the page cache",
                                        [SH_VERIFY_OFF] = "never read back"};
    const char *verified = sh_ckpt_verified(m);
    for (size_t i = 0; verified && i < sizeof words / sizeof *words; i++)
        if (verified == sh_ckpt_verify_name[i])
            fprintf(out, "saved with checkpoint.verify=%s: %s\n", verified, words[i]);
    if (!verified)
        fprintf(out, "saved by a version that did not note what was read back\n");
}

/* Always f32: a checkpoint keeps the master values, whatever a run computes in. */
static void print_tensors(const struct sh_ckpt_index *index, FILE *out)
{
    for (int64_t i = 0; i < index->n; i++) {
        const struct sh_ckpt_entry *e = &index->entry[i];
        char shape[100];
        fprintf(out, "  %s f32 %s\n", e->name, sh_str_shape(e->ndim, e->dim, shape));
    }
}

/* A state, and of how many tensors if it is not of all; but states of rows are tensors of their own. */
static void print_state(const struct sh_ckpt_index *index, int s, FILE *out)
{
    int64_t n = 0, models = sh_ckpt_index_models(index);
    for (int64_t i = 0; i < models; i++)
        n += sh_ckpt_has(&index->entry[i], s);
    fprintf(out, " %s", index->states.name[s]);
    if (n > 0 && n < models)
        fprintf(out, " (%lld of them)", (long long)n);
}

/* In order, from what everyone asks (step, size, who can load it) to what fills pages. */
static void print(const struct sh_ckpt_index *index, const char *path, unsigned what, FILE *out)
{
    const struct sh_ckpt_meta *m = &index->meta;
    fprintf(out, "%s: %s %d.%d, %lld bytes\n", path, SH_CKPT_FORMAT, sh_ckpt_major(&index->states), index->minor,
            (long long)index->file_bytes);
    fprintf(out, "step %lld, updates %lld, samples %lld, tokens %lld\n", (long long)m->step, (long long)m->updates,
            (long long)m->samples, (long long)m->tokens);
    fprintf(out, "%lld tensors, %lld elements; for each:", (long long)sh_ckpt_index_models(index),
            (long long)elements(index));
    for (int s = 0; s < index->states.n; s++)
        print_state(index, s, out);
    fputc('\n', out);
    print_loaders(index, out);
    print_verified(m, out);
    print_text("trained on the base:\n", m->base, out);
    if (what & SH_CKPT_INFO_TENSORS)
        print_tensors(index, out);
    if (!(what & SH_CKPT_INFO_CONFIG))
        return;
    print_text("notes:\n", m->notes, out);
    print_text("configuration:\n", m->config, out);
    print_text("guard:\n", m->guard, out);
}

sh_rc sh_ckpt_info(const char *path, unsigned what, FILE *out)
{
    struct sh_ckpt_index index;
    SH_TRY(sh_ckpt_index_read(path, &index));
    print(&index, path, what, out);
    sh_ckpt_index_free(&index);
    return SH_OK;
}

/* One rank reads everything: part 0 of 1. */
static sh_rc verify(const struct sh_ckpt_index *index, const char *path)
{
    int fd;
    SH_TRY(sh_ckpt_index_open_data(index, path, &fd));
    sh_rc rc = sh_ckpt_index_verify(index, fd, path, 0, 1, true);
    close(fd);
    return rc;
}

/* quick trusts the index, whose digest was compared when it was read; data may still be damaged. */
sh_rc sh_ckpt_check(const char *path, bool quick)
{
    struct sh_ckpt_index index;
    SH_TRY(sh_ckpt_index_read(path, &index));
    sh_rc rc = quick ? SH_OK : verify(&index, path);
    sh_ckpt_index_free(&index);
    return rc;
}

/* Those that the file has, of all states. */
static int64_t all_blocks(const struct sh_ckpt_index *index)
{
    int64_t n = 0;
    for (int64_t i = 0; i < index->n; i++)
        for (int s = 0; s < index->states.n; s++)
            n += sh_ckpt_has(&index->entry[i], s) ? sh_ckpt_blocks(index->entry[i].elems) : 0;
    return n;
}

/* Prints one line with the number of things compared: "all" of how many says more than "good". */
sh_rc sh_ckpt_verify(const char *path, FILE *out)
{
    struct sh_ckpt_index index;
    SH_TRY(sh_ckpt_index_read(path, &index));
    sh_rc rc = verify(&index, path);
    if (rc == SH_OK)
        fprintf(out, "%s: step %lld, %lld tensors, %lld blocks: all digests match\n", path, (long long)index.meta.step,
                (long long)index.n, (long long)all_blocks(&index));
    sh_ckpt_index_free(&index);
    return rc;
}
