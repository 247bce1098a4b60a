/* Memory that is damaged during training: a bit flips in one replica, and the next comparison names the rank; a NaN
 * gets into the optimizer's state. None of this gets into a checkpoint. */
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/save/map.h"
#include "src/run/watch/finite.h"
#include "src/run/watch/replicas.h"
#include "tests/mpi/mpitest.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 400, HARM_STEP = 7, TOKENS = 2000 };

static const char *device = "cpu";

static void write_tokens(void)
{
    FILE *f = test_rank() == 0 ? fopen("tokens.bin", "wb") : NULL;

    if (test_rank() == 0)
        CHECK(f != NULL);
    for (unsigned i = 0; f && i < TOKENS; i++) {
        uint16_t token = (uint16_t)(i * 37 % 61);

        fwrite(&token, sizeof token, 1, f);
    }
    if (f)
        fclose(f);
    sh_mesh_barrier();
}

/* For the run that is opened next: no adapters, a model for adapters, or adapters on top of it. */
static enum { NONE, WHOLE, UPON } adapters;

/* precision: of parameters and of the optimizer's states */
static struct sh_run *open_run(const char *folder, int shard, const char *precision, int every, int interval)
{
    char text[7][64];
    const char *set[] = {"model.name=custom",
                         "model.family=llama",
                         "model.n_layers=2",
                         "model.dim=16",
                         "model.n_heads=2",
                         "model.ffn_dim=32",
                         "model.vocab_size=61",
                         "model.max_seq_len=8",
                         "training.dataset_path=tokens.bin",
                         "training.local_batch_size=1",
                         "training.threads=1",
                         "metrics.log_freq=1000",
                         "parallelism.sharding_strategy=hybrid_shard",
                         adapters ? "training.steps=1" : "training.steps=400",
                         adapters == UPON ? "lora.rank=2" : "lora.rank=0",
                         adapters == UPON ? "checkpoint.initial_load_path=whole" : "checkpoint.initial_load_path=",
                         text[0],
                         text[1],
                         text[2],
                         text[3],
                         text[4],
                         text[5],
                         text[6]};
    struct sh_config cfg;
    struct sh_run *r = NULL;

    snprintf(text[0], sizeof text[0], "job.dump_folder=%s", folder);
    snprintf(text[1], sizeof text[1], "mesh.shard=%d", shard);
    snprintf(text[2], sizeof text[2], "training.mixed_precision_param=%s", precision);
    snprintf(text[3], sizeof text[3], "fault.replica_check_every=%d", every);
    snprintf(text[4], sizeof text[4], "checkpoint.interval=%d", interval);
    snprintf(text[5], sizeof text[5], "training.device=%s", device);
    snprintf(text[6], sizeof text[6], "optimizer.state_dtype=%s", precision);
    CHECK_OK(sh_config_load(NULL, (int)(sizeof set / sizeof *set), set, &cfg));
    CHECK_OK(sh_run_open(&cfg, SH_TO_TRAIN, &r));
    return r;
}

static void flip(struct sh_run *r, int tensor)
{
    unsigned char *at = (unsigned char *)sh_exec_data(r->exec, tensor) + 1, byte;

    sh_exec_get_at(r->exec, &byte, at, 1);
    byte ^= 0x10;
    sh_exec_put_at(r->exec, at, &byte, 1);
}

/* The one rank that reports names the victim, and only the victim if it is outvoted. */
static void check_words(const struct sh_run *r, int victim, const char *what)
{
    int replicas = sh_group_size(&r->mesh->shape, r->mesh->shape.replicate);
    char rank[32];

    snprintf(rank, sizeof rank, "rank %d on ", victim);
    if (!sh_error_text()[0])
        return;
    CHECK(strstr(sh_error_text(), rank) != NULL);
    CHECK(strstr(sh_error_text(), what) != NULL);
    CHECK((strstr(sh_error_text(), "should be replicas and differ") != NULL) == (replicas == 2));
    CHECK(replicas == 2 || test_rank() == victim);
}

static void check_flip(struct sh_run *r, int victim, int tensor, const char *what)
{
    bool alone = sh_group_size(&r->mesh->shape, r->mesh->shape.replicate) == 1;

    if (test_rank() == victim)
        flip(r, tensor);
    CHECK(sh_replicas_compare(r) == (alone ? SH_OK : SH_E_REPLICA));
    if (!alone)
        check_words(r, victim, what);
    sh_error_clear();
    if (test_rank() == victim)
        flip(r, tensor);
    CHECK_OK(sh_replicas_compare(r));
}

/* Damage every state of a unit, in the first and the last replica, on every mesh. */
static void test_compare(const char *precision)
{
    for (int shard = 1; shard <= test_world(); shard++) {
        struct sh_run *r = test_world() % shard ? NULL : open_run("direct", shard, precision, 1, 1000);
        const struct sh_unit *u;
        char what[96];

        if (!r)
            continue;
        CHECK_OK(sh_run_init_state(r));
        CHECK_OK(sh_replicas_compare(r));
        u = &r->p->units[1];
        snprintf(what, sizeof what, "%s exp_avg", u->name);
        for (int victim = 0; victim < test_world(); victim += test_world() - shard ? test_world() - shard : 1) {
            check_flip(r, victim, u->compute, "parameters");
            check_flip(r, victim, u->state[0], what);
            check_flip(r, victim, u->state[1], "exp_avg_sq");
            if (u->remainder != SH_NONE)
                check_flip(r, victim, u->remainder, "remainder");
        }
        sh_run_close(r);
    }
    test_end("a flipped bit is found in every state");
}

