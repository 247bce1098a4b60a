/* What a fingerprint records of a step: its rows, in the order of the program. A row is a tensor of rows of tokens that a
 * micro-step makes, by name; what an optimizer keeps of a saved tensor; or the gradient of one. Names and logical places
 * do not depend on the mesh, the micro-steps, or what is recomputed; but what ranks that share matrices have in parts has
 * the number of the parts in its name. Local. */
#ifndef SH_WATCH_FINGERPRINT_ROWS_H
#define SH_WATCH_FINGERPRINT_ROWS_H

#include "src/pass/build.h"
#include "src/pass/pipeline/stages.h"
#include "src/program/program.h"

struct sh_print_row {
    char *name;        /* "forward layers.0.norm of model.layers.0.input_layernorm.weight" */
    const char *kind;  /* of the operation that makes it; NULL: none does */
    uint64_t hash;     /* of the name */
    uint64_t seed;     /* of its sketch: a tensor that is computed again has that of its first making */
    int section, root; /* the last micro-step of a section that was found to make it, by number; its tensor there */
    int in[SH_OP_MAX_IN], n_in; /* rows that the operation reads */
    bool more;                  /* and it reads what has no row */
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

/* How a tensor of a micro-step lies in the logical one. A micro-step has pieces of `rows` neighbours of `width` elements, end
 * to end. Piece j is of sequence j % n of n, and begins at row first[j / n] of the `all` rows of its sequence. The tensor has
 * `here` of all these rows, in stripes of which each begins `step` rows behind the one before, the first at row `begin`. */
struct sh_print_cut {
    int64_t rows, width, first[2], all, here, begin, stripe, step;
    bool part; /* a rank's heads, widths or share of a sum: other degrees have other ones */
};

/* The sequences of a micro-step, and which part of their tokens this rank has. */
struct sh_print_batch {
    int64_t sequences, tokens; /* of a sequence: all */
    int parts, part;
    int runs;         /* pieces of a sequence here: 1, or 2, one from either half */
    int ranks, place; /* that share matrices, and outside of these the rows; this one among them */
    int stripes;      /* of rows, that a rank has outside of matrices */
};

/* Of a run's micro-steps, with sequences of that many tokens. */
struct sh_print_batch sh_print_batch_of(const struct sh_build *build, int64_t tokens);

/* Whether an operation's rows lie in the order of their experts, which depends on who computes what. */
bool sh_print_sorts_rows(enum sh_op_kind kind);

/* The rows of the whole model, whatever p's rank has of it.
 *   stages  the programs of all stages, of a model of `layers` blocks; n 0: p is all of it */
void sh_print_rows_make(const struct sh_program *p, const struct sh_print_batch *batch,
                        const struct sh_pipe_stages *stages, int layers, struct sh_print_rows *out);
void sh_print_rows_free(struct sh_print_rows *rows);

/* False: the tensor has no logical place. */
bool sh_print_cut(const struct sh_tensor *t, const struct sh_print_batch *batch, struct sh_print_cut *out);

/* Where row `row` of a tensor is: in sequence *sequence of the micro-step, at row *at of it. Returns how many rows from that one
 * on are neighbours there, too. */
int64_t sh_print_place(const struct sh_print_cut *cut, const struct sh_print_batch *batch, int64_t row,
                       int64_t *sequence, int64_t *at);

#endif
