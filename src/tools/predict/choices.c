/* `sherd plan --machine`: what choices of the configuration cost. The same job is built and priced with one choice
 * changed; the difference is the cost. A change that is impossible has no line. */
#include "src/tools/predict/command.h"

#include "src/base/string/str.h"
#include "src/tools/predict/limit.h"

#include <math.h>
#include <string.h>

/* A gain below a hundredth is no advice. */
static const double worth = 1.01;

struct sh_cost_request sh_predict_request(const struct sh_predict *l)
{
    return (struct sh_cost_request){.p = l->p,
                                    .stages = l->stages.n ? &l->stages : NULL,
                                    .mesh = &l->mesh,
                                    .machine = &l->machine,
                                    .ranks_per_node = l->at.ranks_per_node,
                                    .shares = sh_topology_shares(&l->cfg, &l->at),
                                    .faster = sh_cost_as_is};
}

/* The job with a changed configuration. */
struct other {
    struct sh_config cfg;
    double seconds; /* of a step; 0: the job is impossible */
    int64_t bytes;
    char recompute[SH_RECOMPUTE_TEXT];
};

/* What a rank can have of a device. */
static double room_of(const struct sh_predict *l)
{
    return l->machine.device.memory_bytes - l->machine.device.reserved_bytes;
}

static struct other other_of(const struct sh_predict *l)
{
    return (struct other){.cfg = l->cfg};
}

/* Whatever it takes: some changes are priced for their time alone. */
static sh_rc build_and_price(const struct sh_predict *l, struct other *o)
{
    struct sh_predict plan = {.cfg = o->cfg, .at = l->at, .machine = l->machine, .ask = l->ask};
    struct sh_cost_request r;
    struct sh_cost_step step;
    char text[SH_RECOMPUTE_TEXT];
    sh_rc rc;

    SH_TRY(sh_request_mesh(&plan.cfg, &plan.at, &plan.mesh));
    plan.ask.cfg = &plan.cfg;
    plan.ask.mesh = &plan.mesh;
    plan.ask.limit_bytes = plan.cfg.memory.limit_bytes;
    plan.ask.weigh = true;
    SH_TRY(sh_plan_make(&plan.ask, &plan.build, &plan.p));
    rc = sh_predict_make_stages(&plan, true);
    r = sh_predict_request(&plan);
    if (rc == SH_OK)
        rc = sh_cost_step(&r, &step);
    o->seconds = rc == SH_OK ? step.seconds : 0;
    o->bytes = rc == SH_OK ? sh_predict_bytes(&plan) : 0;
    snprintf(o->recompute, sizeof o->recompute, "%s", sh_pass_recompute_text(&plan.build, text));
    sh_pipe_stages_free(&plan.stages);
    sh_program_destroy(plan.p);
    return rc;
}

static sh_rc price(const struct sh_predict *l, struct other *o)
{
    sh_rc rc = build_and_price(l, o);

    if (rc != SH_E_USAGE && rc != SH_E_MEMORY)
        return rc;
    sh_error_clear();
    o->seconds = 0;
    return SH_OK;
}

/* Whether the change is advice: it fits, and is faster. */
static bool is_better(const struct sh_predict *l, const struct other *o)
{
    return o->seconds > 0 && l->step.seconds > worth * o->seconds && (double)o->bytes <= room_of(l);
}

/* The share of a step that the choice takes, in percent. */
static double cost_of(const struct sh_predict *l, const struct other *o)
{
    return 100 * fmax(0, 1 - o->seconds / l->step.seconds);
}

/* Advice if the shards of a job span its nodes. */
static sh_rc say_hybrid(const struct sh_predict *l)
{
    struct other o = other_of(l);
    char gain[SH_PREDICT_LIMIT_TEXT];
    int node = l->at.ranks_per_node;

    if (l->cfg.parallelism.sharding_strategy != SH_FULL_SHARD || node < 2 || l->at.world <= node || l->at.world % node)
        return SH_OK;
    o.cfg.parallelism.sharding_strategy = SH_HYBRID_SHARD;
    o.cfg.mesh.shard = node;
    o.cfg.mesh.replicate = l->at.world / node;
    SH_TRY(price(l, &o));
    if (is_better(l, &o))
        printf("instead      hybrid_shard with mesh.shard=%d: %s\n", node,
               sh_predict_gain_text(l->step.seconds / o.seconds - 1, gain));
    return SH_OK;
}

/* A budget of whole GiB that leaves a twentieth of the device, as a search does; a larger one stays if it fits. */
static sh_rc price_budget(const struct sh_predict *l, bool fits, struct other *o)
{
    const double gib = 1 << 30;
    int64_t most = (int64_t)(floor(0.95 * room_of(l) / gib) * gib);

    o->cfg.activation_checkpoint.mode = SH_RECOMPUTE_MEMORY_BUDGET;
    if (!fits || o->cfg.memory.limit_bytes < most)
        o->cfg.memory.limit_bytes = most;
    return most > 0 ? price(l, o) : SH_OK;
}

/* "; activation_checkpoint.mode=memory_budget with memory.limit_bytes=74GiB: none, 22.9 % faster": if that is faster,
 * or fits where the plan does not. */
