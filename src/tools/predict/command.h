/* The inside of `sherd plan`: the plan, and what each option does with it. Local: one process, no MPI. */
#ifndef SH_PREDICT_COMMAND_H
#define SH_PREDICT_COMMAND_H

#include "src/cmd/cmd.h"
#include "src/pass/build.h"
#include "src/pass/pipeline/stages.h"
#include "src/plan/make.h"
#include "src/plan/request.h"
#include "src/tools/predict/say.h"

/* `p` is NULL until the plan is built. */
struct sh_predict {
    struct sh_config cfg;
    struct sh_topology at;
    struct sh_mesh_shape mesh;
    struct sh_plan_request ask; /* what follows was made from this */
    struct sh_build build;
    struct sh_program *p;
    struct sh_pipe_stages stages; /* all of a pipeline, p among them; n 0: there is none */
    struct sh_program *after;     /* the program to show; NULL: p */
    bool priced;                  /* --machine was given */
    struct sh_machine machine;
    struct sh_predict_job job; /* with the next, if priced and built */
    struct sh_cost_step step;
    struct sh_cost_step *each; /* [stages.n] the steps of the stages; NULL: not priced */
};

/* balance.c: the work in attention of the busiest of the ranks that share a sequence, over the mean; 0: it depends on
 * documents of unknown length. document_tokens: of a document, all if attention stays in none; 0: not known. */
double sh_predict_busiest(const struct sh_predict *l);
int sh_predict_document_tokens(const struct sh_predict *l);

/* request.c, memory.c: print the request; units; memory. kept: bytes of a GPU that are kept beside the arena. */
void sh_predict_say_request(const struct sh_predict *l);
void sh_predict_say_units(const struct sh_predict *l);
void sh_predict_say_memory(const struct sh_predict *l);
int64_t sh_predict_kept(const struct sh_predict *l);

/* machine.c: bytes of masters and optimizer states of all trained parameters, without what no element has: in float32 as
 * in a checkpoint, or (kept) in the types in which the run keeps them. */
int64_t sh_predict_state_bytes(const struct sh_predict *l, bool kept);

/* moves.c: what this rank moves in a training step, between the device and the next lower tier. */
struct sh_predict_moves {
    int64_t file_bytes; /* 0: there is no file */
    int64_t read_bytes, written_bytes;
    bool host;                    /* the moves are between a GPU and host memory */
    double read_rate, write_rate; /* of its node, or of its GPU, in bytes per second */
    const char *from;             /* origin of the rates: "offload.rates", "machine file" or "assumed" */
    double seconds;               /* for all ranks of the node, with nothing running alongside */
};
struct sh_predict_moves sh_predict_moves(const struct sh_predict *l);
void sh_predict_file(const struct sh_predict *l); /* prints them */
/* Print collectives; what this rank receives of rows in a group for one block in one micro-step, forward and backward. */
void sh_predict_say_traffic(const struct sh_predict *l);
double sh_predict_block_bytes(const struct sh_predict *l, sh_group group);

/* updates.c: print what groups of parameters and Muon's matrices are, and what these cost. */
void sh_predict_say_updates(const struct sh_predict *l);

/* machine.c: the step on --machine. words: refuse what cannot be read of --tokens and --what-if, before anything is
 * printed. answer: predict the step, and print what most people ask, in a few lines. cost: print the whole prediction.
 * tokens: read a number such as 2T, 300B or 1.5e12. */
sh_rc sh_predict_words(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_predict *l);
sh_rc sh_predict_answer(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l);
sh_rc sh_predict_cost(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_predict *l);
sh_rc sh_predict_tokens(const char *text, double *out);

/* choices.c: print what recomputation, equal bits, document masks and the strategy cost, and what is faster. The
 * request prices the step of a plan: the program of its rank stands for all. */
sh_rc sh_predict_choices(const struct sh_predict *l);
struct sh_cost_request sh_predict_request(const struct sh_predict *l);

/* json.c: write the prediction and the memory to a file, as JSON. Errors: SH_E_DATA. */
sh_rc sh_predict_json(const struct sh_predict *l, const struct sh_cost_request *r, const struct sh_predict_job *job,
                      const struct sh_cost_step *step, const char *path);

/* stages.c: build the programs of all stages (weigh: unchecked); the bytes of the rank that takes most; print what each
 * stage takes. No effect without stages. Errors: those of the passes. */
sh_rc sh_predict_make_stages(struct sh_predict *l, bool weigh);
int64_t sh_predict_bytes(const struct sh_predict *l);
void sh_predict_say_stages(const struct sh_predict *l);

/* check.c: compare the programs of all ranks. Errors: those of sh_ranks_check(). */
sh_rc sh_predict_check(const struct sh_predict *l);

/* command.c: set what the plan of a configuration is made from, with its machine and ranks: the mesh, what a device
 * keeps, the request, which points into *l. Errors: those of sh_request_mesh(). */
sh_rc sh_predict_settle(struct sh_predict *l);

/* found.c: --search, --tokens, --within, --write; l has configuration, machine and ranks, but no program. */
sh_rc sh_predict_search(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l);

/* longest.c: --longest, with --search and --write; the same l, whose configuration becomes the one found. Errors:
 * SH_E_MEMORY: no sequence fits. */
sh_rc sh_predict_longest(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l);

/* study.c: --fit FOLDER, written to a machine file. */
sh_rc sh_predict_fit_study(const char *folder, const char *path);

#endif
