# shellcheck shell=bash
# What the job scripts share: which srun, one start of a run, and what follows from how it ended.
#
# A run goes on from its newest checkpoint, so a chain of jobs is the same job again and again. One line in the run's folder,
# FOLDER/chain, says where the chain stands:
#
#   chain=ID at=STEP starts=N stopped=REASON
#
# ID is the job's number, which a requeue keeps, or what submit-chain gave to all of its jobs; N counts the starts from the
# checkpoint of STEP (-1: from none). It is written before each start, so that a chain whose batch node dies is counted too.

#
# Folders and files may have any name, and others may be able to put some there. So nothing here takes a file or a listing
# apart: `sherd config` and `sherd ckpt latest` say what is needed, a value a line.

SHERD=${SHERD:-sherd}
umask go-w # whatever the user's is: nobody else writes into what a run makes
fruitless_starts=2 # so many starts that leave no new checkpoint end a chain
# Of an array this task only: the number of one of them is also that of the whole.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-0}}
end_seconds=30 # after the first rank that ends, the others have this long

say() { printf '%s: %s\n' "${SLURM_JOB_NAME:-sherd}" "$*" >&2; }

# stop STATUS REASON...: no job of this chain starts again.
stop() {
    local status=$1
    shift
    say "stopped: $*"
    write_chain "$*"
    exit "$status"
}

# ---------------------------------------------------------------------------------------------------------- the run

# settings KEY... CONFIG [ARGUMENT]...: sets the array `values`. No value has a line break in it.
settings() {
    local text
    text=$("$SHERD" config get "$@") || return
    mapfile -t values <<<"$text"
}

# look_at_ranks CONFIG [ARGUMENT]...: sets `arranged`, whether they say how the ranks are to be arranged.
look_at_ranks() {
    local names words='sharding_strategy|zero_stage|data_parallel_(replicate|shard)_degree|fsdp_reshard_after_forward'
    names=$("$SHERD" config given "$@") || return
    arranged=no
    if grep -Exq "parallelism\.($words)|mesh\.(shard|replicate)" <<<"$names"; then arranged=yes; fi
}

