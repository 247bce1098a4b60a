# shellcheck shell=bash
# Shared by the job scripts: how to call srun, one start of a run, and what to do after it ends.
#
# A run resumes from its newest checkpoint, so a chain of jobs is the same job again and again. One line in the run's
# folder, FOLDER/chain, records the state of the chain:
#
#   chain=ID at=STEP starts=N stopped=REASON
#
# ID is the job ID, which a requeue keeps, or the name that submit-chain gave to all of its jobs. N counts the starts
# from the checkpoint of STEP (-1: from none). The line is written before each start, so a start whose batch node dies
# is counted too.
#
# Folders and files may have any name, and other users may be able to create some. So these scripts never parse a
# configuration or a listing: `sherd config` and `sherd ckpt latest` print what they need, one value per line.

[ "${BASH_SOURCE[0]}" != "$0" ] || { echo "common.sh is what the job scripts share: submit train.sbatch with sbatch" >&2; exit 2; }
SHERD=${SHERD:-sherd}
umask go-w # whatever the user's umask: nobody else may write into what a run creates
fruitless_starts=2 # this many starts without a new checkpoint end a chain
# In an array, name this task only: the job ID of one of the tasks is also the ID of the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-0}}
end_seconds=30 # after the first rank ends, the others have this long to end

say() { printf '%s: %s\n' "${SLURM_JOB_NAME:-sherd}" "$*" >&2; }

command -v "$SHERD" >/dev/null || { say "no program $SHERD: load its module, or set SHERD=/path/to/sherd"; exit 127; }

# stop STATUS REASON...: end this job, and record that no later job of its chain may start the run.
stop() {
    local status=$1
    shift
    say "stopped: $*"
    write_chain "$*"
    exit "$status"
}

# ---------------------------------------------------------------------------------------------------------- the run

# settings KEY... CONFIG [ARGUMENT]...: set the array `values` to the keys' values, none of which has a line break.
settings() {
    local text
    text=$("$SHERD" config get "$@") || return
    mapfile -t values <<<"$text"
}

# look_at_ranks CONFIG [ARGUMENT]...: set `arranged` to yes if the configuration or an argument chooses a strategy or a
# mesh, else to no.
look_at_ranks() {
    local names words='sharding_strategy|zero_stage|data_parallel_(replicate|shard)_degree|fsdp_reshard_after_forward'
    names=$("$SHERD" config given "$@") || return
    arranged=no
    if grep -Exq "parallelism\.($words)|mesh\.(shard|replicate)" <<<"$names"; then arranged=yes; fi
}

