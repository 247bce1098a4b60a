#include "io/checkpoint/checkpoint.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/config/read/ffn.h"
#include "src/plugin/check.h"
#include "src/plugin/plugin.h"

#include "kernels/plug.h"
#include "kernels/shape.h"

#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES = 8, LARGEST = 1 << 28 };

static struct sh_plugin opened[FILES];
static int n_opened;

/* ---- one file ---- */

/* The fields before it say how large the rest is. */
static sh_rc check_headers(const char *path, const struct sherd_plugin *p)
{
    static const struct sherd_plugin own = {SHERD_PLUGIN, .name = ""};

    if (p->abi == own.abi && p->op_bytes == own.op_bytes && p->call_bytes == own.call_bytes)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "%s was compiled with other headers: abi %d with rows of %zu and calls of %zu bytes, not abi %d with "
        "%zu and %zu; compile it again, with `pkg-config --cflags sherd-plugin`",
        path, p->abi, p->op_bytes, p->call_bytes, own.abi, own.op_bytes, own.call_bytes);
}

static sh_rc sum_file(const char *path, uint64_t *sum)
{
    size_t bytes;
    char *data;

    SH_TRY(sh_read_file(path, LARGEST, &data, &bytes));
    *sum = sh_hash64(data, bytes);
    free(data);
    return SH_OK;
}

/* RTLD_LOCAL: two plug-ins may have functions of one name. A library that was linked with -ffast-math makes subnormal
 * numbers 0 in the whole process when it is opened, which is taken back. */
static sh_rc load(const char *path, const struct sherd_plugin **library)
{
    void *handle;
    fenv_t plain;

    fegetenv(&plain);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fesetenv(&plain);
    if (!handle)
        return sh_fail(SH_E_DATA, "not a library that can be loaded (cc -shared -fPIC makes one): %s", dlerror());
    *library = dlsym(handle, "sherd_plugin");
    if (!*library)
        return sh_fail(
            SH_E_DATA,
            "%s: it has no symbol sherd_plugin; define `const struct sherd_plugin sherd_plugin = {...}`, not "
            "static, and in C++ extern \"C\"",
            path);
    return check_headers(path, *library);
}

sh_rc sh_plugin_read(const char *path, enum sh_cfg_trust trust, struct sh_plugin *out)
{
    char real[PATH_MAX];

    if (!realpath(path, real))
        return sh_fail(SH_E_DATA, "%s: %s", path, strerror(errno));
    SH_TRY(sh_ckpt_trusted(real, trust));
    SH_TRY(sum_file(real, &out->sum));
    SH_TRY(load(real, &out->library));
    out->path = sh_strdup(real);
    return SH_OK;
}

/* ---- the files of a configuration ---- */

static bool is_open(const char *path)
{
    char real[PATH_MAX];

    for (int i = 0; i < n_opened; i++)
        if (realpath(path, real) && !strcmp(opened[i].path, real))
            return true;
    return false;
}

/* Its rows are judged one by one before they are run. */
static sh_rc add(const struct sh_plugin *p)
{
    SH_TRY(sh_plug_add(p->library));
    return sh_plugin_check_briefly(p->library);
}

static sh_rc open_file(const char *path, enum sh_cfg_trust trust)
{
    struct sh_plugin *p = &opened[n_opened];
    sh_rc rc;

    if (is_open(path))
        return SH_OK;
    if (n_opened == FILES)
        return sh_fail(SH_E_USAGE, "more than %d files", FILES);
    SH_TRY(sh_plugin_read(path, trust, p));
    rc = add(p);
    if (rc != SH_OK)
        return sh_fail_prefix(rc, "%s: ", path);
    n_opened++;
    return SH_OK;
}

static sh_rc open_files(const struct sh_config *cfg)
{
    char *copy = sh_strdup(cfg->plugin.files), *rest = *copy ? copy : NULL, *path;
    sh_rc rc = SH_OK;

    while (rc == SH_OK && (path = strsep(&rest, ",")) != NULL)
        rc = open_file(path, cfg->checkpoint.trust);
    free(copy);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "plugin.files: ");
}

/* ---- their numbers ---- */