static void spoil(struct sh_run *r, int tensor)
{
    *(float *)sh_exec_data(r->exec, tensor) = NAN;
}

static void put_first(struct sh_run *r, int u, int state, float value)
{
    if (test_rank() == 0)
        sh_exec_put_floats(r->exec, sh_map_state(r->map, u, state, 0), &value, 1);
}

/* Damage each state of the unit on the first rank. */
static void test_sound(const char *precision)
{
    struct sh_run *r = open_run("sound", test_world(), precision, 1, 1000);
    const struct sh_unit *u = &r->p->units[1];

    CHECK_OK(sh_run_init_state(r));
    for (int i = 0; i < r->map->n_states; i++) {
        CHECK_OK(sh_run_check_finite(r));
        put_first(r, 1, i, NAN);
        CHECK(sh_run_check_finite(r) == SH_E_NUMERIC);
        CHECK(test_rank() != 0 || strstr(sh_error_text(), u->name));
        put_first(r, 1, i, 0);
    }
    sh_error_clear();
    sh_run_close(r);
    test_end("a NaN is found in every state");
}

/* Flip a bit of the base model on each rank in turn; and a bit of an adapter, which other comparisons must find. */
static void test_frozen(const char *precision)
{
    struct sh_run *r;
    char rank[32];

    adapters = WHOLE;
    r = open_run("whole", test_world(), precision, 0, 1000);
    CHECK_OK(sh_run_train(r));
    sh_run_close(r);
    adapters = UPON;
    r = open_run("upon", test_world(), precision, 0, 1000);
    adapters = NONE;
    CHECK_OK(sh_run_load_start(r, false, false));
    CHECK(sh_frozen_any(r));
    for (int victim = 0; victim < test_world(); victim++) {
        CHECK_OK(sh_frozen_check(r, sh_frozen_changed(r)));
        if (test_rank() == victim)
            flip(r, r->p->units[1].compute);
        CHECK(sh_frozen_check(r, sh_frozen_changed(r)) == SH_E_REPLICA);
        snprintf(rank, sizeof rank, "rank %d on ", victim);
        CHECK(!sh_error_text()[0] || (strstr(sh_error_text(), "frozen parameters") && strstr(sh_error_text(), rank)));
        sh_error_clear();
        if (test_rank() == victim)
            flip(r, r->p->units[1].compute);
    }
    flip(r, r->p->units[2].compute);
    CHECK_OK(sh_frozen_check(r, sh_frozen_changed(r)));
    sh_run_close(r);
    test_end("a flipped bit of the base is found");
}

struct damage {
    struct sh_run *r;
    void (*harm)(struct sh_run *r, int tensor);
    atomic_bool end;
};

static void *harm_in_training(void *arg)
{
    struct damage *d = arg;

    while (!d->end && *(volatile int64_t *)&d->r->step < HARM_STEP)
        usleep(50);
    d->harm(d->r, d->r->p->units[1].state[0]);
    return NULL;
}

static bool exists(const char *folder, int64_t step)
{
    char path[128];
    struct stat s;

    snprintf(path, sizeof path, "%s/checkpoint/step-%08lld.h5", folder, (long long)step);
    return stat(path, &s) == 0;
}

/* Train until the damage is found, by the comparison of every `every` steps or before a save every `interval`. */
static sh_rc train_with(struct damage *d, int victim, const char *folder, int every, int interval)
{
    pthread_t thread;
    sh_rc rc;

    if (test_rank() == victim)
        CHECK(pthread_create(&thread, NULL, harm_in_training, d) == 0);
    rc = sh_run_train(d->r);
    CHECK(d->r->step >= HARM_STEP && d->r->step < STEPS && d->r->step % (every < interval ? every : interval) == 0);
    CHECK(!exists(folder, d->r->step));
    CHECK(d->r->step <= interval || exists(folder, d->r->step - interval));
    atomic_store(&d->end, true);
    if (test_rank() == victim)
        pthread_join(thread, NULL);
    return rc;
}

static void test_flip_in_training(const char *folder, int every, int interval)
{
    struct damage d = {.r = open_run(folder, 1, "float32", every, interval), .harm = flip};
    int victim = test_world() - 1;

    CHECK(train_with(&d, victim, folder, every, interval) == SH_E_REPLICA);
    check_words(d.r, victim, "exp_avg");
    sh_run_close(d.r);
    test_end("training ends with a flipped bit, unsaved");
}

static void test_nan_in_training(void)
{
    struct damage d = {.r = open_run("nan", test_world(), "float32", 1, 1), .harm = spoil};

    CHECK(train_with(&d, 0, "nan", 1000, 1) == SH_E_NUMERIC);
    CHECK(!sh_error_text()[0] || strstr(sh_error_text(), "hold NaN or infinity; not saved"));
    sh_run_close(d.r);
    test_end("training ends with a NaN, unsaved");
}

int main(int argc, char **argv)
{
    if (sh_mesh_start(&argc, &argv) != SH_OK)
        return 1;
    write_tokens();
    test_compare("bfloat16");
    test_compare("float32");
    test_sound("float32");
    test_sound("bfloat16");
    test_frozen("float32");
    test_frozen("bfloat16");
    if (test_world() > 1) {
        test_flip_in_training("often", 5, 1000);
        test_flip_in_training("save", 1000000, 20);
    }
    test_nan_in_training();
#ifdef SH_CUDA_EMULATED
    setenv("SHERD_EMULATED_GPUS", "16", 1);
    device = "cuda";
    test_compare("bfloat16");
    test_compare("float32");
    test_sound("float32");
    test_sound("bfloat16");
    test_frozen("bfloat16");
#endif
    sh_mesh_stop();
    return bad_tests != 0;
}
