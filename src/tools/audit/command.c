/* `sherd audit CHECKPOINT --step N`: do the steps of a run from a checkpoint to step N again, on any number of ranks, and
 * compare the state after each with what the run claimed (src/run/measure/claims.h). */
#include "src/cmd/cmd.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/run/run.h"
#include "src/run/save/newest.h"
#include "src/run/measure/claims.h"
#include "src/tools/bench/folder.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files in the folder of the audit, all of which are deleted. */
static const char *const files[] = {SH_CLAIMS_FILE, "reference.bin", "metrics.jsonl", "config.yaml", "progress.json"};

struct audit {
    char *checkpoint, *path; /* path: of the claims */
    char *folder;            /* of the run, unless only its checkpoint was moved */
    json_t *claimed, *found; /* lines of the two files of claims */
    int64_t from, to;        /* steps */
    struct sh_config cfg;
};

/* ---- claims ---- */

/* The file's lines, in an array; *out is freed with json_decref(). */
static sh_rc read_claims(const char *path, json_t **out)
{
    enum { MOST = 1 << 30 };
    char *text, *rest = NULL;
    size_t bytes;

    SH_TRY(sh_read_file(path, MOST, &text, &bytes));
    *out = json_array();
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *one = json_loads(line, 0, NULL);

        if (!json_is_object(one)) {
            json_decref(one);
            free(text);
            json_decref(*out);
            *out = NULL;
            return sh_fail(SH_E_DATA, "%s: line %.40s is no claim", path, line);
        }
        json_array_append_new(*out, one);
    }
    free(text);
    return SH_OK;
}

/* The newest claim of a step, since a run may have done it twice; and what made it. NULL: there is none. */
static const char *find_claim(const json_t *lines, int64_t step, const json_t **head)
{
    const char *digest = NULL;

    *head = NULL;
    for (size_t i = json_array_size(lines); i-- > 0 && !*head;) {
        const json_t *line = json_array_get(lines, i);

        if (digest && json_object_get(line, "claims"))
            *head = line;
        else if (!digest && json_integer_value(json_object_get(line, "step")) == step)
            digest = json_string_value(json_object_get(line, "digest"));
    }
    return *head ? digest : NULL;
}

/* The newest step that has a claim behind `from` and up to `to`, and what made it; 0: there is none. */
static int64_t newest_claim(const json_t *lines, int64_t from, int64_t to, const json_t **head)
{
    int64_t newest = 0;

    for (size_t i = 0; i < json_array_size(lines); i++) {
        int64_t step = json_integer_value(json_object_get(json_array_get(lines, i), "step"));

        if (step > from && step <= to && step > newest && find_claim(lines, step, head))
            newest = step;
    }
    if (newest)
        find_claim(lines, newest, head);
    return newest;
}

/* What must be equal for equal bits, as far as claims say it; NULL: all is. */
static const char *differing(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"version", "built_with", "device", "instructions", "local_batch_size"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            return keys[i];
    return json_is_true(json_object_get(a, "reproducible")) ||
                   json_equal(json_object_get(a, "ranks"), json_object_get(b, "ranks"))
               ? NULL
               : "ranks";
}

/* ---- before the steps ---- */

/* The folder of a run is the one above that of its checkpoints; its claims and its reference lie there. */
static char *usual_folder(const char *checkpoint)
{
    const char *slash = strrchr(checkpoint, '/');

    return slash ? sh_strfmt("%.*s/..", (int)(slash - checkpoint), checkpoint) : sh_strdup("..");
}

/* The run's own configuration, and no work besides its steps. The schedule's end stays where it was.
 *   head  of the claims, which a file says */
static sh_rc prepare(struct audit *a, const json_t *head)
{
    int64_t local_batch = json_integer_value(json_object_get(head, "local_batch_size"));
    struct sh_config *cfg = &a->cfg;

    if (local_batch < 1 || local_batch > INT_MAX)
        return sh_fail(SH_E_DATA, "%s: local_batch_size is no number of sequences", a->path);
    if (!cfg->lr_scheduler.total_steps)
        cfg->lr_scheduler.total_steps = cfg->training.steps;
    cfg->training.steps = a->to;
    cfg->training.local_batch_size = (int)local_batch;
    cfg->metrics.state_digest_every = 1;
    cfg->fault.replay_every = 0;
    cfg->metrics.progress = false;
    cfg->checkpoint.enable = false;
    cfg->checkpoint.resume = SH_RESUME_NEVER;
    cfg->checkpoint.last_save_in_hf = false;
    if (!cfg->lora.rank) { /* else it is the base */
        cfg->checkpoint.initial_load_model_only = false;
        cfg->checkpoint.initial_load_path[0] = '\0';
    }
    cfg->validation.enable = false;
    return SH_OK;
}

