/* A file of fingerprints, read: what src/run/watch/fingerprint.c writes. Local. */
#ifndef SH_DIFF_PRINTS_H
#define SH_DIFF_PRINTS_H

#include "src/base/err.h"
#include "src/base/number/sketch.h"

#include <jansson.h>
#include <stdbool.h>

/* Texts are those of the line, which the file keeps. */
struct sh_print {
    const char *name, *kind; /* kind NULL: no operation makes it */
    const json_t *in;        /* names of what the operation reads; NULL: nothing that is recorded */
    bool more;               /* and it reads what is not recorded */
    const json_t *leaves;    /* [sum, rank] of each micro-step; NULL: they are not told apart */
    int64_t step;
    uint64_t sum;
    int64_t bad;
    double largest, norm, sign[SH_SKETCH_SIGNS];
};

/* Degrees. */
enum sh_prints_axis {
    SH_PRINTS_TENSOR,
    SH_PRINTS_CONTEXT,
    SH_PRINTS_EXPERT,
    SH_PRINTS_PIPELINE,
    SH_PRINTS_REPLICATE,
    SH_PRINTS_AXES
};
const char *sh_prints_axis_name(enum sh_prints_axis axis);

/* What bits depend on, and what must be the same for a comparison to make sense. */
struct sh_prints_head {
    const char *device, *dtype, *base;
    const char *balance; /* the rows of which losses of balance are made; NULL: there are none, or not said */
    const json_t *hosts; /* of the ranks; NULL: micro-steps are not told apart */
    int64_t ranks, seq_len, local_batch, global_batch;
    int64_t axis[SH_PRINTS_AXES]; /* 0: not said */
    int64_t row_leaves;           /* 0: not said */
    int64_t pieces;    /* of a sequence that a rank has part of: 2 if keys and values are gathered; 0: not said */
    int64_t tiles;     /* of exchanges between ranks that share matrices; 0: files of earlier versions do not say it */
    int64_t tile_rows; /* of rows, 0: of blocks that change no bit */
    bool coded;        /* parameters are gathered in codes of eight bits; files of earlier versions do not say it */
    bool reproducible;
};

struct sh_prints_file {
    const char *path;
    struct sh_prints_head head;
    struct sh_print *print; /* in the order of the file; steps ascend */
    int n, most;
    int *by_name; /* [n] by step, then by name */
    json_t **lines;
    int n_lines, most_lines;
};

/* Free even if it fails. Errors: SH_E_DATA with the line. */
sh_rc sh_prints_read(const char *path, struct sh_prints_file *out);
void sh_prints_free(struct sh_prints_file *file);

/* NULL: there is none. */
const struct sh_print *sh_prints_find(const struct sh_prints_file *file, int64_t step, const char *name);

/* The first print of a step at or after that number; n: there is none. */
int sh_prints_from(const struct sh_prints_file *file, int64_t step);

#endif
