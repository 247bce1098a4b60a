#include "src/config/read/batches.h"

#include <ctype.h>
#include <stdlib.h>

static const char *skip_blanks(const char *at)
{
    while (*at == ' ')
        at++;
    return at;
}

/* A whole number from `least` to `most` at *at, which moves behind it. */
static bool take_whole(const char **at, int64_t least, int64_t most, int64_t *out)
{
    char *end;

    *at = skip_blanks(*at);
    if (!isdigit((unsigned char)**at))
        return false;
    *out = strtoll(*at, &end, 10);
    *at = skip_blanks(end);
    return *out >= least && *out <= most;
}

/* STEP:NUMBER. */
static sh_rc take_phase(const char **at, struct sh_batches *b)
{
    int64_t step, sequences, before = b->n ? b->at[b->n - 1].step : -1;

    if (b->n == SH_BATCHES_MAX)
        return sh_fail(SH_E_USAGE, "more than %d phases", SH_BATCHES_MAX);
    if (!take_whole(at, 0, INT64_MAX / 2, &step) || *(*at)++ != ':' || !take_whole(at, 1, INT32_MAX, &sequences))
        return sh_fail(SH_E_USAGE, "phase %d is not STEP:NUMBER; write \"0:256, 2000:512\"", b->n + 1);
    if (b->n == 0 && step != 0)
        return sh_fail(SH_E_USAGE, "the first phase begins at step %lld, not at step 0", (long long)step);
    if (step <= before)
        return sh_fail(SH_E_USAGE, "a phase from step %lld follows one from step %lld", (long long)step,
                       (long long)before);
    b->at[b->n].step = step;
    b->at[b->n++].sequences = sequences;
    return SH_OK;
}

sh_rc sh_batches_read(const char *text, struct sh_batches *out)
{
    const char *at = skip_blanks(text);

    *out = (struct sh_batches){0};
    while (*at) {
        SH_TRY(take_phase(&at, out));
        if (*at && *at++ != ',')
            return sh_fail(SH_E_USAGE, "no comma after phase %d; write \"0:256, 2000:512\"", out->n);
    }
    return SH_OK;
}

int64_t sh_batches_of(const struct sh_batches *b, int64_t step)
{
    int i = b->n - 1;

    while (i > 0 && b->at[i].step > step)
        i--;
    return b->at[i].sequences;
}

int64_t sh_batches_most(const struct sh_batches *b)
{
    int64_t most = 0;

    for (int i = 0; i < b->n; i++)
        most = b->at[i].sequences > most ? b->at[i].sequences : most;
    return most;
}

int64_t sh_batches_before(const struct sh_batches *b, int64_t step)
{
    int64_t sum = 0;

    for (int i = 0; i < b->n && b->at[i].step < step; i++) {
        int64_t end = i + 1 < b->n && b->at[i + 1].step < step ? b->at[i + 1].step : step;

        sum += (end - b->at[i].step) * b->at[i].sequences;
    }
    return sum;
}
