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

status=0
farandole run --launcher srun --min-np 2 --max-np 8 python -m train || status=$?
if [ "$status" = 143 ]; then # Slurm has told the workers to end, and they have left at a commit
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