static void reset_numbers(void)
{
    for (int k = SH_OP_KINDS; k < SH_OP_ROOM && sh_plug_number_rows(k); k++)
        for (int i = 0; i < SHERD_NUMBERS; i++)
            sh_plug_set(k, i, sh_plug_number_rows(k)[i].value);
}

/* "row.name=x" */
static sh_rc set_number(char *text)
{
    char *equals = strchr(text, '='), *dot = strchr(text, '.'), *end;
    enum sh_op_kind kind;
    double value;

    if (!equals || !dot || dot > equals)
        return sh_fail(SH_E_USAGE, "'%.80s' is not OPERATION.NUMBER=X", text);
    *dot = *equals = '\0';
    kind = sh_plug_find(text);
    if (kind == SH_OP_ROOM)
        return sh_fail(SH_E_USAGE, "%s.%s: no plug-in has an operation or a loss %s", text, dot + 1, text);
    value = strtod(equals + 1, &end);
    for (int i = 0; i < SHERD_NUMBERS && sh_plug_number_rows(kind)[i].name; i++) {
        const struct sherd_number *n = &sh_plug_number_rows(kind)[i];

        if (strcmp(n->name, dot + 1) != 0)
            continue;
        if (end == equals + 1 || *end || !(value >= n->min && value <= n->max))
            return sh_fail(SH_E_USAGE, "%s.%s: %.40s is not a number from %g to %g", text, n->name, equals + 1, n->min,
                           n->max);
        sh_plug_set(kind, i, value);
        return SH_OK;
    }
    return sh_fail(SH_E_USAGE, "%s has no number %s", text, dot + 1);
}

static sh_rc set_numbers(const struct sh_config *cfg)
{
    char *copy = sh_strdup(cfg->plugin.numbers), *rest = *copy ? copy : NULL, *part;
    sh_rc rc = SH_OK;

    reset_numbers();
    while (rc == SH_OK && (part = strsep(&rest, ",")) != NULL)
        rc = set_number(part);
    free(copy);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "plugin.");
}

/* ---- what the model uses ---- */

/* What a configuration with an operation of its own cannot have yet. */
static sh_rc check_model(const struct sh_config *cfg)
{
    const char *op = cfg->model.ffn_op;

    if (cfg->model.n_experts)
        return sh_fail(SH_E_USAGE,
                       "model.ffn_op=%s: experts weigh their activation by the router; only models without experts can "
                       "have another",
                       op);
    if (cfg->parallelism.tensor_parallel_degree > 1)
        return sh_fail(SH_E_USAGE,
                       "model.ffn_op=%s: with parallelism.tensor_parallel_degree=%d a rank has a part of the columns, "
                       "and an operation may need all; shard over ranks instead",
                       op, cfg->parallelism.tensor_parallel_degree);
    return SH_OK;
}

/* An operation that a feed-forward part may have. `key`: that names it. */
static sh_rc check_kind(const char *key, const char *op, enum sh_op_kind kind, bool gpu)
{
    if (sh_plug_loss(kind))
        return sh_fail(SH_E_USAGE, "%s%s: it is a loss; objective.plugin names those", key, op);
    if (!sh_op_info(kind)->forward)
        return sh_fail(SH_E_USAGE, "%s%s: it has no backward, so it is the backward of another", key, op);
    if (!sh_plugin_columns(sh_op_shape(kind)))
        return sh_fail(SH_E_USAGE,
                       "%s%s: it is \"%s\", but a feed-forward part takes [N,2F] -> [N,F] or [N,F] -> [N,F]", key, op,
                       sh_op_info(kind)->shape);
    if (gpu && !(sh_plug_row(kind)->cuda && sh_plug_row(sh_op_info(kind)->backward)->cuda))
        return sh_fail(SH_E_USAGE,
                       "%s%s: the plug-in has no cuda kernel for it and for its backward, and the job runs on "
                       "GPUs; add them, or give training.device=cpu",
                       key, op);
    return SH_OK;
}