# run_arguments CONFIG ARGUMENT...: sets the array `run`, the arguments of `sherd train`. Between nodes the network is slower
# than inside: where nobody has decided, parameters are sharded inside each node, and nodes are replicas.
run_arguments() {
    [ $# -gt 0 ] || { say "which configuration? sbatch ... ${0##*/} CONFIG.yaml [--section.key=value]..."; exit 2; }
    run=("$@")
    look_at_ranks "$@" || exit
    if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] && [ "$arranged" = no ]; then
        run+=(--parallelism.sharding_strategy=hybrid_shard)
        say "hybrid_shard: shards inside a node, a replica on each of $SLURM_JOB_NUM_NODES nodes"
    fi
    settings job.dump_folder checkpoint.folder training.steps "${run[@]}" || exit
    folder=${values[0]} checkpoints=${values[1]} steps=${values[2]}
    case $folder in -*) folder=./$folder ;; esac # which no command takes for an option
    case $checkpoints in /*) ;; *) checkpoints=$folder/$checkpoints ;; esac
}

# The step of the newest checkpoint that is whole, -1 without one.
newest_step() { "$SHERD" ckpt latest "$checkpoints"; }

# ---------------------------------------------------------------------------------------------------------- the chain

chain=${SHERD_CHAIN:-${SLURM_JOB_ID:-0}}

# Another chain's line is not this one's business: a user who starts a run anew has reasons.
read_chain() {
    local line
    at=-1 starts=0 stopped=
    [ -f "$folder/chain" ] || return 0 # a FIFO would be waited for
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

# replace FILE: by what is read, in one step and under a name that nobody knows before; a link is replaced, not followed.
replace() {
    local temp
    temp=$(mktemp "$1.XXXXXXXXXX") || return
    if cat >"$temp" && chmod +r "$temp" && mv -fT "$temp" "$1"; then return; fi
    rm -f "$temp"
    return 1
}

# Count this start, or end here: a run that is finished, a chain that was stopped, one that gets nowhere.
begin_start() {
    local now
    now=$(newest_step) || { say "cannot read $checkpoints"; exit 3; }
    if [ "$now" -ge "$steps" ]; then
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

# What an exit status is: finished, again (the run can go on), or a reason to stop. The classes are those of `man sherd`; whatever
# is none of them comes from Slurm or a signal: a rank or a node was lost.
judge() {
    case $1 in
    0) echo finished ;;
    2) echo "the command line, the configuration or the mesh is wrong" ;;
    3) echo "a file cannot be used: data, checkpoint or folder" ;;
    4) echo "memory does not suffice" ;;
    6) echo "the numbers of the training are not sound" ;;
    7) echo "replicas differ: a node computes or stores wrongly" ;;
    70) echo "a defect of sherd" ;;
    126 | 127) echo "$SHERD cannot be started" ;;
    *) echo again ;;
    esac
}

# finish STATUS: end this job as its run has ended; start it again where that can help.
finish() {
    local verdict now
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

# again STATUS STEP: a job of submit-chain leaves it to the next one. A requeue sends this script SIGTERM, which could break off the
# line that says so.
again() {
    local after
    after="ended with $1 after $(name_step "$2")"
    trap '' TERM USR1
    if [ -n "${SHERD_CHAIN:-}" ]; then
        say "$after; the next job of the chain goes on"
    elif scontrol requeue "$job"; then
        say "$after; queued again"
    else
        say "$after; Slurm took no requeue: it has queued the job itself, or use jobscripts/submit-chain here"
    fi
    exit "$1"
}

# ---------------------------------------------------------------------------------------------------------- the step

# The protocol between srun and the MPI that sherd was built with. SLURM_MPI_TYPE is Slurm's own way to say it.
choose_protocol() {
    local wanted have
    [ -z "${SLURM_MPI_TYPE:-}" ] || return 0
    have=$(srun --mpi=list 2>&1)
    case $("$SHERD" --version | grep "^built with") in
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

# The end of the job in seconds since 1970, for a run that stops in time. Newer Slurm says it.
know_the_end() {
    local end
    end=$(squeue -h -j "$job" -o %e)
    [ -z "$end" ] || end=$(date -d "$end" +%s 2>/dev/null) || end=
    export SHERD_END_TIME=${SLURM_JOB_END_TIME:-$end}
}

# How srun places and ends ranks, in its own variables, so that what the user has set holds: in blocks, so that neighbours
# share a node; on cores of their own; when one ends, the others have some seconds. Not at once (--kill-on-bad-exit): that would
# kill ranks which are about to end with the class of an error, and 143 would hide it.
place_ranks() {
    export SLURM_DISTRIBUTION=${SLURM_DISTRIBUTION:-block:block} SLURM_CPU_BIND=${SLURM_CPU_BIND:-cores}
    export SLURM_KILL_BAD_EXIT=0 SLURM_WAIT=${SLURM_WAIT:-$end_seconds}
    # Since 22.05 srun does not take this from sbatch by itself.
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
}

# step COMMAND...: one rank a task. In the background, so that this script can take signals.
step() {
    local status
    srun "$@" &
    srun_pid=$!
    while wait "$srun_pid"; status=$?; kill -0 "$srun_pid" 2>/dev/null; do :; done
    return "$status"
}

# check_ranks: compare the programs of all ranks before any of them starts. On this node, where nobody may see the GPUs, memory
# is no reason to end: training knows better. Ranks and nodes are Slurm's, unless the run says what they are.
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

# start ARGUMENT...: everything of one start.
start() {
    run_arguments "$@"
    begin_start
    choose_protocol
    place_ranks
    know_the_end
    # Slurm signals the steps (--signal=USR1@...), and with B: only this script, which then hands it on.
    trap 'kill -USR1 "$srun_pid" 2>/dev/null' USR1
    trap 'cancelled=yes' TERM
    say "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NUM_NODES nodes from $(name_step "$at"): $SLURM_JOB_NODELIST"
    check_ranks || finish $?
    step "$SHERD" doctor "${run[@]}" || finish $?
    step "$SHERD" train "${run[@]}"
    finish $?
}
