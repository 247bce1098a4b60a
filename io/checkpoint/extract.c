/* Writes one tensor of a checkpoint as a .npy file, for inspection with NumPy. Source of the format: numpy.lib.format,
 * version 1.0. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/index.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 192 }; /* of a .npy file: a multiple of 64, as numpy requires, with room for 4 dims of 19 digits */

/* A tensor on its way into a .npy file. */
struct extract {
    const char *path;
    struct sh_new_file out;
    struct sh_ckpt_index index;
    const struct sh_ckpt_entry *entry;
    int state, from;
};

/* The error lists the names that the file has, without their group, in the form that --state accepts. */
static sh_rc find_state(struct extract *x, const char *state)
{
    char all[SH_CKPT_STATES_TEXT];
    x->state = sh_ckpt_states_find(&x->index.states, state);
    if (x->state >= 0)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "sherd ckpt extract: --state %s is not one of %s", state,
                   sh_ckpt_states_text(&x->index.states, all));
}

/* Finds the tensor's entry; the error names the command that lists them. */
static sh_rc find_tensor(struct extract *x, const char *name)
{
    int64_t i = sh_ckpt_index_find(&x->index, name, 0);
    if (i < 0)
        return sh_fail(SH_E_DATA, "%s has no tensor %s; `sherd ckpt info --tensors %s` lists its tensors", x->path,
                       name, x->path);
    x->entry = &x->index.entry[i];
    if (!sh_ckpt_has(x->entry, x->state))
        return sh_fail(SH_E_DATA, "%s has no %s of %s", x->path, x->index.states.name[x->state], name);
    return SH_OK;
}

/* Magic, version 1.0, length of the rest, then a Python dictionary padded with blanks up to a line feed. */
static sh_rc write_head(const struct extract *x)
{
    const struct sh_ckpt_entry *e = x->entry;
    unsigned char head[HEAD_BYTES + 1] = "\x93NUMPY\x01";
    char *text = (char *)head + 10;
    int used = snprintf(text, HEAD_BYTES - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    /* Two bytes, little-endian; HEAD_BYTES is below 256, so the second is 0. */
    head[8] = (HEAD_BYTES - 10) % 256;
    for (int d = 0; d < e->ndim; d++)
        used += snprintf(text + used, (size_t)(HEAD_BYTES - 10 - used), "%lld, ", (long long)e->dim[d]);
    used += snprintf(text + used, (size_t)(HEAD_BYTES - 10 - used), "), }");
    memset(text + used, ' ', (size_t)(HEAD_BYTES - 11 - used));
    head[HEAD_BYTES - 1] = '\n';
    return sh_file_write(x->out.fd, x->out.temp, head, HEAD_BYTES, 0);
}

/* Each block is compared with its digest on the way, so an extracted array is known to be good. */
static sh_rc copy_blocks(const struct extract *x, float *buffer)
{
    const struct sh_ckpt_entry *e = x->entry;
    for (int64_t b = 0; b < sh_ckpt_blocks(e->elems); b++) {
        int64_t n = 0;
        SH_TRY(sh_ckpt_index_read_block(&x->index, x->from, x->path, x->state, e, b, buffer, &n));
        SH_TRY(sh_file_write(x->out.fd, x->out.temp, buffer, n * 4, HEAD_BYTES + b * SH_CKPT_BLOCK_ELEMS * 4));
    }
    return SH_OK;
}

/* Block by block through one buffer, so that any tensor fits. */
static sh_rc write_array(const struct extract *x)
{
    float *buffer = sh_calloc(SH_CKPT_BLOCK_ELEMS, sizeof *buffer);
    sh_rc rc = write_head(x);
    if (rc == SH_OK)
        rc = copy_blocks(x, buffer);
    free(buffer);
    return rc;
}

/* Written under a temporary name, so that an array under the final name is always complete. */
static sh_rc write_file(struct extract *x, const char *out_path)
{
    SH_TRY(sh_new_file_create(out_path, 0640, &x->out));
    sh_rc rc = write_array(x);
    if (rc == SH_OK)
        return sh_new_file_commit(&x->out);
    sh_new_file_abandon(&x->out);
    return rc;
}

/* Names are looked up before the output is created: a mistyped name leaves no file. */
sh_rc sh_ckpt_extract(const char *path, const char *name, const char *state, const char *out_path)
{
    struct extract x = {.path = path, .from = -1};
    sh_rc rc = sh_ckpt_index_read(path, &x.index);
    if (rc == SH_OK)
        rc = find_state(&x, state);
    if (rc == SH_OK)
        rc = find_tensor(&x, name);
    if (rc == SH_OK)
        rc = sh_ckpt_index_open_data(&x.index, path, &x.from);
    if (rc == SH_OK)
        rc = write_file(&x, out_path);
    if (x.from >= 0)
        close(x.from);
    sh_ckpt_index_free(&x.index);
    return rc;
}