/* Which is of targets or of pairs, as the objective is. */
static sh_rc check_loss(const struct sh_config *cfg)
{
    const char *name = cfg->objective.plugin;
    enum sh_op_kind kind = sh_plug_find(name);
    const struct sherd_loss *loss = sh_plug_loss(kind);
    bool pairs = cfg->objective.name == SH_OBJECTIVE_DPO;

    if (!name[0])
        return SH_OK;
    if (!loss)
        return sh_fail(SH_E_USAGE, "objective.plugin=%s: %s", name,
                       kind != SH_OP_ROOM ? "it is an operation; model.ffn_op names those"
                       : n_opened         ? "no file of plugin.files has a loss of that name"
                                          : "plugin.files names no plug-in that has it");
    if (pairs != (loss->pair != NULL))
        return sh_fail(SH_E_USAGE, "objective.plugin=%s: it is a loss of %s; give %s", name,
                       pairs ? "targets" : "pairs",
                       pairs ? "objective.name=plugin" : "objective.name=dpo with objective.loss_type=plugin");
    return SH_OK;
}

/* With those that there are. */
static sh_rc no_such_op(const char *op, const char *files)
{
    char there[256] = "none";
    size_t n = 0;

    for (int k = SH_OP_KINDS; k < SH_OP_ROOM && n < sizeof there; k++)
        if (sh_plug_row(k) && sh_op_info(k)->forward)
            n += (size_t)snprintf(there + n, sizeof there - n, "%s%s", n ? ", " : "", sh_op_info(k)->name);
    return sh_fail(SH_E_USAGE,
                   "model.ffn_op=%s: no plug-in of plugin.files=%s has an operation of that name; there is %s", op,
                   files, there);
}

static sh_rc check_use(const struct sh_config *cfg, bool gpu)
{
    const char *op = cfg->model.ffn_op;
    enum sh_op_kind kind = sh_plug_find(op);
    int wanted = sh_family_of(cfg->model.family)->gelu ? 1 : 2;

    if (!op[0])
        return SH_OK;
    if (!n_opened)
        return sh_fail(SH_E_USAGE, "model.ffn_op=%s: plugin.files names no plug-in that has it", op);
    if (kind == SH_OP_ROOM)
        return no_such_op(op, cfg->plugin.files);
    SH_TRY(check_kind("model.ffn_op=", op, kind, gpu));
    if (sh_plugin_columns(sh_op_shape(kind)) != wanted)
        return sh_fail(SH_E_USAGE, "model.ffn_op=%s: it is \"%s\", but the feed-forward part of this family has %s", op,
                       sh_op_info(kind)->shape, wanted == 2 ? "gate and up, [N,2F] -> [N,F]" : "[N,F] -> [N,F]");
    return check_model(cfg);
}

/* The operations of plug-ins among the statements of model.ffn; sh_ffn_check() says of others that they are missing. */
static sh_rc check_statements(const struct sh_config *cfg, bool gpu)
{
    struct sh_ffn f;

    SH_TRY(sh_config_ffn(cfg->model.ffn, &f));
    for (int i = 0; i < f.n; i++) {
        enum sh_op_kind kind = f.step[i].kind == SH_FFN_OPERATION ? sh_plug_find(f.step[i].name) : SH_OP_ROOM;

        if (kind != SH_OP_ROOM)
            SH_TRY(check_kind("model.ffn: ", f.step[i].name, kind, gpu));
    }
    return SH_OK;
}

sh_rc sh_plugin_open(const struct sh_config *cfg, bool gpu)
{
    SH_TRY(open_files(cfg));
    SH_TRY(set_numbers(cfg));
    SH_TRY(check_loss(cfg));
    SH_TRY(check_statements(cfg, gpu));
    return check_use(cfg, gpu);
}

/* ---- what is open ---- */

uint64_t sh_plugin_sum(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < n_opened; i++)
        sum = sh_mix64(sum ^ opened[i].sum);
    return sum;
}

char *sh_plugin_text(void)
{
    char *text = NULL;

    for (int i = 0; i < n_opened; i++) {
        char *path = sh_strdup(opened[i].path);
        char *longer = sh_strfmt("%s%s%s %016llx", text ? text : "", text ? ", " : "", basename(path),
                                 (unsigned long long)opened[i].sum);

        free(path);
        free(text);
        text = longer;
    }
    return text;
}
