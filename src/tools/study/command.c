/* `sherd study coords CONFIG`: models of several widths for a few steps, each on one sequence, and how much
 * their results change. With a parametrization in which a rate fits all widths, that does not depend on the width (Yang et
 * al., arXiv:2203.03466, appendix D). */
#include "src/cmd/cmd.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/mesh/mesh.h"
#include "src/optim/optim.h"
#include "src/run/run.h"
#include "src/tools/bench/folder.h"
#include "src/tools/study/coords.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTHS_MOST = 12, USUAL_WIDTHS = 4, LEAST_WIDTH = 64, TOKENS = 64 };
static const double bound = 0.35; /* of mean slopes */
static const char *const kinds[SH_COORD_KINDS] = {"attention", "ffn", "logits"};

/* Files in the folder, all of which are deleted. */
static const char *const files[] = {"tokens.bin", "metrics.jsonl", "config.yaml", "progress.json"};

struct study {
    struct sh_cmd_args args; /* without the word `coords` */
    struct sh_config asked;
    int width[WIDTHS_MOST], n;
    struct sh_coords found[WIDTHS_MOST];
};

/* ---- widths ---- */

/* What a number of the configuration becomes at a width; 0: no whole number, or 0. */
static int64_t scaled(const struct study *s, int64_t number, int width)
{
    return number * width % s->asked.model.dim ? 0 : number * width / s->asked.model.dim;
}

static bool has_whole_heads(const struct study *s, int width)
{
    const struct sh_model *m = &s->asked.model;

    return scaled(s, m->n_heads, width) && scaled(s, m->n_kv_heads, width) && scaled(s, m->ffn_dim, width) &&
           (!m->global_kv_heads || scaled(s, m->global_kv_heads, width)) &&
           (!m->linear_key_heads || scaled(s, m->linear_key_heads, width)) &&
           (!m->linear_value_heads || scaled(s, m->linear_value_heads, width));
}

static sh_rc choose_widths(struct study *s, const char *text)
{
    double given[WIDTHS_MOST];
    int least = 1, n = text ? sh_str_numbers(text, given, WIDTHS_MOST) : USUAL_WIDTHS;

    if (n < 2 || n > WIDTHS_MOST)
        return sh_fail(SH_E_USAGE, "sherd study coords: --widths takes 2 to %d numbers, like 64,128,256, not \"%s\"",
                       WIDTHS_MOST, text);
    s->n = n;
    while (!text && (least < LEAST_WIDTH || !has_whole_heads(s, least)))
        least++;
    for (int i = 0; i < s->n; i++) {
        if (text && (given[i] != floor(given[i]) || given[i] > 1 << 20 || (i && given[i] <= given[i - 1])))
            return sh_fail(SH_E_USAGE, "sherd study coords: --widths are whole numbers, smallest first, not \"%s\"",
                           text);
        s->width[i] = text ? (int)given[i] : least << i;
        if (!has_whole_heads(s, s->width[i]))
            return sh_fail(
                SH_E_USAGE,
                "sherd study coords: a model %d wide, with the heads of %d and a part of ffn_dim %lld, would not "
                "have whole ones: model.n_heads, n_kv_heads%s and ffn_dim are multiplied by %d/%lld",
                s->width[i], (int)s->asked.model.head_dim, (long long)s->asked.model.ffn_dim,
                s->asked.model.global_kv_heads    ? ", global_kv_heads"
                : s->asked.model.linear_key_heads ? ", linear_key_heads, linear_value_heads"
                                                  : "",
                s->width[i], (long long)s->asked.model.dim);
    }
    return SH_OK;
}

/* ---- runs ---- */

static sh_rc check_config(const struct sh_config *cfg)
{
    if (cfg->model.n_experts)
        return sh_fail(SH_E_USAGE, "sherd study coords is for models without experts: each width would choose others");
    if (cfg->lora.rank)
        return sh_fail(SH_E_USAGE, "sherd study coords is for models that are trained as a whole; leave out lora.rank");
    if (cfg->objective.name != SH_OBJECTIVE_LM || cfg->model.num_labels)
        return sh_fail(SH_E_USAGE, "sherd study coords: made-up tokens have neither answers nor labels; give "
                                   "--objective.name=lm --model.num_labels=0");
    if (cfg->hf.assets_path[0])
        return sh_fail(SH_E_USAGE, "sherd study coords: %s has parameters of one width; give a CONFIG with its sizes",
                       cfg->hf.assets_path);
    return SH_OK;
}

