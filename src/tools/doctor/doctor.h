/* Checks the nodes of a job before it trains: seconds now instead of a hang or a slow week later.
 *
 * Checks are rows of one table (doctor.c), each in its own file. They run in order on all ranks. Findings of a rank or
 * a node are shared as arrays (share.c), and every rank derives the same result from the same arrays, so that nothing
 * else has to be agreed on. All functions are collective over the job unless stated otherwise. */
#ifndef SH_DOCTOR_DOCTOR_H
#define SH_DOCTOR_DOCTOR_H

#include "src/config/config.h"
#include "src/mesh/mesh.h"
#include "src/plan/topology.h"
#include "src/program/program.h"

#include <stdint.h>
#include <stdio.h>

/* A file for a bug report, in addition to the table. */
struct sh_doctor_report_request {
    const char *path;         /* NULL: none */
    void (*about)(FILE *out); /* describes the program */
};

/* Run all checks, print one table on standard output (rank 0), and write the report. Returns SH_OK if no row is BAD,
 * otherwise the class of the first BAD row, with its text as the error. A check that hangs stops the job with SH_E_COMM
 * and is named on each node that waits in it. */
sh_rc sh_doctor_run(const struct sh_config *cfg, const struct sh_doctor_report_request *report);

/* ---- for the checks ---- */

enum { SH_DOCTOR_GROUPS = 16 }; /* more than the purposes of a mesh (shape.h) */

enum { SH_DOCTOR_GPUS = 16 }; /* of a node whose ways between GPUs are looked at */

struct sh_doctor_place {
    int node, node_rank;
    char host[64];
    char bus[24];                      /* of its GPU; "": it has none */
    unsigned char way[SH_DOCTOR_GPUS]; /* enum sh_nvml_way, from its GPU to that of a rank of its node */
};

struct sh_doctor {
    const struct sh_config *cfg;
    struct sh_topology at;
    const struct sh_device *device; /* open, if the job computes on GPUs; else NULL */
    struct sh_topology_gpu gpu;
    struct sh_mesh *mesh;
    struct sh_doctor_place *place; /* [world] */
    int *leader;                   /* [n_nodes] the first rank of each node */
    char *folder;                  /* the checkpoint folder */
    FILE *report;                  /* rank 0, if a report was asked for; else NULL */
};

/* GOOD; NOTE: training works, but slower or with less room than it could; BAD: it would fail, or not work correctly. */
enum sh_doctor_state { SH_DOCTOR_GOOD, SH_DOCTOR_NOTE, SH_DOCTOR_BAD };

struct sh_doctor_row {
    enum sh_doctor_state state;
    sh_rc rc; /* class of the error of a BAD row */
    char text[640];
};

/* A check fills the row, the same on all ranks. It returns only errors of MPI. */
typedef sh_rc sh_doctor_check(const struct sh_doctor *d, struct sh_doctor_row *row);
sh_doctor_check sh_doctor_ranks, sh_doctor_program, sh_doctor_instructions, sh_doctor_cores, sh_doctor_load,
    sh_doctor_clocks, sh_doctor_data, sh_doctor_folder, sh_doctor_space, sh_doctor_writing, sh_doctor_memory,
    sh_doctor_scratch, sh_doctor_links, sh_doctor_collectives, sh_doctor_pages, sh_doctor_keepers;

