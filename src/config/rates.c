#include "src/config/rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Slower than a tape or faster than any memory: a slip of the pen. */
static const double least = 1, most = 1e15;

static bool read_rate(const char **at, double *rate)
{
    char *end;

    *rate = strtod(*at, &end);
    if (end == *at || !isfinite(*rate) || *rate < least || *rate > most)
        return false;
    *at = end;
    return true;
}

/* READ/WRITE. */
static bool read_both(const char **at, double *in, double *out)
{
    return read_rate(at, in) && *(*at)++ == '/' && read_rate(at, out);
}

/* Read one part and move *at past it. Each part may occur once. */
static bool read_part(const char **at, struct sh_config_rates *out)
{
    if (!strncmp(*at, "mixed=", 6) && !out->mixed) {
        *at += 6;
        return read_rate(at, &out->mixed);
    }
    if (!strncmp(*at, "file=", 5) && !out->file_read) {
        *at += 5;
        return read_both(at, &out->file_read, &out->file_write);
    }
    if (strncmp(*at, "host=", 5) != 0 || out->host_read)
        return false;
    *at += 5;
    return read_both(at, &out->host_read, &out->host_write);
}

bool sh_config_rates(const char *text, struct sh_config_rates *out, const char **bad)
{
    *out = (struct sh_config_rates){0};
    for (const char *at = text; *at;) {
        *bad = at;
        if (!read_part(&at, out) || (*at && *at != ','))
            return false;
        if (*at == ',' && !*++at)
            return false;
    }
    *bad = text;
    return !out->mixed || out->file_read > 0;
}
