/* Small models, strategies and meshes shared by the tests of the planner. Local, no state. */
#ifndef SH_TESTS_UNIT_TINY_H
#define SH_TESTS_UNIT_TINY_H

#include "src/pass/build.h"

/* Sizes that deliberately divide badly: units of a few hundred elements in chunks of multiples of 64 leave ranks with
 * less than a chunk, or nothing. */
struct tiny_model {
    const char *name;
    struct sh_model model;
    bool docs;
};
enum { TINY_MODELS = 6, TINY_SEQ = 4, TINY_VOCAB = 13 };
extern const struct tiny_model tiny_models[TINY_MODELS];

/* Llama 3.1 70B, to measure how long planning takes. */
extern const struct tiny_model not_tiny_model;

/* The table of strategies; the test chooses the gradient_sync. */
struct tiny_strategy {
    const char *name;
    bool params_resident, keep_after_forward;
};
enum { TINY_STRATEGIES = 3 };
extern const struct tiny_strategy tiny_strategies[TINY_STRATEGIES];

/* Every value that a configuration can give: none, full, every_k of 2, selective, and two levels of a memory budget. */
enum { TINY_NONE, TINY_FULL, TINY_EVERY_2, TINY_SELECTIVE, TINY_FIRST_SELECTIVE, TINY_FIRST_FULL, TINY_RECOMPUTES };
extern const struct sh_recompute tiny_recomputes[TINY_RECOMPUTES];

/* An optimizer for tests only. The step of a matrix G of a block is that of SGD with G G' G in place of G, which no rank
 * can make from its part of G; other parameters have plain SGD. */
extern const struct sh_optim tiny_cubic;

/* A training build of a model on one rank with plain loops; the test changes the options that it is about. */
struct sh_build tiny_build(const struct tiny_model *m, int batch);

/* The step of a loop over a table: 1, or n with SHERD_TEST_FEW, because under a sanitizer the rows take long and a
 * sample of them covers the same code. */
int tiny_step(int n);

struct sh_mesh_shape tiny_mesh(int shard, int replicate, int inner, int rank);

/* sh_pass_build for a mesh, which must succeed; freed with sh_program_destroy(). */
struct sh_program *tiny_program(const struct sh_build *b, struct sh_mesh_shape mesh);

#endif
