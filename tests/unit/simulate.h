/* A whole job in one process: the programs of all ranks of a mesh, run in step without MPI.
 *
 * The simulation is as unkind as the contract of src/comm allows. The output of a collective is poison (NaN) from its
 * start to its wait, and its result is computed from each rank's input at the start; an input that changes while the
 * collective is under way fails the test, and so does a job in which every rank waits for another. At the start of a
 * section everything that does not live between sections is poison, a released unit becomes poison, and each arena is
 * surrounded by guard bytes. Any failure fails the cmocka test. One thread. */
#ifndef SH_TESTS_UNIT_SIMULATE_H
#define SH_TESTS_UNIT_SIMULATE_H

#include "src/pass/build.h"

struct sim_flight;
struct sim_meeting;

struct sim_rank {
    struct sh_program *p;
    struct sh_mesh_shape mesh;
    char *memory, *arena;
    char *file;                 /* stands in for the one tier below the device; NULL: the program has none */
    int at;                     /* operations of the running section that are done */
    struct sim_flight *flights; /* [ops] collectives of the running section */
};

struct sim {
    int world;
    struct sim_rank *ranks;
    struct sim_meeting *meetings; /* [n_meetings] of the running section */
    int n_meetings;
    const struct sh_kernel_table *kernels;
    struct sh_op_scalars scalars; /* of all ranks; set by the test */
    struct sh_op_scalars later;   /* of the update that is pending */
    bool pending;
    bool last_first; /* ranks run from the last to the first, which changes who waits for whom */
};

/* Plan all ranks of the mesh, fill the parameters that they own like a run does, and run INIT. */
struct sim *sim_create(const struct sh_build *build, int shard, int replicate, int inner, uint64_t seed);
struct sim *sim_create_on(const struct sh_build *build, const int axes[SH_AXES], uint64_t seed);
/* Make sim_create() give frozen matrices the values that they have after packing in four bits per element. */
extern bool sim_round_frozen;
void sim_destroy(struct sim *s); /* checks the guard bytes */

/* Run one section (an index in the program), or the first of a kind, on all ranks to its end. */
/* The scalars of step `step`, counted from 0. eps is large compared with the rounding of gradients, so a gradient that
 * is zero except for rounding moves nothing. */
struct sh_op_scalars sim_scalars(int step, double loss_scale);

void sim_run_section(struct sim *s, int section);
void sim_run(struct sim *s, enum sh_section_kind kind);

/* Defer an update, with the current scalars: to the next micro-step that runs, or to UPDATE. */
void sim_put_off(struct sim *s);

/* A tensor in a rank's arena. */
void *sim_data(const struct sim *s, int rank, int tensor);

/* Get all parameters in logical order, and their number of elements; ranks with the same place in a unit's shards, and
 * persistent full copies, must be equal to them bit for bit. */
int64_t sim_param_elems(const struct sim *s);
void sim_params(const struct sim *s, float *out);

#endif
