/* A job: configuration, mesh, program, arena and channels together, and what is done with them. Order: sh_mesh_start
 * (main), sh_run_open, one of train / evaluate / generate, sh_run_close. All collective over the job unless said
 * otherwise; errors are agreed: all ranks return the same class. */
#ifndef SH_RUN_RUN_H
#define SH_RUN_RUN_H

#include "src/comm/comm.h"
#include "src/config/config.h"
#include "src/mesh/mesh.h"
#include "src/exec/exec.h"
#include "src/plan/request.h"
#include "src/run/tokenizer.h"

#include "io/checkpoint/checkpoint.h"

struct sh_feed; /* feed.h */

/* What the trained parameters go upon, where some are frozen (frozen.h). */
struct sh_frozen {
    bool there;    /* loaded */
    char *path;    /* what it was loaded from; NULL: initial values */
    uint64_t sum;  /* of all its numbers, on any mesh the same */
    uint64_t here; /* of this rank's, to see a change in memory */
};

struct sh_run {
    struct sh_config cfg;
    struct sh_build build;
    struct sh_program *p;
    const struct sh_device *device;
    struct sh_topology_gpu gpu; /* when it is one */
    struct sh_mesh *mesh;
    struct sh_comm *comm;
    struct sh_exec *exec;
    int threads;
    char *folder; /* job.dump_folder */

    /* Where training stands; saved with every checkpoint. */
    int64_t step, samples, tokens, updates;
    char *resumed_from, *parameters_from; /* the checkpoint that this process began with, and how; NULL */
    struct sh_config *before;             /* configuration of the checkpoint that was loaded; rank 0 only, else NULL */
    struct sh_frozen base;
    char *guard; /* state of the guard from the checkpoint, NULL */

    /* Of the model's text; see tokenizer.h. */
    char tokenizer[SH_RUN_HASH]; /* hash of the tokenizer's file, or "byte"; "": not known */
    char *hf_config;             /* config.json of the folder that the model is from, in one line; NULL */
    uint32_t *word_bytes;        /* [vocab_size] bytes of each word's text, 0 of special ones; NULL: not known */
    struct sh_run_async *async;  /* a checkpoint that is being written, NULL */
    struct sh_ckpt_lock *lock;   /* of the checkpoint folder while training; rank 0 only, else NULL */
};

/* Mesh, plan, memory, channels, self-test; refuses before anything is allocated what cannot work. */
sh_rc sh_run_open(const struct sh_config *cfg, enum sh_purpose purpose, struct sh_run **out);
/* To generate, with a cache of keys and values. */
sh_rc sh_run_open_cached(const struct sh_config *cfg, const struct sh_request_cache *cache, struct sh_run **out);
sh_rc sh_run_open_scoring(const struct sh_config *cfg, const struct sh_request_score *score, struct sh_run **out);
void sh_run_close(struct sh_run *r);

/* state.c: parameters and optimizer state. */
sh_rc sh_run_init_state(struct sh_run *r);   /* initial values, each rank its own shard */
sh_rc sh_run_init_trained(struct sh_run *r); /* of what is trained; what is frozen is there */
/* With the optimizer when the program trains. *damaged (may be NULL) tells a file that cannot be used at all from one
 * of another model. */
sh_rc sh_run_load(struct sh_run *r, const char *path, bool *damaged);
sh_rc sh_run_load_model(struct sh_run *r, const char *path); /* parameters only: a new run begins from them */
sh_rc sh_run_load_hf(struct sh_run *r);                      /* those of model.hf_assets_path, in the same way */
sh_rc sh_run_load_adapter(struct sh_run *r);                 /* those of lora.adapter_path; the base is there */
char *sh_run_checkpoint_folder(const struct sh_run *r);      /* local; freed with free() */

/* save.c: checkpoints of training, synchronous or asynchronous as checkpoint.async_mode says. */
struct sh_run_saved {
    char *path; /* of what was committed, freed with free(); NULL: nothing was */
    int64_t step, bytes;
    double seconds, stall, disk_seconds; /* the last: the longest of the ranks' times of writing and fsync */
    bool lost; /* of a save that failed: a home below the device did not give back the state itself */
};
sh_rc sh_run_can_save(struct sh_run *r);                                          /* asked before the first step */
sh_rc sh_run_save(struct sh_run *r, const char *guard, struct sh_run_saved *out); /* begin, and end when not async */
bool sh_run_is_saving(const struct sh_run *r); /* one is being written; local, the same on all ranks */
sh_rc sh_run_save_poll(struct sh_run *r, bool wait, struct sh_run_saved *out);
void sh_run_save_abandon(struct sh_run *r); /* give up one that is being written */

/* save_hf.c: the last state in transformers' form (checkpoint.last_save_in_hf).
 * can_save_hf: refuses a folder that is there before the run begins. Local: rank 0 asks.
 * save_hf: after the last checkpoint was committed. Nothing where it is not asked for, or this step has its folder already.
 * Errors: those of sh_hf_export(). */
sh_rc sh_run_can_save_hf(const struct sh_run *r);
sh_rc sh_run_save_hf(struct sh_run *r);

/* resume.c: what training starts from: the newest valid checkpoint of the folder, the file that the configuration
 * names, or initial values. Says which. Takes the lock of the folder when checkpoints will be written. */
sh_rc sh_run_start_state(struct sh_run *r);
/* The same without a look at the folder's lock and at unfinished files; own: whether the folder's own checkpoints
 * count. */
sh_rc sh_run_load_start(struct sh_run *r, bool own);

/* eval.c: mean loss over the first `sequences` windows of a file (0: all). Every rank runs the same number of batches, of
 * local_batch_size sequences, and their losses are summed in one binary tree: on 2^k ranks the same parameters give the
 * same bits for each k and each strategy. */
struct sh_eval_result {
    double loss;
    int64_t sequences, tokens, bytes; /* bytes: of the text of these tokens; 0: not known */
    double seconds;
};
sh_rc sh_run_evaluate(struct sh_run *r, struct sh_feed *f, int64_t sequences, struct sh_eval_result *out);

sh_rc sh_run_train(struct sh_run *r);

#endif