/* The configuration again, with the sizes of a width, so that all that follows from them does. */
static sh_rc configure(const struct study *s, int width, struct sh_config *cfg)
{
    const struct sh_model *m = &s->asked.model;
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"model.dim", width},
                 {"model.n_heads", scaled(s, m->n_heads, width)},
                 {"model.n_kv_heads", scaled(s, m->n_kv_heads, width)},
                 {"model.global_kv_heads", scaled(s, m->global_kv_heads, width)},
                 {"model.linear_key_heads", scaled(s, m->linear_key_heads, width)},
                 {"model.linear_value_heads", scaled(s, m->linear_value_heads, width)},
                 {"model.ffn_dim", scaled(s, m->ffn_dim, width)},
                 {"model.head_dim", m->head_dim}};
    enum { N = sizeof sizes / sizeof *sizes };
    struct sh_cmd_args args = s->args;
    char text[N + SH_BENCH_SHORTER][SH_BENCH_SETTING];
    int n = sh_bench_shorten(&s->asked, TOKENS, text + N);

    for (int i = 0; i < N + n; i++) {
        if (i < N)
            snprintf(text[i], sizeof text[i], "%s=%lld", sizes[i].key, (long long)sizes[i].value);
        SH_TRY(sh_cmd_set(&args, text[i]));
    }
    return sh_cmd_config(&args, NULL, cfg);
}

/* One sequence a step, always the same. */
static void prepare(struct sh_config *cfg)
{
    sh_bench_only_steps(cfg, files[0], SH_COORDS_UPDATES + 1);
    cfg->training.local_batch_size = 1;
    cfg->training.global_batch_size = -1;
    cfg->training.tile_rows = 0;
    cfg->lr_scheduler.decay_type = SH_DECAY_CONSTANT;
    cfg->metrics.norms = SH_NORMS_OFF;
    cfg->metrics.log_freq = cfg->training.steps;
    cfg->data.packing = SH_PACKING_CONCAT;
    cfg->data.target_mask = SH_MASK_AUTO;
    cfg->data.token_weight = SH_MASK_OFF;
    cfg->debug.fingerprint[0] = '\0';
    cfg->profiling.trace[0] = '\0';
}

static sh_rc measure(const struct sh_config *cfg, struct sh_coords *found)
{
    struct sh_run *r = NULL;
    sh_rc rc = sh_bench_write_tokens(cfg, 2 * (int64_t)cfg->training.seq_len + 1, cfg->training.seq_len);

    if (rc == SH_OK)
        rc = sh_run_open(cfg, SH_TO_TRAIN, &r);
    if (rc == SH_OK) {
        r->passing = true;
        sh_coords_begin(found, r);
        rc = sh_run_train(r);
        sh_coords_end(found);
    }
    sh_run_close(r);
    return rc;
}

static sh_rc measure_width(struct study *s, int i, const char *folder)
{
    struct sh_config *cfg = sh_calloc(1, sizeof *cfg);
    sh_rc rc = configure(s, s->width[i], cfg);

    if (rc == SH_OK)
        rc = sh_bench_folder_make(cfg, folder);
    if (rc == SH_OK) {
        prepare(cfg);
        rc = measure(cfg, &s->found[i]);
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            char *path = sh_path_join(cfg->job.dump_folder, files[k]);

            sh_bench_folder_drop(path);
            free(path);
        }
        sh_bench_folder_delete(cfg);
    }
    free(cfg);
    return rc;
}

/* ---- result ---- */

/* With which power of the width a change grows: the slope of the line through their logarithms. */
static double slope_of(const struct study *s, int row, int update)
{
    double x = 0, y = 0, xx = 0, xy = 0;

    for (int i = 0; i < s->n; i++) {
        double w = log(s->width[i]), c = log(s->found[i].row[row].change[update]);

        x += w;
        y += c;
        xx += w * w;
        xy += w * c;
    }
    return (s->n * xy - x * y) / (s->n * xx - x * x);
}

/* The mean over blocks and updates. A change that is 0, or no finite number, makes it no number. */
static double mean_slope(const struct study *s, enum sh_coord_kind kind)
{
    double sum = 0;
    int n = 0;

    for (int row = 0; row < s->found[0].n; row++)
        for (int u = 0; u < SH_COORDS_UPDATES && s->found[0].row[row].kind == kind; u++, n++)
            sum += slope_of(s, row, u);
    return sum / n;
}

