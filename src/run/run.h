/* A job: configuration, mesh, program, arena and channels together, and the functions that use them. Order:
 * sh_mesh_start (main), sh_run_open, one of train / evaluate / generate, sh_run_close. All are collective over the job
 * unless said otherwise; errors are agreed: all ranks return the same class. */
#ifndef SH_RUN_RUN_H
#define SH_RUN_RUN_H

#include "src/comm/comm.h"
#include "src/config/config.h"
#include "src/exec/exec.h"
#include "src/mesh/mesh.h"
#include "src/metrics/metrics.h"
#include "src/plan/request.h"
#include "src/run/save/provenance.h"
#include "src/run/tokenizer.h"

#include "io/checkpoint/checkpoint.h"

struct sh_feed; /* feed.h */
struct sh_kept; /* kept/kept.h */
struct sh_map;  /* map.h */

/* The base under the trained parameters, if some parameters are frozen (frozen.h). */
struct sh_frozen {
    bool there;        /* loaded */
    bool lacks_labels; /* without a matrix of labels, which the run draws, or loads otherwise */
    char *path;        /* where it was loaded from; NULL: initial values */
    uint64_t sum;      /* checksum of all its numbers, the same on any mesh */
    uint64_t here;     /* checksum of this rank's part, to detect a change in memory */
};

struct sh_run {
    struct sh_config cfg;
    struct sh_build build;
    struct sh_program *p;
    const struct sh_device *device;
    struct sh_topology_gpu gpu; /* if the device is one */
    struct sh_mesh *mesh;
    struct sh_comm *comm;
    struct sh_exec *exec;
    struct sh_map *map; /* of the states that this rank holds */
    int threads;
    double *stage_bytes; /* of sh_stages_weigh(); NULL: there are no stages */
    char *folder;        /* job.dump_folder */

    /* Where training stands; saved with every checkpoint. */
    int64_t step, samples, tokens, updates;
    char *resumed_from, *parameters_from; /* what this process began with: all of it, or its parameters; else NULL */
    struct sh_config *before;             /* configuration of the checkpoint that was loaded; rank 0 only, else NULL */
    struct sh_frozen base;
    struct sh_provenance provenance;
    char *guard; /* state of the guard from the checkpoint, or NULL */

    /* The model's tokenizer; see tokenizer.h. */
    char tokenizer[SH_RUN_HASH]; /* hash of the tokenizer's file, or "byte"; "": not known */
    char *chat_template;         /* name of the template that rendered its conversations, or NULL */
    char *hf_config;             /* config.json from the model's source folder, in one line, or NULL */
    uint32_t *word_bytes;        /* [vocab_size] bytes of each word's text, 0 for special words; NULL: not known */
    struct sh_run_async *async;  /* a checkpoint that is being written, or NULL */
    struct sh_kept *kept;        /* near checkpoints, or NULL */
    const char *of_state;        /* loads take this state of a checkpoint for the parameters; NULL: the parameters */
    bool has_mean;               /* the mean of the parameters was loaded with them */
    bool passing;                /* whoever opened the run deletes its folder: nobody is sent there */
    const char *goes_on;       /* the checkpoint from which it goes on as its own run would, whatever the configuration
                                    names; NULL: none */
    const char *beside;        /* with goes_on: the folder of that run, in which the reference of answers lies */
    bool unsaved;              /* the state came from memory: no file of this step is known to be there */
    struct sh_ckpt_lock *lock; /* of the checkpoint folder while training; rank 0 only, else NULL */
};

/* Set up mesh, plan, memory and channels, and run the self-test. Refuses what cannot work before anything is
 * allocated. */
sh_rc sh_run_open(const struct sh_config *cfg, enum sh_purpose purpose, struct sh_run **out);
/* The same for a run that generates, with a cache of keys and values. */
sh_rc sh_run_open_cached(const struct sh_config *cfg, const struct sh_request_cache *cache, struct sh_run **out);
sh_rc sh_run_open_scoring(const struct sh_config *cfg, const struct sh_request_score *score, struct sh_run **out);
void sh_run_close(struct sh_run *r);

/* state.c: parameters and optimizer state. */
sh_rc sh_run_init_state(struct sh_run *r);   /* set initial values; each rank sets its own shard */
sh_rc sh_run_init_trained(struct sh_run *r); /* only the trained ones; frozen ones are loaded already */
/* Load parameters, and optimizer state if the program trains. *damaged (may be NULL) tells a file that cannot be used
 * at all from one of another model. */
sh_rc sh_run_load(struct sh_run *r, const char *path, bool *damaged);
/* Take over what a checkpoint says besides its tensors, which are loaded; frees the meta data. `where`: for messages. */
sh_rc sh_run_take(struct sh_run *r, const char *where, struct sh_ckpt_meta *meta);
/* If the run keeps the mean of its parameters and none was loaded, it begins with the parameters. */
void sh_run_begin_mean(struct sh_run *r);
/* Swap the parameters and their mean, in the masters and in what is gathered; a second call restores all. In between only
 * forwards may run. A pending update is carried out first. Collective. */
