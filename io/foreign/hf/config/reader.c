/* Converts values of a config.json to text, in the form that our own configuration would have. They are checked where
 * that text is parsed, so this folder needs no second set of ranges: {"rope_theta": 1e4} becomes "10000", as if a user
 * had given it. */
#include "io/foreign/hf/config/reader.h"

#include "io/json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* transformers writes null for "not set", so null and a missing key mean the same. */
json_t *sh_hf_find(const json_t *object, const char *key)
{
    json_t *value = key ? json_object_get(object, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

sh_rc sh_hf_text_of(const struct sh_hf_reader *r, const char *key, const json_t *value, char out[64])
{
    if (json_is_integer(value))
        snprintf(out, 64, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        /* 17 digits reproduce any double exactly. An integer beyond 64 bits (io/json) is written as one, so that it is
         * too large, and not its first digit. */
        snprintf(out, 64,
                 fabs(json_real_value(value)) >= 0x1p63 && fabs(json_real_value(value)) < 1e40 ? "%.0f" : "%.17g",
                 json_real_value(value));
    else if (json_is_boolean(value))
        strcpy(out, json_is_true(value) ? "true" : "false");
    else
        return sh_fail(SH_E_USAGE, "%s: %s is %s, but must be a number", r->place, key, sh_json_is(value));
    return SH_OK;
}

/* The text was made by sh_hf_text_of() or is a default of the family's row, so it is a number. */
long long sh_hf_whole(const struct sh_hf_reader *r, enum sh_hf_value v)
{
    return strtoll(r->value[v], NULL, 10);
}
