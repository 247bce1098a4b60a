/* Keys that another key leaves without effect. */
#include "src/config/check/check.h"

#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"

/* Which keys move optimizer states to a lower tier, which move anything, and which move anything to a file. */
#define TAIL "lr_scheduler.decay_type=wsd or power_tail"
#define STATES_AWAY "offload.optimizer=cpu or nvme, or offload.mode=memory_budget"
#define UPDATE_MOVES STATES_AWAY ", or optimizer.name=muon or normuon"
#define DYNAMIC "training.mixed_precision_param=float16 and training.loss_scale=dynamic"
#define ANYWHERE_ELSE "offload.mode=memory_budget, or another key of offload that moves tensors off the device"
#define IN_A_FILE "offload.optimizer, offload.gradients or offload.activations=nvme, or offload.mode=memory_budget"

/* Whether the positions of any block turn at frequencies of model.rope_theta. */
static bool has_theta(const struct sh_model *m)
{
    const unsigned without = SH_LAYER_NOPE | SH_LAYER_LINEAR | SH_LAYER_MLP | SH_LAYER_MOE |
                             (m->rope_local_base_freq != 0 ? SH_LAYER_SLIDING : 0);
    for (int i = 0; i < m->n_layers && !sh_family_of(m->family)->learned_positions; i++)
        if (!(sh_layers_kind(m, i) & without))
            return true;
    return false;
}

/* Refuse what was typed on the command line and has no effect because of another key. In a file such keys are allowed:
 * every printed configuration has them, and they may serve a mode that the command line chooses. */
