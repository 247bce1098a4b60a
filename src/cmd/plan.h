/* `sherd plan` inside: what is planned, and what each option makes of it. Local: one process, no MPI. */
#ifndef SH_CMD_PLAN_H
#define SH_CMD_PLAN_H

#include "src/cmd/cmd.h"
#include "src/cost/say.h"
#include "src/pass/build.h"
#include "src/plan/request.h"

/* `p` is NULL until the plan is built. */
struct sh_cmd_plan {
    struct sh_config cfg;
    struct sh_topology at;
    struct sh_mesh_shape mesh;
    struct sh_build build;
    struct sh_program *p;
    struct sh_program *after; /* the one to show, NULL: p */
    int threads;
    bool priced; /* --machine was given */
    struct sh_machine machine;
};

/* plan_file.c: between the device and the tier below it, of this rank in a training step. */
struct sh_cmd_plan_moves {
    int64_t file_bytes; /* 0: there is no file */
    int64_t read_bytes, written_bytes;
    bool host;                    /* they go to the host's memory beside a GPU */
    double read_rate, write_rate; /* of its node, or of its GPU, bytes a second */
    const char *from;             /* the rates: "offload.rates", "machine file" or "assumed" */
    double seconds;               /* of all ranks of the node, with nothing beside them */
};
struct sh_cmd_plan_moves sh_cmd_plan_moves(const struct sh_cmd_plan *l);
void sh_cmd_plan_file(const struct sh_cmd_plan *l); /* prints it */

/* plan_cost.c: the step on --machine. */
sh_rc sh_cmd_plan_cost(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_cmd_plan *l);

/* plan_json.c: the same and the memory as JSON, into a file. Errors: SH_E_DATA. */
sh_rc sh_cmd_plan_json(const struct sh_cmd_plan *l, const struct sh_cost_request *r, const struct sh_cost_job *job,
                       const struct sh_cost_step *step, const char *path);

/* plan_check.c: all ranks. Errors: those of sh_ranks_check(). */
sh_rc sh_cmd_plan_check(const struct sh_cmd_plan *l);

/* plan_search.c: --search, --tokens, --within, --write; l has configuration, machine and ranks, and no program. */
sh_rc sh_cmd_plan_search(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_cmd_plan *l);

/* plan_fit.c: --fit FOLDER into a machine file. */
sh_rc sh_cmd_plan_fit(const char *folder, const char *path);

#endif