# run_arguments CONFIG ARGUMENT...: set the array `run` to the arguments of `sherd train`, and `folder`, `checkpoints`,
# `steps` and `in_hf`. The network is slower between nodes than inside one, so unless the user has chosen a strategy or a mesh,
# parameters are sharded inside each node, and nodes are replicas.
run_arguments() {
    [ $# -gt 0 ] || { say "no configuration given: sbatch ... ${0##*/} CONFIG.yaml [--section.key=value]..."; exit 2; }
    run=("$@")
    look_at_ranks "$@" || exit
    if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] && [ "$arranged" = no ]; then
        run+=(--parallelism.sharding_strategy=hybrid_shard)
        say "hybrid_shard: shards inside a node, a replica on each of $SLURM_JOB_NUM_NODES nodes"
    fi
    settings job.dump_folder checkpoint.folder training.steps checkpoint.last_save_in_hf "${run[@]}" || exit
    folder=${values[0]} checkpoints=${values[1]} steps=${values[2]} in_hf=${values[3]}
    case $folder in -*) folder=./$folder ;; esac # so that no command takes it for an option
    case $checkpoints in /*) ;; *) checkpoints=$folder/$checkpoints ;; esac
}

# Print the step of the newest checkpoint that is whole, or -1 if there is none.
newest_step() { "$SHERD" ckpt latest "$checkpoints"; }

# ---------------------------------------------------------------------------------------------------------- the chain

chain=${SHERD_CHAIN:-${SLURM_JOB_ID:-0}}

# Read the line of this chain. The line of another chain is ignored: a user who starts a run again has reasons to.
read_chain() {
    local line
    at=-1 starts=0 stopped=
    [ -f "$folder/chain" ] || return 0 # opening a FIFO would block
    { read -r line <"$folder/chain"; } 2>/dev/null || return 0
    [[ $line =~ ^chain=([^ ]+)\ at=(-1|[0-9]{1,18})\ starts=([1-9][0-9]{0,8})\ stopped=(.*)$ ]] || return 0
    [ "${BASH_REMATCH[1]}" = "$chain" ] || return 0
    at=${BASH_REMATCH[2]} starts=${BASH_REMATCH[3]} stopped=${BASH_REMATCH[4]}
}

# write_chain [REASON]
write_chain() {
    [ -n "${folder:-}" ] && mkdir -p "$folder" &&
        printf 'chain=%s at=%s starts=%s stopped=%s\n' "$chain" "$at" "$starts" "${1:-}" | replace "$folder/chain"
}

# replace FILE: replace it atomically with standard input. The temporary name cannot be guessed; a link is replaced, not
# followed.
replace() {
    local temp
    temp=$(mktemp "$1.XXXXXXXXXX") || return
    if cat >"$temp" && chmod +r "$temp" && mv -fT "$temp" "$1"; then return; fi
    rm -f "$temp"
    return 1
}

# Whether the run has done all that it should. A job may have been killed between its last checkpoint and the export.
is_finished() { # STEP
    [ "$1" -ge "$steps" ] || return
    [ "$in_hf" = false ] || [ "$1" -gt "$steps" ] || [ -e "$checkpoints/hf-$(printf %08d "$steps")" ]
}

# Count this start, or end the job if the run is finished, its chain was stopped, or its chain makes no progress.
begin_start() {
    local now
    now=$(newest_step) || { say "cannot read $checkpoints"; exit 3; }
    if is_finished "$now"; then
        say "finished before: $checkpoints has step $now of $steps; nothing to do"
        exit 0
    fi
    read_chain
    [ -z "$stopped" ] || { say "this chain was stopped: $stopped"; exit 0; }
    [ "$now" = "$at" ] || starts=0
    at=$now starts=$((starts + 1))
    [ "$starts" -le "$fruitless_starts" ] || stop 5 "$fruitless_starts starts from $(name_step "$at") left no new checkpoint"
    write_chain || { say "cannot write $folder/chain"; exit 3; }
}

name_step() { [ "$1" -ge 0 ] && echo "step $1" || echo "the beginning"; }

# Print what an exit status means: finished, again (the run can resume), or a reason to stop. The classes are those of
# `man sherd`; a status that is none of them comes from Slurm or a signal: a rank or a node was lost.
judge() {
    case $1 in
    0) echo finished ;;
    2) echo "the command line, the configuration or the mesh is wrong" ;;
    3) echo "a file cannot be used: data, checkpoint or folder" ;;
    4) echo "there is not enough memory" ;;
    6) echo "NaN, infinity or too many bad steps in training" ;;
    7) echo "replicas differ: the memory or a processor of a node has failed" ;;
    70) echo "a bug in sherd" ;;
    126 | 127) echo "$SHERD cannot be started" ;;
    *) echo again ;;
    esac
}

# Stop here if another process has become the script of this job: keep-going.sbatch has one that does.
stand_aside() { :; }

# finish STATUS: end this job with the status of its run; start it again if that can help.
finish() {
    local verdict now
    stand_aside
    verdict=$(judge "$1")
    case $verdict in
    finished) exit 0 ;;
    again)
        [ "${cancelled:-no}" = no ] || {
            say "ended by Slurm (scancel, time limit, a lost node), which decides what follows"
            exit "$1"
        }
        ;;
    *) stop "$1" "$verdict (exit status $1)" ;;
    esac
    now=$(newest_step) || now=$at
    if [ "$starts" -ge "$fruitless_starts" ] && [ "$now" = "$at" ]; then
        stop "$1" "$starts starts from $(name_step "$at") left no new checkpoint; the last one ended with $1"
    fi
    again "$1" "$now"
}

# Whether this job has been queued again since it began here: what is done to it would hit its next life. Sets `restarts`, to nothing
# if Slurm cannot be asked.
is_next_life() {
    restarts=$(timeout 60 scontrol show job "$job" 2>/dev/null | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p')
    restarts=${restarts%%$'\n'*}
    [ -n "$restarts" ] && [ "$restarts" -ne "${SLURM_RESTART_COUNT:-0}" ]
}

# again STATUS STEP: requeue this job, or, in a chain of submit-chain, leave the restart to the next job. A requeue
# sends this script SIGTERM, which is ignored because it could cut off the line that reports the requeue.
again() {
    local after
    after="ended with $1 after $(name_step "$2")"
    trap '' TERM USR1
    if [ -n "${SHERD_CHAIN:-}" ]; then
        say "$after; the next job of the chain continues"
    elif is_next_life; then
        queued=yes
        say "$after; the job has been queued again already"
    elif scontrol requeue "$job"; then
        # shellcheck disable=SC2034 # keep-going.sbatch ends a job without a script that is not queued again
        queued=yes
        say "$after; queued again"
    else
        say "$after; Slurm refused the requeue: unless it has requeued the job itself, use jobscripts/submit-chain"
    fi
    exit "$1"
}

# ---------------------------------------------------------------------------------------------------------- the step

# Choose the protocol between srun and the MPI that sherd runs with: one that it was not built with, if it takes any. SLURM_MPI_TYPE is Slurm's own variable for it.
choose_protocol() {
    local wanted have
    [ -z "${SLURM_MPI_TYPE:-}" ] || return 0
    have=$(srun --mpi=list 2>&1)
    case $("$SHERD" --version | grep "^runs with" || "$SHERD" --version | grep "^built with") in
    *"Open MPI"*) wanted=pmix ;;
    *"Intel MPI"*) wanted=pmi2 ;;
    *MPICH*) [ -n "${CRAY_MPICH_VERSION:-}" ] && wanted=cray_shasta || wanted=pmi2 ;;
    *) return 0 ;; # the site's default
    esac
    grep -qw "$wanted" <<<"$have" || {
        say "this Slurm has no --mpi=$wanted, which this sherd needs; it has: $(tail -n +2 <<<"$have" | xargs)"
        exit 2
    }
    export SLURM_MPI_TYPE=$wanted
}

# Export the end of the job, in seconds since 1970, so that the run can stop in time. Newer Slurm sets it.
know_the_end() {
    local end
    end=$(squeue -h -j "$job" -o %e)
    [ -z "$end" ] || end=$(date -d "$end" +%s 2>/dev/null) || end=
    export SHERD_END_TIME=${SLURM_JOB_END_TIME:-$end}
}

# Set how srun places and ends ranks, through srun's own variables, so that the user's settings win. Ranks are placed in
# blocks, so that neighbours share a node, and each rank has its own cores. When one rank ends, the others have some
# seconds to end. They are never killed at once (--kill-on-bad-exit), whatever the user's setting: that would kill ranks
# that are about to exit with the class of an error, and 143 would hide the class.
place_ranks() {
    export SLURM_DISTRIBUTION=${SLURM_DISTRIBUTION:-block:block} SLURM_CPU_BIND=${SLURM_CPU_BIND:-cores}
    export SLURM_KILL_BAD_EXIT=0 SLURM_WAIT=${SLURM_WAIT:-$end_seconds}
    # Since Slurm 22.05 srun no longer takes this from sbatch.
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
}

# Wait for the srun that was started last, in the background, so that this script can handle signals.
await_step() {
    local status
    srun_pid=$!
    while wait "$srun_pid"; status=$?; kill -0 "$srun_pid" 2>/dev/null; do :; done
    return "$status"
}

# step COMMAND...: run it with one rank per task.
step() {
    SHERD_LAUNCHED=$(date +%s.%N) srun "$@" &
    await_step
}

# A cancelled job starts nothing more, whatever the step that heard the signal ended with.
go_on_unless_cancelled() { [ "${cancelled:-no}" = no ] || finish 143; }

# check_ranks: compare the programs of all ranks before any of them starts. The GPUs may not be visible on this node, so
# a plan that does not fit in memory does not end the job here: training knows better. The numbers of ranks and of ranks
# per node are Slurm's, unless the run sets them.
check_ranks() {
    local names text status arguments=() ranks=${SLURM_NTASKS:-} each=${SLURM_NTASKS_PER_NODE:-}
    [ -n "$ranks" ] || [ -z "$each" ] || ranks=$((each * ${SLURM_JOB_NUM_NODES:-1}))
    [ -n "$ranks" ] || return 0
    names=$("$SHERD" config given "${run[@]}") || return
    grep -Fxq mesh.ranks <<<"$names" || arguments+=(--ranks "$ranks")
    [[ ! $each =~ ^[0-9]+$ ]] || grep -Fxq mesh.ranks_per_node <<<"$names" || arguments+=("--mesh.ranks_per_node=$each")
    text=$("$SHERD" plan "${run[@]}" "${arguments[@]}" --check)
    status=$?
    sed -n '/^check /,$p' <<<"$text" >&2
    [ "$status" -ne 4 ] || status=0
    return "$status"
}

# start ARGUMENT...: do one whole start of a run.
start() {
    run_arguments "$@"
    begin_start
    choose_protocol
    place_ranks
    know_the_end
    # Slurm signals the steps (--signal=USR1@...), or with B: only this script, which then forwards the signal.
    trap 'kill -USR1 "$srun_pid" 2>/dev/null' USR1
    trap 'cancelled=yes' TERM
    say "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NUM_NODES nodes from $(name_step "$at"): $SLURM_JOB_NODELIST"
    check_ranks || finish $?
    step "$SHERD" doctor "${run[@]}" || finish $?
    go_on_unless_cancelled
    step "$SHERD" train "${run[@]}"
    finish $?
}
