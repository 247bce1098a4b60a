#include "io/foreign/hf/nf4.h"

#include "io/json/json.h"
#include "src/base/mem.h"
#include "src/base/number/nf4.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STATE ".quant_state.bitsandbytes__nf4"
enum { NESTED_BLOCK = SH_MOVE_NESTED_SCALES };

static const struct sh_st_entry *find(const struct sh_st_index *index, const char *name, const char *what)
{
    char full[SH_ST_NAME_MAX + 1];
    int n = snprintf(full, sizeof full, "%s%s", name, what);
    return n < (int)sizeof full ? sh_st_index_find(index, full) : NULL;
}

/* A packed weight comes with one of two states; fp4 is recognized as well, so it can be refused by name. */
bool sh_hf_nf4_is(const struct sh_st_index *index, const char *name)
{
    return find(index, name, STATE) || find(index, name, ".quant_state.bitsandbytes__fp4");
}

/* ---- what is there ---- */

/* The state of a search; `used` marks tensors that belong to a weight, because all others in the folder are refused. */
struct finder {
    const char *folder, *name;
    const struct sh_st_index *index;
    bool *used;
};

/* Take one of the tensors that belong to a weight; it must have `elems` elements of the type. */
static sh_rc take(const struct finder *f, const char *what, int type, int64_t elems, const struct sh_st_entry **out)
{
    const struct sh_st_entry *e = find(f->index, f->name, what);
    char shape[100];
    if (!e)
        return sh_fail(SH_E_DATA, "%s: %s%s is missing, and the weight cannot be unpacked without it", f->folder,
                       f->name, what);
    if (e->type != type || e->elems != elems)
        return sh_fail(SH_E_DATA, "%s: %s is %s %s, but must be %s with %lld elements", f->folder, e->name,
                       sh_st_type_name(e->type), sh_str_shape(e->ndim, e->dim, shape), sh_st_type_name(type),
                       (long long)elems);
    f->used[e - f->index->entry] = true;
    *out = e;
    return SH_OK;
}

/* Take the scales: plain ones, or ones that are themselves packed, in a second level of blocks. */
static sh_rc take_scales(const struct finder *f, int64_t blocks, struct sh_hf_nf4 *out)
{
    const struct sh_st_entry *e = find(f->index, f->name, ".absmax");
    if (!e || e->type != SH_ST_U8)
        return take(f, ".absmax", SH_ST_F32, blocks, &out->scales);
    SH_TRY(take(f, ".absmax", SH_ST_U8, blocks, &out->scales));
    SH_TRY(take(f, ".nested_absmax", SH_ST_F32, (blocks + NESTED_BLOCK - 1) / NESTED_BLOCK, &out->nested));
    return take(f, ".nested_quant_map", SH_ST_F32, 256, &out->nested_map);
}

/* Take the codes. Their type only says how they were stored; they may have any shape. */
static sh_rc take_codes(const struct finder *f, const struct sh_ckpt_tensor *t, struct sh_hf_nf4 *out)
{
    const struct sh_st_entry *e = find(f->index, f->name, "");
    if (!e)
        return sh_fail(SH_E_DATA, "%s: %s%s is there, but %s is not", f->folder, f->name, STATE, f->name);
    if (e->elems * sh_st_type_bytes(e->type) != t->elems / 2)
        return sh_fail(SH_E_DATA, "%s: %s has %lld bytes of codes, and the weight %lld elements, two a byte", f->folder,
                       f->name, (long long)(e->elems * sh_st_type_bytes(e->type)), (long long)t->elems);
    f->used[e - f->index->entry] = true;
    out->codes = e;
    return SH_OK;
}

/* Checks names and sizes without reading data: a folder that does not fit is refused before the first byte moves. */
sh_rc sh_hf_nf4_match(const char *folder, const struct sh_st_index *index, const char *name,
                      const struct sh_ckpt_tensor *t, bool packed, bool *used, struct sh_hf_nf4 *out)
{
    const struct finder f = {folder, name, index, used};
    if (!find(index, name, STATE))
        return sh_fail(SH_E_DATA, "%s: %s is in four bits of the type fp4; nf4 is read here", folder, name);
    if (!sh_param_info(t->role)->packs)
        return sh_fail(
            SH_E_DATA,
            "%s: %s is in four bits an element, and only linear products other than the router's are kept so "
            "here; save_pretrained() the model unpacked",
            folder, name);
    if (!packed)
        return sh_fail(SH_E_DATA,
                       "%s: %s is in four bits an element, and can only be a frozen weight here: say "
                       "lora.quantize_base=nf4, or save_pretrained() the model unpacked",
                       folder, name);
    if (t->elems % SH_NF4_ELEMS)
        return sh_fail(SH_E_DATA, "%s: %s has %lld elements, not a multiple of %d", folder, name, (long long)t->elems,
                       SH_NF4_ELEMS);
    SH_TRY(take_codes(&f, t, out));
    SH_TRY(take(&f, ".quant_map", SH_ST_F32, 16, &out->numbers));
    SH_TRY(take_scales(&f, t->elems / SH_NF4_ELEMS, out));
    out->state = find(index, name, STATE);
    if (out->state->type != SH_ST_U8 || out->state->elems > SH_HF_NF4_STATE_MAX)
        return sh_fail(SH_E_DATA, "%s: %s is not a text of at most %d bytes", folder, out->state->name,
                       SH_HF_NF4_STATE_MAX);
    used[out->state - index->entry] = true;
    return SH_OK;
}