sh_rc sh_config_check_idle(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const bool half = c->training.mixed_precision_param == SH_PRECISION_FLOAT16;
    const bool dynamic = half && c->training.loss_scale == SH_LOSS_SCALE_DYNAMIC;
    bool budget = c->offload.mode == SH_OFFLOAD_BUDGET, states = budget || c->offload.optimizer != SH_OFFLOAD_NONE;
    bool file = (budget && c->training.device != SH_DEVICE_CUDA) || c->offload.optimizer == SH_OFFLOAD_NVME ||
                c->offload.gradients == SH_OFFLOAD_NVME || c->offload.activations == SH_OFFLOAD_NVME;
    bool moves = file || states || c->offload.gradients != SH_OFFLOAD_NONE ||
                 c->offload.parameters != SH_OFFLOAD_NONE || c->offload.activations != SH_OFFLOAD_NONE;
    const struct {
        const char *name, *needs;
        bool used;
    } keys[] = {
        {"training.loss_scale", "training.mixed_precision_param=float16", half},
        {"training.loss_scale_init", DYNAMIC, dynamic},
        {"training.loss_scale_window", DYNAMIC, dynamic},
        {"training.row_leaves", "training.reproducible=mesh", c->training.reproducible == SH_REPRODUCIBLE_MESH},
        {"parallelism.context_parallel_method", "parallelism.context_parallel_degree above 1",
         c->parallelism.context_parallel_degree > 1},
        {"model.rope_theta", "blocks with rotary positions of this base", has_theta(&c->model)},
        {"model.rope_type", "model.rope_factor", c->model.rope_factor != 0},
        {"model.rope_low_freq_factor", "model.rope_type=llama3", c->model.rope_type == SH_ROPE_LLAMA3},
        {"model.rope_high_freq_factor", "model.rope_type=llama3", c->model.rope_type == SH_ROPE_LLAMA3},
        {"model.rope_original_max_len", "model.rope_type=llama3, yarn or longrope",
         c->model.rope_type != SH_ROPE_LINEAR},
        {"model.rope_short_factor", "model.rope_type=longrope", c->model.rope_type == SH_ROPE_LONG},
        {"model.rope_long_factor", "model.rope_type=longrope", c->model.rope_type == SH_ROPE_LONG},
        {"model.rope_beta_fast", "model.rope_type=yarn", c->model.rope_type == SH_ROPE_YARN},
        {"model.rope_beta_slow", "model.rope_type=yarn", c->model.rope_type == SH_ROPE_YARN},
        {"model.rope_attention_factor", "model.rope_type=yarn or longrope",
         c->model.rope_type == SH_ROPE_YARN || c->model.rope_type == SH_ROPE_LONG},
        {"model.rope_truncate", "model.rope_type=yarn", c->model.rope_type == SH_ROPE_YARN},
        {"activation_checkpoint.every_k", "activation_checkpoint.mode=every_k",
         c->activation_checkpoint.mode == SH_RECOMPUTE_EVERY_K},
        {"comm.share_gpu", "GPUs, but training.device is cpu", c->training.device != SH_DEVICE_CPU},
        {"comm.nccl_max_ctas", "GPUs and comm.backend=nccl",
         c->training.device != SH_DEVICE_CPU && c->comm.backend != SH_COMM_MPI},
        {"guard.max_skips", "guard.action=skip", c->guard.action == SH_GUARD_SKIP},
        {"guard.max_rollbacks", "guard.action=rollback", c->guard.action == SH_GUARD_ROLLBACK},
        {"lr_scheduler.decay_ratio", TAIL, sh_cfg_decay_has_tail(c->lr_scheduler.decay_type)},
        {"lr_scheduler.decay_shape", TAIL, sh_cfg_decay_has_tail(c->lr_scheduler.decay_type)},
        {"lr_scheduler.power", "lr_scheduler.decay_type=power or power_tail",
         c->lr_scheduler.decay_type == SH_DECAY_POWER || c->lr_scheduler.decay_type == SH_DECAY_POWER_TAIL},
        {"lr_scheduler.min_lr_factor", "a decay_type that ends",
         c->lr_scheduler.decay_type != SH_DECAY_CONSTANT && c->lr_scheduler.decay_type != SH_DECAY_POWER},
        {"checkpoint.export_dtype", "checkpoint.last_save_in_hf=true", c->checkpoint.last_save_in_hf},
        {"checkpoint.initial_load_in_hf", "model.hf_assets_path", c->hf.assets_path[0] != '\0'},
        {"checkpoint.last_save_in_hf", "checkpoint.enable=true", c->checkpoint.enable},
        {"checkpoint.near_limit_bytes", "checkpoint.near_interval=1 or more", c->checkpoint.near_interval > 0},
        {"checkpoint.near_copies", "checkpoint.near_interval=1 or more", c->checkpoint.near_interval > 0},
        {"checkpoint.near_distance", "checkpoint.near_copies=2", c->checkpoint.near_copies > 1},
        {"checkpoint.near_silence_seconds", "checkpoint.near_interval=1 or more", c->checkpoint.near_interval > 0},
        {"checkpoint.max_shard_size", "checkpoint.last_save_in_hf=true", c->checkpoint.last_save_in_hf},
        {"model.hf_ignore", "model.hf_assets_path", c->hf.assets_path[0] != '\0'},
        {"data.excess_length_strategy", "data.packing=bfd or none", c->data.packing != SH_PACKING_CONCAT},
        {"offload.optimizer_ratio", "offload.optimizer=cpu or nvme", c->offload.optimizer != SH_OFFLOAD_NONE},
        {"offload.overlap_update", UPDATE_MOVES, states || sh_cfg_is_muon(c->optimizer.name)},
        {"offload.activation_ratio", "offload.activations=cpu or nvme", c->offload.activations != SH_OFFLOAD_NONE},
        {"offload.buffer_count", STATES_AWAY, states},
        {"offload.verify", IN_A_FILE, file},
        {"offload.allow_network", IN_A_FILE, file},
        {"offload.nvme_limit_bytes", IN_A_FILE, file},
        {"offload.nvme_path", IN_A_FILE, file},
        {"offload.rates", ANYWHERE_ELSE, moves},
        {"memory.host_limit_bytes", "GPUs, but training.device is cpu", c->training.device != SH_DEVICE_CPU},
        {"debug.fingerprint_steps", "debug.fingerprint", c->debug.fingerprint[0] != '\0'},
        {"mup.base_dim", "mup.enable=true", c->optimizer.mup},
        {"lora.alpha", "lora.rank", c->lora.rank > 0},
        {"lora.target_modules", "lora.rank", c->lora.rank > 0},
        {"lora.target_parameters", "lora.rank", c->lora.rank > 0},
        {"lora.use_rslora", "lora.rank", c->lora.rank > 0},
        {"lora.quantize_base", "lora.rank", c->lora.rank > 0},
        {"lora.adapter_path", "lora.rank", c->lora.rank > 0},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!keys[i].used && sh_config_place_typed(sh_config_place_of(state, keys[i].name)))
            return sh_config_refuse(state, keys[i].name, "has no effect without %s", keys[i].needs);
    return SH_OK;
}
