/* What a fingerprint records of a step: its rows, in the order of the program. A row is a tensor of rows of tokens that a
 * micro-step makes, by name; what an optimizer keeps of a saved tensor; or the gradient of one. Names and logical places
 * do not depend on the mesh, the micro-steps, or what is recomputed. Local. */
#ifndef SH_WATCH_FINGERPRINT_ROWS_H
#define SH_WATCH_FINGERPRINT_ROWS_H

#include "src/mesh/shape.h"
#include "src/model/model.h"
#include "src/pass/pipeline/stages.h"
#include "src/program/program.h"

struct sh_print_row {
    char *name;                 /* "forward layers.0.norm of model.layers.0.input_layernorm.weight" */
    const char *kind;           /* of the operation that makes it; NULL: none does */
    uint64_t hash;              /* of the name */
    uint64_t seed;              /* of its sketch: a tensor that is computed again has that of its first making */
    int section;                /* the last micro-step of a section that was found to make it, by number */
    int in[SH_OP_MAX_IN], n_in; /* rows that the operation reads */
};

struct sh_print_rows {
    struct sh_print_row *row;
    int n, most;
    int *made;    /* [ops][SH_OP_MAX_OUT] the row that is an output; SH_NONE: no row */
    int tokens;   /* the row of the tokens */
    int state;    /* the first of [saved][1 + n_states] */
    int gradient; /* the first of [saved] */
    int sections; /* micro-steps of sections that were walked over */
};

/* How a tensor of a micro-step lies in the logical one: in pieces of `rows` neighbours of `width` elements. Piece j is of
 * sequence j % n of n, and begins at row first[j / n] of the `all` rows of its sequence. */
struct sh_print_cut {
    int64_t rows, width, first[2], all;
};

/* The sequences of a micro-step, and which part of their tokens this rank has. */
struct sh_print_batch {
    int64_t sequences, tokens; /* of a sequence: all */
    int parts, part;
    int runs; /* pieces of a sequence here: 1, or 2, one from either half */
};

/* Of a run's micro-steps. gathers: ranks with parts of sequences gather keys and values, and have two pieces of each. */
struct sh_print_batch sh_print_batch_of(const struct sh_model_batch *batch, int64_t tokens, bool gathers,
                                        const struct sh_mesh_shape *mesh);

/* Whether an operation's rows lie in the order of their experts, which depends on who computes what. */
bool sh_print_sorts_rows(enum sh_op_kind kind);

/* The rows of the whole model, whatever p's rank has of it.
 *   stages  the programs of all stages, of a model of `layers` blocks; n 0: p is all of it */
void sh_print_rows_make(const struct sh_program *p, const struct sh_print_batch *batch,
                        const struct sh_pipe_stages *stages, int layers, struct sh_print_rows *out);
void sh_print_rows_free(struct sh_print_rows *rows);

/* False: the tensor has no logical place. */
bool sh_print_cut(const struct sh_tensor *t, const struct sh_print_batch *batch, struct sh_print_cut *out);

#endif
