/* A small model in which every element has a known value, divided among the ranks in many ways. For the checkpoint
 * tests. */
#ifndef TESTS_MPI_CKPT_CASE_H
#define TESTS_MPI_CKPT_CASE_H

#include "io/checkpoint/checkpoint.h"

enum ckpt_cut {
    CUT_FIRST_RANK, /* rank 0 holds all */
    CUT_LAST_RANK,
    CUT_FLAT,       /* all tensors end to end, in equal chunks: sharding without replicas */
    CUT_REPLICAS,   /* the same as 2 x size/2 if the number of ranks is even: replicas share the saving */
    CUT_CRUMBS,     /* many odd pieces of each tensor, dealt out in a mixed order; some ranks may get none */
    CUT_EVERYTHING, /* every rank has all of it: only for loading */
    CUTS
};

extern int test_rank, test_world;

enum { EVERY_RANK = 1000 }; /* a value of writers_per_node: every rank of a node writes */

/* Stop the whole job with a line when a check fails. */
#define CHECK(cond) check_that((cond), __FILE__, __LINE__, #cond)
void check_that(bool ok, const char *file, int line, const char *what);

/* Check that all ranks have the expected result; the text must contain `says` on the rank that has it ("" or NULL: not
 * checked). */
void check_fails(sh_rc rc, sh_rc expected, const char *says);

extern const struct sh_ckpt_tensor *test_tensors;
extern int test_n_tensors;
extern struct sh_ckpt_states test_states; /* states of the sets; initially those of format 1 */
enum { EXP_AVG = 1, EXP_AVG_SQ };

/* From now on use about 17,000 elements, or 20 million, instead of two million. Call before everything else, on all
 * ranks. */
void use_small_model(void);
void use_big_model(void);

/* This rank's pieces for a cut, with their memory, which has known values (fill) or garbage. Freed with free_set. */
struct sh_ckpt_set make_set(enum ckpt_cut cut, bool fill);

/* The set of a training run on a mesh of `replicas` x world / replicas ranks: replicas share the saving of their shard
 * (fill), and each of them loads all of it. */
struct sh_ckpt_set make_mesh_set(int replicas, bool fill);
void free_set(struct sh_ckpt_set *set);

/* Count the elements of the set's pieces that do not have the known value. */
long wrong_elements(const struct sh_ckpt_set *set);

struct sh_ckpt_meta test_meta(int64_t step);

/* Save and load without options. */
sh_rc save_set(const char *to, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes);
sh_rc load_set(const char *path, const struct sh_ckpt_set *set, struct sh_ckpt_meta *meta);

/* Make a folder for this run, the same on all ranks; it is removed with all files in it. Collective. */
const char *make_folder(void);
void remove_folder(void);
void use_folder(const char *path); /* instead of make_folder: use an existing folder, which stays */
int files_in_folder(void);         /* on any rank; entries other than . and .. */

/* Hash and length of a whole file; 0 when it cannot be read. */
unsigned long long file_hash(const char *path, long *bytes);

#endif