static void print_row(const struct study *s, int row)
{
    const struct sh_coord *c = &s->found[0].row[row];
    char block[24] = "", name[48];

    if (c->block != SH_NONE)
        snprintf(block, sizeof block, "layers.%d ", c->block);
    snprintf(name, sizeof name, "%s%s", block, kinds[c->kind]);
    printf("%-22s", name);
    for (int i = 0; i < s->n; i++)
        printf(" %9.3g", s->found[i].row[row].change[SH_COORDS_UPDATES - 1]);
    for (int u = 0; u < SH_COORDS_UPDATES; u++)
        printf(" %+8.2f", slope_of(s, row, u));
    printf("\n");
}

static void print_table(const struct study *s)
{
    const struct sh_config *cfg = &s->asked;

    printf(
        "change of results, root mean square after %d updates on one sequence, and the slope of its logarithm over that of "
        "the width after 1 to %d\n",
        SH_COORDS_UPDATES, SH_COORDS_UPDATES);
    printf("%s, %s at a rate of %g, %s\n%-22s", cfg->model.name, sh_optim_of(cfg->optimizer.name)->name,
           cfg->optimizer.lr, cfg->optimizer.mup ? "muP" : "standard parametrization", "width");
    for (int i = 0; i < s->n; i++)
        printf(" %9d", s->width[i]);
    for (int u = 0; u < SH_COORDS_UPDATES; u++)
        printf("  slope %d", u + 1);
    printf("\n");
    for (int row = 0; row < s->found[0].n; row++)
        print_row(s, row);
}

static sh_rc judge(const struct study *s)
{
    enum sh_coord_kind worst = 0;
    double slope[SH_COORD_KINDS];

    printf("mean slopes:");
    for (enum sh_coord_kind k = 0; k < SH_COORD_KINDS; k++) {
        slope[k] = mean_slope(s, k);
        printf(" %s %+.2f%s", kinds[k], slope[k], k + 1 < SH_COORD_KINDS ? "," : "\n");
        worst = fabs(slope[k]) > fabs(slope[worst]) || !isfinite(slope[k]) ? k : worst;
    }
    if (!isfinite(slope[worst]))
        return sh_fail(SH_E_DATA,
                       "at some width, %s does not change, or to no finite number; give another optimizer.lr",
                       kinds[worst]);
    if (fabs(slope[worst]) > bound)
        return sh_fail(SH_E_DATA,
                       "a rate for one of these widths does not fit the others: the slope of %s is %+.2f, beyond %g%s",
                       kinds[worst], slope[worst], bound, s->asked.optimizer.mup ? "" : "; see mup.enable");
    printf("a rate for one of these widths fits the others: no mean slope is beyond %g\n", bound);
    return SH_OK;
}

static sh_rc read_arguments(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct study *s)
{
    int rank, world;

    if (!args->n_positional || strcmp(args->positional[0], "coords") != 0)
        return sh_fail(SH_E_USAGE, "sherd study: expected coords; see sherd study --help");
    sh_mesh_world(&rank, &world);
    if (world > 1)
        return sh_fail(SH_E_USAGE, "sherd study coords runs in one process, not in %d; start it without mpirun", world);
    s->args = *args;
    s->args.n_positional--;
    memmove(s->args.positional, args->positional + 1, (size_t)s->args.n_positional * sizeof *args->positional);
    SH_TRY(sh_cmd_config(&s->args, NULL, &s->asked));
    SH_TRY(check_config(&s->asked));
    return choose_widths(s, sh_cmd_option(cmd, args, "--widths"));
}

sh_rc sh_cmd_study(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *folder = sh_cmd_option(cmd, args, "--folder");
    struct study *s = sh_calloc(1, sizeof *s);
    sh_rc rc = sh_agree(read_arguments(cmd, args, s));

    for (int i = 0; i < s->n && rc == SH_OK; i++)
        rc = measure_width(s, i, folder ? folder : ".");
    if (rc == SH_OK) {
        print_table(s);
        rc = judge(s);
    }
    for (int i = 0; i < s->n; i++)
        sh_coords_free(&s->found[i]);
    free(s);
    return rc;
}