/* ---- what it says ---- */

static sh_rc other(const char *place, const char *key, const char *want)
{
    return sh_fail(SH_E_DATA, "%s: %s is not %s", place, key, want);
}

static bool is_whole(const json_t *o, const char *key, json_int_t value)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) && json_integer_value(v) == value;
}

/* The shape that the weight had before it was packed. */
static bool is_shape(const json_t *list, const struct sh_ckpt_tensor *t)
{
    if (!json_is_array(list) || json_array_size(list) != (size_t)t->ndim)
        return false;
    for (int d = 0; d < t->ndim; d++) {
        const json_t *dim = json_array_get(list, (size_t)d);
        if (!json_is_integer(dim) || json_integer_value(dim) != t->dim[d])
            return false;
    }
    return true;
}

/* Check each value on which unpacking depends, and no others: newer versions may add keys. */
static sh_rc check_state(struct sh_hf_nf4 *w, const char *place, const struct sh_ckpt_tensor *t, const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "quant_type"));
    const json_t *offset = json_object_get(o, "nested_offset");
    if (!type || strcmp(type, "nf4") != 0)
        return other(place, "quant_type", "nf4");
    if (!is_whole(o, "blocksize", SH_NF4_ELEMS))
        return other(place, "blocksize", "64");
    if (!is_shape(json_object_get(o, "shape"), t))
        return other(place, "shape", "that of the model's weight");
    if (!w->nested)
        return SH_OK;
    if (!is_whole(o, "nested_blocksize", NESTED_BLOCK))
        return other(place, "nested_blocksize", "256");
    if (!json_is_number(offset) || !isfinite((float)json_number_value(offset)))
        return other(place, "nested_offset", "a finite number");
    w->table.offset = (float)json_number_value(offset);
    return SH_OK;
}

static sh_rc read_state(struct sh_hf_nf4 *w, const char *folder, const struct sh_ckpt_tensor *t,
                        struct sh_hf_files *files)
{
    char text[SH_HF_NF4_STATE_MAX], *place = sh_strfmt("%s: %s", folder, w->state->name);
    json_t *root;
    sh_rc rc;
    SH_TRY_OUT(sh_hf_files_read(files, w->state, 0, w->state->elems, text));
    SH_TRY_OUT(sh_json_parse(text, (size_t)w->state->elems, place, &root));
    rc = check_state(w, place, t, root);
    json_decref(root);
out:
    free(place);
    return rc;
}

/* A scale that is not finite would make 64 elements not finite, or 16,384 if it is a nested one. */
static sh_rc read_floats(const char *folder, const struct sh_st_entry *e, struct sh_hf_files *files, float *out)
{
    int64_t bad;
    SH_TRY(sh_hf_files_floats(files, e, 0, e->elems, out, &bad));
    if (bad < e->elems)
        return sh_fail(SH_E_DATA, "%s: element %lld of %s is not a finite number", folder, (long long)bad, e->name);
    return SH_OK;
}

/* The sixteen numbers are compared bit by bit: a table of another precision would unpack to another model. */
sh_rc sh_hf_nf4_read(struct sh_hf_nf4 *w, const char *folder, const struct sh_ckpt_tensor *t, struct sh_hf_files *files)
{
    static const float numbers[16] = SH_NF4_NUMBERS;
    float there[16];
    SH_TRY(read_state(w, folder, t, files));
    SH_TRY(read_floats(folder, w->numbers, files, there));
    if (memcmp(there, numbers, sizeof numbers) != 0)
        return sh_fail(SH_E_DATA, "%s: %s does not have the numbers of nf4", folder, w->numbers->name);
    if (!w->nested)
        return SH_OK;
    w->table.scale = sh_calloc((size_t)w->nested->elems + 1, sizeof *w->table.scale);
    SH_TRY(read_floats(folder, w->nested, files, w->table.scale));
    return read_floats(folder, w->nested_map, files, w->table.map);
}

void sh_hf_nf4_free(struct sh_hf_nf4 *w)
{
    free(w->table.scale);
    *w = (struct sh_hf_nf4){0};
}