/* Set the row. Local. */
void sh_doctor_good(struct sh_doctor_row *row, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sh_doctor_note(struct sh_doctor_row *row, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sh_doctor_bad(struct sh_doctor_row *row, sh_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* What the plan of this rank needs from its node, and over which groups of ranks it runs collectives. */
struct sh_doctor_need {
    int64_t arena_bytes; /* memory of the device */
    int64_t file_bytes;  /* of its scratch file; 0: none */
    int64_t slot_bytes;  /* of a slot for near checkpoints */
    struct sh_group_use groups[SH_DOCTOR_GROUPS];
    bool exchanges[SH_DOCTOR_GROUPS]; /* some rank's plan has an all_to_all over such a group */
    int n_groups;
    struct sh_stream streams[SH_STREAMS_MAX];
    int n_streams;
};

/* Plan the run; the plans of all ranks have the same groups. If some rank cannot, set the row to BAD, and *failed. Collective. */
sh_rc sh_doctor_plan(const struct sh_doctor *d, struct sh_doctor_need *need, struct sh_doctor_row *row, bool *failed);

/* Give all ranks one value of each node, from its leader. out [n_nodes]. Cost: an all-reduce of n_nodes numbers. */
sh_rc sh_doctor_of_nodes(const struct sh_doctor *d, double mine, double *out);
sh_rc sh_doctor_of_nodes_u64(const struct sh_doctor *d, uint64_t mine, uint64_t *out);

/* Complete an array in which each rank has set some elements and left the others at -INFINITY. */
sh_rc sh_doctor_fill(int n, double *values);

/* If some rank failed, set the row to BAD with the node and the text of the lowest such rank, and *failed. */
sh_rc sh_doctor_any_failed(const struct sh_doctor *d, sh_rc rc, struct sh_doctor_row *row, bool *failed);

/* Write the names of the nodes whose value differs from `usual`, or from what most nodes have, "n3, n7 and 2 more";
 * returns their number. Local. */
int sh_doctor_nodes_but(const struct sh_doctor *d, const uint64_t *value, uint64_t usual, int size, char *text);
int sh_doctor_odd_nodes(const struct sh_doctor *d, const uint64_t *value, int size, char *text);

/* Set the row to words about each node: GOOD or, if noteworthy, NOTE; NOTE with the odd nodes if some differ in their
 * `what`. Collective. */
sh_rc sh_doctor_words(const struct sh_doctor *d, const char *what, const char *text, bool noteworthy,
                      struct sh_doctor_row *row);

/* Describe the pages of this node, from the files of /proc and /sys below `root` ("": the system's); whether the text is
 * a note. Local. */
enum { SH_DOCTOR_PAGES = 360 };
bool sh_doctor_say_pages(const char *root, long page_bytes, char text[SH_DOCTOR_PAGES]);

bool sh_doctor_leads(const struct sh_doctor *d);                 /* this rank is the first of its node. Local */
const char *sh_doctor_host(const struct sh_doctor *d, int node); /* Local */

/* Find the lowest of n speeds: BAD below a quarter of the median, NOTE below half of it; GOOD if n < 3, since nobody
 * can say then which one is slow. Local. */
struct sh_doctor_slowest {
    enum sh_doctor_state state;
    int index;
    double speed, median;
};
struct sh_doctor_slowest sh_doctor_find_slowest(int n, const double *speed);

/* Two neighbours on the tensor or the context axis that are on different nodes; place [world]. Local. */
struct sh_doctor_apart {
    const char *axis;
    int rank, next;
    int span; /* a node with a multiple of so many ranks keeps such neighbours together */
};
bool sh_doctor_find_apart(const struct sh_mesh_shape *shape, const struct sh_doctor_place *place,
                          struct sh_doctor_apart *out);

/* Two neighbours on one of these axes, on one node, that would have a shorter way between their GPUs if the node's ranks
 * took the GPUs in another order; place [world]. Local. */
struct sh_doctor_far {
    const char *axis;
    int rank, next, n;
    int order[SH_DOCTOR_GPUS]; /* [n] that order, as node ranks of now */
};
bool sh_doctor_find_far(const struct sh_mesh_shape *shape, const struct sh_doctor_place *place,
                        struct sh_doctor_far *out);

/* The node with the most load per core, and whether that is enough to slow training down. Local. */
int sh_doctor_find_busiest(int n, const double *load, const double *cores);
enum sh_doctor_state sh_doctor_judge_load(double load, double cores);

#endif
