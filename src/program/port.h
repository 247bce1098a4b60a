/* Ports: the tensors that the host fills or reads. A program has those that its sections use. */
#ifndef SH_PROGRAM_PORT_H
#define SH_PROGRAM_PORT_H

#include "src/base/number/dtype.h"

#include <stdbool.h>

/* In the order in which the shard pass makes their tensors. */
enum sh_port {
    SH_PORT_TOKENS,
    SH_PORT_TARGETS,       /* -1: not counted */
    SH_PORT_DOCS,          /* first position of the document that the token is in; of whole sequences */
    SH_PORT_REFERENCE,     /* at the first place of each document what the reference makes of it, as SUMS; pairs */
    SH_PORT_LABELS,        /* at the first place of each document 1 if it was chosen, else 0; of single answers */
    SH_PORT_WEIGHTS,       /* what each target weighs in the loss */
    SH_PORT_TEACHER_WORDS, /* the most probable words of each place, and their log-probabilities, of a teacher */
    SH_PORT_TEACHER_LOGP,
    SH_PORT_WANTED,    /* from 0 to 1 whether a text has each label, at its target */
    SH_PORT_TOP_WORDS, /* as TEACHER_WORDS, of this model, for others to learn from; a number of words for each place */
    SH_PORT_TOP_LOGP,
    SH_PORT_LOSS, /* sums over this rank's rows, one for each leaf of its part of the sequences, or PAIR_LOSS's numbers;
                          the first, or all of pairs, over the world after LOSS */
    SH_PORT_SUMS, /* at the first place of each document the log-probability of its targets, else 0; pairs */
    SH_PORT_LOGITS,  /* of one position of each sequence */
    SH_PORT_LOGPROB, /* of each target; of parts of sequences: those of all ranks that have parts, one after the other */
    SH_PORT_LIKELIEST, /* word, in the same order */
    SH_PORT_AT,        /* positions of the tokens, with a cache; or those in documents, or in the sequence, of a part of
                          it */
    SH_PORT_COUNT,     /* how many tokens of a row count, with a cache (kernels/op.h) */
    SH_PORT_NEXT,      /* tokens of DECODE: the first column of those of PREFILL */
    SH_PORT_NEXT_AT,   /* their positions, likewise */
    SH_PORT_ROUTERS,   /* sums over this rank's rows, over the world after NORM: both losses of the routers, then the
                          load of each expert of each block with experts, then `used` of each wave (kernels/op.h) */
    SH_PORT_SQUARES,   /* squares of this rank's gradients (src/base/number/exact.h) */
    SH_PORT_SUMSQ,     /* squared gradient norm after NORM */
    SH_PORTS
};

/* The first numbers of SH_PORT_ROUTERS. */
enum sh_router_loss { SH_ROUTER_AUX, SH_ROUTER_Z, SH_ROUTER_LOSSES };
/* The numbers of a wave, its last ones. */
enum sh_router_wave { SH_ROUTER_USED, SH_ROUTER_ROWS, SH_ROUTER_WAVE };

struct sh_port_row {
    const char *name; /* of its tensor */
    enum sh_dtype dtype;
    const char *dims;    /* a letter each: B sequences, T tokens of each, N = B*T, V words, E SH_EXACT_ELEMS, R as many
                            numbers as the adding says, 1 */
    bool in;             /* the host fills it, and no operation writes it */
    unsigned sections;   /* bit s: operations of sections of kind s may use it */
    enum sh_port decode; /* the port that DECODE uses in its place; 0: this one */
};

const struct sh_port_row *sh_port_row(enum sh_port port);

#endif
