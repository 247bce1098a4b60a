/* Objectives: which of their keys act together, and what they cannot be combined with. */
#include "src/config/check/check.h"
#include "src/config/family.h"
#include "src/config/read/place.h"

static const struct sh_config *config_of(const struct sh_config_state *state)
{
    return &state->cfg;
}

/* What is in the way, the key to change, and why. */
struct bar {
    bool there;
    const char *key, *text;
};

static sh_rc refuse_first(struct sh_config_state *state, const struct bar *bars, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bars[i].there)
            return sh_config_refuse(state, bars[i].key, "%s", bars[i].text);
    return SH_OK;
}

static bool is_typed(struct sh_config_state *state, const char *key)
{
    return sh_config_place_typed(sh_config_place_of(state, key));
}

/* As check_idle() of check.c. */
static sh_rc refuse_idle(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    bool dpo = c->objective.name == SH_OBJECTIVE_DPO, own = dpo && c->objective.loss_type == SH_PREFER_PLUGIN,
         teacher = c->objective.name == SH_OBJECTIVE_DISTILLATION,
         labels = sh_cfg_loss_takes(c->objective.loss_type) & SH_TAKES_LABELS,
         reference = dpo && sh_cfg_loss_takes(c->objective.loss_type) & SH_TAKES_REFERENCE;
    const struct {
        const char *key;
        bool used;
        const char *needs;
    } rows[] = {
        {"objective.loss_type", dpo, "objective.name=dpo"},
        {"objective.reference_path", reference, "objective.name=dpo and an objective.loss_type that has a reference"},
        {"validation.reference_path", reference && c->validation.enable,
         "objective.reference_path and validation.enable=true"},
        {"objective.beta", dpo, "objective.name=dpo"},
        {"objective.label_smoothing", dpo, "objective.name=dpo"},
        {"objective.sft_weight", dpo, "objective.name=dpo"},
        {"objective.gamma", dpo && c->objective.loss_type == SH_PREFER_SIMPO, "objective.loss_type=simpo"},
        {"objective.desirable_weight", dpo && labels, "objective.loss_type=kto or apo_zero_unpaired"},
        {"objective.undesirable_weight", dpo && labels, "objective.loss_type=kto or apo_zero_unpaired"},
        {"objective.center_rewards_coefficient", c->objective.name == SH_OBJECTIVE_REWARD, "objective.name=reward"},
        {"objective.teacher_path", teacher, "objective.name=distillation"},
        {"objective.top_k", teacher, "objective.name=distillation"},
        {"objective.temperature", teacher, "objective.name=distillation"},
        {"objective.alpha", teacher, "objective.name=distillation"},
        {"objective.kd_form", teacher, "objective.name=distillation"},
        {"objective.plugin", own || c->objective.name == SH_OBJECTIVE_PLUGIN,
         "objective.name=plugin, or dpo with objective.loss_type=plugin"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!rows[i].used && is_typed(state, rows[i].key))
            return sh_config_refuse(state, rows[i].key, "has no effect without %s", rows[i].needs);
    return SH_OK;
}

static sh_rc refuse_numbers(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    int loss = c->objective.loss_type, takes = sh_cfg_loss_takes(loss);
    double smoothing = c->objective.label_smoothing, sft = c->objective.sft_weight;
    const struct bar rows[] = {
        {smoothing > 0 && !(takes & SH_TAKES_SMOOTHING), "objective.label_smoothing",
         "only objective.loss_type=sigmoid, robust, exo_pair, cpo and simpo have it; leave it out"},
        {smoothing == 0 && loss == SH_PREFER_EXO_PAIR, "objective.label_smoothing",
         "objective.loss_type=exo_pair takes its logarithm; give 0.001, for one"},
        {sft > 0 && loss == SH_PREFER_ORPO, "objective.sft_weight",
         "objective.loss_type=orpo has this loss in itself, with weight 1; leave it out"},
        {sft > 0 && loss == SH_PREFER_PLUGIN, "objective.sft_weight",
         "a loss of a plug-in has the log-probability of the chosen answer, and can add it; leave it out"},
        {sft > 0 && takes & SH_TAKES_LABELS, "objective.sft_weight",
         "it is for pairs; objective.desirable_weight is what chosen answers count"},
    };

    return refuse_first(state, rows, sizeof rows / sizeof *rows);
}

/* The log-probabilities of all targets of a micro-step, in one tensor. */
static sh_rc refuse_beside_own(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    const struct bar rows[] = {
        {!c->objective.plugin[0], "objective.plugin", "no loss is named; give one of a file of plugin.files"},
        {c->parallelism.context_parallel_degree > 1, "parallelism.context_parallel_degree",
         "a loss of a plug-in is made by one rank from whole rows; leave it out"},
        {c->parallelism.tensor_parallel_degree > 1, "parallelism.tensor_parallel_degree",
         "a loss of a plug-in is made by one rank from all words; leave it out"},
        {c->training.row_leaves > 1, "training.row_leaves",
         "a loss of a plug-in has one sum for a micro-step, which leaves cut; leave it out"},
    };

    return refuse_first(state, rows, sizeof rows / sizeof *rows);
}

static sh_rc refuse_beside_answers(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    const struct bar rows[] = {
        {c->parallelism.context_parallel_degree > 1, "parallelism.context_parallel_degree",
         "objective.name=dpo sums over whole answers, and no rank has whole sequences; leave it out"},
        {c->parallelism.tensor_parallel_degree > 1, "parallelism.tensor_parallel_degree",
         "objective.name=dpo scores answers over all words, and no rank has all words; leave it out"},
        {c->training.row_leaves > 1, "training.row_leaves",
         "objective.name=dpo sums over whole answers, which leaves cut; leave it out"},
        {c->data.packing == SH_PACKING_CONCAT, "data.packing",
         "concat cuts pairs of answers; give bfd or none with objective.name=dpo"},
        {c->data.mix[0], "data.mix", "objective.name=dpo has a reference of one set; give training.dataset_path"},
        {c->validation.enable && c->objective.reference_path[0] && !c->validation.reference_path[0],
         "validation.reference_path",
         "objective.reference_path is another model's numbers of the training pairs; give those of "
         "validation.dataset_path too, or validation.enable=false"},
        {c->validation.reference_path[0] && !c->objective.reference_path[0], "objective.reference_path",
         "validation.reference_path is another model's numbers of the validation's pairs; give those of "
         "training.dataset_path too"},
    };

    return refuse_first(state, rows, sizeof rows / sizeof *rows);
}

static sh_rc refuse_beside_teacher(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    const struct bar rows[] = {
        {c->parallelism.tensor_parallel_degree > 1, "parallelism.tensor_parallel_degree",
         "objective.name=distillation compares all words with the teacher's, and no rank has all words; leave it out"},
        {c->objective.kd_form != SH_KD_NORMALIZED && c->objective.temperature != 1, "objective.kd_form",
         "the file has a teacher's probabilities at temperature 1, and at another one those of all words are needed; give "
         "normalized, or objective.temperature=1"},
        {c->data.mix[0], "data.mix",
         "objective.name=distillation has a teacher's tokens of one set; give training.dataset_path"},
    };

    return refuse_first(state, rows, sizeof rows / sizeof *rows);
}

/* Whether the head makes a value of each text. */
static bool makes_value(const struct sh_config *c)
{
    return c->objective.name == SH_OBJECTIVE_REWARD || c->objective.name == SH_OBJECTIVE_REGRESSION;
}

/* Labels of texts: what has been made for the next token only. */
static sh_rc refuse_beside_labels(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    bool value = makes_value(c), multi_label = c->objective.name == SH_OBJECTIVE_MULTI_LABEL;
    const struct bar rows[] = {
        {!sh_family_of(c->model.family)->labels, "model.num_labels",
         "there is no class for labels of this model.family here; leave it out"},
        {c->model.num_labels == 1 && !value, "objective.name",
         "model.num_labels=1 makes a value of a text; give objective.name=regression, which learns numbers, or reward, "
         "which learns from pairs of answers"},
        {c->model.num_labels > 1 && c->objective.name != SH_OBJECTIVE_LM && !multi_label, "objective.name",
         "model.num_labels has a loss of its own; leave it out, or give multi_label, for several labels of a text"},
        {c->data.packing == SH_PACKING_CONCAT, "data.packing",
         "concat cuts texts anywhere, but model.num_labels learns from the end of each; give bfd"},
        {c->data.excess_length_strategy == SH_EXCESS_TRUNCATE || c->data.excess_length_strategy == SH_EXCESS_SPLIT,
         "data.excess_length_strategy", "cuts the label off a text, which is its last token; give drop, or raise"},
        {c->parallelism.tensor_parallel_degree > 1, "parallelism.tensor_parallel_degree",
         "cuts an output matrix of words, and model.num_labels has one of labels; leave it out"},
        {value && c->parallelism.context_parallel_degree > 1, "parallelism.context_parallel_degree",
         "the values of whole texts are compared, and no rank has whole sequences; leave it out"},
        {value && c->training.row_leaves > 1, "training.row_leaves",
         "leaves cut rows, and the values of whole texts are compared; leave it out"},
        {(value || multi_label) && c->data.mix[0], "data.mix",
         "the numbers of texts, and the margins of pairs, are those of one set; give training.dataset_path"},
    };

    if (value && !sh_family_of(c->model.family)->labels)
        return sh_config_refuse(state, "objective.name",
                                "there is no class for values of texts of this model.family here; give lm");
    if (value && c->model.num_labels != 1)
        return sh_config_refuse(state, "objective.name",
                                "needs a model that makes one value of a text; give model.num_labels=1");
    if (multi_label && c->model.num_labels < 2)
        return sh_config_refuse(state, "objective.name",
                                "needs a model with a matrix of labels; give model.num_labels, 2 or more");
    return c->model.num_labels ? refuse_first(state, rows, sizeof rows / sizeof *rows) : SH_OK;
}

/* Pairs and plug-ins make the loss before the output matrix is asked for gradients, whose weights are derivatives. */
static sh_rc refuse_squares(struct sh_config_state *state)
{
    const struct sh_config *c = config_of(state);
    const struct bar rows[] = {
        {c->model.num_labels > 0, "training.z_loss",
         "is for the logits of words, and this model has labels; leave it out"},
        {c->objective.name == SH_OBJECTIVE_DPO, "training.z_loss",
         "weighs targets as their loss is weighed, and objective.name=dpo weighs those of rejected answers below 0; leave it "
         "out"},
        {c->objective.name == SH_OBJECTIVE_PLUGIN, "training.z_loss",
         "a plug-in's loss has the log-probabilities of targets only, and its weights are derivatives; leave it out"},
    };

    return c->training.z_loss == 0 ? SH_OK : refuse_first(state, rows, sizeof rows / sizeof *rows);
}

sh_rc sh_config_check_objective(struct sh_config_state *state)
{
    SH_TRY(refuse_idle(state));
    SH_TRY(refuse_beside_labels(state));
    SH_TRY(refuse_squares(state));
    if (config_of(state)->objective.name == SH_OBJECTIVE_LM || config_of(state)->model.num_labels)
        return SH_OK;
    if (config_of(state)->objective.name == SH_OBJECTIVE_DISTILLATION)
        return refuse_beside_teacher(state);
    if (config_of(state)->objective.name == SH_OBJECTIVE_PLUGIN)
        return refuse_beside_own(state);
    SH_TRY(refuse_numbers(state));
    if (config_of(state)->objective.loss_type == SH_PREFER_PLUGIN)
        SH_TRY(refuse_beside_own(state));
    return refuse_beside_answers(state);
}