/* Local; the same on all ranks. Steps behind the newest claim would show nothing. */
static sh_rc open_audit(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct audit *a)
{
    const char *claims = sh_cmd_option(cmd, args, "--claims");
    struct sh_ckpt_meta meta = {0};
    const json_t *head = NULL;
    int64_t newest;
    sh_rc rc;

    if (args->n_positional != 1)
        return sh_fail(SH_E_USAGE, "sherd audit: name one checkpoint");
    if (!sh_cmd_option(cmd, args, "--step"))
        return sh_fail(SH_E_USAGE, "sherd audit: up to which step? --step N");
    SH_TRY(sh_cmd_whole(cmd, args, "--step", 1, INT64_MAX, 0, &a->to));
    SH_TRY(sh_newest_find(args->positional[0], &a->checkpoint));
    a->folder = usual_folder(a->checkpoint);
    a->path = claims ? sh_strdup(claims) : sh_path_join(a->folder, SH_CLAIMS_FILE);
    if (access(a->path, F_OK) != 0)
        return sh_fail(SH_E_DATA, "%s: no such file; a run writes claims with metrics.state_digest_every", a->path);
    SH_TRY(read_claims(a->path, &a->claimed));
    SH_TRY(sh_ckpt_read_meta(a->checkpoint, &meta));
    a->from = meta.step;
    rc = sh_config_parse(meta.config, strlen(meta.config), a->checkpoint, args->n_overrides, args->overrides, &a->cfg);
    sh_ckpt_meta_free(&meta);
    SH_TRY(rc);
    if (a->to <= a->from)
        return sh_fail(SH_E_USAGE, "sherd audit: %s is of step %lld; give a later --step", a->checkpoint,
                       (long long)a->from);
    newest = newest_claim(a->claimed, a->from, a->to, &head);
    if (!newest)
        return sh_fail(SH_E_USAGE, "sherd audit: %s claims nothing of steps %lld to %lld", a->path,
                       (long long)a->from + 1, (long long)a->to);
    a->to = newest;
    return prepare(a, head);
}

/* ---- after them ---- */

static sh_rc refuse(const struct audit *a, int64_t step, const char *claimed, const char *found, const char *other)
{
    if (other)
        return sh_fail(SH_E_USAGE, "step %lld differs, which proves nothing: %s is not what made %s; audit where it is",
                       (long long)step, other, a->path);
    return sh_fail(SH_E_REPLICA,
                   "step %lld is not what %s claims: %s, and here %s; data, seed, rate or weights differ, or "
                   "a processor has failed",
                   (long long)step, a->path, claimed, found ? found : "nothing");
}

/* Rank 0. Each claim in the order of steps, up to the first that is wrong. */
static sh_rc judge(struct audit *a)
{
    char *path = sh_path_join(a->cfg.job.dump_folder, SH_CLAIMS_FILE);
    sh_rc rc = read_claims(path, &a->found);
    int64_t equal = 0;

    free(path);
    SH_TRY(rc);
    for (int64_t step = a->from + 1; step <= a->to; step++) {
        const json_t *theirs, *ours;
        const char *claimed = find_claim(a->claimed, step, &theirs), *found = find_claim(a->found, step, &ours);

        if (!claimed)
            continue;
        if (!found || strcmp(claimed, found) != 0)
            return refuse(a, step, claimed, found, ours ? differing(theirs, ours) : NULL);
        printf("step %lld: equal\n", (long long)step);
        equal++;
    }
    printf("%lld states after %s are what %s claims\n", (long long)equal, a->checkpoint, a->path);
    return SH_OK;
}

static sh_rc audit(struct audit *a)
{
    struct sh_run *r = NULL;
    sh_rc rc = sh_run_open(&a->cfg, SH_TO_TRAIN, &r);

    if (rc == SH_OK) {
        r->passing = true;
        r->goes_on = a->checkpoint;
        r->beside = a->folder;
        rc = sh_run_train(r);
    }
    if (rc == SH_OK)
        rc = sh_agree(r->mesh->rank == 0 ? judge(a) : SH_OK);
    sh_run_close(r);
    return rc;
}

/* Collective. Everything is written into a new folder, which is deleted at the end. */
sh_rc sh_cmd_audit(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *folder = sh_cmd_option(cmd, args, "--folder");
    struct audit *a = sh_calloc(1, sizeof *a);
    sh_rc rc = sh_agree(open_audit(cmd, args, a));

    if (rc == SH_OK)
        rc = sh_bench_folder_make(&a->cfg, folder ? folder : ".");
    if (rc == SH_OK) {
        rc = audit(a);
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            char *path = sh_path_join(a->cfg.job.dump_folder, files[i]);

            sh_bench_folder_drop(path);
            free(path);
        }
        sh_bench_folder_delete(&a->cfg);
    }
    json_decref(a->claimed);
    json_decref(a->found);
    free(a->checkpoint);
    free(a->folder);
    free(a->path);
    free(a);
    return rc;
}
