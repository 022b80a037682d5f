#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -e
export PATH=BIN:$PATH

limit=$(squeue --noheader --all --jobs="$SLURM_JOB_ID" --format=%l || true) # below an hour: minutes:seconds
if [[ "$limit" =~ ^([0-9]+):([0-9]+)$ ]] && ((60 * 10#${BASH_REMATCH[1]} + 10#${BASH_REMATCH[2]} < 240)); then
    echo "farandole: a time limit of $limit leaves no time to train before the notice: submit with -t 20" >&2
    exit 2
fi
status=0
farandole run --launcher srun --min-np 2 --max-np 8 python -m train || status=$?
if [ "$status" = 143 ]; then # Slurm has told the workers to end, and they have left at a commit
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