void sh_run_swap_mean(struct sh_run *r);
sh_rc sh_run_load_model(struct sh_run *r, const char *path); /* parameters only: a new run begins from them */
sh_rc sh_run_load_hf(struct sh_run *r);                      /* the same, from model.hf_assets_path */
sh_rc sh_run_load_adapter(struct sh_run *r);                 /* adapters of lora.adapter_path; the base is loaded */
char *sh_run_checkpoint_folder(const struct sh_run *r);      /* local; freed with free() */

/* save.c: checkpoints of training, synchronous or asynchronous as checkpoint.async_mode says. */
struct sh_run_saved {
    char *path; /* of the committed checkpoint, freed with free(); NULL: nothing was committed */
    int64_t step, bytes;
    double seconds, stall, disk_seconds; /* the last: write and fsync time of the slowest rank */
    bool lost; /* the save failed because a home in a lower tier did not give back the state itself */
};
/* The meta data of a checkpoint of this state; freed with sh_ckpt_meta_free(), whatever the result. Agreed. */
sh_rc sh_run_describe(const struct sh_run *r, const char *guard, struct sh_ckpt_meta *meta);
sh_rc sh_run_can_save(struct sh_run *r);                                          /* call it before the first step */
sh_rc sh_run_save(struct sh_run *r, const char *guard, struct sh_run_saved *out); /* start; if not async, also finish */
bool sh_run_is_saving(const struct sh_run *r); /* a checkpoint is being written; local, the same on all ranks */
sh_rc sh_run_save_poll(struct sh_run *r, bool wait, struct sh_run_saved *out);
void sh_run_save_abandon(struct sh_run *r); /* give up a checkpoint that is being written */

/* save_hf.c: export the last state in transformers' format (checkpoint.last_save_in_hf).
 * can_save_hf: refuse if the folder exists before the run begins. Local: rank 0 calls it.
 * owes_hf: whether the run is at its last step without it. Local: as this rank sees the folder.
 * save_hf: call it after the last checkpoint was committed. Does nothing if it is not asked for, or if the folder of
 * this step exists already.
 * Errors: those of sh_hf_export(). */
sh_rc sh_run_can_save_hf(const struct sh_run *r);
bool sh_run_owes_hf(const struct sh_run *r);
sh_rc sh_run_save_hf(struct sh_run *r);

/* resume.c: load what training starts from: the newest valid checkpoint of the folder, the file that the configuration
 * names, or initial values. Logs which. Takes the lock of the folder if checkpoints will be written. */
sh_rc sh_run_start_state(struct sh_run *r);
/* Whether the file or folder of checkpoint.initial_load_path is there, unless a checkpoint of the own folder comes
 * before it. Before the run is opened. Local. Errors: SH_E_DATA. */
sh_rc sh_run_check_named(const struct sh_config *cfg);
/* The same, ignoring the folder's lock and unfinished files; own: whether the folder's own checkpoints count; near:
 * whether those in memory do. */
sh_rc sh_run_load_start(struct sh_run *r, bool own, bool near);

/* eval.c: the numbers of pairs that a section leaves, or the loss as the first of them: one sum, or one for each leaf of
 * this rank's part of the sequences. own: their tree's sum, of a micro-step of the section (0, unless it has several and
 * sums are trees); put: what LOSS sums over the ranks; losses: what it found.
 * Local. no_loss: a stage without the output matrix has none, so what is summed is 0; elsewhere without effect. */
void sh_run_no_loss(struct sh_run *r);
void sh_run_own_losses(struct sh_run *r, int step, double numbers[SH_PAIR_ALL]);
void sh_run_put_losses(struct sh_run *r, const double numbers[SH_PAIR_ALL]);
void sh_run_losses(struct sh_run *r, double numbers[SH_PAIR_ALL]);

/* eval.c: the mean loss over the first `sequences` windows of a file (0: all). Every rank runs the same number of
 * batches of local_batch_size sequences. Their losses are summed in one binary tree: on 2^k ranks the same parameters
 * give the same bits for each k and each strategy. */
struct sh_eval_result {
    double loss;
    struct sh_pair_metrics pairs; /* if the set has pairs; the loss is then their mean */
    int64_t labels, right;        /* of a model with labels: how many texts, and of how many it found all labels */
    bool multi_label;             /* a text may have several; f1: of all labels of all texts (micro average) */
    double f1;
    int64_t sequences, tokens, bytes; /* bytes: of the text of these tokens; 0: not known */
    double seconds;
    bool cut; /* it was stopped after so many sequences: there is no loss */
};

/* ask: before each batch, on all ranks, with the same answer: whether to stop. take: after it, for sequences [first,
 * first + n) of the set, n 0 if this rank had none, or others have the same. */
struct sh_eval_watch {
    sh_rc (*ask)(void *arg, bool *stop); /* NULL: nobody asks */
    void *arg;
    sh_rc (*take)(void *arg, int64_t first, int64_t n); /* NULL: nobody takes */
};
sh_rc sh_run_evaluate(struct sh_run *r, struct sh_feed *f, int64_t sequences, const struct sh_eval_watch *watch,
                      struct sh_eval_result *out); /* watch NULL: nobody asks */

sh_rc sh_run_train(struct sh_run *r);

#endif
