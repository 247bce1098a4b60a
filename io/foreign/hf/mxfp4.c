#include "io/foreign/hf/mxfp4.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, BYTES = BLOCK / 2 };

static const struct sh_st_entry *find(const struct sh_st_index *index, const char *name, const char *ending)
{
    char full[SH_ST_NAME_MAX + 1];
    int n = snprintf(full, sizeof full, "%s%s", name, ending);

    return n < (int)sizeof full ? sh_st_index_find(index, full) : NULL;
}

bool sh_hf_mxfp4_is(const struct sh_st_index *index, const char *name)
{
    return !find(index, name, "") && find(index, name, "_blocks");
}

/* One of the two: bytes of a shape. */
static sh_rc take(const char *folder, const struct sh_st_index *index, const char *name, const char *ending,
                  const struct sh_ckpt_tensor *want, bool *used, const struct sh_st_entry **out)
{
    const struct sh_st_entry *e = find(index, name, ending);
    char have[100], shape[100];

    if (!e)
        return sh_fail(SH_E_DATA, "%s: %s%s is missing, and the weight cannot be unpacked without it", folder, name,
                       ending);
    if (e->type != SH_ST_U8 || e->ndim != want->ndim ||
        memcmp(e->dim, want->dim, (size_t)e->ndim * sizeof *e->dim) != 0)
        return sh_fail(SH_E_DATA, "%s: %s is %s %s, but this model wants U8 %s", folder, e->name,
                       sh_st_type_name(e->type), sh_str_shape(e->ndim, e->dim, have),
                       sh_str_shape(want->ndim, want->dim, shape));
    used[e - index->entry] = true;
    *out = e;
    return SH_OK;
}

sh_rc sh_hf_mxfp4_match(const char *folder, const struct sh_st_index *index, const char *name,
                        const struct sh_ckpt_tensor *t, bool *used, struct sh_hf_mxfp4 *out)
{
    const struct sh_ckpt_tensor blocks = {.ndim = 4, .dim = {t->dim[0], t->dim[2], t->dim[1] / BLOCK, BYTES}},
                                scales = {.ndim = 3, .dim = {t->dim[0], t->dim[2], t->dim[1] / BLOCK}};

    if (t->ndim != 3 || t->dim[1] % BLOCK)
        return sh_fail(SH_E_DATA, "%s: %s_blocks: the weight has %lld inputs, which are no whole blocks of %d", folder,
                       name, (long long)t->dim[1], BLOCK);
    SH_TRY(take(folder, index, name, "_blocks", &blocks, used, &out->blocks));
    return take(folder, index, name, "_scales", &scales, used, &out->scales);
}

/* Elements [first, first + n) of an expert [I,O]. Powers of two are exact, so each product is. */
static void unpack(const unsigned char *codes, const unsigned char *scales, int64_t I, int64_t O, int64_t first,
                   int64_t n, float *out)
{
    static const float numbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    float power[256];

    for (int s = 0; s < 256; s++)
        power[s] = ldexpf(1, s - 127);
    for (int64_t at = first; at < first + n; at++) {
        int64_t i = at / O, from = at % O * I + i;
        unsigned byte = codes[from / 2];

        *out++ = numbers[i % 2 ? byte >> 4 : byte & 15] * power[scales[from / BLOCK]];
    }
}

sh_rc sh_hf_mxfp4_read(const struct sh_hf_mxfp4 *w, struct sh_hf_files *files, const struct sh_ckpt_tensor *t,
                       int64_t first, int64_t n, float *out)
{
    int64_t I = t->dim[1], O = t->dim[2], each = I * O;
    unsigned char *codes = sh_calloc((size_t)each / 2 + (size_t)each / BLOCK, 1), *scales = codes + each / 2;
    sh_rc rc = SH_OK;

    for (int64_t at = first, here; at < first + n && rc == SH_OK; at += here) {
        int64_t expert = at / each, rest = (expert + 1) * each - at;

        here = rest < first + n - at ? rest : first + n - at;
        rc = sh_hf_files_read(files, w->blocks, expert * (each / 2), each / 2, codes);
        if (rc == SH_OK)
            rc = sh_hf_files_read(files, w->scales, expert * (each / BLOCK), each / BLOCK, scales);
        if (rc == SH_OK)
            unpack(codes, scales, I, O, at % each, here, out + (at - first));
    }
    free(codes);
    return rc;
}
