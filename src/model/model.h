/* The models: decoder-only transformers, written as the forward operations of one micro-step. Local.
 *
 * One decoder makes all families, by the switches of src/config/family.h. Parameter names and shapes are Hugging
 * Face's. Units: "embed"; "layers.N", one per block, with "layers.N.experts" beside it if experts are spread over ranks;
 * "head" (final norm and output matrix). With tied embeddings the
 * final norm is in "embed", since the output matrix is there. */
#ifndef SH_MODEL_MODEL_H
#define SH_MODEL_MODEL_H

#include "src/config/model.h"
#include "src/program/program.h"

struct sh_objective;

/* Low-rank adapters of the products that sh_family_targets() lists; rank 0: none. With adapters all other parameters
 * are frozen. */
struct sh_adapters {
    int rank;
    float scale;
    unsigned targets;
};

/* Weights of the losses that keep experts evenly busy and the logits of their router small, and the step by which an
 * update moves the biases of routers; 0: none. */
struct sh_model_balance {
    float aux, z, step;
    bool forced; /* experts by turn, whatever their scores */
};

/* Experts spread over ranks: this one has those of its place, and rows travel in waves of `capacity` times the rows that
 * the routers choose on a rank. */
struct sh_model_spread {
    int ranks, place; /* 0 and 1 ranks: all experts are here */
    double capacity;
};

/* Matrices cut over ranks: this one has the part of its place of each block's matrices, with the heads and the widths of
 * the feed-forward part that belong to it. */
struct sh_model_cut {
    int ranks, place; /* 0 and 1 ranks: matrices are whole */
};

/* Layers cut over ranks, in chunks of blocks that the ranks have in turn: place 0 has chunks 0, ranks, 2 ranks, ... The
 * first place also has the embedding, and the last the head. Rows of a chunk come from the place of the one before and go
 * to that of the next. */
struct sh_model_stage {
    int ranks, place; /* 0 and 1 ranks: all layers are here */
    int chunks;       /* of a rank */
    const int *begin; /* [ranks chunks + 1] blocks; lent */
};

enum sh_model_output { SH_MODEL_LOSS, SH_MODEL_LOGITS, SH_MODEL_SCORE };

struct sh_model_batch {
    int batch, seq;      /* sequences of one micro-step of one rank, and their tokens */
    int parts;           /* of a sequence: ranks have one each; set by the model pass, by the mesh. 0: 1 */
    int runs;            /* of rows in a rank's part, one of each half of the sequence: they are like sequences, the
                                 first runs of all before the second. Set by the model pass. 0: 1 */
    int leaves;          /* of a sequence, a multiple of its parts: sums over their rows are kept apart; set by the
                                 model pass. 0: 1 */
    bool docs;           /* attention stays inside documents */
    bool anew;           /* with docs: positions restart in each; else they count through the sequence */
    int document_tokens; /* with docs: their mean length, for prices and utilization; 0: not known */
    bool any_order;      /* attention's backward may add in any order (kernels/op.h) */
    bool choose;         /* a clock chooses the kernels of experts on GPUs (kernels/op.h) */
    enum sh_model_output out;             /* summed loss, the logits of one position, or scores of all */
    const struct sh_objective *objective; /* of LOSS (objective.h); NULL: the next token */
    struct sh_op_pair pairs;              /* of an objective of pairs */
    struct sh_teacher_numbers teacher;    /* of an objective with a teacher */
    bool weighted;                        /* of LOSS: targets have weights (SH_PORT_WEIGHTS) */
    double z_loss; /* of LOSS, without pairs or a plug-in: what the square of lse counts; its sum is a second number */
    int top_k;     /* of LOSS: also makes so many of the likeliest words of each place; 0: none */
    int cache;     /* LOGITS: positions in the cache of keys and values, at least `seq`; 0: no cache */
    struct sh_adapters adapters;
    struct sh_model_balance balance;
    struct sh_model_spread spread; /* ranks and place are set by the model pass, by the mesh */
    struct sh_model_cut tensor;    /* set by the model pass, by the mesh */
    struct sh_model_stage stage;   /* set by the model pass, by the mesh */
    bool reports;                  /* of LOSS: routers report their loads and losses (SH_PORT_ROUTERS) */
    int64_t chunk_rows;            /* rows of logits held at a time; 0: equal parts, see decoder.c */
};

/* Check that a plan can count what these sizes multiply to. Call this before anything else here.
 * Errors: SH_E_USAGE with the keys whose product is too large. */
sh_rc sh_model_check(const struct sh_model *m, const struct sh_model_batch *b);

/* Emit the forward of one micro-step into an empty program: parameters, units, operations; no sections. */
void sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p);

/* Whether the loss learns from a teacher; and how many numbers the loss of a micro-step has: those of pairs, or of a loss
 * of logits (kernels/op.h). */
bool sh_model_distils(const struct sh_model_batch *b);
int sh_model_loss_numbers(const struct sh_model_batch *b);

/* How many keys a query of block `block`, counted from 0, sees, its own included; 0: all. */
int sh_model_window(const struct sh_model *m, int block);

/* Floating-point operations of forward and backward for one token, without recomputation: those of the products in the
 * program that the model emits.
 * matmul: 6 per weight of a matrix product, 4 if it is frozen; the output matrix counts, embedding look-ups do not, and
 * of experts only those of a token.
 * attention: causal = 6 H D T per attention (half of the square), full = 12 H D T; with a window, only what lies inside
 * it; with documents of a known mean length, what lies inside them. Of the batch only `seq`, documents and adapters
 * count. */
struct sh_model_flops {
    double matmul, attention_causal, attention_full;
    double forward; /* of matmul and attention_causal */
};
struct sh_model_flops sh_model_flops(const struct sh_model *m, int seq);
struct sh_model_flops sh_model_flops_of(const struct sh_model *m, const struct sh_model_batch *b);

/* The same of each block, and of what is outside of all: the head, as an embedding has none.
 *   of  out  [n_layers + 1] */
void sh_model_flops_of_blocks(const struct sh_model *m, const struct sh_model_batch *b, struct sh_model_flops *of);

/* The work of attention in the blocks of a program that gathers keys, by rows: how wide the heads of blocks without and with
 * a window are in all, and that window. */
struct sh_model_rows {
    double whole, windowed;
    int window;
};
struct sh_model_rows sh_model_rows_of(const struct sh_program *p);

/* The work of a row before which, in its document, there are keys - 1 others. */
double sh_model_row_work(const struct sh_model_rows *w, int64_t keys);

int64_t sh_model_params(const struct sh_model *m);
int64_t sh_model_active(const struct sh_model *m); /* active: of experts, only those of one token */

/* How many parameters, adapters included, are trained: those that checkpoints hold. */
int64_t sh_model_trained(const struct sh_model *m, const struct sh_adapters *a);

/* Adapters have PEFT's names without the first two words: "model.layers.0.self_attn.q_proj.lora_A.weight" [R,I],
 * "...lora_B.weight" [O,R], whatever the order in which the family stores its matrices. Units: "layers.N.lora", and
 * "layers.N.experts.lora" if experts are spread over ranks, beside "layers.N". */

#endif