static sh_rc find_cure(const struct sh_predict *l, bool fits, char *text, size_t size)
{
    struct other budget = other_of(l);
    char gain[SH_PREDICT_LIMIT_TEXT];

    SH_TRY(price_budget(l, fits, &budget));
    if (is_better(l, &budget) || (!fits && budget.seconds > 0 && (double)budget.bytes <= room_of(l)))
        snprintf(text, size, "; activation_checkpoint.mode=memory_budget with memory.limit_bytes=%.0fGiB: %s, %s",
                 (double)budget.cfg.memory.limit_bytes / (1 << 30), budget.recompute,
                 sh_predict_gain_text(l->step.seconds / budget.seconds - 1, gain));
    return SH_OK;
}

/* On CPUs the memory of a device says nothing about a rank, so that the cost has no cure there. */
static sh_rc say_recompute(const struct sh_predict *l)
{
    struct other none = other_of(l);
    double spare = room_of(l) - (double)sh_predict_bytes(l);
    bool fits = !l->at.gpu || spare >= 0;
    char own[SH_RECOMPUTE_TEXT], bytes[SH_STR_SHORT];
    char rest[SH_STR_SHORT + 64] = "", cure[SH_RECOMPUTE_TEXT + 160] = "";
    const char *text = sh_pass_recompute_text(&l->build, own);

    if (fits && !strcmp(text, "none"))
        return SH_OK;
    none.cfg.activation_checkpoint.mode = SH_RECOMPUTE_NONE;
    SH_TRY(price(l, &none));
    if (l->at.gpu)
        SH_TRY(find_cure(l, fits, cure, sizeof cure));
    if (l->at.gpu && fits)
        snprintf(rest, sizeof rest, "; %s of a device are free", sh_str_sum_of_bytes(spare, bytes));
    if (none.seconds > 0)
        sh_str_say(stdout, "recompute", "%s: %.0f %% of the step%s%s", text, cost_of(l, &none), rest, cure);
    return SH_OK;
}

/* On CPUs every kernel adds in one order, and nothing is to be chosen. */
static sh_rc say_order(const struct sh_predict *l)
{
    struct other any = other_of(l);

    if (!l->at.gpu || !l->cfg.training.deterministic)
        return SH_OK;
    any.cfg.training.deterministic = false;
    SH_TRY(price(l, &any));
    if (any.seconds > 0 && l->step.seconds > 1.001 * any.seconds)
        sh_str_say(stdout, "same bits",
                   "training.deterministic: %.0f %% of the step; false would add in any order in the backward of "
                   "attention, and bits would differ from run to run",
                   cost_of(l, &any));
    else if (any.seconds > 0)
        sh_str_say(stdout, "same bits",
                   "training.deterministic costs nothing: this attention is computed by Sherd's "
                   "own kernels, which have one order");
    return SH_OK;
}

/* A mask leaves less to compute, but cuDNN has no kernel for it. */
static sh_rc say_documents(const struct sh_predict *l)
{
    struct other whole = other_of(l);
    char gain[SH_PREDICT_LIMIT_TEXT], of[64] = "of unknown length, priced as whole sequences";

    if (!l->at.gpu || !(l->cfg.data.document_mask || l->cfg.data.length_schedule[0]))
        return SH_OK;
    whole.cfg.data.document_mask = false;
    whole.cfg.data.length_schedule[0] = '\0';
    SH_TRY(price(l, &whole));
    if (l->cfg.data.document_tokens)
        snprintf(of, sizeof of, "of %d tokens", l->cfg.data.document_tokens);
    if (whole.seconds > 0)
        sh_str_say(stdout, "documents",
                   "%s (data.document_tokens): attention by Sherd's own kernels, %.0f %% of the step; over whole "
                   "sequences, without %s, cuDNN would make it %s",
                   of, 100 * l->step.row[SH_COST_ATTENTION].alone / l->step.seconds,
                   l->cfg.data.document_mask ? "data.document_mask" : "data.length_schedule",
                   sh_predict_gain_text(l->step.seconds / whole.seconds - 1, gain));
    return SH_OK;
}

/* Whether a training step gathers parameters. */
static bool gathers(const struct sh_program *p)
{
    for (int i = 0; i < p->n_sections; i++)
        for (int k = 0; k < p->sections[i].n_ops && p->sections[i].repeat; k++) {
            const struct sh_op *op = &p->ops[p->sections[i].first_op + k];

            if (op->kind == SH_OP_ALL_GATHER && op->unit != SH_NONE)
                return true;
        }
    return false;
}

/* What gathers in the other type would make of the step. */
static sh_rc say_gathers(const struct sh_predict *l)
{
    bool coded = l->cfg.parallelism.gather_dtype == SH_GATHER_INT8;
    struct other o = other_of(l);
    char gain[SH_PREDICT_LIMIT_TEXT];

    if (!gathers(l->p) || l->cfg.lora.quantize_base == SH_QUANTIZE_NF4)
        return SH_OK;
    o.cfg.parallelism.gather_dtype = coded ? SH_GATHER_COMPUTE : SH_GATHER_INT8;
    SH_TRY(price(l, &o));
    if (o.seconds > 0)
        sh_str_say(stdout, "gathers", "%s with parallelism.gather_dtype=%s",
                   sh_predict_gain_text(l->step.seconds / o.seconds - 1, gain), coded ? "compute" : "int8");
    return SH_OK;
}

sh_rc sh_predict_choices(const struct sh_predict *l)
{
    SH_TRY(say_recompute(l));
    SH_TRY(say_order(l));
    SH_TRY(say_documents(l));
    SH_TRY(say_gathers(l));
    return say_hybrid(l);
}
